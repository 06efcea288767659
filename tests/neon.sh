#!/usr/bin/env bash
# The CPU kernels for aarch64 on any Linux machine: the unit tests of lily-cpu, built for aarch64 and run by qemu, so
# that the NEON versions are held to the same bits as the portable ones where no such processor is at hand.
#
# Needs rustup, a linker and C library for aarch64 (no C is compiled) and qemu's user mode; installs what is missing
# where it may.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

skip() {
  printf '\n!! SKIPPED: NEON is NOT TESTED here: %s\n\n' "$*"
  exit 0
}

if [ "$(uname -m)" = aarch64 ] || [ "$(uname -m)" = arm64 ]; then
  echo "this machine has NEON: running the tests as they are"
  exec cargo test --package lily-cpu --lib --locked
fi
[ "$(uname -s)" = Linux ] || skip "qemu's user mode runs on Linux only"
command -v rustup >/dev/null || skip "rustup is missing, and with it the standard library of $target"
rustup target add "$target" || skip "rustup cannot install $target (offline?)"

sysroot=/usr/aarch64-linux-gnu
complete() {
  command -v qemu-aarch64 && command -v aarch64-linux-gnu-gcc && [ -e "$sysroot/lib/libc.so.6" ]
} >/dev/null
packages=(qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
if ! complete && command -v apt-get >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { "${root[@]}" apt-get update && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
    tail -n 5 "$log"
  fi
fi
complete || skip "install these, or what your system calls them: ${packages[*]}"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $sysroot"
cargo test --package lily-cpu --lib --locked --target "$target"
echo "NEON: the unit tests of lily-cpu hold for $target under $(qemu-aarch64 --version | head -n 1)"
