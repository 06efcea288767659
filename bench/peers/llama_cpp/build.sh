#!/usr/bin/env bash
# Build llama.cpp's libraries for CUDA and bench.cpp against them.
#
#   build.sh DIR            sources from the crate llama-cpp-sys-2 (fetched by cargo), libraries and program into DIR
#
# SOURCE=DIR  the llama.cpp folder of that crate, already here: nothing is fetched
# LIBS=DIR    a folder with libllama.so, libggml.so, libggml-base.so, libggml-cpu.so, libggml-cuda.so built before:
#             only bench.cpp is compiled, against the headers in SOURCE
# ARCH=90     compute capability (90 is Hopper)
# Needs a C++ compiler, and without LIBS cmake, ninja and nvcc; without SOURCE cargo and a network.
set -euo pipefail
VERSION=0.1.161
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)

source=${SOURCE:-$dir/vendor/llama-cpp-sys-2/llama.cpp}
if [ ! -d "$source" ]; then
    mkdir -p "$dir/fetch/src"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n[dependencies]\nllama-cpp-sys-2 = "=%s"\n' \
        "$VERSION" > "$dir/fetch/Cargo.toml"
    touch "$dir/fetch/src/lib.rs"
    cargo vendor --quiet --manifest-path "$dir/fetch/Cargo.toml" "$dir/vendor" > /dev/null
fi

libs=${LIBS:-$dir/build/bin}
if [ ! -e "$libs/libllama.so" ]; then
    # No VMM pool: its reservations hide how much memory is in use.
    cmake -G Ninja -S "$source" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${ARCH:-90}" -DGGML_CUDA_NO_VMM=ON -DGGML_CUDA_NCCL=OFF -DGGML_NATIVE=ON \
        -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF > "$dir/cmake.log"
    cmake --build "$dir/build" --target llama > "$dir/build.log" || { tail -20 "$dir/build.log" >&2; exit 1; }
fi

libs=$(cd "$libs" && pwd)
"${CXX:-c++}" -std=c++17 -O2 -Wall -Wextra -I"$source/include" -I"$source/ggml/include" "$here/bench.cpp" -o "$dir/bench" \
    -L"$libs" -lllama -lggml -lggml-base -Wl,-rpath,"$libs" -Wl,--allow-shlib-undefined -pthread
echo "llama-cpp-sys-2 $VERSION" > "$dir/version"
echo "$dir/bench"
