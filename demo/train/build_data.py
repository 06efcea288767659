"""Build the token stream: rendered teacher documents plus fresh programmatic conversations.

python build_data.py tokenizer DOCS_DIR OUT        train the tokenizer on a sample
python build_data.py data DOCS_DIR OUT SCALE PROCS  tokens.bin, docs.npy, val.bin
"""

import glob, hashlib, json, lzma, os, random, re, sys, time
from multiprocessing import Pool
import numpy as np
import skills, knowledge
from chatml import render
from stories import story

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
REGEX = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
KBN = {n.lower() for e in knowledge.KB for n in e[0].split(";")}
BADS = (
    "The answer to",
    "I'm glad",
    "In the context",
    "Absolutely",
    "I'm here",
    "The choice between",
    "I'd be",
    "Of course",
    "Certainly",
    "Sure",
    "What a",
    "It seems",
    "Dear User",
)
STOP = set(
    "what is are the a an of for to in and does do how can you tell me about explain simple words write short paragraph few sentences describe why important share some interesting facts would friend should know please means people use i want learn child give explanation where live eat grow sleep need water like fun fact dangerous long who wants named story which better difference between compare alike with make good healthy goes well come from cook recipe day life become work skills thank note job tips five three four best my it".split()
)


def topic_ok(q, a):
    ws = [w for w in re.findall(r"[a-z]+", q.lower()) if w not in STOP and len(w) > 2]
    if not ws:
        return True
    h = a[:170].lower()
    return any(w[: max(3, min(5, len(w) - 1))] in h for w in ws)


def teacher(docs_dir):
    out, drop = [], 0
    for f in sorted(glob.glob(docs_dir + "/*.xz")):
        for l in lzma.open(f, "rt"):
            k, q, a = json.loads(l)[:3]
            h = int(hashlib.md5(q.encode()).hexdigest()[:8], 16)
            t = (
                re.sub(
                    r"^(what is|explain|tell me about|describe|what can you tell me about|please explain what)\s+",
                    "",
                    q.lower(),
                )
                .rstrip("?.")
                .replace(" in simple words", "")
            )
            p = [x for x in a.split("\n\n")]
            listy = bool(re.search(r"^\s*(\d+\.|[-*]) ", a, re.M))
            bad = (
                a.startswith(BADS)
                or (k == "compare" and h % 4)
                or not topic_ok(q, a)
                or (k == "explain" and t in KBN)
                or len(re.findall(r"\d+", a)) > (8 if listy else 4)
                or (a.count("(") > 1 and k in ("explain", "why"))
                or k == "poem"
                or "lifespan" in q
            )
            if bad:
                drop += 1
                continue
            if not listy and len(p) > 1 and k != "story" and len(p[0]) > 110 and h % 10 < 4:
                a = p[0]
            if not listy and len(p) > 3:
                a = "\n\n".join(p[:3])
            out.append((k, q, a.strip(), h))
    print("teacher kept", len(out), "dropped", drop, "chars", sum(len(x[2]) for x in out) / 1e6)
    return out


TH = {
    "story": ["The user wants a story.", "I will write a short story.", "A story needs a beginning and an ending."],
    "tips": ["The user asks for advice.", "I give a few simple tips."],
    "food": ["The user asks about food."],
    "job": ["The user asks about a job."],
    "why": ["The user asks about animals."],
    "write": ["The user wants a short text.", "I write a few kind sentences."],
    "compare": ["I compare the two things."],
    "explain": ["The user asks for an explanation.", "I explain it with simple words.", "I give a short answer."],
    "poem": ["I write a poem."],
}


def render_teacher(r, k, q, a):
    if r.random() < 0.05:
        return a + "\n"
    m = [("u", q), ("a", a, r.choice(TH[k]))]
    x = r.random()
    if x < 0.12:
        m = skills.small_(r) + m
    elif x < 0.2:
        m = m + skills.single(r)
    elif x < 0.25:
        m = m + [("u", "Thank you!"), ("a", "You are welcome!", "This is small talk.")]
    msgs = skills.to_msgs(r, m, r.random() < 0.3)
    if r.random() < 0.25:
        msgs = [dict(role="system", content=r.choice(skills.SYSTEMS))] + msgs
    return render(msgs)


MIX = [
    ("mix", 38),
    ("kb", 17),
    ("tips", 6),
    ("story", 22),
    ("tool", 10),
    ("needle", 2.2),
    ("long", 1.2),
    ("plain", 1.0),
]


