"""`langchain-openai` against `lily serve`: python langchain_openai_python.py PATH_TO_LILY"""

import sys
from importlib.metadata import version

import openai
from cases import KEY, LONG_PROMPT, REQUEST_SECONDS, calls, raises, run, says
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from lily_server import lily_serve


def connect(url, key="none", **options):
    return ChatOpenAI(
        base_url=url + "/v1", api_key=key, model="default", timeout=REQUEST_SECONDS, max_retries=0, **options
    )


@tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"{days} days of sun in {city}"


def chats_with_the_demo_model(lily):
    with lily_serve(lily) as url:
        model = connect(url, temperature=0, extra_body={"enable_thinking": False})
        whole = model.invoke("What is 17 + 25?")
        assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
        assert whole.response_metadata["finish_reason"] == "stop", whole
        streamed = None
        for chunk in model.stream("What is 17 + 25?", stream_usage=True):
            streamed = chunk if streamed is None else streamed + chunk
        assert streamed.content == whole.content, (streamed, whole)
        assert streamed.usage_metadata == whole.usage_metadata, (streamed, whole)


def runs_a_loop_of_tools(lily):
    for stream in [False, True]:
        with lily_serve(lily, script=[calls("get_weather", city="Lisbon", days=2), says("Sun.")]) as url:
            model = connect(url, streaming=stream).bind_tools([get_weather])
            messages = [HumanMessage("How is the weather in Lisbon?")]
            messages.append(model.invoke(messages))
            [call] = messages[-1].tool_calls
            assert (call["name"], call["args"]) == ("get_weather", {"city": "Lisbon", "days": 2}), call
            messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
            assert model.invoke(messages).content == "Sun."


def raises_its_own_errors(lily):
    with lily_serve(lily, "--api-key", KEY, script=[says("Hello.")]) as url:
        raises(openai.AuthenticationError, lambda: connect(url, key="wrong").invoke("Hi"))
        assert connect(url, key=KEY).invoke("Hi").content == "Hello."
        raises(ContextOverflowError, lambda: connect(url, key=KEY).invoke(LONG_PROMPT))
        raises(ContextOverflowError, lambda: list(connect(url, key=KEY).stream(LONG_PROMPT)))
        raises(openai.BadRequestError, lambda: connect(url, key=KEY, temperature=3).invoke("Hi"))


if __name__ == "__main__":
    what = f"langchain-openai {version('langchain-openai')}"
    run(what, sys.argv[1], [chats_with_the_demo_model, runs_a_loop_of_tools, raises_its_own_errors])
