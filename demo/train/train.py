"""Train the demo model.  Progress runs from --p0 to --p1 over --budget seconds, so that a schedule can be
spread over several calls on a machine that may be taken away."""

import argparse, json, math, os, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from model import Cfg, Model

ap = argparse.ArgumentParser()
ap.add_argument("--data")
ap.add_argument("--out", default="out")
ap.add_argument("--resume", default="")
ap.add_argument("--budget", type=float, default=60)
ap.add_argument("--p0", type=float, default=0)
ap.add_argument("--p1", type=float, default=1)
ap.add_argument("--tokens", type=int, default=65536, help="tokens a step")
ap.add_argument("--T", type=int, default=1024)
ap.add_argument("--long-at", type=float, default=0.82)
ap.add_argument("--long-T", type=int, default=4096)
ap.add_argument("--lr", type=float, default=3e-3)
ap.add_argument("--adam-lr", type=float, default=3e-3)
ap.add_argument("--wd", type=float, default=0.1)
ap.add_argument("--aux", type=float, default=0.01)
ap.add_argument("--steps", type=int, default=10**9)
ap.add_argument("--compile", type=int, default=1)
ap.add_argument("--bench", action="store_true")
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--tiny", action="store_true")
ap.add_argument("--save-every", type=float, default=120)
A = ap.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(A.seed)
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
torch._dynamo.config.cache_size_limit = 64
os.makedirs(A.out, exist_ok=True)
T0 = time.time()


class Data:
    """tokens.bin: uint16 stream; docs.npy: [n,3] start, length, flags (1 = only before the long phase)."""

    def __init__(s, path, seed):
        s.tok = torch.from_numpy(np.fromfile(f"{path}/tokens.bin", np.uint16).astype(np.int32)).to(dev)
        s.docs = np.load(f"{path}/docs.npy")
        s.r = np.random.default_rng(seed)
        s.key = None
        s.epochs = 0

    def batch(s, B, T, late):
        if s.key != (T, late):
            ok = s.docs[:, 1] <= T + 1
            if late:
                ok &= (s.docs[:, 2] & 1) == 0
            s.pool = s.docs[ok]
            s.key = (T, late)
            s.perm = s.r.permutation(len(s.pool))
            s.i = 0
        idx = np.empty((B, T + 1), np.int64)
        for b in range(B):
            n = 0
            while n < T + 1:
                if s.i >= len(s.perm):
                    s.perm = s.r.permutation(len(s.pool))
                    s.i = 0
                    s.epochs += 1
                st, ln, _ = s.pool[s.perm[s.i]]
                s.i += 1
                k = min(ln, T + 1 - n)
                idx[b, n : n + k] = np.arange(st, st + k)
                n += k
        x = s.tok[torch.from_numpy(idx).to(dev, non_blocking=True)].long()
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def ns(G):
    X = G.bfloat16() if dev == "cuda" else G.float()
    tr = X.shape[-2] > X.shape[-1]
    if tr:
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        Y = X @ X.mT
        X = 3.4445 * X + (-4.7750 * Y + 2.0315 * (Y @ Y)) @ X
    return X.mT if tr else X


