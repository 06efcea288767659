#!/usr/bin/env bash
# Links the whole program for macOS on Linux: the zig linker, its libSystem, and stubs of our own for the rest.
#
# Needs rustup (for the target's standard library), Python 3 with venv and its package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() {
  printf '\n!! SKIPPED: the macOS program is NOT LINKED here: %s\n\n' "$*"
  [ -z "${CI:-}" ] || exit 1
  exit 0
}
[ "$(uname -s)" = Linux ] || skip "this is for Linux; a Mac links it as it is"
target=aarch64-apple-darwin
command -v rustup >/dev/null && rustup target add "$target" >/dev/null 2>&1 || skip "rustup cannot install $target"
folder=$PWD/.cache/macho
packages=(ziglang==0.17.1 cargo-zigbuild==0.24.1)
mkdir -p "$folder"
if [ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]; then
  python3 -m venv "$folder/venv" || skip "Python 3 with venv is missing"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" || skip "pip cannot install ${packages[*]}"
  echo "${packages[*]}" >"$folder/packages"
fi
tests/macho/stubs.sh "$folder/stubs"

export PATH="$folder/venv/bin:$PATH" MACOSX_DEPLOYMENT_TARGET=15.0
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-L framework=$folder/stubs/frameworks -L native=$folder/stubs/lib"
# A folder of its own: these flags would make the other steps' builds of this target stale.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/macho"
cargo zigbuild --package lily --bin lily --locked --target "$target" 2>&1 | grep -v 'xcrun\|xcode-select' || true
python3 tests/macho/header.py "$CARGO_TARGET_DIR/$target/debug/lily"
