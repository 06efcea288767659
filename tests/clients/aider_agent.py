"""The agent `aider` edits a file in a repository of its own: python aider_agent.py PATH_TO_LILY"""

import os
import pathlib
import sys
import tempfile
from importlib.metadata import version

from cases import KEY, output, run, says
from lily_server import lily_serve

BEFORE = 'def greet(name):\n    print("Hello, " + name)\n'
AFTER = 'def greet(name):\n    print(f"Good morning, {name}!")\n'
EDIT = f"""I greet in the morning.

greet.py
```python
<<<<<<< SEARCH
    print("Hello, " + name)
=======
    print(f"Good morning, {{name}}!")
>>>>>>> REPLACE
```
"""


def repository(folder):
    """A repository with one committed file, and an environment without a home that others share."""
    home, repo = pathlib.Path(folder, "home"), pathlib.Path(folder, "repo")
    # Aider would fetch prices of models unless it had done so today.
    prices = home / ".aider/caches/model_prices_and_context_window.json"
    prices.parent.mkdir(parents=True)
    prices.write_text('{"none": {}}')
    repo.mkdir()
    git = {"GIT_CONFIG_GLOBAL": str(home / ".gitconfig"), "GIT_CONFIG_SYSTEM": os.devnull}
    env = {**os.environ, **git, "HOME": str(home), "TERM": "dumb"}
    (home / ".gitconfig").write_text("[user]\nname = Tester\nemail = tester@example.com\n")
    (repo / "greet.py").write_text(BEFORE)
    for command in ["git init --quiet", "git add greet.py", "git commit --quiet --message Begin"]:
        output(command.split(), cwd=repo, env=env)
    return repo, env


def aider(repo, env, url, *more):
    command = [sys.executable, "-m", "aider", "--model", "openai/default", "--edit-format", "diff"]
    command += ["--openai-api-base", url + "/v1", "--openai-api-key", KEY, "--no-show-model-warnings"]
    command += ["--no-check-update", "--no-show-release-notes", "--no-gitignore", "--no-detect-urls", "--yes-always"]
    command += [*more, "--message", "Greet in the morning.", "greet.py"]
    return output(command, cwd=repo, env=env)


def edits_a_file_and_commits_it(lily):
    for more in [["--stream"], ["--no-stream"]]:
        script = [says(EDIT), says("feat: greet in the morning")]
        with tempfile.TemporaryDirectory() as folder, lily_serve(lily, "--api-key", KEY, script=script) as url:
            repo, env = repository(folder)
            said = aider(repo, env, url, *more)
            assert (repo / "greet.py").read_text() == AFTER, said
            log = output(["git", "log", "-1", "--format=%s"], cwd=repo, env=env)
            assert log == "feat: greet in the morning\n", (log, said)
            assert "I know that." in said and "Applied edit to greet.py" in said, said


if __name__ == "__main__":
    run(f"aider-chat {version('aider-chat')}", sys.argv[1], [edits_a_file_and_commits_it])
