"""Batched sampling from the teacher (a small Llama-layout model stored as GGUF Q4_1/Q8_0).

All rows of a batch share one position counter: while a row still has prompt tokens they are
fed in, afterwards the sampled token is.  Finished rows are dropped now and then, so the batch shrinks.
"""

import json, time
import numpy as np, torch
import torch.nn.functional as F

HID, LAYERS, NH, NKV, HD, VOCAB = 576, 30, 9, 3, 64, 49152
EOS, EPS, THETA = 2, 1e-5, 100000.0


def dequant(buf, info, dev):
    raw = torch.from_numpy(np.frombuffer(buf, np.uint8, info["nbytes"], info["offset"]).copy()).to(dev)
    shape = info["shape"]
    if info["type"] == "F32":
        return raw.view(torch.float32).reshape(shape)
    if info["type"] == "Q8_0":
        b = raw.reshape(-1, 34)
        d = b[:, :2].contiguous().view(torch.float16).float()
        return (b[:, 2:].contiguous().view(torch.int8).float() * d).reshape(shape)
    assert info["type"] == "Q4_1"
    b = raw.reshape(-1, 20)
    d = b[:, 0:2].contiguous().view(torch.float16).float()
    m = b[:, 2:4].contiguous().view(torch.float16).float()
    q = b[:, 4:]
    q = torch.cat([q & 15, q >> 4], 1).float()
    return (q * d + m).reshape(shape)


