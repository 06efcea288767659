"""Golden values by transformers, fp32 arithmetic on the bf16 weights."""

import json, sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from prompts20 import PROMPTS, chat

d, text, out, maxnew = sys.argv[1:4] + [int(sys.argv[4])]
torch.set_num_threads(1)
tk = AutoTokenizer.from_pretrained(d)
m = AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32).eval()
ids = tk.encode(open(text).read())
t = time.time()
with torch.no_grad():
    lg = m(torch.tensor([ids[:4097]])).logits[0, :-1].float()
    lp = lg.log_softmax(-1)
    nll = -lp.gather(1, torch.tensor(ids[1:4097])[:, None])[:, 0]
    top = lg.argmax(-1)
print(
    "forward", time.time() - t, "s ppl", nll.mean().exp().item(), "ppl2048", nll[:2048].mean().exp().item(), flush=True
)
for n in (192, 2048):
    json.dump(
        dict(
            source="transformers, float32 arithmetic, bf16 weights",
            text="heldout.txt",
            positions=n,
            input_ids=ids[: n + 1],
            nll=[round(x, 6) for x in nll[:n].tolist()],
            top1=top[:n].tolist(),
            mean_nll=nll[:n].mean().item(),
            perplexity=nll[:n].mean().exp().item(),
        ),
        open(f"{out}/golden_bf16_{n}.json", "w"),
    )
res = []
for q in PROMPTS:
    p = chat(tk, q)
    x = tk(p, return_tensors="pt")
    t = time.time()
    with torch.no_grad():
        o = m.generate(**x, max_new_tokens=maxnew, do_sample=False, eos_token_id=8185, pad_token_id=8183)[0].tolist()
    g = o[x.input_ids.shape[1] :]
    res.append(dict(prompt=q, prompt_ids=x.input_ids[0].tolist(), output_ids=g, text=tk.decode(g)))
    print("##", q, f"{len(g) / (time.time() - t):.1f} tok/s\n", tk.decode(g), flush=True)
json.dump(
    dict(
        source="transformers, float32 arithmetic, bf16 weights",
        max_new_tokens=maxnew,
        perplexity_4096=nll.mean().exp().item(),
        completions=res,
    ),
    open(f"{out}/greedy_bf16.json", "w"),
    indent=1,
)
