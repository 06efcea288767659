#!/usr/bin/env bash
# The kernels as CUDA, compiled for an H200's architecture by NVRTC, which needs no GPU. A source that has compiled before
# is not compiled again.
#
# Needs x86-64 Linux, Python 3 with venv and its package index for nvidia-cuda-nvrtc.
set -euo pipefail
cd "$(dirname "$0")/../.."
package=nvidia-cuda-nvrtc==13.5.37
folder=.cache/nvrtc
mkdir -p "$folder"

cargo run --quiet --package lily-gpu --locked --example kernel_source -- cuda >"$folder/kernels.cu"
cargo run --quiet --package lily-gpu --locked --example kernel_source -- cuda-mma >"$folder/mma.cu"
cargo run --quiet --package lily-gpu --locked --example kernel_source -- cuda-ablate >"$folder/ablate.cu"
stamp=$(cat "$folder/kernels.cu" "$folder/mma.cu" "$folder/ablate.cu" tests/gpu/nvrtc.py <(echo "$package") | sha256sum | cut -c1-32)
if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "these kernels have compiled for sm_90a before"
  exit 0
fi
venv=$folder/venv
if ! { [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; } ||
  ! "$venv/bin/pip" install --quiet --disable-pip-version-check "$package"; then
  printf '\n!! SKIPPED: the CUDA form of the kernels is NOT COMPILED here: %s can not be installed\n\n' "$package"
  [ -z "${CI:-}" ] || exit 1
  exit 0
fi
"$venv/bin/python" tests/gpu/nvrtc.py "$folder/kernels.cu"
"$venv/bin/python" tests/gpu/nvrtc.py "$folder/mma.cu"
"$venv/bin/python" tests/gpu/nvrtc.py "$folder/ablate.cu"
echo "$stamp" >"$folder/stamp"
