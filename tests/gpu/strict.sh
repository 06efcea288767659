#!/usr/bin/env bash
# The kernels' address spaces: clang checks the whole source with MSL's address spaces as its own, so that a device pointer
# handed over as a threadgroup one does not compile here either. Then mix-ups, each of which it must refuse.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The vectors and __bf16 of src/msl/strict.h need clang 16.
find_clang() {
  for clang in clang++-{20,19,18,17,16} clang++; do
    if [ "$(echo __clang_major__ | "$clang" -E -P -x c++ - 2>/dev/null || echo 0)" -ge 16 ] 2>/dev/null; then return; fi
  done
  false
}
if ! find_clang && command -v apt-get >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  log=$(mktemp)
  for package in clang-19 clang-16 clang; do
    "${root[@]}" apt-get update -qq >"$log" 2>&1 || true
    if "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$package" \
      >>"$log" 2>&1; then break; fi
  done
  find_clang || tail -n 5 "$log"
  rm -f "$log"
fi
if ! find_clang; then
  printf '\n!! SKIPPED: address spaces are NOT CHECKED here: clang 16 or later is missing\n\n'
  [ -z "${CI:-}" ] || exit 1
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo run --quiet --package lily-gpu --locked --example kernel_source -- strict >"$folder/kernels.cpp"
check() { "$clang" -std=c++20 -fsyntax-only -w "$@"; }
check "$folder/kernels.cpp"

wrong=(
  'float f(LILY_AS_device float* p); float g(LILY_AS_threadgroup float* p) { return f(p); }'
  'float f(LILY_AS_threadgroup float* p); float g(LILY_AS_device float* p) { return f(p); }'
  'float f(LILY_AS_device float* p); float g() { float x[4]; return f(x); }'
  'float f(float* p); float g(LILY_AS_device float* p) { return f(p); }'
  'void g(const LILY_AS_constant NormArgs& a) { a.width = 1; }'
  'void g(LILY_AS_device const float* p) { p[0] = 1.0f; }'
  'float g(LILY_AS_device float* p) { LILY_AS_threadgroup float* q = p; return q[0]; }'
  'void g(LILY_AS_threadgroup atomic_uint* a) { a[0] = 1u; }'
)
for text in "${wrong[@]}"; do
  if { cat "$folder/kernels.cpp"; echo "namespace lily_wrong { $text }"; } | check -x c++ - 2>/dev/null; then
    echo "accepted, though address spaces are mixed: $text"
    exit 1
  fi
done
# The frame around them is not what was refused.
{ cat "$folder/kernels.cpp"; echo 'namespace lily_right { float g(LILY_AS_device const float* p) { return p[0]; } }'; } |
  check -x c++ -
echo "$(grep -c '^ *LILY_KERNEL' "$folder/kernels.cpp") kernels keep address spaces apart ($("$clang" --version | head -n 1));" \
  "${#wrong[@]} mix-ups are refused"
