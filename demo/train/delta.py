"""The part of the chunked gated delta rule that is sequential over chunks, as a custom op with its gradient.

S_0 = 0;  v_i = u_i - w_i S_i;  S_{i+1} = l_i S_i + kd_i v_i
inputs  w [M,N,C,D], u [M,N,C,D], kd [M,N,D,C], l [M,N]      (M = batch * heads, N = chunks)
outputs S [M,N,D,D] (state before each chunk), v [M,N,C,D]
"""

import torch

try:
    import triton, triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def _fwd(w, u, kd, l, S, v, N, C: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, PREC: tl.constexpr):
        m = tl.program_id(0).to(tl.int64)
        cv = tl.program_id(1) * BV + tl.arange(0, BV)
        rd, rc = tl.arange(0, D), tl.arange(0, C)
        s = tl.zeros((D, BV), tl.float32)
        for i in range(N):
            b = m * N + i
            tl.store(S + b * D * D + rd[:, None] * D + cv[None, :], s)
            W = tl.load(w + b * C * D + rc[:, None] * D + rd[None, :])
            U = tl.load(u + b * C * D + rc[:, None] * D + cv[None, :])
            x = U - tl.dot(W, s, input_precision=PREC)
            tl.store(v + b * C * D + rc[:, None] * D + cv[None, :], x)
            K = tl.load(kd + b * C * D + rd[:, None] * C + rc[None, :])
            s = s * tl.load(l + b) + tl.dot(K, x, input_precision=PREC)

    @triton.jit
    def _bwd(w, kd, l, gS, gv, dS, dv, N, C: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, PREC: tl.constexpr):
        m = tl.program_id(0).to(tl.int64)
        cv = tl.program_id(1) * BV + tl.arange(0, BV)
        rd, rc = tl.arange(0, D), tl.arange(0, C)
        ds = tl.zeros((D, BV), tl.float32)
        for j in range(N):
            b = m * N + (N - 1 - j)
            tl.store(dS + b * D * D + rd[:, None] * D + cv[None, :], ds)
            Kt = tl.load(kd + b * C * D + rc[:, None] + rd[None, :] * C)
            x = tl.load(gv + b * C * D + rc[:, None] * D + cv[None, :]) + tl.dot(Kt, ds, input_precision=PREC)
            tl.store(dv + b * C * D + rc[:, None] * D + cv[None, :], x)
            Wt = tl.load(w + b * C * D + rc[None, :] * D + rd[:, None])
            ds = (
                tl.load(gS + b * D * D + rd[:, None] * D + cv[None, :])
                + tl.load(l + b) * ds
                - tl.dot(Wt, x, input_precision=PREC)
            )

    @triton.jit
    def _inv(A, X, C: tl.constexpr):
        m = tl.program_id(0).to(tl.int64)
        r = tl.arange(0, C)
        x = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
        for i in range(1, C):
            a = tl.load(A + m * C * C + i * C + r)
            a = tl.where(r < i, a, 0.0)
            n = tl.sum(a[:, None] * x, 0)
            x += tl.where(r[:, None] == i, n[None, :], 0.0)
        tl.store(X + m * C * C + r[:, None] * C + r[None, :], x)


FORCE_TRITON = False
BV = 32
PREC = "tf32x3"


@torch.library.custom_op("lilydemo::tri_inv", mutates_args=())
def tri_inv(A: torch.Tensor) -> torch.Tensor:
    """(I - A)^-1 for strictly lower triangular A [..., C, C], by forward substitution in fp32"""
    A = A.contiguous()
    C = A.shape[-1]
    if A.is_cuda or FORCE_TRITON:
        X = torch.empty_like(A)
        _inv[(A.numel() // (C * C),)](A, X, C=C, num_warps=4)
        return X
    I = torch.eye(C, dtype=A.dtype).expand_as(A)
    return torch.linalg.solve_triangular(I - A.tril(-1), I, upper=False, unitriangular=True).contiguous()


@tri_inv.register_fake
def _(A):
    return torch.empty_like(A, memory_format=torch.contiguous_format)


def _inv_setup(ctx, inputs, output):
    ctx.save_for_backward(output)


def _inv_backward(ctx, g):
    (X,) = ctx.saved_tensors
    return (X.mT @ g @ X.mT).tril(-1)


tri_inv.register_autograd(_inv_backward, setup_context=_inv_setup)


@torch.library.custom_op("lilydemo::scan", mutates_args=())
def scan(w: torch.Tensor, u: torch.Tensor, kd: torch.Tensor, l: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    M, N, C, D = w.shape
    w, u, kd, l = w.contiguous(), u.contiguous(), kd.contiguous(), l.contiguous()
    S, v = w.new_empty(M, N, D, D), torch.empty_like(u)
    if w.is_cuda or FORCE_TRITON:
        _fwd[(M, D // BV)](w, u, kd, l, S, v, N, C=C, D=D, BV=BV, PREC=PREC, num_warps=4, num_stages=1)
    else:
        s = w.new_zeros(M, D, D)
        for i in range(N):
            S[:, i] = s
            v[:, i] = u[:, i] - w[:, i] @ s
            s = s * l[:, i, None, None] + kd[:, i] @ v[:, i]
    return S, v


@scan.register_fake
def _(w, u, kd, l):
    M, N, C, D = w.shape
    return w.new_empty(M, N, D, D), w.new_empty(M, N, C, D)


@torch.library.custom_op("lilydemo::scan_back", mutates_args=())
def scan_back(
    w: torch.Tensor, kd: torch.Tensor, l: torch.Tensor, gS: torch.Tensor, gv: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    M, N, C, D = w.shape
    w, kd, l, gS, gv = w.contiguous(), kd.contiguous(), l.contiguous(), gS.contiguous(), gv.contiguous()
    dS, dv = torch.empty_like(gS), torch.empty_like(gv)
    if w.is_cuda or FORCE_TRITON:
        _bwd[(M, D // BV)](w, kd, l, gS, gv, dS, dv, N, C=C, D=D, BV=BV, PREC=PREC, num_warps=4, num_stages=1)
    else:
        ds = torch.zeros_like(gS[:, 0])
        for i in range(N - 1, -1, -1):
            dS[:, i] = ds
            dv[:, i] = gv[:, i] + kd[:, i].mT @ ds
            ds = gS[:, i] + l[:, i, None, None] * ds - w[:, i].mT @ dv[:, i]
    return dS, dv


@scan_back.register_fake
def _(w, kd, l, gS, gv):
    return torch.empty_like(gS, memory_format=torch.contiguous_format), torch.empty_like(
        gv, memory_format=torch.contiguous_format
    )


def _setup(ctx, inputs, output):
    w, u, kd, l = inputs
    ctx.save_for_backward(w, kd, l, *output)


def _backward(ctx, gS, gv):
    w, kd, l, S, v = ctx.saved_tensors
    dS, dv = scan_back(w, kd, l, gS, gv)
    return -(dv @ S.mT), dv, dS @ v.mT, (dS * S).sum((-1, -2))


scan.register_autograd(_backward, setup_context=_setup)
