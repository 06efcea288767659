import os, torch, delta

torch.manual_seed(0)
M, N, C, D = 2, 3, 64, 128


def mk():
    g = torch.Generator().manual_seed(3)
    r = lambda *s: (torch.randn(*s, generator=g) * 0.1).requires_grad_()
    return r(M, N, C, D), r(M, N, C, D), r(M, N, D, C), torch.rand(M, N, generator=g).requires_grad_()


def ref(w, u, kd, l):
    s = torch.zeros(M, D, D)
    S = []
    V = []
    for i in range(N):
        S.append(s)
        v = u[:, i] - w[:, i] @ s
        V.append(v)
        s = s * l[:, i, None, None] + kd[:, i] @ v
    return torch.stack(S, 1), torch.stack(V, 1)


G = torch.randn(M, N, D, D), torch.randn(M, N, C, D)
res = []
for f, tri in ((ref, 0), (delta.scan, 0), (delta.scan, 1)):
    if tri and not os.environ.get("TRITON_INTERPRET"):
        continue
    delta.FORCE_TRITON = bool(tri)
    x = mk()
    S, v = f(*x)
    ((S * G[0]).sum() + (v * G[1]).sum()).backward()
    res.append([S.detach(), v.detach()] + [t.grad for t in x])
for r in res[1:]:
    print([f"{((a - b).norm() / a.norm()).item():.1e}" for a, b in zip(res[0], r)])
A0 = (-torch.rand(3, 2, 64, 64)).tril(-1) * 0.9
out = []
for mode in (0, 1, 2):
    if mode == 2 and not os.environ.get("TRITON_INTERPRET"):
        continue
    delta.FORCE_TRITON = mode == 2
    A = A0.clone().double() if mode == 0 else A0.clone()
    A.requires_grad_()
    if mode == 0:
        X = torch.linalg.inv(torch.eye(64, dtype=torch.double) - A.tril(-1))
    else:
        X = delta.tri_inv(A)
    (X * torch.linspace(-1, 1, 64, dtype=X.dtype)).sum().backward()
    out.append((X.detach(), A.grad))
for o in out[1:]:
    print([f"{((a - b).norm() / a.norm()).item():.1e}" for a, b in zip(out[0], o)])
