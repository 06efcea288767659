#!/usr/bin/env bash
# A Python environment with MLX-LM for CUDA.
#
#   setup.sh DIR       prints the interpreter to use
#
# Where python3 (or $PYTHON) has the packages already, in any way, nothing is installed and DIR is not made.
# Needs Python 3.11 or newer, and a network otherwise. MLX's own libraries and NVIDIA's are about 3 GB.
set -euo pipefail
MLX=0.32.4 MLX_LM=0.32.2
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
python=${PYTHON:-python3}
if "$python" -c 'import sys; from importlib.util import find_spec as find; sys.exit(not (find("mlx.core") and find("mlx_lm")))' \
    2> /dev/null; then
    command -v "$python"
    exit
fi
if [ ! -x "$1/bin/python" ]; then
    "$python" -m venv "$1"
    "$1/bin/pip" install --quiet "mlx==$MLX" "mlx-cuda-13==$MLX" "mlx-lm==$MLX_LM" >&2
fi
echo "$(cd "$1" && pwd)/bin/python"
