"""The command `llm` against `lily serve`: python llm_python.py PATH_TO_LILY"""

import os
import pathlib
import subprocess
import sys
import tempfile
from importlib.metadata import version

from cases import KEY, LONG_PROMPT, calls, output, run, says
from lily_server import lily_serve

LLM = [sys.executable, "-m", "llm"]
MODEL = """\
- model_id: lily
  model_name: default
  api_base: {url}/v1
  api_key_name: lily
  supports_tools: true
"""
FUNCTION = '''
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{days} days of sun in {city}"
'''


def home(folder, url):
    """The environment of a user of `llm` who has Lily for a model."""
    pathlib.Path(folder, "extra-openai-models.yaml").write_text(MODEL.format(url=url))
    return {**os.environ, "LLM_USER_PATH": folder}


def chats_with_the_demo_model(lily):
    with tempfile.TemporaryDirectory() as folder, lily_serve(lily) as url:
        ask = [*LLM, "-m", "lily", "--key", "none", "-o", "temperature", "0", "-o", "max_tokens", "200"]
        env = home(folder, url)
        streamed = output([*ask, "What is 17 + 25?"], env=env)
        whole = output([*ask, "--no-stream", "What is 17 + 25?"], env=env)
        assert streamed == whole != "\n", (streamed, whole)
        done = subprocess.run([*ask, "--usage", "Hello!"], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "Token usage" in done.stderr, done


def runs_a_loop_of_tools(lily):
    script = [calls("get_weather", city="Lisbon", days=2), says("Sun.")]
    for stream in [[], ["--no-stream"]]:
        with tempfile.TemporaryDirectory() as folder, lily_serve(lily, script=script) as url:
            ask = [*LLM, "-m", "lily", "--key", "none", "--functions", FUNCTION, "--td", *stream]
            done = subprocess.run(
                [*ask, "Weather?"], env=home(folder, url), capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0 and done.stdout.strip().endswith("Sun."), done
            assert "2 days of sun in Lisbon" in done.stderr, done


def says_what_is_wrong(lily):
    with tempfile.TemporaryDirectory() as folder, lily_serve(lily, "--api-key", KEY, script=[says("Hello.")]) as url:
        env = home(folder, url)
        for key, prompt, code, words in [
            (KEY, "Hi", 0, "Hello."),
            ("wrong", "Hi", 1, "the API key is wrong"),
            (KEY, LONG_PROMPT, 1, "the prompt is too long"),
        ]:
            ask = [*LLM, "-m", "lily", "--key", key]
            done = subprocess.run(ask, input=prompt, env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == code and words in done.stdout + done.stderr, done


if __name__ == "__main__":
    cases = [chats_with_the_demo_model, runs_a_loop_of_tools, says_what_is_wrong]
    run(f"llm {version('llm')}", sys.argv[1], cases)
