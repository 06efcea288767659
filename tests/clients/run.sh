#!/usr/bin/env bash
# The official clients against a running `lily serve`: tests/clients/run.sh PATH_TO_LILY
# The first run makes a virtual environment (tests/clients/.venv) and needs the Python package index.
set -euo pipefail
cd "$(dirname "$0")"
lily=$(realpath "${1:?path of the lily binary}")

stamp=.venv/requirements.installed
if ! cmp -s requirements.txt "$stamp"; then
  rm -rf .venv
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
  cp requirements.txt "$stamp"
fi
exec timeout 600 .venv/bin/python -u openai_python.py "$lily"
