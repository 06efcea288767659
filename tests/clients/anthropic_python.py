"""The official `anthropic` package against `lily serve`: python anthropic_python.py PATH_TO_LILY"""

import sys
from importlib.metadata import version

import anthropic
from cases import KEY, LONG_PROMPT, REQUEST_SECONDS, calls, raises, run, says
from lily_server import lily_serve

TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
THINKING = {"type": "enabled", "budget_tokens": 1024}


def connect(url, key="none"):
    return anthropic.Anthropic(base_url=url, api_key=key, timeout=REQUEST_SECONDS, max_retries=0)


def ask(client, content, stream=False, **options):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    # This package no longer knows `temperature`.
    extra = {"extra_body": {"temperature": options.pop("temperature")}} if "temperature" in options else {}
    options = {"model": "default", "max_tokens": 2000, "messages": messages, **extra, **options}
    if not stream:
        return client.messages.create(**options)
    with client.messages.stream(**options) as events:
        text = "".join(events.text_stream)
        message = events.get_final_message()
    assert text == "".join(block.text for block in message.content if block.type == "text"), (text, message)
    return message


def chats_with_the_demo_model(lily):
    with lily_serve(lily) as url:
        client = connect(url)
        whole, streamed = [ask(client, "What is 17 + 25?", stream, temperature=0) for stream in [False, True]]
        assert whole.stop_reason == "end_turn" and whole.content[0].text, whole
        assert streamed.content[0].text == whole.content[0].text and streamed.stop_reason == whole.stop_reason, (streamed, whole)
        assert streamed.usage.output_tokens == whole.usage.output_tokens > 0, (streamed, whole)
        counted = client.messages.count_tokens(
            model="default", messages=[{"role": "user", "content": "What is 17 + 25?"}]
        )
        assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, (counted, whole)
        cut = ask(client, "What is 17 + 25?", max_tokens=2, temperature=0)
        assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2, cut


def tells_thinking_from_text(lily):
    with lily_serve(lily, script=[says("Yes.", thoughts="I wonder.")]) as url:
        for stream in [False, True]:
            thinking, text = ask(connect(url), "Hi", stream, thinking=THINKING).content
            assert (thinking.thinking, text.text) == ("I wonder.", "Yes."), (thinking, text)


def runs_a_loop_of_tools(lily):
    for stream in [False, True]:
        with lily_serve(lily, script=[calls("get_weather", city="Lisbon", days=2), says("Sun.")]) as url:
            client = connect(url)
            messages = [{"role": "user", "content": "How is the weather in Lisbon?"}]
            answer = ask(client, messages, stream, tools=[TOOL], thinking=THINKING)
            assert answer.stop_reason == "tool_use", answer
            call = answer.content[-1]
            assert (call.name, call.input) == ("get_weather", {"city": "Lisbon", "days": 2}), call
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "2 days of sun"}
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": [result]})
            answer = ask(client, messages, stream, tools=[TOOL], thinking=THINKING)
            assert answer.content[-1].text == "Sun." and answer.stop_reason == "end_turn", answer


def raises_its_own_errors(lily):
    with lily_serve(lily, "--api-key", KEY, script=[says("Hello.")]) as url:
        client = connect(url, key=KEY)
        for stream in [False, True]:
            error = raises(anthropic.AuthenticationError, lambda: ask(connect(url, key="wrong"), "Hi", stream))
            assert error.type == "authentication_error" and error.request_id, error
            error = raises(anthropic.BadRequestError, lambda: ask(client, LONG_PROMPT, stream))
            assert error.type == "invalid_request_error" and "prompt is too long" in error.message, error
            raises(anthropic.NotFoundError, lambda: ask(client, "Hi", stream, model="gpt-4o"))
            error = raises(anthropic.BadRequestError, lambda: ask(client, "Hi", stream, temperature=3))
            assert "temperature" in error.message, error


if __name__ == "__main__":
    cases = [
        chats_with_the_demo_model,
        tells_thinking_from_text,
        runs_a_loop_of_tools,
        raises_its_own_errors,
    ]
    run(f"anthropic {version('anthropic')}", sys.argv[1], cases)