def render_prog(r):
    k = r.choices([x for x, _ in MIX], [w for _, w in MIX])[0]
    if k == "plain":
        return story(r) + "\n"
    if k in ("kb", "tips"):
        m = (knowledge.kb_ if k == "kb" else knowledge.tips_)(r)
        if r.random() < 0.12:
            m = m + (knowledge.kb_ if r.random() < 0.6 else skills.single)(r)
        msgs = skills.to_msgs(r, m, r.random() < 0.35)
        if r.random() < 0.25:
            msgs = [dict(role="system", content=r.choice(skills.SYSTEMS))] + msgs
        return render(msgs)
    return render(*skills.conversation(r, k))


def make_tokenizer(docs_dir, out):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, normalizers, trainers, AddedToken, Regex

    tk = Tokenizer(models.BPE())
    tk.normalizer = normalizers.NFC()
    tk.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tk.decoder = decoders.ByteLevel()
    n = 8192 - len(SPECIALS) - len(ADDED)
    tr = trainers.BpeTrainer(
        vocab_size=n, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    r = random.Random(11)
    T = teacher(docs_dir)
    strip = re.compile("|".join(re.escape(x) for x in SPECIALS + ADDED))
    texts = (
        [x for k, q, a, h in T for x in (q, a)]
        + [strip.sub("", render_prog(r)) for _ in range(40000)]
        + [w for w in skills.WORDS for _ in range(20)]
        + [" " + w for w in skills.WORDS for _ in range(20)]
    )
    tk.train_from_iterator(texts, tr)
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    tk.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    assert tk.get_vocab_size() == 8192, tk.get_vocab_size()
    tk.save(f"{out}/tokenizer.json")
    s = "".join(texts[:4000])
    e = tk.encode(s)
    print("chars per token", len(s) / len(e.ids), [tk.token_to_id(t) for t in SPECIALS + ADDED])


def job(x):
    """returns uint16 tokens, doc lengths"""
    from tokenizers import Tokenizer

    kind, seed, items, path = x
    tk = Tokenizer.from_file(path)
    eot = tk.token_to_id("<|endoftext|>")
    r = random.Random(seed)
    if kind == "t":
        texts = [render_teacher(r, *i[:3]) for i in items]
    else:
        texts = [render_prog(r) for _ in range(items)]
    ids, lens = [], []
    for i in range(0, len(texts), 500):
        for e in tk.encode_batch_fast(texts[i : i + 500]):
            ids.append(np.array(e.ids + [eot], np.uint16))
            lens.append(len(e.ids) + 1)
    return kind, np.concatenate(ids), lens


def make_data(docs_dir, out, scale, procs):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    t0 = time.time()
    T = teacher(docs_dir)
    val_t = [x for x in T if x[3] % 50 == 0]
    T = [x for x in T if x[3] % 50]
    tkp = f"{out}/tokenizer.json"
    jobs = []
    reps = 1
    T = [x for x in T if x[0] not in ("story", "compare")]
    if scale < 0.2:
        T = T[:: max(1, int(0.3 / scale))]
    for rep in range(reps):
        for i in range(0, len(T), 2000):
            jobs.append(("t", 7000 + rep * 1000 + i, T[i : i + 2000], tkp))
    for i in range(int(300 * scale)):
        jobs.append(("p", 150000 + i, 2000, tkp))
    random.Random(1).shuffle(jobs)
    with Pool(procs) as P:
        res = P.map(job, jobs, chunksize=1)
        val = P.map(job, [("t", 1, val_t, tkp)] + [("p", 900 + i, 300, tkp) for i in range(3)])
    tok = np.concatenate([x[1] for x in res])
    ln = np.concatenate([x[2] for x in res]).astype(np.int64)
    st = np.concatenate([[0], np.cumsum(ln)[:-1]])
    tok.tofile(f"{out}/tokens.bin")
    np.save(f"{out}/docs.npy", np.stack([st, ln, np.zeros_like(ln)], 1))
    v = []
    for k, a, l in val:
        lim = 160000 if k == "t" else 60000
        v.append(a[:lim])
    np.concatenate(v).tofile(f"{out}/val.bin")
    np.save(f"{out}/val_parts.npy", np.array([len(x) for x in v]))
    tt = sum(len(x[1]) for x in res if x[0] == "t")
    print(
        f"tokens {len(tok) / 1e6:.1f}M docs {len(ln)} teacher {tt / 1e6:.1f}M mean len {ln.mean():.0f} max {ln.max()} >1024 {(ln > 1025).sum()} val {sum(map(len, v))} {time.time() - t0:.0f}s",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1] == "tokenizer":
        make_tokenizer(sys.argv[2], sys.argv[3])
    else:
        make_data(sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
