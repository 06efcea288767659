#!/usr/bin/env bash
# Measure Lily and one other engine on the same NVIDIA GPU, one after the other, at the same contexts.
#
#   side_by_side.sh llama.cpp|mlx-lm OUT
#
# Writes OUT/lily.json, OUT/llama.cpp.json or OUT/mlx-lm.json (the form of docs/bench.md), what each printed, their ratios and
# a plot of both. `clocks` in the JSON are what the GPU ran at while it was busy, read twice a second.
#
# LILY=PATH     the program [target/release/lily]; LILY= leaves it out
# LILY_ARGS     more of its options, such as --rounds 3
# PEER_ARGS     options of llama_cpp/bench.cpp or mlx_lm/bench.py
# CONTEXTS      [256,512,1024,2048,4096,8192,16384,32768,65536,131072]
# LAYERS        [40], a multiple of 4
# WORK=DIR      where the peer is built or installed [OUT/work]; what is there already is used again
# SOURCE, LIBS, PYTHON   as llama_cpp/build.sh and mlx_lm/setup.sh have them: parts that are here already
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case ${1:-} in llama.cpp | mlx-lm) ;; *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
peer=$1
mkdir -p "${2:?where to write}"
out=$(cd "$2" && pwd)
contexts=${CONTEXTS:-256,512,1024,2048,4096,8192,16384,32768,65536,131072}
layers=${LAYERS:-40}
lily=${LILY-$here/../../target/release/lily}
work=${WORK:-$out/work}
python=${PYTHON:-python3}
mkdir -p "$work"
fields=$("$python" "$here/report.py" fields)

# Runs a command while the GPU's clocks are read twice a second.
# watched NAME COMMAND...
watched() {
    local name=$1 watcher status=0
    shift
    nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits -lms 500 > "$out/$name.clocks.csv" &
    watcher=$!
    "$@" 2>&1 | tee "$out/$name.txt" || status=$?
    kill "$watcher"
    wait "$watcher" 2> /dev/null || true
    return "$status"
}

run_lily() {
    # shellcheck disable=SC2086
    watched lily "$lily" bench --device cuda --synthetic --layers "$layers" --contexts "$contexts" --decode-tokens 64 ${LILY_ARGS:-} \
        --json "$out/lily.json"
    "$python" "$here/report.py" device "$out/lily.json" --samples "$out/lily.clocks.csv"
}

run_llama_cpp() {
    # Its best physical batch first, its default as a second pass.
    local program model=$work/header-$layers.gguf passes="--pass 2048:${contexts##*,}:logits --pass 512:8192:logits"
    program=$("$here/llama_cpp/build.sh" "$work" | tail -1)
    "$python" "$here/llama_cpp/header.py" --layers "$layers" --out "$model"
    # shellcheck disable=SC2086
    watched llama.cpp "$program" "$model" "$out/llama.cpp.jsonl" --contexts "$contexts" ${PEER_ARGS:-$passes}
    "$python" "$here/report.py" rows "$out/llama.cpp.jsonl" --engine llama.cpp --version "$(cat "$work/version")" \
        --weights "random, $layers layers, Q4_0, head Q6_K" --command "bench ${PEER_ARGS:-$passes}" --out "$out/llama.cpp.json" \
        --note "prompts above 8,192 tokens: one pass in pieces of 2,048, decode at each context on the way" \
        --note "peak_bytes: all memory in use on the GPU; the cache is allocated for the longest context"
    "$python" "$here/report.py" device "$out/llama.cpp.json" --samples "$out/llama.cpp.clocks.csv"
}

run_mlx_lm() {
    local interpreter
    interpreter=$("$here/mlx_lm/setup.sh" "$work/venv")
    # Kernels are compiled at first use, which takes minutes; they are kept here.
    export MLX_PTX_CACHE_DIR=${MLX_PTX_CACHE_DIR:-$work/ptx}
    mkdir -p "$MLX_PTX_CACHE_DIR"
    # shellcheck disable=SC2086
    watched mlx-lm "$interpreter" "$here/mlx_lm/bench.py" --out "$out/mlx-lm.json" --layers "$layers" --contexts "$contexts" ${PEER_ARGS:-}
    "$python" "$here/report.py" device "$out/mlx-lm.json" --samples "$out/mlx-lm.clocks.csv"
}

[ -z "$lily" ] || run_lily
case $peer in llama.cpp) run_llama_cpp ;; mlx-lm) run_mlx_lm ;; esac
if [ -n "$lily" ]; then
    "$lily" bench --from "$out/lily.json" --compare "$out/$peer.json" --plot "$out/$peer.svg" | tee "$out/$peer.ratios.txt"
else
    "$python" "$here/report.py" table "$out/$peer.json"
fi
