#!/usr/bin/env bash
# `lily bench` and `lily bench --ablate` through the whole program on the emulated GPU, at small sizes: rounds repeat their
# tokens, or the first ends with an error; every idea has a row. Times on the emulator say nothing.
# Usage: tests/gpu/bench.sh LILY, a `lily` built with the feature `emulated`.
set -euo pipefail
lily=$(realpath "$1")
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
tiny=tests/fixtures/tiny/mlx-4bit
"$lily" bench --device emulated --model $tiny --contexts 5,70 --decode-tokens 3 --rounds 2 --peak 1,1 --json "$out/run.json"
"$lily" bench --ablate --device emulated --model $tiny --json "$out/ablate.json"
python3 - "$out" <<'PY'
import json, sys
run, ablate = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("run", "ablate"))
assert [row["context"] for row in run["rows"]] == [5, 70], run
assert all(row["prefill_tok_s"] > 0 and row["decode_tok_s"] > 0 and len(row["digest"]) == 16 for row in run["rows"]), run
# As many in every step, the last one included, after which none is begun.
assert all(row["dispatches_token"] >= 4 and row["dispatches_token"] % 1 == 0 for row in run["rows"]), run
assert all(row["dispatches_prefill"] > 4 for row in run["rows"]), run
# Kernels' times are not told there.
wanted = ["fused dequantisation", "routing on the device", "coalesced key reads", "packed query heads", "fixed blocks"]
assert [row["idea"] for row in ablate["rows"]] == wanted + 2 * ["graph or command buffer"], ablate
assert all(row["off"]["median"] > 0 and "gain_percent" in row for row in ablate["rows"]), ablate
assert (ablate["kind"], ablate["engine"]) == ("ablation", "lily")
PY
