#!/usr/bin/env python3
"""Prints the demo model's time to first token beside its goal: tests/speed.py PATH_TO_LILY

The goal is for 2 quiet cores. A timing says as much about the machine as about Lily, so it is printed and never fails
the tests; figures that were measured with care stand in docs/performance.md.
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
        first = PROMPT_TOKENS * 1e3 / json.loads(report.read_text())["rows"][0]["prefill_max"]
    verdict = "within" if first < FIRST_TOKEN_MS else "OVER"
    print(f"first token of a {PROMPT_TOKENS}-token prompt after {first:.1f} ms: {verdict} the goal of {FIRST_TOKEN_MS} ms")


if __name__ == "__main__":
    main()
