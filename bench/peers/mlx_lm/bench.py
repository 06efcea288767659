#!/usr/bin/env python3
"""Speed of MLX-LM on a random Qwen3.6-35B-A3B, one sequence: prefill and decode at several contexts.

    bench.py --out FILE.json [--layers 40] [--contexts 256,512,...] [--whole 4096] [--rounds 3] [--limit SECONDS]

- Up to --whole tokens a round reads the prompt from an empty cache and decodes --decode tokens after it, through
  `generate_step` with its own settings (pieces of 2,048 tokens, greedy, the next step started before a token is read). A
  round that is not counted comes first where a round is short. On CUDA MLX-LM has no kernel for the gated delta rule
  and runs it in Python, a step a token, at about 300 tokens a second; so rows above --whole have, over a cache that is
  filled with random contents, decode and the prompt's last piece of 2,048 tokens alone (`last_piece_tok_s`).
- Decode: 8 tokens are not counted.
- What does not fit into --limit seconds is left out, longest prompts first; `notes` say so.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import report  # noqa: E402

START = time.perf_counter()
WARM_DECODE = 8
# `prefill_step_size` of generate_step.
PIECE = 2048


def say(*what):
    print(f"[{time.perf_counter() - START:6.1f} s]", *what, flush=True)


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True)
    ap.add_argument("--layers", type=int, default=40, help="a multiple of 4")
    ap.add_argument("--contexts", default="256,512,1024,2048,4096,8192,16384,32768,65536,131072")
    ap.add_argument("--whole", type=int, default=4096, help="longest prompt that is read")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--decode", type=int, default=64)
    ap.add_argument("--limit", type=float, default=300, help="seconds from the start of this program")
    ap.add_argument("--vocab", type=int, default=248320, help="smaller for a trial")
    ap.add_argument("--experts", type=int, default=256, help="smaller for a trial")
    ap.add_argument("--command", default=" ".join(["bench.py", *sys.argv[1:]]), help=argparse.SUPPRESS)
    return ap.parse_args()


ARGS = arguments()

import mlx.core as mx  # noqa: E402
import mlx_lm  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

import model as random_model  # noqa: E402


def left():
    return ARGS.limit - (time.perf_counter() - START)


def prompt(count):
    tokens = mx.random.randint(0, ARGS.vocab, (count,))
    mx.eval(tokens)
    return tokens


def run(model, tokens, cache, decode):
    """Seconds to the first token, and tokens a second after it; `decode` 0 stops at the first."""
    count = decode + WARM_DECODE + 1 if decode else 1
    start, times = time.perf_counter(), []
    for _, logprobs in generate_step(tokens, model, max_tokens=count, prompt_cache=cache):
        times.append(time.perf_counter())
    if not mx.all(mx.isfinite(logprobs)).item():
        raise SystemExit("bench.py: a logit is not finite")
    rate = decode / (times[-1] - times[WARM_DECODE]) if decode else None
    return times[0] - start, rate


def spread(name, values):
    return {f"{name}_tok_s": round(statistics.median(values), 1), f"{name}_min": round(min(values), 1),
            f"{name}_max": round(max(values), 1)}


def whole(model, context, longer, slowest):
    """A row from real prompts, or None where there is no time for one. `longer`: contexts that want a round after this one;
    `slowest`: tokens a second, as known so far."""
    prefill, decode = [], []
    round_s = context / slowest + 3
    later_s = sum(c / slowest + 3 for c in longer)
    if left() < round_s * 1.3:
        return None
    mx.reset_peak_memory()
    if left() > (ARGS.rounds + 1) * round_s + later_s and context <= 2048:
        run(model, prompt(context), make_prompt_cache(model), 0)
    while len(prefill) < ARGS.rounds and (not prefill or left() > 1.3 * round_s + later_s):
        seconds, rate = run(model, prompt(context), make_prompt_cache(model), ARGS.decode)
        prefill.append(context / seconds)
        decode.append(rate)
        round_s = seconds + 3
    return {"context": context, "rounds": len(prefill), **spread("prefill", prefill), **spread("decode", decode),
            "peak_bytes": mx.get_peak_memory(), "notes": "decode after the whole prompt"}


def synthetic(model, context):
    """A row of decode and the last piece of a prompt, without the pieces before."""
    if left() < 10:
        return None
    mx.reset_peak_memory()
    decode = []
    while len(decode) < ARGS.rounds and (not decode or left() > 20):
        cache = random_model.filled_cache(model, context)
        decode.append(run(model, prompt(1), cache, ARGS.decode)[1])
    row = {"context": context, "rounds": len(decode), **spread("decode", decode), "peak_bytes": mx.get_peak_memory(),
           "notes": "decode and the prompt's last piece over a cache of random contents; no whole prompt of this length was read"}
    # Twice what a piece takes at 300 tokens a second.
    if context > PIECE and left() > 14:
        seconds, _ = run(model, prompt(PIECE), random_model.filled_cache(model, context - PIECE), 0)
        row["last_piece_tok_s"] = round(PIECE / seconds, 1)
    return row


def main():
    contexts = [int(c) for c in ARGS.contexts.split(",")]
    say("MLX", mx.__version__, "MLX-LM", mlx_lm.__version__, mx.default_device())
    model, size = random_model.build(ARGS.layers, ARGS.vocab, ARGS.experts)
    say(f"{ARGS.layers} layers, {size / 1e9:.2f} GB of weights")
    rows, notes, facts = {}, [], {"weights_bytes": size}

    def save():
        weights = f"random, {ARGS.layers} layers, 4 bits in groups of 64, {size / 1e9:.2f} GB"
        version = f"mlx-lm {mlx_lm.__version__}, mlx {mx.__version__}"
        ordered = [rows[c] for c in sorted(rows)]
        report.write(ARGS.out, report.report("mlx-lm", version, weights, ARGS.command, facts, ordered, notes))

    def keep(row):
        if row:
            rows[row["context"]] = row
            say({k: v for k, v in row.items() if k != "notes"})
            save()
        return row

    # Kernels are compiled at their first use: for a decode step, then for a piece of a prompt.
    run(model, prompt(1), random_model.filled_cache(model, 256), 4)
    say("a decode step is compiled")
    used = random_model.experts_used(model, prompt(min(256, ARGS.whole)))
    facts.update(experts_used_min=min(used), experts_used_max=max(used))
    say(f"{min(256, ARGS.whole)} tokens use {min(used)} to {max(used)} experts of a layer")

    # Decode at depth is cheap and comes first; then prompts from the shortest to the longest.
    for context in [c for c in contexts if c > ARGS.whole]:
        keep(synthetic(model, context))
    slowest = 200.0
    read = [c for c in contexts if c <= ARGS.whole]
    for i, context in enumerate(read):
        row = keep(whole(model, context, read[i + 1:], slowest))
        if row:
            slowest = min(row["prefill_min"], 400.0)
        elif not keep(synthetic(model, context)):
            notes.append(f"no time for context {context}")
    if max(contexts) > ARGS.whole:
        notes.append(f"prompts above {ARGS.whole} tokens were not read as a whole: at {slowest:.0f} tokens a second "
                     f"{max(contexts)} would take {max(contexts) / slowest / 60:.0f} minutes")
    save()
    say("done")


if __name__ == "__main__":
    main()
