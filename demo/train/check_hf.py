import torch, sys
from model import *
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

torch.manual_seed(0)
c = Cfg()
m = Model(c).float()
with torch.no_grad():
    for n, p in m.named_parameters():
        if "norm" in n:
            p.add_(torch.randn_like(p) * 0.1)
        if "mlp.gate.weight" in n:
            p.mul_(20)
hc = Qwen3_5MoeTextConfig(
    vocab_size=c.vocab,
    hidden_size=c.hid,
    num_hidden_layers=c.layers,
    num_attention_heads=c.heads,
    num_key_value_heads=c.kv,
    head_dim=c.hd,
    max_position_embeddings=8192,
    linear_num_key_heads=c.lk,
    linear_num_value_heads=c.lv,
    linear_key_head_dim=c.ld,
    linear_value_head_dim=c.ld,
    num_experts=c.experts,
    num_experts_per_tok=c.topk,
    moe_intermediate_size=c.inter,
    shared_expert_intermediate_size=c.shared,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=c.theta,
        partial_rotary_factor=0.25,
        mrope_section=[11, 11, 10],
        mrope_interleaved=True,
    ),
)
hf = Qwen3_5MoeForCausalLM(hc).float()
r = hf.load_state_dict(m.state_dict(), strict=True)
print(r, sum(p.numel() for p in m.parameters()))
ids = torch.randint(0, c.vocab, (2, 200))
with torch.no_grad():
    a, b = m(ids), hf(ids).logits
print("max diff", (a - b).abs().max().item(), "scale", b.abs().max().item(), b.std().item())
l, aux = m(ids, ids)
(l + aux).backward()
print(l.item(), aux.item(), [n for n, p in m.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0])
