"""Sample a synthetic chat corpus from the teacher until a time budget is spent."""

import argparse, collections, hashlib, json, lzma, os, random, re, time
from multiprocessing import Pool
from tokenizers import Tokenizer
from teacher import Teacher
import gen_prompts

SYS = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
BAD = re.compile(
    r"smollm|hugging ?face|language model|as an ai|i'm an ai|i am an ai|artificial intelligence assistant|openai|chatgpt|\bkill|murder|suicid|\bsex|porn|rape|nazi|weapon|\bdrugs?\b|http|www\.|@|```|\\\(|\\\[|\$|\bcovid|trump|biden|\[[A-Z][a-z]|_{3,}|[<>{}|]|i'm sorry|i am sorry for|chatbot|not available|i don't have|i'm not able|as an assistant|provide me with|twilight|tapestry|testament to",
    re.I,
)
MAP = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": " - ",
        "\u2026": "...",
        "\u00a0": " ",
    }
)


def clean(a, finished, kind):
    a = a.translate(MAP).replace("**", "").strip()
    a = re.sub(r" +", " ", a.replace("  - ", " - "))
    a = re.sub(r"\n{3,}", "\n\n", a)
    if not finished:  # cut an unfinished answer at its last full sentence
        if re.search(r"^\s*(\d+\.|[-*])", a, re.M):
            ls = a.split("\n")
            a = "\n".join(ls[:-1]).strip()
        m = list(re.finditer(r"[.!?][\"')]?(?=\s|$)", a))
        if not m or m[-1].end() < 0.55 * len(a):
            return None
        a = a[: m[-1].end()].strip()
    if not a or BAD.search(a) or "#" in a:
        return None
    try:
        a.encode("ascii")
    except UnicodeEncodeError:
        return None
    w = re.findall(r"[a-z']+", a.lower())
    if len(w) < 4:
        return None
    if len(w) > 24:
        g = collections.Counter(zip(w, w[1:], w[2:], w[3:]))
        if 1 - len(g) / max(1, sum(g.values())) > 0.12:
            return None
        if len(set(w)) / len(w) < (0.36 if len(w) > 90 else 0.42):
            return None
    se = [x.strip().lower() for x in re.split(r"[.!?\n]+", a) if len(x.split()) > 3]
    if len(set(se)) < len(se):
        return None
    if a[-1] not in ".!?\"')" and kind not in ("poem",):
        return None
    return a


def work(x):
    k, turns, raw, fin = x
    a = clean(raw, fin, k)
    return None if a is None else (k, turns + [a])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf")
    ap.add_argument("--budget", type=float)
    ap.add_argument("--out")
    ap.add_argument("--batch", type=int, default=8192)
    ap.add_argument("--max-new", type=int, default=256)
    ap.add_argument("--dev", default="cuda")
    ap.add_argument("--seed", type=int, default=100)
    ap.add_argument("--rounds", type=int, default=9999)
    a = ap.parse_args()
    import torch

    t0 = time.time()
    tk = Tokenizer.from_file("teacher_tokenizer.json")
    T = Teacher(a.gguf, "teacher_index.json", a.dev, torch.bfloat16 if a.dev == "cuda" else torch.float32)
    print("loaded", round(time.time() - t0, 1), flush=True)
    pool = Pool(10 if a.dev == "cuda" else 2)
    rng = random.Random(a.seed)
    seen, docs, pending, kept_tok, all_steps, fol = set(), [], None, 0, 0, []
    stats = collections.Counter()
    rnd = 0

    def collect():
        nonlocal pending, kept_tok
        if pending is None:
            return
        for r in pending.get():
            if r is None:
                stats["dropped"] += 1
                continue
            k, turns = r
            h = hashlib.md5((turns[0].lower() + turns[-1][:160]).encode()).digest()[:8]
            if h in seen:
                stats["dup"] += 1
                continue
            seen.add(h)
            docs.append(r)
            stats[k] += 1
            kept_tok += len(turns[-1]) / 4.4
            if len(turns) == 2 and len(turns[1]) < 700 and rng.random() < 0.22 and k != "poem":
                fol.append((k, turns + [rng.choice(gen_prompts.FOLLOW)]))
        pending = None

    def save(final=False):
        path = f"{a.out}/docs_{rnd:04d}.jsonl.xz" if not final else f"{a.out}/docs_last.jsonl.xz"
        return path

    while time.time() - t0 < a.budget and rnd < a.rounds:
        if len(fol) >= a.batch:
            items, fol[:] = fol[: a.batch], fol[a.batch :]
        else:
            items = [(k, [q]) for k, q in gen_prompts.make(a.batch, a.seed * 1000 + rnd)]
        prompts = []
        for k, turns in items:
            s = SYS
            for i, t in enumerate(turns):
                s += f"<|im_start|>{'assistant' if i % 2 else 'user'}\n{t}<|im_end|>\n"
            prompts.append(s + "<|im_start|>assistant\n")
        prompts = [e.ids for e in tk.encode_batch(prompts)]
        temps = [0.65 if k in ("story", "poem") else 0.45 for k, _ in items]
        t1 = time.time()
        res, steps = T.generate(prompts, a.max_new if len(items[0][1]) == 1 else 160, temps)
        dt = time.time() - t1
        all_steps += steps
        txt = tk.decode_batch([r[0] for r in res])
        collect()
        pending = pool.map_async(
            work, [(k, turns, x, f) for (k, turns), x, (_, f) in zip(items, txt, res)], chunksize=256
        )
        rnd += 1
        print(
            f"round {rnd} {time.time() - t0:.0f}s gen {dt:.1f}s {steps / dt / 1e3:.0f}k tok/s kept {len(docs)} docs {kept_tok / 1e6:.1f}M tok {dict(stats)}",
            flush=True,
        )
    collect()
    docs.sort(key=lambda d: (d[0], d[1][0]))
    n = 8
    parts = [docs[i * len(docs) // n : (i + 1) * len(docs) // n] for i in range(n)]
    pool.map(dump, [(p, f"{a.out}/docs{i}.jsonl.xz") for i, p in enumerate(parts)])
    print(
        "saved",
        len(docs),
        kept_tok,
        "steps",
        all_steps,
        round(time.time() - t0, 1),
        [os.path.getsize(f"{a.out}/docs{i}.jsonl.xz") for i in range(n)],
        flush=True,
    )


def dump(x):
    p, path = x
    with lzma.open(path, "wt", preset=7) as f:
        for k, t in p:
            f.write(json.dumps([k] + t) + "\n")


if __name__ == "__main__":
    main()
