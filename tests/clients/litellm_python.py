"""`litellm` against `lily serve`: python litellm_python.py PATH_TO_LILY"""

import json
import sys
from importlib.metadata import version

from cases import KEY, LONG_PROMPT, REQUEST_SECONDS, calls, raises, run, says
from lily_server import lily_serve

import litellm

litellm.telemetry = False
litellm.suppress_debug_info = True
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def ask(url, content, key="none", **options):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return litellm.completion(
        model="openai/default",
        api_base=url + "/v1",
        api_key=key,
        messages=messages,
        timeout=REQUEST_SECONDS,
        max_retries=0,
        **options,
    )


def chats_with_the_demo_model(lily):
    with lily_serve(lily) as url:
        options = {"temperature": 0, "extra_body": {"enable_thinking": False}}
        whole = ask(url, "What is 17 + 25?", **options)
        assert whole.choices[0].message.content and whole.choices[0].finish_reason == "stop", whole
        chunks = list(ask(url, "What is 17 + 25?", stream=True, stream_options={"include_usage": True}, **options))
        streamed = litellm.stream_chunk_builder(chunks)
        assert streamed.choices[0].message.content == whole.choices[0].message.content, (streamed, whole)
        assert streamed.usage.completion_tokens == whole.usage.completion_tokens > 0, (streamed, whole)
        assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens > 0, (streamed, whole)


def tells_reasoning_from_content(lily):
    with lily_serve(lily, script=[says("Yes.", thoughts="I wonder.")]) as url:
        whole = ask(url, "Hi").choices[0].message
        assert (whole.reasoning_content, whole.content) == ("I wonder.", "Yes."), whole
        streamed = litellm.stream_chunk_builder(list(ask(url, "Hi", stream=True))).choices[0].message
        assert (streamed.reasoning_content, streamed.content) == ("I wonder.", "Yes."), streamed


def runs_a_loop_of_tools(lily):
    for stream in [False, True]:
        with lily_serve(lily, script=[calls("get_weather", city="Lisbon", days=2), says("Sun.")]) as url:
            messages = [{"role": "user", "content": "How is the weather in Lisbon?"}]
            answer = ask(url, messages, tools=[TOOL], stream=stream)
            answer = litellm.stream_chunk_builder(list(answer)) if stream else answer
            assert answer.choices[0].finish_reason == "tool_calls", answer
            message = answer.choices[0].message
            [call] = message.tool_calls
            assert call.function.name == "get_weather", call
            assert json.loads(call.function.arguments) == {"city": "Lisbon", "days": 2}, call
            messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "2 days of sun"}]
            assert ask(url, messages, tools=[TOOL]).choices[0].message.content == "Sun."


def raises_its_own_errors(lily):
    with lily_serve(lily, "--api-key", KEY, script=[says("Hello.")]) as url:
        raises(litellm.AuthenticationError, lambda: ask(url, "Hi", key="wrong"))
        assert ask(url, "Hi", key=KEY).choices[0].message.content == "Hello."
        raises(litellm.ContextWindowExceededError, lambda: ask(url, LONG_PROMPT, key=KEY))
        raises(litellm.ContextWindowExceededError, lambda: list(ask(url, LONG_PROMPT, key=KEY, stream=True)))
        raises(litellm.BadRequestError, lambda: ask(url, "Hi", key=KEY, temperature=3))


if __name__ == "__main__":
    cases = [chats_with_the_demo_model, tells_reasoning_from_content, runs_a_loop_of_tools, raises_its_own_errors]
    run(f"litellm {version('litellm')}", sys.argv[1], cases)
