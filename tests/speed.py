#!/usr/bin/env python3
"""Holds the demo model to its time to first token: tests/speed.py PATH_TO_LILY

The bound is for 2 cores. The quickest of the rounds counts, as other work on the machine only ever adds to it.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

PROMPT_TOKENS = 200
FIRST_TOKEN_MS = 300


def main():
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "bench.json"
        command = [sys.argv[1], "bench", "--prompt-tokens", str(PROMPT_TOKENS), "--threads", "2", "--json", str(report)]
        subprocess.run(command, check=True, timeout=300)
        first = json.loads(report.read_text())["first_token_ms"]["min"]
    print(f"first token of a {PROMPT_TOKENS}-token prompt after {first:.1f} ms, bound {FIRST_TOKEN_MS} ms")
    sys.exit(0 if first < FIRST_TOKEN_MS else 1)


if __name__ == "__main__":
    main()
