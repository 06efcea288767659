"""Exact-match rate of greedy answers per skill (teacher forced: every answer token must be the arg max, which is the same as greedy decoding)."""

import json, random, sys, torch
from tokenizers import Tokenizer
from model import Cfg, Model
import skills, knowledge
from chatml import render

torch.set_num_threads(1)


def build(tk, n=24, seed=777):
    r = random.Random(seed)
    out = {}
    gens = {f.__name__.rstrip("_"): f for f, _ in skills.KINDS}
    gens.update(
        kb=knowledge.kb_,
        needle=lambda r: skills.needle_(r, 150, 500),
        needle_long=lambda r: skills.needle_(r, 1500, 2500),
    )
    gens["tool"] = None
    for name, f in gens.items():
        if name in ("ident", "small", "poem", "kb"):
            continue
        items = []
        for _ in range(n if name != "needle_long" else 6):
            tools = None
            if name == "tool":
                d = skills.tool_(r)
                m, tools = d["msgs"], d["tools"]
                k = next((i for i, x in enumerate(m) if x[0] == "c"), None)
                if k is None:
                    continue
                m = m[: k + 1]
            else:
                m = f(r)
            msgs = skills.to_msgs(r, m, False)
            full = render(msgs, tools)
            pre = full[: full.rindex("<think>\n\n</think>\n\n") + len("<think>\n\n</think>\n\n")]
            a, b = tk.encode(pre).ids, tk.encode(full).ids
            assert b[: len(a)] == a
            items.append((b[:-1], len(a)))  # drop the newline after <|im_end|>
        out[name] = items
    return out


if __name__ == "__main__":
    tk = Tokenizer.from_file(sys.argv[2])
    m = Model(Cfg())
    m.load_state_dict(torch.load(sys.argv[1], map_location="cpu")["model"])
    m = m.float().eval()
    res = {}
    for name, items in build(tk).items():
        ok = 0
        with torch.no_grad():
            items.sort(key=lambda x: len(x[0]))
            for i in range(0, len(items), 8):
                b = items[i : i + 8]
                L = max(len(x[0]) for x in b)
                ids = torch.tensor([x[0] + [0] * (L - len(x[0])) for x in b])
                p = m(ids).argmax(-1)
                for j, (x, n) in enumerate(b):
                    ok += bool((p[j, n - 1 : len(x) - 1] == ids[j, n : len(x)]).all())
        res[name] = (ok, len(items))
    print(
        sys.argv[1].split("/")[-1],
        {k: f"{a}/{b}" for k, (a, b) in res.items()},
        "total",
        sum(a for a, _ in res.values()),
        "/",
        sum(b for _, b in res.values()),
    )
