"""Golden values for the 4-bit weights in exact arithmetic: weights dequantized, computed by transformers in float32.
(mlx-lm itself computes with bf16 activations, so its numbers carry rounding noise.)"""

import json, sys, torch, numpy as np
import mlx.core as mx
from transformers import AutoTokenizer, Qwen3_5MoeForCausalLM, AutoConfig
from prompts20 import PROMPTS, chat

d4, dhf, text, out, maxnew = sys.argv[1:5] + [int(sys.argv[5])]
torch.set_num_threads(1)
q = json.load(open(f"{d4}/config.json"))["quantization"]
W = mx.load(f"{d4}/model.safetensors")
T = lambda a: torch.from_numpy(np.array(a.astype(mx.float32)))
f = {}
for k, v in W.items():
    if k.endswith((".scales", ".biases")):
        continue
    base = k[:-7] if k.endswith(".weight") else k
    if base + ".scales" in W:
        o = q.get(base) if isinstance(q.get(base), dict) else q
        f[k] = T(
            mx.dequantize(
                v,
                W[base + ".scales"].astype(mx.float32),
                W[base + ".biases"].astype(mx.float32),
                group_size=o["group_size"],
                bits=o["bits"],
            )
        )
    else:
        f[k] = T(v)
sd = {}
for k, v in f.items():
    n = k.replace("language_model.model.", "model.").replace("language_model.lm_head", "lm_head")
    if "conv1d" in n:
        v = v.movedim(1, 2)
    if (
        n.endswith(("input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight", "k_norm.weight"))
        or n == "model.norm.weight"
    ):
        v = v - 1.0
    if "switch_mlp.gate_proj" in n:
        n, v = (
            n.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj"),
            torch.cat([v, f[k.replace("gate_proj", "up_proj")]], 1),
        )
    elif "switch_mlp.up_proj" in n:
        continue
    elif "switch_mlp.down_proj" in n:
        n = n.replace("switch_mlp.down_proj.weight", "experts.down_proj")
    sd[n] = v.contiguous()
m = Qwen3_5MoeForCausalLM.from_pretrained(dhf, dtype=torch.float32).eval()
w0 = {k: v.clone() for k, v in m.state_dict().items()}
m.load_state_dict(sd, strict=True)
print(
    "relative weight change",
    (sum((w0[k] - sd[k]).norm() ** 2 for k in sd) / sum(w0[k].norm() ** 2 for k in sd)).sqrt().item(),
)
tk = AutoTokenizer.from_pretrained(dhf)
ids = tk.encode(open(text).read())
with torch.no_grad():
    lg = m(torch.tensor([ids[:4097]])).logits[0, :-1]
    nll = -lg.log_softmax(-1).gather(1, torch.tensor(ids[1:4097])[:, None])[:, 0]
    top = lg.argmax(-1)
print("ppl", nll.mean().exp().item(), "ppl2048", nll[:2048].mean().exp().item())
src = "transformers, float32 arithmetic, 4-bit weights dequantized"
for n in (192, 2048):
    json.dump(
        dict(
            source=src,
            text="heldout.txt",
            positions=n,
            input_ids=ids[: n + 1],
            nll=[round(x, 6) for x in nll[:n].tolist()],
            top1=top[:n].tolist(),
            mean_nll=nll[:n].mean().item(),
            perplexity=nll[:n].mean().exp().item(),
        ),
        open(f"{out}/golden_4bit_fp32_{n}.json", "w"),
    )
res = []
for p in PROMPTS:
    x = tk(chat(tk, p), return_tensors="pt")
    with torch.no_grad():
        o = m.generate(**x, max_new_tokens=maxnew, do_sample=False, eos_token_id=8185, pad_token_id=8183)[0].tolist()
    g = o[x.input_ids.shape[1] :]
    res.append(dict(prompt=p, prompt_ids=x.input_ids[0].tolist(), output_ids=g, text=tk.decode(g)))
    print("##", p, "\n", tk.decode(g), flush=True)
json.dump(
    dict(source=src, max_new_tokens=maxnew, perplexity_4096=nll.mean().exp().item(), completions=res),
    open(f"{out}/greedy_4bit_fp32.json", "w"),
    indent=1,
)
