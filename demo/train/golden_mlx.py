"""The same values for the 4-bit weights, computed with mlx-lm."""

import json, sys, time
import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache
from prompts20 import PROMPTS, chat

d, text, out, maxnew = sys.argv[1:4] + [int(sys.argv[4])]
m, tk = load(d)
ids = tk.encode(open(text).read())
N = 4096
t = time.time()
c = make_prompt_cache(m)
nll, top = [], []
for i in range(0, N, 256):
    lg = m(mx.array([ids[i : i + 256]]), cache=c)[0].astype(mx.float32)
    y = mx.array(ids[i + 1 : i + 257])
    l = mx.logsumexp(lg, -1) - mx.take_along_axis(lg, y[:, None], -1)[:, 0]
    a = lg.argmax(-1)
    mx.eval(l, a)
    nll += l.tolist()
    top += a.tolist()
mean = lambda x: sum(x) / len(x)
import math

print("forward", time.time() - t, "ppl", math.exp(mean(nll)), "ppl2048", math.exp(mean(nll[:2048])), flush=True)
for n in (192, 2048):
    json.dump(
        dict(
            source="mlx-lm, 4-bit weights (bf16 activations)",
            text="heldout.txt",
            positions=n,
            input_ids=ids[: n + 1],
            nll=[round(x, 6) for x in nll[:n]],
            top1=top[:n],
            mean_nll=mean(nll[:n]),
            perplexity=math.exp(mean(nll[:n])),
        ),
        open(f"{out}/golden_4bit_{n}.json", "w"),
    )
res = []
for q in PROMPTS:
    p = tk.encode(chat(tk, q))
    c = make_prompt_cache(m)
    lg = m(mx.array([p]), cache=c)
    g = []
    while len(g) < maxnew:
        x = int(lg[0, -1].argmax().item())
        g.append(x)
        if x == 8185:
            break
        lg = m(mx.array([[x]]), cache=c)
    res.append(dict(prompt=q, prompt_ids=p, output_ids=g, text=tk.decode(g)))
    print("##", q, "\n", tk.decode(g), flush=True)
json.dump(
    dict(
        source="mlx-lm, 4-bit weights (bf16 activations)",
        max_new_tokens=maxnew,
        perplexity_4096=math.exp(mean(nll)),
        completions=res,
    ),
    open(f"{out}/greedy_4bit.json", "w"),
    indent=1,
)
