#!/usr/bin/env bash
# Everything that must hold before a change lands; CI runs exactly this. From a fresh clone it needs Rust, Python 3 with
# venv, and the package indexes of both on its first run.
set -euo pipefail
cd "$(dirname "$0")/.."

target() {
  cargo metadata --no-deps --locked --format-version 1 |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])'
}

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo clippy --workspace --all-targets --locked --no-default-features -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

step "no C in the dependency tree"
tests/no_c.sh

step "type check for Apple silicon"
if command -v rustup >/dev/null && rustup target add aarch64-apple-darwin; then
  cargo clippy --workspace --locked --target aarch64-apple-darwin -- -D warnings
elif [ "$(uname -sm)" = "Darwin arm64" ]; then
  echo "this is Apple silicon; the other steps check it"
else
  echo "SKIPPED: the target aarch64-apple-darwin can not be installed (rustup is missing or offline)"
  [ -z "${CI:-}" ] || exit 1
fi

step "the real tokenizer"
if ! tests/tokenizer/build.sh; then
  echo "SKIPPED: the real tokenizer can not be built; its cases will say so"
  [ -z "${CI:-}" ] || exit 1
fi

step "tests"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --locked --no-fail-fast -- --show-output 2>&1 | tee "$log"

step "GPU kernels on the emulator"
if [ "$(uname -sm)" = "Linux x86_64" ] && command -v c++ >/dev/null; then
  cargo clippy --package lily-gpu --all-targets --features emulated --locked -- -D warnings
  cargo test --package lily-gpu --features emulated --locked -- --include-ignored

  step "every kernel by lily doctor on the emulator"
  cargo clippy --package lily --all-targets --features emulated --locked -- -D warnings
  cargo run --package lily --features emulated --locked --quiet -- doctor --device emulated

  step "the prefix cache on the emulated GPU"
  cargo test --package lily --features emulated --locked --test gpu_prefix

  step "lily bench and its ablation on the emulated GPU"
  tests/gpu/bench.sh "$(target)/debug/lily"

  step "a chat on the emulated GPU"
  tests/gpu/chat.sh "$(target)/debug/lily"

  step "dispatches and bytes of the GPU program"
  tests/gpu/count.sh

  step "GPU kernels under sanitizers"
  tests/gpu/sanitize.sh

  step "planted faults are noticed"
  tests/gpu/planted.sh

  step "GPU kernels as CUDA"
  tests/gpu/nvrtc.sh
else
  echo "SKIPPED: the emulator needs x86-64 Linux and a C++ compiler"
  [ -z "${CI:-}" ] || exit 1
fi

step "address spaces of the GPU kernels"
tests/gpu/strict.sh

step "the macOS program links"
tests/macho/link.sh

step "NEON kernels under emulation"
tests/neon.sh

step "scripts that measure other engines"
tests/peers.py

step "clients and speed of the release build"
cargo build --release --locked --package lily
lily="$(target)/release/lily"
tests/clients/run.sh "$lily"
tests/speed.py "$lily"
tests/needle.py "$lily" --device cpu

step "all of it holds"
grep -h '^skipped: ' "$log" | sort -u || true
