#!/usr/bin/env bash
# Clients as their makers ship them, against a running `lily serve`: tests/clients/run.sh PATH_TO_LILY
# The first run makes virtual environments (tests/clients/.venv) and needs the Python package index.
set -euo pipefail
cd "$(dirname "$0")"
lily=$(realpath "${1:?path of the lily binary}")

# One environment for each set of clients that agree on their dependencies.
install() {
  local name=$1 requirements="requirements/$1.txt" stamp=".venv/$1/requirements.installed"
  cmp -s "$requirements" "$stamp" && return
  # An environment of an earlier layout lay in .venv itself.
  if [ -e .venv/pyvenv.cfg ]; then rm -rf .venv; fi
  rm -rf ".venv/$name"
  python3 -m venv ".venv/$name"
  ".venv/$name/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$stamp"
}

client() { timeout 600 ".venv/$1/bin/python" -u "$2" "$lily"; }

install sdks
client sdks openai_python.py
client sdks anthropic_python.py
client sdks langchain_openai_python.py
client sdks llm_python.py
install litellm
client litellm litellm_python.py
client litellm instructor_python.py
if python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))'; then
  install aider
  client aider aider_agent.py
else
  echo "SKIPPED: aider-chat wants Python 3.10 to 3.12"
fi
