#!/usr/bin/env bash
# Everything that shows the GPU program right on an NVIDIA GPU: kernels, golden values, random weights, a needle, the doctor,
# and where compute-sanitizer is there, its memcheck and racecheck. CI has no such GPU; this is run by hand.
#
#   tests/gpu/cuda.sh            builds what it needs with cargo
#   tests/gpu/cuda.sh FOLDER     takes it from FOLDER: lily, and the test programs kernels, tiny, demo, synthetic, gpu_prefix
#
# LILY_TEST_LAYERS: layers of the synthetic model (4); 40 is the whole one, for which the oracle takes minutes on the CPU unless
# LILY_TEST_ORACLE=FILE has its logits (crates/lily-gpu/tests/synthetic.rs).
set -uo pipefail
cd "$(dirname "$0")/../.."
export LILY_TEST_DEVICE=cuda LILY_DEVICE=cuda
bin=${1:-}
if [ -z "$bin" ]; then
  bin=$(mktemp -d)
  trap 'rm -rf "$bin"' EXIT
  cargo build --release --locked --package lily || exit 1
  built=$({
    cargo test --package lily-gpu --features emulated --locked --no-run --message-format json &&
      cargo test --package lily --features emulated --locked --test gpu_prefix --no-run --message-format json
  } |
    python3 -c '
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["profile"]["test"]:
        print(m["target"]["name"], m["executable"])') || exit 1
  while read -r name path; do
    ln -s "$path" "$bin/$([ "$name" = lily_gpu ] && echo kernels || echo "$name")"
  done <<<"$built"
  target=$(cargo metadata --no-deps --locked --format-version 1 |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
  ln -s "$target/release/lily" "$bin/lily"
fi

failed=()
part() { # name, command
  printf '\n== %s (%d s)\n' "$1" "$SECONDS"
  "${@:2}" || failed+=("$1")
}
part "kernels" "$bin/kernels" --include-ignored
part "tiny checkpoints" "$bin/tiny"
part "demo checkpoint" "$bin/demo" --include-ignored --nocapture
part "random weights" "$bin/synthetic" --nocapture
part "prefix cache" "$bin/gpu_prefix" --nocapture
part "needle" tests/needle.py "$bin/lily"
part "doctor" "$bin/lily" doctor
part "doctor at full size" "$bin/lily" doctor --full
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    part "$tool of the demo" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/lily" \
      run --greedy --no-thinking --max-tokens 6 "What is the moon?"
    part "$tool of tiny checkpoints" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/tiny"
    part "$tool of 4 layers at full size" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/lily" \
      bench --synthetic --layers 4 --contexts 130 --decode-tokens 2 --rounds 1 --no-warm-up --peak 1,1
  done
else
  echo "SKIPPED: there is no compute-sanitizer here; tests/gpu/sanitize.sh runs the kernels on the emulator under sanitizers"
fi
printf '\n== done (%d s)\n' "$SECONDS"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
