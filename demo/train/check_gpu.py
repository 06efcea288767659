import torch, time, delta

torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
M, N, C, D = 256, 16, 64, 128


def mk(dt):
    g = torch.Generator().manual_seed(3)
    r = lambda *s: torch.randn(*s, generator=g) * 0.1
    return [
        t.to("cuda", dt).requires_grad_()
        for t in (r(M, N, C, D), r(M, N, C, D), r(M, N, D, C), torch.rand(M, N, generator=g))
    ]


def ref(w, u, kd, l):
    s = torch.zeros(M, D, D, device="cuda", dtype=w.dtype)
    S = []
    V = []
    for i in range(N):
        S.append(s)
        v = u[:, i] - w[:, i] @ s
        V.append(v)
        s = s * l[:, i, None, None] + kd[:, i] @ v
    return torch.stack(S, 1), torch.stack(V, 1)


G = torch.randn(M, N, D, D, device="cuda"), torch.randn(M, N, C, D, device="cuda")
res = []
for f, dt in ((ref, torch.float64), (delta.scan, torch.float32), (ref, torch.float32)):
    x = mk(dt)
    S, v = f(*x)
    ((S * G[0].to(dt)).sum() + (v * G[1].to(dt)).sum()).backward()
    res.append([S.detach(), v.detach()] + [t.grad for t in x])
for r in res[1:]:
    assert all(((a - b).norm() / a.norm()).item() < 3e-2 for a, b in zip(res[0], r))
    print([f"{((a - b).norm() / a.norm()).item():.1e}" for a, b in zip(res[0], r)])
x = mk(torch.float32)
for _ in range(2):
    torch.cuda.synchronize()
    t = time.time()
    S, v = delta.scan(*x)
    torch.cuda.synchronize()
    t1 = time.time()
    torch.autograd.grad((S, v), x, (G[0], G[1]))
    torch.cuda.synchronize()
    print("scan ms", (t1 - t) * 1e3, "bwd", (time.time() - t1) * 1e3)

A0 = (-torch.rand(64, 16, 64, 64, device="cuda")).tril(-1) * 0.9
A = A0.clone().requires_grad_()
X = delta.tri_inv(A)
(X * torch.linspace(-1, 1, 64, device="cuda")).sum().backward()
B = A0.double().requires_grad_()
Y = torch.linalg.inv(torch.eye(64, device="cuda", dtype=torch.double) - B.tril(-1))
(Y * torch.linspace(-1, 1, 64, device="cuda", dtype=torch.double)).sum().backward()
e = [((Y - X).norm() / Y.norm()).item(), ((B.grad - A.grad).norm() / B.grad.norm()).item()]
print("inv", e)
assert e[0] < 1e-4 and e[1] < 1e-2
A = A0.repeat(4, 1, 1, 1)
for _ in range(2):
    torch.cuda.synchronize()
    t = time.time()
    delta.tri_inv(A)
    torch.cuda.synchronize()
    print("inv ms", (time.time() - t) * 1e3)
