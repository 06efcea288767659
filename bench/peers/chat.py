#!/usr/bin/env python3
"""The conversation of `lily bench --chat`, said to a server over HTTP: what each turn read, and its time to the first text.

    chat.py http://127.0.0.1:8080/v1 --engine lily --out lily-http.json
    chat.py http://127.0.0.1:8081/v1 --engine llama.cpp --version 0.3.36 --weights "…" --out llama-server.json --cold cache_prompt=false

Any server of OpenAI's chat completions with streaming will do. Answers are greedy and without thinking. The file has the form
of `lily bench --chat --json` (docs/bench.md), for its --compare and --plot. `--cold FIELD=VALUE` adds a second conversation
whose requests carry that field, for servers that have one to turn their cache off. Each round begins its system prompt with
a number of its own, so that it finds nothing of the round before. Needs Python alone.
"""
import argparse
import datetime
import http.client
import json
import pathlib
import random
import statistics
import sys
import time
import urllib.parse

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "chat.json"


def ask(url, headers, body, timeout):
    """(text, usage, timings, seconds to the first text) of a streamed answer."""
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, url.port, timeout=timeout)
    start = time.perf_counter()
    connection.request("POST", url.path.rstrip("/") + "/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{url.geturl()} answered {response.status}: {response.read(2000).decode('utf-8', 'replace')}")
    text, usage, timings, first = "", {}, {}, None
    for line in response:
        data = line.decode("utf-8").strip().removeprefix("data:").strip()
        if not line.startswith(b"data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            sys.exit(f"{url.geturl()} failed: {event['error']}")
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        for choice in event.get("choices", []):
            piece = (choice.get("delta") or {}).get("content")
            if piece and first is None:
                first = time.perf_counter() - start
            text += piece or ""
    end = time.perf_counter() - start
    connection.close()
    return text, usage, timings, first or end


def talk(args, url, script, headers, extra, number):
    """One conversation: its turns."""
    rows, known = [], 0
    messages = [{"role": "system", "content": f"{number}. {script['system']}"}]
    for turn, question in enumerate(script["questions"][: args.turns], 1):
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "temperature": 0, "max_tokens": args.max_tokens, "stream": True,
                "stream_options": {"include_usage": True}, "chat_template_kwargs": {"enable_thinking": False}, **extra}
        if args.model:
            body["model"] = args.model
        text, usage, timings, first = ask(url, headers, body, args.timeout)
        prompt = usage.get("prompt_tokens")
        if prompt is None:
            sys.exit(f"{url.geturl()} does not report usage in streams")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", timings.get("cache_n"))
        answer = usage.get("completion_tokens", 0)
        rows.append({
            "turn": turn, "prompt_tokens": prompt, "cached_tokens": cached,
            "prefilled_tokens": None if cached is None else prompt - cached,
            "new_tokens": max(prompt - known, 0), "completion_tokens": answer, "ttft_s": first,
        })
        known = prompt + max(answer - 1, 0)
        # An empty answer is none that every template takes.
        messages.append({"role": "assistant", "content": text or "."})
    return rows


def median(rounds):
    """The rounds as one. Answers may differ with the number that begins them; counts are the first round's."""
    rows = []
    for turns in zip(*rounds):
        times = [turn["ttft_s"] for turn in turns]
        rows.append({**turns[0], "ttft_s": statistics.median(times), "ttft_min": min(times), "ttft_max": max(times)})
    return rows


def field(text):
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="the API's base, such as http://127.0.0.1:8080/v1")
    parser.add_argument("--engine", required=True, help="what tables and plots call it")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--version")
    parser.add_argument("--weights")
    parser.add_argument("--device")
    parser.add_argument("--model", help="the request's model, where the server wants one")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--cold", type=field, metavar="FIELD=VALUE")
    args = parser.parse_args()
    if args.turns < 1 or args.rounds < 1 or args.max_tokens < 1:
        parser.error("--turns, --rounds and --max-tokens must be at least 1")
    url = urllib.parse.urlsplit(args.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        parser.error(f"{args.url!r} is no http address")
    script = json.loads(SCRIPT.read_text())
    headers = {"Content-Type": "application/json"}

    # Numbers that a run before this one did not use: servers keep what they read.
    first = random.SystemRandom().randrange(1000, 9_000_000)
    warm_up = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4, "stream": True, "temperature": 0}
    ask(url, headers, {**warm_up, **({"model": args.model} if args.model else {})}, args.timeout)
    runs = []
    for cache, extra in [(True, {})] + ([(False, dict([args.cold]))] if args.cold else []):
        rounds = [talk(args, url, script, headers, extra, first + 100 * len(runs) + i) for i in range(args.rounds)]
        runs.append({"cache": cache, "rows": median(rounds)})
        for row in runs[-1]["rows"]:
            print(f"{'cache' if cache else 'cold':5} turn {row['turn']:2}: {row['prompt_tokens']:6} tokens, "
                  f"{row['cached_tokens']} cached, {row['new_tokens']} new, {1e3 * row['ttft_s']:.1f} ms", flush=True)
    report = {
        "kind": "chat", "engine": args.engine, "version": args.version, "device": args.device,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "weights": args.weights,
        "command": "chat.py " + " ".join(sys.argv[1:]), "rounds": args.rounds, "answer_tokens": args.max_tokens,
        "runs": runs,
    }
    args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
