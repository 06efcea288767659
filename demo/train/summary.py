"""Compare the golden files: perplexities, top-1 agreement, completions."""

import json, sys

d = sys.argv[1]
L = lambda n: json.load(open(f"{d}/{n}.json"))
out = {}
for n in (192, 2048):
    g = {k: L(f"golden_{k}_{n}") for k in ("bf16", "4bit", "4bit_fp32")}
    assert g["bf16"]["input_ids"] == g["4bit"]["input_ids"] == g["4bit_fp32"]["input_ids"]
    out[f"perplexity_{n}"] = {k: round(v["perplexity"], 4) for k, v in g.items()}
    agree = lambda a, b: round(sum(x == y for x, y in zip(g[a]["top1"], g[b]["top1"])) / n, 4)
    out[f"top1_agreement_{n}"] = {
        "bf16 / 4bit": agree("bf16", "4bit"),
        "bf16 / 4bit_fp32": agree("bf16", "4bit_fp32"),
        "4bit / 4bit_fp32": agree("4bit", "4bit_fp32"),
    }
    out[f"top1_accuracy_{n}"] = {
        k: round(sum(x == y for x, y in zip(v["top1"], v["input_ids"][1:])) / n, 4) for k, v in g.items()
    }
    out[f"mean_abs_nll_difference_{n}"] = {
        "bf16 / 4bit": round(sum(abs(a - b) for a, b in zip(g["bf16"]["nll"], g["4bit"]["nll"])) / n, 4),
        "4bit / 4bit_fp32": round(sum(abs(a - b) for a, b in zip(g["4bit"]["nll"], g["4bit_fp32"]["nll"])) / n, 4),
    }
c = {k: L(f"greedy_{k}") for k in ("bf16", "4bit", "4bit_fp32")}
out["perplexity_4096"] = {k: round(v["perplexity_4096"], 4) for k, v in c.items()}
out["equal_completions_of_20"] = {
    f"{a} / {b}": sum(x["output_ids"] == y["output_ids"] for x, y in zip(c[a]["completions"], c[b]["completions"]))
    for a, b in (("bf16", "4bit"), ("bf16", "4bit_fp32"), ("4bit", "4bit_fp32"))
}
json.dump(out, open(f"{d}/summary.json", "w"), indent=1)
print(json.dumps(out, indent=1))
