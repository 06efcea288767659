#!/usr/bin/env bash
# A chat through the whole program on the emulated GPU: the greedy answer is the CPU's.
# Usage: tests/gpu/chat.sh LILY, a `lily` built with the feature `emulated`.
set -euo pipefail
ask() { "$1" run --device "$2" --no-thinking --greedy --max-tokens 16 "What is the moon?" 2>/dev/null; }
gpu=$(ask "$1" emulated)
cpu=$(ask "$1" cpu)
echo "emulated GPU: $gpu"
echo "CPU:          $cpu"
[ -n "$gpu" ] && [ "$gpu" = "$cpu" ]