def unpermute(w, heads):  # GGUF stores rotary pairs interleaved; go back to half-split order
    return w.reshape(heads, HD // 2, 2, -1).swapaxes(1, 2).reshape(heads * HD, -1)


try:
    import triton, triton.language as tl

    @triton.jit
    def _sample(logits, out, temp, seed, V, minp_log, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        base = logits + row.to(tl.int64) * V
        t = tl.load(temp + row)
        mv = tl.full((BLOCK,), -1e30, tl.float32)
        for s in range(0, V, BLOCK):
            x = tl.load(base + s + tl.arange(0, BLOCK)).to(tl.float32)
            mv = tl.maximum(mv, x)
        thr = tl.max(mv, 0) + minp_log * t
        bv = tl.full((BLOCK,), -1e30, tl.float32)
        bi = tl.zeros((BLOCK,), tl.int32)
        for s in range(0, V, BLOCK):
            o = s + tl.arange(0, BLOCK)
            x = tl.load(base + o).to(tl.float32)
            u = tl.rand(seed, row * V + o)
            g = -tl.log(-tl.log(u + 1e-9) + 1e-9)
            y = tl.where(x >= thr, x / t + g, -1e30)
            up = y > bv
            bv = tl.where(up, y, bv)
            bi = tl.where(up, o, bi)
        k = tl.argmax(bv, 0)
        best = tl.sum(tl.where(tl.arange(0, BLOCK) == k, bi, 0), 0)
        tl.store(out + row, best)

    HAVE_TRITON = True
except ImportError:
    HAVE_TRITON = False


class Teacher:
    def __init__(self, path, index, dev="cuda", dtype=torch.bfloat16):
        self.dev, self.dtype = dev, dtype
        buf = open(path, "rb").read()
        T = {t["name"]: t for t in json.load(open(index))}
        g = lambda n: dequant(buf, T[n], dev)
        self.emb = g("token_embd.weight").to(dtype)
        self.fn = g("output_norm.weight").to(dtype)
        self.L = []
        for i in range(LAYERS):
            p = f"blk.{i}."
            self.L.append(
                dict(
                    n1=g(p + "attn_norm.weight").to(dtype),
                    n2=g(p + "ffn_norm.weight").to(dtype),
                    qkv=torch.cat(
                        [
                            unpermute(g(p + "attn_q.weight"), NH),
                            unpermute(g(p + "attn_k.weight"), NKV),
                            g(p + "attn_v.weight"),
                        ]
                    ).to(dtype),
                    o=g(p + "attn_output.weight").to(dtype),
                    gu=torch.cat([g(p + "ffn_gate.weight"), g(p + "ffn_up.weight")]).to(dtype),
                    d=g(p + "ffn_down.weight").to(dtype),
                )
            )
        inv = 1.0 / THETA ** (torch.arange(0, HD, 2, device=dev).float() / HD)
        fr = torch.arange(2048, device=dev).float()[:, None] * inv
        self.cos, self.sin = torch.cat([fr, fr], 1).cos().to(dtype), torch.cat([fr, fr], 1).sin().to(dtype)
        self.sgn = torch.cat([-torch.ones(HD // 2), torch.ones(HD // 2)]).to(dev, dtype)
        self.use_triton = HAVE_TRITON and dev == "cuda"
        self.seed = 1

    def step(self, tok, t, K, V):
        B = tok.shape[0]
        x = F.embedding(tok, self.emb)
        cos, sin = self.cos[t], self.sin[t] * self.sgn
        for i, w in enumerate(self.L):
            h = F.linear(F.rms_norm(x, (HID,), w["n1"], EPS), w["qkv"]).view(B, NH + 2 * NKV, HD)
            qk = h[:, : NH + NKV]
            qk = qk * cos + qk.roll(HD // 2, -1) * sin
            K[i][:, :, t] = qk[:, NH:]
            V[i][:, :, t] = h[:, NH + NKV :]
            a = F.scaled_dot_product_attention(
                qk[:, :NH].reshape(B, NKV, NH // NKV, HD), K[i][:, :, : t + 1], V[i][:, :, : t + 1]
            )
            x = x + F.linear(a.reshape(B, HID), w["o"])
            gu = F.linear(F.rms_norm(x, (HID,), w["n2"], EPS), w["gu"])
            x = x + F.linear(F.silu(gu[:, :1536]) * gu[:, 1536:], w["d"])
        return F.linear(F.rms_norm(x, (HID,), self.fn, EPS), self.emb)

    def sample(self, logits, temp, minp_log):
        if self.use_triton:
            out = torch.empty(logits.shape[0], device=logits.device, dtype=torch.int32)
            self.seed = (self.seed * 1103515245 + 12345) % 2**31
            _sample[(logits.shape[0],)](logits, out, temp, self.seed, VOCAB, minp_log, BLOCK=1024)
            return out.long()
        l = logits.float()
        thr = l.max(-1, keepdim=True).values + minp_log * temp[:, None]
        y = torch.where(l >= thr, l / temp[:, None] - torch.empty_like(l).exponential_().log(), -1e30)
        return y.argmax(-1)

    @torch.inference_mode()
    def generate(self, prompts, max_new, temps, min_p=0.1, stop_frac=0.04, penalty=1.06, window=96):
        """prompts: list of id lists -> list of (ids, finished)"""
        dev, B = self.dev, len(prompts)
        plen_c = [len(p) for p in prompts]
        mp = max(plen_c)
        T = mp + max_new
        pt = torch.full((B, mp), EOS, dtype=torch.int32)
        for i, p in enumerate(prompts):
            pt[i, : len(p)] = torch.tensor(p, dtype=torch.int32)
        pt = pt.to(dev)
        plen = torch.tensor(plen_c, device=dev)
        temp = torch.tensor(temps, device=dev, dtype=torch.float32)
        out = torch.full((B, T), EOS, dtype=torch.int32, device=dev)
        out[:, :mp] = pt
        rows = torch.arange(B, device=dev)
        done = torch.zeros(B, dtype=torch.bool, device=dev)
        fin_all = torch.zeros(B, dtype=torch.bool, device=dev)
        K = [torch.empty(B, NKV, T, HD, device=dev, dtype=self.dtype) for _ in range(LAYERS)]
        V = [torch.empty(B, NKV, T, HD, device=dev, dtype=self.dtype) for _ in range(LAYERS)]
        tok = pt[:, 0].long()
        mlog = float(np.log(min_p))
        steps, first = 0, min(plen_c)
        for t in range(T - 1):
            logits = self.step(tok, t, K, V)
            if penalty > 1 and t >= first:  # lower the odds of recently generated tokens
                lo = max(first, t + 1 - window)
                ids = out[rows, lo : t + 1].long()
                ids = torch.where(torch.arange(lo, t + 1, device=dev)[None] >= plen[:, None], ids, 5)
                v = logits.gather(1, ids)
                logits.scatter_(1, ids, torch.where(v > 0, v / penalty, v * penalty))
            nxt = self.sample(logits, temp, mlog)
            steps += tok.shape[0]
            if t + 1 < mp:
                nxt = torch.where(t + 1 < plen, pt[:, t + 1].long(), nxt)
            gen = t + 1 >= plen
            nxt = torch.where(done, EOS, nxt)
            out[rows, t + 1] = nxt.int()
            done = done | (gen & (nxt == EOS)) | (t + 2 >= plen + max_new)
            fin_all[rows] = fin_all[rows] | (gen & (nxt == EOS))
            tok = nxt
            if t % 16 == 15 and t > min(plen_c):
                alive = (~done).nonzero()[:, 0]
                n = alive.numel()
                if n <= stop_frac * B:
                    break
                if n < 0.85 * tok.shape[0]:
                    for i in range(LAYERS):
                        K[i], V[i] = K[i][alive], V[i][alive]
                    tok, pt, plen, temp, rows, done = (z[alive] for z in (tok, pt, plen, temp, rows, done))
        o, f = out.cpu().numpy(), fin_all.cpu().numpy()
        res = []
        for i in range(B):
            ids = o[i, plen_c[i] :].tolist()
            if EOS in ids:
                ids = ids[: ids.index(EOS)]
            res.append((ids, bool(f[i])))
        return res, steps
