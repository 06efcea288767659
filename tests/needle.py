#!/usr/bin/env python3
"""needle.py LILY [OPTION...]: the demo model finds a sentence in texts of about 2,900 and 5,700 tokens, at three depths.

The text is the answers of demo/eval/heldout.txt, once and twice. Options are for `lily run`, such as --device cuda.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDLE, QUESTION = "The password is window.", "What is the password?"


def answers():
    text = (ROOT / "demo/eval/heldout.txt").read_text()
    found = re.findall(r"<\|im_start\|>assistant\n(?:<think>.*?</think>\s*)?(.*?)<\|im_end\|>", text, re.S)
    plain = [a.strip().replace("\n\n", " ") for a in found]
    return [a for a in plain if len(a) > 250 and not set("<`|") & set(a)]


def ask(command, parts, depth):
    at = int(len(parts) * depth)
    text = " ".join(parts[:at] + [NEEDLE] + parts[at:])
    prompt = f"Read this text and answer the question.\n\n{text}\n\nQuestion: {QUESTION}"
    options = ["run", "--greedy", "--no-thinking", "--max-tokens", "24"]
    done = subprocess.run(command[:1] + options + command[1:] + [prompt], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"needle: {done.stderr}")
    return done.stdout.strip()


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    wrong = 0
    for times in (1, 2):
        parts = answers() * times
        for depth in (0.1, 0.5, 0.9):
            answer = ask(command, parts, depth)
            right = answer == NEEDLE
            wrong += not right
            print(f"{sum(map(len, parts))} characters, needle at {depth:.0%}: {answer!r} {'ok' if right else 'WRONG'}")
    if wrong:
        sys.exit(f"needle: {wrong} wrong answers")


if __name__ == "__main__":
    main()
