"""The official `openai` package against `lily serve`: python openai_python.py PATH_TO_LILY

Every wait is bounded: requests by REQUEST_SECONDS, the whole script by the caller.
"""

import asyncio
import json
import pathlib
import sys
import time
import traceback

import openai
from lily_server import lily_serve

REQUEST_SECONDS = 60
GOLDEN = pathlib.Path(__file__).parents[2] / "demo/eval/greedy_4bit_fp32.json"
NO_THINKING = {"enable_thinking": False}
LONG_PROMPT = "Tell me about the sea. " * 4000


def connect(url, **options):
    return openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=REQUEST_SECONDS, max_retries=0, **options)


def user(text):
    return [{"role": "user", "content": text}]


def ask(client, messages, **options):
    """One answer, not streamed: (reasoning, content, finish_reason, usage)."""
    answer = client.chat.completions.create(model="default", messages=messages, **options)
    message = answer.choices[0].message
    reasoning = getattr(message, "reasoning_content", None) or ""
    return reasoning, message.content or "", answer.choices[0].finish_reason, answer.usage


def ask_streamed(client, messages, **options):
    """The same, put together from a stream."""
    reasoning, content, finish, usage = "", "", None, None
    stream = client.chat.completions.create(
        model="default", messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk", chunk
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return reasoning, content, finish, usage


def refused(kind, call):
    """The error that `call` must raise, of exactly this kind."""
    try:
        call()
    except openai.APIError as error:
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        return error
    raise AssertionError(f"accepted, though {kind.__name__} was expected")


# --- the demo model ---------------------------------------------------------------------------------------------------


def lists_models(url):
    models = connect(url).models.list().data
    assert models and all(m.object == "model" for m in models), models
    names = [m.id for m in models]
    for name in [names[0], "default", "my-alias"]:
        answer = connect(url).chat.completions.create(
            model=name, messages=user("Hello!"), max_tokens=2, extra_body=NO_THINKING
        )
        assert answer.choices[0].message.content, answer


def answers_with_the_golden_text(url):
    golden = json.loads(GOLDEN.read_text())["completions"][0]
    expected = golden["text"].removesuffix("<|im_end|>")
    reasoning, content, finish, usage = ask(connect(url), user(golden["prompt"]), temperature=0, extra_body=NO_THINKING)
    assert (reasoning, content, finish) == ("", expected, "stop"), (reasoning, content, finish)
    assert usage.prompt_tokens == len(golden["prompt_ids"]), usage
    assert usage.completion_tokens == len(golden["output_ids"]), usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage


def streams_the_same_text(url):
    client = connect(url)
    for text in ["Tell me a short story about a brave fox named Mia.", "What is 17 + 25?", "Spell the word lantern."]:
        for thinking in [True, False]:
            options = {"temperature": 0, "max_tokens": 120, "extra_body": {"enable_thinking": thinking}}
            whole, streamed = ask(client, user(text), **options), ask_streamed(client, user(text), **options)
            assert whole[:3] == streamed[:3], (whole, streamed)
            assert whole[3].completion_tokens == streamed[3].completion_tokens, (whole[3], streamed[3])
            assert bool(whole[0]) == thinking, whole


def turns_thinking_off_in_every_spelling(url):
    client = connect(url)
    for options in [
        {"extra_body": {"enable_thinking": False}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "none"},
    ]:
        reasoning, content, _, _ = ask(client, user("Who are you?"), temperature=0, **options)
        assert not reasoning and content and "think>" not in content, (options, reasoning, content)
    reasoning, content, _, _ = ask(client, user("Who are you?"), temperature=0)
    assert reasoning and content and "think>" not in reasoning + content, (reasoning, content)


def repeats_an_answer_with_its_seed(url):
    client = connect(url)
    options = {"temperature": 1.5, "seed": 7, "max_tokens": 30, "extra_body": NO_THINKING}
    story = user("Tell me a short story.")
    assert ask(client, story, **options)[1] == ask_streamed(client, story, **options)[1]


def keeps_a_conversation(url):
    messages = user("My name is Ruby and I live in Lisbon.")
    _, content, _, _ = ask(connect(url), messages, temperature=0, extra_body=NO_THINKING)
    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Where do I live?"}]
    _, content, _, _ = ask(connect(url), messages, temperature=0, extra_body=NO_THINKING)
    assert "Lisbon" in content, content


def stops_at_max_tokens(url):
    _, _, finish, usage = ask(connect(url), user("Count from 3 to 12."), max_tokens=3, temperature=0)
    assert (finish, usage.completion_tokens) == ("length", 3), (finish, usage)


def serves_many_at_once(url):
    async def all_of_them():
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", timeout=REQUEST_SECONDS, max_retries=0)
        one = lambda: client.chat.completions.create(
            model="default", messages=user("Say banana 5 times."), temperature=0, max_tokens=40, extra_body=NO_THINKING
        )
        return await asyncio.gather(*[one() for _ in range(8)])

    texts = {answer.choices[0].message.content for answer in asyncio.run(all_of_them())}
    assert len(texts) == 1 and "banana" in texts.pop().lower(), texts


def refuses_with_the_sdks_own_errors(url):
    client = connect(url)
    create = client.chat.completions.create
    hello = user("Hello!")

    error = refused(openai.NotFoundError, lambda: create(model="gpt-4o", messages=hello))
    assert error.param == "model" and "my-alias" in str(error), error

    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    for field, options in {
        "messages": {"messages": []},
        "temperature": {"messages": hello, "temperature": 3.5},
        "top_p": {"messages": hello, "top_p": -1},
        "max_tokens": {"messages": hello, "max_tokens": 0},
        "messages[0].role": {"messages": [{"role": "robot", "content": "x"}]},
        "messages[0].content": {"messages": [{"role": "user", "content": picture}]},
    }.items():
        for stream in [False, True]:
            error = refused(openai.BadRequestError, lambda: create(model="default", stream=stream, **options))
            assert error.param and error.param.startswith(field), (field, error.param, error.body)

    error = refused(openai.BadRequestError, lambda: create(model="default", messages=user(LONG_PROMPT), stream=True))
    assert error.code == "context_length_exceeded", error.body
    assert ask(client, hello, max_tokens=2)[3].completion_tokens == 2, "the server is still there"


# --- scripted answers -------------------------------------------------------------------------------------------------

FOX = "🦊"


def sends_whole_characters(lily):
    pieces = ["The ", *[{"bytes": [byte]} for byte in FOX.encode()], " jumps"]
    with lily_serve(lily, script=[{"pieces": pieces}]) as url:
        client = connect(url)
        _, content, finish, usage = ask_streamed(client, user("Hi"), extra_body=NO_THINKING)
        assert (content, finish) == (f"The {FOX} jumps", "stop"), (content, finish)
        assert usage.completion_tokens == len(pieces) + 1, usage
        assert ask(client, user("Hi"), extra_body=NO_THINKING)[1] == content


def splits_reasoning_from_content(lily):
    with lily_serve(lily, script=[{"pieces": ["I wonder.", {"token": "</think>"}, "\n\n", "Yes."]}]) as url:
        expected = ("I wonder.", "Yes.", "stop")
        assert ask(connect(url), user("Hi"))[:3] == expected
        assert ask_streamed(connect(url), user("Hi"))[:3] == expected


def frees_the_engine_when_a_client_leaves(lily):
    endless = {"pieces": ["tick "], "delay_ms": 50, "end": "length"}
    slow_prompt = {"pieces": ["next"], "prefill_ms": 1000}
    with lily_serve(lily, script=[endless, slow_prompt]) as url:
        client = connect(url)
        stream = client.chat.completions.create(
            model="default", messages=user("Hi"), stream=True, extra_body=NO_THINKING
        )
        for _ in zip(range(3), stream):
            pass
        stream.close()
        refused(
            openai.APITimeoutError,
            lambda: ask(client.with_options(timeout=1), user("word " * 600), extra_body=NO_THINKING),
        )
        start = time.monotonic()
        assert ask(client, user("Hi"), extra_body=NO_THINKING)[1] == "next"
        # The long prompt alone would have taken 10 s. It has used no line, as nothing was generated for it.
        assert time.monotonic() - start < 5, "work for clients that had left went on"


def refuses_what_the_queue_cannot_hold(lily):
    with lily_serve(lily, "--max-queue", "0", "--parallel", "1", script=[{"pieces": ["tick "], "delay_ms": 50, "end": "length"}]) as url:
        client = connect(url)
        stream = client.chat.completions.create(
            model="default", messages=user("Hi"), stream=True, extra_body=NO_THINKING
        )
        next(stream)
        error = refused(openai.RateLimitError, lambda: ask(client, user("Hi"), extra_body=NO_THINKING))
        assert error.response.headers.get("retry-after"), error.response.headers
        stream.close()


def survives_a_failing_engine(lily):
    with lily_serve(lily, script=[{"pieces": ["a", "b", "c"], "fail_after": 2}] * 2 + [{"pieces": ["fine"]}]) as url:
        client = connect(url)
        refused(openai.InternalServerError, lambda: ask(client, user("Hi"), extra_body=NO_THINKING))
        refused(openai.APIError, lambda: ask_streamed(client, user("Hi"), extra_body=NO_THINKING))
        assert ask(client, user("Hi"), extra_body=NO_THINKING)[1] == "fine"


DEMO = [
    lists_models,
    answers_with_the_golden_text,
    streams_the_same_text,
    turns_thinking_off_in_every_spelling,
    repeats_an_answer_with_its_seed,
    keeps_a_conversation,
    stops_at_max_tokens,
    serves_many_at_once,
    refuses_with_the_sdks_own_errors,
]
SCRIPTED = [
    sends_whole_characters,
    splits_reasoning_from_content,
    frees_the_engine_when_a_client_leaves,
    refuses_what_the_queue_cannot_hold,
    survives_a_failing_engine,
]


def check(case, argument):
    start = time.monotonic()
    try:
        case(argument)
    except Exception:
        traceback.print_exc()
        print(f"FAILED {case.__name__}")
        return False
    print(f"ok     {case.__name__} ({time.monotonic() - start:.1f} s)")
    return True


def main():
    lily = sys.argv[1]
    print(f"openai {openai.__version__}")
    with lily_serve(lily, "--alias", "my-alias") as url:
        results = [check(case, url) for case in DEMO]
    results += [check(case, lily) for case in SCRIPTED]
    print(f"{sum(results)} of {len(results)} passed")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
