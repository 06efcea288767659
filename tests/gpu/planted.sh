#!/usr/bin/env bash
# Tests of the tests: faults planted into the kernels, each of which a named test must notice. A plant is a replacement in
# the source, made by the build script; the text to replace must stand there exactly once. Removed barriers are run under
# the thread sanitizer, as results alone show only some of them.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

tsan=1
if [ ! -e "$(c++ -print-file-name=libtsan.a)" ]; then
  printf '\n!! SKIPPED: removed barriers are NOT PLANTED here: c++ has no libtsan.a\n\n'
  [ -z "${CI:-}" ] || exit 1
  tsan=
fi
export TSAN_OPTIONS="report_thread_leaks=0 ignore_interceptors_accesses=1 exitcode=66"

# sanitizer (or empty), kernels to build, arguments; the Rust side is not optimised, as it is built again for each fault
cargo_test() {
  LILY_SANITIZE=$1 LILY_KERNELS=$2 CARGO_TARGET_DIR="$target/planted${1:+-$1}" RUST_BACKTRACE=0 \
    cargo test --config profile.dev.package.lily-gpu.opt-level=0 --package lily-gpu --features emulated --locked --quiet --lib "${@:3}"
}

count=0
# what, sanitizer (or empty), kernels to build, test, text, its replacement
plant() {
  local begin=$SECONDS
  [ -z "$2" ] || [ -n "$tsan" ] || return 0
  if ! LILY_PLANT="$5=>$6" cargo_test "$2" "$3" --no-run >"$log" 2>&1; then
    cat "$log"
    echo "the fault \`$1\` does not build"
    exit 1
  fi
  if LILY_PLANT="$5=>$6" cargo_test "$2" "$3" -- --test-threads=1 --exact "$4" >"$log" 2>&1; then
    cat "$log"
    echo "NOT NOTICED by $4: $1"
    exit 1
  fi
  if ! grep -q 'running 1 test' "$log" || { [ -n "$2" ] && ! grep -q 'ThreadSanitizer: data race' "$log"; }; then
    cat "$log"
    echo "$4 failed, but not of this fault: $1"
    exit 1
  fi
  count=$((count + 1))
  echo "noticed: $1 ($4${2:+, $2 sanitizer}, $((SECONDS - begin)) s)"
}
# The same builds and tests without a fault hold, or the failures above prove nothing: kernels, tests.
holds() { # sanitizer, kernels, tests
  [ -z "$1" ] || [ -n "$tsan" ] || return 0
  if ! cargo_test "$1" "$2" -- --test-threads=1 --exact "${@:3}" >"$log" 2>&1 || ! grep -q "running $(($# - 2)) test" "$log"; then
    cat "$log"
    echo "these fail without a fault: ${*:3}"
    exit 1
  fi
}

map=kernels::moe_map::tests::both_sides_of_a_block
gemm=kernels::affine_gemm::tests::every_width_of_weights_and_outputs_on_both_sides_of_a_block
prefill=kernels::attention_prefill::tests::both_sides_of_row_tiles_key_tiles_and_pages
delta=kernels::gated_delta_chunk::tests::lengths_around_a_block
barrier='threadgroup_barrier(mem_flags::mem_threadgroup);'

plant "no barrier before a scan's memory is used again" thread moe_map "$map" \
  "$barrier // \`whole\` may be used again" ""
plant "no barrier between the values of a tile and the next tile's keys" thread attention_prefill "$prefill" \
  "    prefill_values(p, tile, o);
    $barrier" "    prefill_values(p, tile, o);"
holds thread moe_map,attention_prefill "$map" "$prefill"

plant "the last tile of keys is left out" "" attention_prefill "$prefill" \
  "k0 < end; k0 += keys" "k0 + keys < end; k0 += keys"
plant "a row sees the key after its own" "" attention_prefill "$prefill" \
  "const bool seen = k0 + j * 8 + column + i <= position" "const bool seen = k0 + j * 8 + column + i <= position + 1"
plant "the scale of a row's first group for all of its groups" "" affine_gemm "$gemm" \
  "(odd ? matrix.biases : matrix.scales)[(w_from + k) / 64]" "(odd ? matrix.biases : matrix.scales)[w_from / 64]"
plant "the state misses a block's last tile" "" gated_delta_chunk "$delta" \
  "for (uint t = 0; t * 8 < count; t++) {" "for (uint t = 0; t * 8 + 8 < count; t++) {"
holds "" attention_prefill,affine_gemm,gated_delta_chunk "$prefill" "$gemm" "$delta"
echo "$count planted faults, all noticed"
