#!/usr/bin/env bash
# The GPU kernels under the compiler's sanitizers, on the emulator: the thread sanitizer sees each GPU thread as a thread
# of its own and finds missing barriers and words that two threadgroups write; the address and undefined-behaviour
# sanitizers find indices past threadgroup and local arrays. Tests marked `sanitized` are left out: their shapes are large, or
# other tests run the same kernels.
#
#   tests/gpu/sanitize.sh [thread|address]     both by default
#
# Needs x86-64 Linux and GCC with its sanitizer runtimes (libgcc's development files bring them).
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for name in tsan asan ubsan; do
  if [ ! -e "$(c++ -print-file-name=lib$name.a)" ]; then
    echo "!! SKIPPED: the GPU kernels are NOT SANITIZED here: c++ has no lib$name.a"
    [ -z "${CI:-}" ] || exit 1
    exit 0
  fi
done

# Interceptors see the Rust side, which is not instrumented and whose locks the sanitizer does not know.
export TSAN_OPTIONS="report_thread_leaks=0 ignore_interceptors_accesses=1 exitcode=66"
# A fiber's stack is not one that the address sanitizer made.
export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=0"
export UBSAN_OPTIONS="print_stacktrace=1"

# The emulator runs one dispatch at a time; tests one after another keep the reports apart.
run() { # sanitizer, then arguments of the test program
  local sanitizer=$1
  shift
  CARGO_TARGET_DIR="$target/sanitize-$sanitizer" LILY_SANITIZE="$sanitizer" RUST_BACKTRACE=0 \
    cargo test --config profile.dev.package.lily-gpu.opt-level=1 --package lily-gpu --features emulated --locked --quiet --lib -- --test-threads=1 "$@"
}

# A planted fault: the report must come, or the clean run above proves nothing.
reports() { # sanitizer, test, what the report says
  if run "$1" "$2" >"$log" 2>&1 || ! grep -q "$3" "$log"; then
    cat "$log"
    echo "the $1 sanitizer does not report the fault of $2: \`$3\` wanted"
    exit 1
  fi
  echo "  $2: reported"
}

[ $# -gt 0 ] || set -- thread address
for sanitizer in "$@"; do
  begin=$SECONDS
  echo "-- $sanitizer sanitizer"
  if ! run "$sanitizer" --skip sanitizer_ --skip msl:: >"$log" 2>&1 ||
    grep -q 'WARNING: ThreadSanitizer\|ERROR: AddressSanitizer\|runtime error:' "$log"; then
    cat "$log"
    exit 1
  fi
  grep '^test result' "$log"
  case $sanitizer in
    thread)
      # The kernel's body may be inlined into its launcher; the report then bears the launcher's name.
      reports thread sanitizer_a_missing_barrier "SUMMARY: ThreadSanitizer: data race .*_faulty_missing_barrier("
      reports thread sanitizer_two_threadgroups "SUMMARY: ThreadSanitizer: data race .*_faulty_shared_word("
      ;;
    address)
      reports address sanitizer_an_index_past "runtime error: index 64 out of bounds\|AddressSanitizer: use-after-poison"
      ;;
  esac
  echo "   $((SECONDS - begin)) s"
done
