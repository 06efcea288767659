#!/bin/sh
# Builds the real tokenizer of Qwen3.6 into .cache/tokenizer, for the tests of crates/lily-chat. Needs python3 with venv
# and pip; does nothing when the tokenizer is there already.
set -eu
cd "$(dirname "$0")/../.."
out=.cache/tokenizer
if [ -f "$out/tokenizer.json" ]; then
    echo "$out is there already"
    exit 0
fi
python3 -m venv .cache/tokenizer-venv
.cache/tokenizer-venv/bin/pip install --quiet --disable-pip-version-check -r tests/tokenizer/requirements.txt
.cache/tokenizer-venv/bin/python tests/tokenizer/build.py "$out"
