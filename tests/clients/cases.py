"""What the clients' tests share: replies to script, and a runner that says which cases failed."""

import os
import subprocess
import sys
import time
import traceback

REQUEST_SECONDS = 60
KEY = "a-key-for-tests"
LONG_PROMPT = "Tell me about the sea. " * 4000

# No client gets further than this machine: what heeds a proxy finds nobody there, and what reports home is told not to.
ALONE = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "AIDER_ANALYTICS": "false",
    "AIDER_ANALYTICS_DISABLE": "true",
    "AIDER_CHECK_UPDATE": "false",
}
os.environ.update(ALONE)
# Some read the small spelling first.
os.environ.update({name.lower(): value for name, value in ALONE.items() if name.endswith("_PROXY")})


def says(text, thoughts="I know that."):
    """A scripted reply; a model that thinks begins inside its reasoning."""
    words = [word + " " for word in text.split(" ")]
    words[-1] = words[-1].rstrip(" ")
    return {"pieces": [thoughts, {"token": "</think>"}, "\n\n", *words]}


def calls(name, thoughts="I look it up.", **arguments):
    """A scripted tool call, as the model's template has it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    call = [{"token": "<tool_call>"}, f"\n<function={name}>\n", parameters, "</function>\n", {"token": "</tool_call>"}]
    return {"pieces": [thoughts, {"token": "</think>"}, "\n\n", *call]}


def raises(kind, call):
    """The error that `call` must raise, of this kind."""
    try:
        call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"accepted, though {kind.__name__} was expected")


def output(command, seconds=120, **options):
    """What a command prints; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def check(case, *arguments):
    start = time.monotonic()
    try:
        case(*arguments)
    except Exception:
        traceback.print_exc()
        print(f"FAILED {case.__name__}")
        return False
    print(f"ok     {case.__name__} ({time.monotonic() - start:.1f} s)")
    return True


def run(what, lily, cases):
    """Runs cases, each with the path of the binary, and ends the program."""
    print(what)
    results = [check(case, lily) for case in cases]
    print(f"{sum(results)} of {len(results)} passed")
    sys.exit(0 if results and all(results) else 1)