class Muon:
    def __init__(s, params, mom=0.95):
        s.mom = mom
        s.g = {}
        for p in params:
            shp = p.shape if p.dim() == 2 else (64, p.shape[-1]) if p.shape[1] != 256 else p.shape[1:]
            s.g.setdefault(tuple(shp), []).append(p)
        s.buf = {k: torch.zeros(sum(p.numel() for p in v) // (k[0] * k[1]), *k, device=dev) for k, v in s.g.items()}

    def step(s, lr, wd):
        for k, ps in s.g.items():
            g = torch.cat([p.grad.reshape(-1, *k) for p in ps])
            b = s.buf[k]
            b.lerp_(g, 1 - s.mom)
            u = ns(g.lerp_(b, s.mom)).float() * (0.2 * max(k) ** 0.5 * -lr)
            ups = [x.reshape(p.shape) for x, p in zip(u.split([p.numel() // (k[0] * k[1]) for p in ps]), ps)]
            d = [p.data for p in ps]
            torch._foreach_mul_(d, 1 - lr * wd)
            torch._foreach_add_(d, ups)


c = Cfg(vocab=512, layers=4, hid=64, heads=2, hd=64, rot=16, ld=64, experts=8, topk=2) if A.tiny else Cfg()
m = Model(c).to(dev)
mu, ad, ad0 = [], [], []
for n, p in m.named_parameters():
    if p.dim() < 2 or "conv1d" in n:
        ad0.append(p)
    elif any(k in n for k in ("embed", "lm_head", "mlp.gate.weight", "shared_expert_gate", "in_proj_a", "in_proj_b")):
        ad.append(p)
    else:
        mu.append(p)
if A.tiny:
    ad += [p for p in mu if p.dim() == 3]
    mu = [p for p in mu if p.dim() == 2]
muon = Muon(mu)
adam = torch.optim.AdamW(
    [dict(params=ad, weight_decay=A.wd), dict(params=ad0, weight_decay=0.0)],
    lr=A.adam_lr,
    betas=(0.9, 0.97),
    eps=1e-10,
    fused=dev == "cuda",
)
step0 = 0
if A.resume and os.path.exists(A.resume):
    ck = torch.load(A.resume, map_location=dev, weights_only=False)
    m.load_state_dict(ck["model"])
    if "adam" in ck:
        adam.load_state_dict(ck["adam"])
        for k in muon.buf:
            muon.buf[k].copy_(ck["muon"][k])
        step0 = ck["step"]
    print("resumed at step", step0)


def head_loss(h, w, y):
    return F.cross_entropy(F.linear(h, w).flatten(0, 1).float(), y.flatten())


if A.compile:
    for l in m.model.layers:
        l.compile(dynamic=False)
    head_loss = torch.compile(head_loss, dynamic=False)


def fwd(x, y):
    with torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"):
        h, aux = m.hidden(x)
        return head_loss(h, m.lm_head.weight, y), aux


def lr_at(p):
    w = min(1.0, p / 0.02) if p < 0.02 else 1.0
    return max(0.02, w) * (1.0 if p < 0.25 else 0.02 + 0.98 * (1 - p) / 0.75)


def evaluate(val, T=1024):
    tot = n = 0
    for i in range(0, val.shape[0], 64):
        v = val[i : i + 64]
        if v.shape[0] < 64:
            break
        l, _ = fwd(v[:, :-1].contiguous(), v[:, 1:].contiguous())
        tot += l.detach().item()
        n += 1
        del l
    return tot / max(n, 1)


def save(path, full=True):
    sd = {k: v.detach().to(torch.bfloat16).cpu() for k, v in m.state_dict().items()}
    torch.save(dict(model=sd), path + ".bf16.tmp")
    os.replace(path + ".bf16.tmp", path + ".bf16.pt")
    if full:
        torch.save(dict(model=m.state_dict(), adam=adam.state_dict(), muon=muon.buf, step=step), path + ".tmp")
        os.replace(path + ".tmp", path + ".full.pt")


class Rand:
    epochs = 0

    def batch(s, B, T, late):
        z = (torch.rand(B, T + 1, device=dev) ** 3 * (c.vocab - 1)).long()
        z[:, T // 2 :] = z[:, : T + 1 - T // 2]
        return z[:, :-1].contiguous(), z[:, 1:].contiguous()


data = Rand() if A.bench else Data(A.data, A.seed + int(A.p0 * 1000))
val = None
if not A.bench and os.path.exists(f"{A.data}/val.bin"):
    v = np.fromfile(f"{A.data}/val.bin", np.uint16).astype(np.int64)
    v = v[: len(v) // 1025 * 1025].reshape(-1, 1025)
    val = torch.from_numpy(v).to(dev)
step, t_start, last, lt, seen, ls, lsave, ln = step0, time.time(), time.time(), 0, 0, [], time.time(), 0
log = open(f"{A.out}/train_log_{A.p0:.2f}.txt", "w")
allp = mu + ad + ad0


def snap():
    st = [x for q in ad + ad0 for x in (adam.state[q]["exp_avg"], adam.state[q]["exp_avg_sq"])] if adam.state else []
    return [x.detach().clone() for x in [*allp, *muon.buf.values(), *st]]


def restore(b):
    st = [x for q in ad + ad0 for x in (adam.state[q]["exp_avg"], adam.state[q]["exp_avg_sq"])]
    with torch.no_grad():
        for x, y in zip([*allp, *muon.buf.values(), *st], b):
            x.copy_(y)


good, bad = None, 0


def say(s):
    print(s, flush=True)
    log.write(s + "\n")
    log.flush()


say(f"setup {time.time() - T0:.1f}s params {sum(p.numel() for p in m.parameters())} muon {sum(p.numel() for p in mu)}")
while True:
    el = time.time() - t_start
    p = A.p0 + (A.p1 - A.p0) * min(1.0, el / A.budget)
    if el >= A.budget or step - step0 >= A.steps:
        break
    late = p >= A.long_at
    T = A.long_T if late else A.T
    x, y = data.batch(A.tokens // T, T, late)
    loss, aux = fwd(x, y)
    (loss + A.aux * aux).backward()
    f = lr_at(p)
    for g in adam.param_groups:
        g["lr"] = A.adam_lr * f
    torch.nn.utils.clip_grad_norm_(ad + ad0, 1.0)
    muon.step(A.lr * f, A.wd)
    adam.step()
    for q in mu + ad + ad0:
        q.grad = None
    step += 1
    seen += x.numel()
    ls.append(loss.detach())
    if step % 50 == 0:
        w = torch.stack(ls[-50:])
        if not torch.isfinite(w).all():
            bad += 1
            say(f"step {step}: loss not finite at {(~torch.isfinite(w)).nonzero()[:3, 0].tolist()}, going back ({bad})")
            if good is None or bad > 20:
                raise SystemExit("giving up")
            restore(good)
            ls = []
            continue
        if step % 200 == 0:
            good = snap()
    if ls and (step <= step0 + 3 or step % 100 == 0):
        L = torch.stack(ls).mean().item()
        ls = []
        now = time.time()
        say(
            f"step {step} p {p:.3f} t {now - t_start:.0f}s T {T} loss {L:.4f} aux {aux.item():.3f} lr {f:.3f} ep {data.epochs} {(seen - lt) / (now - last) / 1e3:.0f}k tok/s"
            + (f" mem {torch.cuda.max_memory_allocated() / 2**30:.1f}G" if dev == "cuda" else "")
        )
        last, lt = now, seen
        if not math.isfinite(L):
            raise SystemExit("loss is not finite")
    if not A.bench and time.time() - lsave > A.save_every:
        lsave = time.time()
        save(f"{A.out}/ck")
        if val is not None:
            say(f"  val {evaluate(val):.4f}")
        last, lt = time.time(), seen
if val is not None:
    say(f"final val {evaluate(val):.4f}")
say(f"steps {step - step0} tokens {seen} in {time.time() - t_start:.0f}s")
if not A.bench:
    save(f"{A.out}/ck")
