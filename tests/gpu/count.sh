#!/usr/bin/env bash
# Dispatches and bytes of the GPU program at the dimensions of the 35B model: a token at two contexts, and a prompt.
# Usage: tests/gpu/count.sh [TOKENS of the prompt, 256 by default; 4096 is a whole pass, and takes long].
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo run --package lily --features emulated --locked --quiet -- bench --count --prompt-tokens "${1:-256}"
