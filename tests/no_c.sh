#!/usr/bin/env bash
# The default dependency tree holds no C or C++, on any target: a newcomer needs only Rust, and every target
# type-checks from any other.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(cargo tree --workspace --locked --edges normal,build --target all --prefix none --format '{p}' |
  awk '{print $1 " " $2}' | sort -u)

# What compiles C, or looks for C libraries.
builders='^(cc|cmake|pkg-config|vcpkg|bindgen|nasm-rs|autotools|cxx|cxx-build) '
# `-sys` crates wrap C libraries. These do not: they hold declarations of system interfaces, written in Rust.
declarations='^(linux-raw-sys|windows-sys|js-sys|web-sys|core-foundation-sys) '

bad=$(grep -E "$builders" <<<"$packages" || true)
bad+=$(grep -E -- '-sys ' <<<"$packages" | grep -vE "$declarations" || true)
if [ -n "$bad" ]; then
  printf 'These dependencies bring C or C++ into the default build:\n%s\n' "$bad"
  printf 'Find out who needs them: cargo tree --workspace --target all --invert NAME\n'
  exit 1
fi
echo "no C or C++ among $(wc -l <<<"$packages") packages"
