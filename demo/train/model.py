"""Compact trainable re-implementation of the qwen3_5_moe text model (hybrid gated delta net / gated attention / MoE).

Parameter names equal those of the transformers text model, so the state dict is the checkpoint.
Routed experts are computed densely (every expert on every token) and masked by the router: with 32 tiny
experts two plain matmuls are faster than any grouping.
"""

from dataclasses import dataclass, field
import torch, torch.nn as nn, torch.nn.functional as F
from delta import scan, tri_inv


@dataclass
class Cfg:
    vocab: int = 8192
    hid: int = 256
    layers: int = 8
    period: int = 4
    heads: int = 8
    kv: int = 1
    hd: int = 256
    rot: int = 64
    theta: float = 1e7
    lk: int = 2
    lv: int = 4
    ld: int = 128
    conv: int = 4
    experts: int = 32
    topk: int = 8
    inter: int = 64
    shared: int = 64
    eps: float = 1e-6


class Norm(nn.Module):  # zero-centred RMSNorm
    def __init__(s, d, eps):
        super().__init__()
        s.eps = eps
        s.weight = nn.Parameter(torch.zeros(d))

    def forward(s, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + s.eps)
        return (y * (1.0 + s.weight.float())).type_as(x)


def l2(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta_rule(q, k, v, g, beta, C=64):
    """q,k,v [B,T,H,D] fp32 (q,k not yet normalised), g (log decay), beta [B,T,H]; T a multiple of C."""
    B, T, H, D = v.shape
    N = T // C
    r = lambda x: x.transpose(1, 2).reshape(B * H, N, C, -1)
    q, k, v = r(l2(q) * (D**-0.5)), r(l2(k)), r(v)
    g, beta = r(g.unsqueeze(-1))[..., 0].cumsum(-1), r(beta.unsqueeze(-1))
    vb, kb = v * beta, k * beta
    low = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    dec = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(~low, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    A = -((kb @ kt) * dec).tril(-1)
    inv = tri_inv(A)
    u = inv @ vb
    w = inv @ (kb * g.exp().unsqueeze(-1))
    att = (q @ kt) * dec
    qg = q * g.exp().unsqueeze(-1)
    last = g[..., -1]
    kd = (k * (last.unsqueeze(-1) - g).exp().unsqueeze(-1)).transpose(-1, -2)
    le = last.exp()
    S, vn = scan(w, u, kd, le)
    o = qg @ S + att @ vn
    return o.reshape(B, H, T, D).transpose(1, 2)


class GNorm(nn.Module):
    def __init__(s, d, eps):
        super().__init__()
        s.eps = eps
        s.weight = nn.Parameter(torch.ones(d))

    def forward(s, x, z):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + s.eps)
        return s.weight * y * F.silu(z.float())


class Linear(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.weight = nn.Parameter(torch.empty(o, i))

    def forward(s, x):
        return F.linear(x, s.weight)


class Conv(nn.Module):
    def __init__(s, d, k):
        super().__init__()
        s.weight = nn.Parameter(torch.empty(d, 1, k))


class DeltaNet(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.c = c
        s.kd, s.vd = c.lk * c.ld, c.lv * c.ld
        s.conv1d = Conv(2 * s.kd + s.vd, c.conv)
        s.dt_bias = nn.Parameter(torch.ones(c.lv))
        s.A_log = nn.Parameter(torch.zeros(c.lv))
        s.norm = GNorm(c.ld, c.eps)
        s.out_proj = Linear(s.vd, c.hid)
        s.in_proj_qkv = Linear(c.hid, 2 * s.kd + s.vd)
        s.in_proj_z = Linear(c.hid, s.vd)
        s.in_proj_b = Linear(c.hid, c.lv)
        s.in_proj_a = Linear(c.hid, c.lv)

    def forward(s, x):
        c = s.c
        B, T, _ = x.shape
        m = s.in_proj_qkv(x)
        w = s.conv1d.weight[:, 0].to(m.dtype)
        p = F.pad(m, (0, 0, c.conv - 1, 0))
        m = F.silu(sum(p[:, j : j + T] * w[:, j] for j in range(c.conv)))
        q, k, v = m.split([s.kd, s.kd, s.vd], -1)
        rep = c.lv // c.lk
        q = q.reshape(B, T, c.lk, c.ld).float().repeat_interleave(rep, 2)
        k = k.reshape(B, T, c.lk, c.ld).float().repeat_interleave(rep, 2)
        v = v.reshape(B, T, c.lv, c.ld).float()
        beta = s.in_proj_b(x).float().sigmoid()
        g = -s.A_log.float().exp() * F.softplus(s.in_proj_a(x).float() + s.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            o = delta_rule(q, k, v, g, beta)
        o = s.norm(o, s.in_proj_z(x).reshape(B, T, c.lv, c.ld))
        return s.out_proj(o.reshape(B, T, -1).to(x.dtype))


def rope(x, cos, sin):
    n = cos.shape[-1]
    a, b = x[..., :n], x[..., n:]
    h = torch.cat([-a[..., n // 2 :], a[..., : n // 2]], -1)
    return torch.cat([a * cos + h * sin, b], -1)


class Attn(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.c = c
        s.q_proj = Linear(c.hid, c.heads * c.hd * 2)
        s.k_proj = Linear(c.hid, c.kv * c.hd)
        s.v_proj = Linear(c.hid, c.kv * c.hd)
        s.o_proj = Linear(c.heads * c.hd, c.hid)
        s.q_norm = Norm(c.hd, c.eps)
        s.k_norm = Norm(c.hd, c.eps)

    def forward(s, x, cos, sin):
        c = s.c
        B, T, _ = x.shape
        q, gate = s.q_proj(x).view(B, T, c.heads, 2 * c.hd).chunk(2, -1)
        q = rope(s.q_norm(q).transpose(1, 2), cos, sin).to(x.dtype)
        k = rope(s.k_norm(s.k_proj(x).view(B, T, c.kv, c.hd)).transpose(1, 2), cos, sin).to(x.dtype)
        v = s.v_proj(x).view(B, T, c.kv, c.hd).transpose(1, 2)
        e = c.heads // c.kv
        k = k.repeat_interleave(e, 1)
        v = v.repeat_interleave(e, 1)
        if q.is_cuda:
            dt = torch.bfloat16
            o = F.scaled_dot_product_attention(q.to(dt), k.to(dt), v.to(dt), is_causal=True)
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        o = o.transpose(1, 2).reshape(B, T, -1) * torch.sigmoid(gate.reshape(B, T, -1))
        return s.o_proj(o.to(x.dtype))


class MLP(nn.Module):
    def __init__(s, h, i):
        super().__init__()
        s.gate_proj = Linear(h, i)
        s.up_proj = Linear(h, i)
        s.down_proj = Linear(i, h)

    def forward(s, x):
        return s.down_proj(F.silu(s.gate_proj(x)) * s.up_proj(x))


class Experts(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.gate_up_proj = nn.Parameter(torch.empty(c.experts, 2 * c.inter, c.hid))
        s.down_proj = nn.Parameter(torch.empty(c.experts, c.hid, c.inter))


class MoE(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.c = c
        s.gate = Linear(c.hid, c.experts)
        s.experts = Experts(c)
        s.shared_expert = MLP(c.hid, c.shared)
        s.shared_expert_gate = Linear(c.hid, 1)

    def forward(s, x):
        c = s.c
        E, I = c.experts, c.inter
        with torch.autocast(x.device.type, enabled=False):
            lg = F.linear(x.float(), s.gate.weight)
            p = lg.softmax(-1)
            th = p.topk(c.topk, -1).values[..., -1:]
            sel = (p >= th).float()
            w = p * sel
            w = w / w.sum(-1, keepdim=True)
            d = tuple(range(p.dim() - 1))
            aux = E * (sel.mean(d) / c.topk * p.mean(d)).sum() + 1e-3 * lg.logsumexp(-1).square().mean()
        h = F.linear(x, s.experts.gate_up_proj.reshape(E * 2 * I, -1)).unflatten(-1, (E, 2, I))
        a = F.silu(h[..., 0, :]) * h[..., 1, :] * w.unsqueeze(-1).to(h.dtype)
        y = F.linear(a.flatten(-2), s.experts.down_proj.permute(1, 0, 2).reshape(-1, E * I))
        y = y + torch.sigmoid(s.shared_expert_gate(x)) * s.shared_expert(x)
        return y, aux


class Layer(nn.Module):
    def __init__(s, c, full):
        super().__init__()
        s.full = full
        if full:
            s.self_attn = Attn(c)
        else:
            s.linear_attn = DeltaNet(c)
        s.mlp = MoE(c)
        s.input_layernorm = Norm(c.hid, c.eps)
        s.post_attention_layernorm = Norm(c.hid, c.eps)

    def forward(s, x, cos, sin):
        h = s.input_layernorm(x)
        x = x + (s.self_attn(h, cos, sin) if s.full else s.linear_attn(h))
        y, aux = s.mlp(s.post_attention_layernorm(x))
        return x + y, aux


class Emb(nn.Module):
    def __init__(s, v, d):
        super().__init__()
        s.weight = nn.Parameter(torch.empty(v, d))


class Body(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.embed_tokens = Emb(c.vocab, c.hid)
        s.layers = nn.ModuleList([Layer(c, (i + 1) % c.period == 0) for i in range(c.layers)])
        s.norm = Norm(c.hid, c.eps)


class Model(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.c = c
        s.model = Body(c)
        s.lm_head = Linear(c.hid, c.vocab)
        s.init()

    def init(s):
        for n, p in s.named_parameters():
            if n.endswith("A_log"):
                p.data = torch.empty_like(p).uniform_(0.05, 8).log()
            elif n.endswith("dt_bias"):  # spread the time constants
                dt = torch.exp(torch.empty_like(p).uniform_(-6.9, -2.3))
                p.data = dt + torch.log(-torch.expm1(-dt))
            elif n.endswith("conv1d.weight"):
                p.data.uniform_(-0.5, 0.5)
            elif p.dim() >= 2:
                std = 0.02 if "embed" in n or "lm_head" in n or n.endswith("mlp.gate.weight") else p.shape[-1] ** -0.5
                if n.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) or n.endswith("down_proj"):
                    std *= (2 * s.c.layers) ** -0.5
                p.data.normal_(0, std)

    def hidden(s, ids):
        T = ids.shape[1]
        c = s.c
        inv = 1.0 / c.theta ** (torch.arange(0, c.rot, 2, device=ids.device).float() / c.rot)
        f = torch.arange(T, device=ids.device).float()[:, None] * inv
        f = torch.cat([f, f], -1)
        cos, sin = f.cos(), f.sin()
        x = F.embedding(ids, s.model.embed_tokens.weight)
        aux = 0.0
        for l in s.model.layers:
            x, a = l(x, cos, sin)
            aux = aux + a
        return s.model.norm(x), aux / c.layers

    def forward(s, ids, labels=None):
        pad = (-ids.shape[1]) % 64
        if pad:
            ids = F.pad(ids, (0, pad))
        h, aux = s.hidden(ids)
        if pad:
            h = h[:, :-pad]
        lg = s.lm_head(h)
        if labels is None:
            return lg
        return F.cross_entropy(lg.flatten(0, 1).float(), labels.flatten(), ignore_index=-100), aux
