#!/usr/bin/env python3
"""Checks what of bench/peers runs without a GPU: the GGUF header, the reports and the shell scripts' syntax."""

import http.server
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading

PEERS = pathlib.Path(__file__).resolve().parent.parent / "bench" / "peers"
PARAMETERS = 34_660_610_688  # docs/model.md §1, the text model
TYPES = {0: (1, 4), 2: (32, 18), 14: (256, 210)}  # F32, Q4_0, Q6_K: elements and bytes of a block


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True, text=True).stdout


class Reader:
    """Just enough of GGUF version 3."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def string(self):
        return self.take(f"{self.take('Q')}s").decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            item, count = self.take("IQ")
            return [self.value(item) for _ in range(count)]
        return self.take({4: "I", 5: "i", 6: "f"}[kind])


def header(folder):
    path = folder / "model.gguf"
    run(PEERS / "llama_cpp" / "header.py", "--layers", 40, "--out", path)
    with path.open("rb") as f:
        reader = Reader(f.read(1 << 16))
    magic, version, tensors, keys = reader.take("4sIQQ")
    assert (magic, version, tensors) == (b"GGUF", 3, 733), (magic, version, tensors)
    names = {reader.string(): reader.value(reader.take("I")) for _ in range(keys)}
    assert names["qwen35moe.block_count"] == 40 and names["qwen35moe.vocab_size"] == 248320, names
    parameters, offset = 0, 0
    for _ in range(tensors):
        name, dims = reader.string(), reader.take("I")
        shape, (kind, start) = [reader.take("Q") for _ in range(dims)], reader.take("IQ")
        assert start == offset, f"{name} starts at {start}, not {offset}"
        elements, size = TYPES[kind]
        assert shape[0] % elements == 0, name
        parameters += math.prod(shape)
        offset += -(-(math.prod(shape) // elements * size) // 32) * 32
    assert parameters == PARAMETERS, parameters
    assert path.stat().st_size == -(-reader.at // 32) * 32 + offset, "the hole has another size"
    assert path.stat().st_blocks * 512 < 1 << 20, "the hole is filled"


def reports(folder):
    row = {"context": 256, "rounds": 3, "prefill_tok_s": 3000.5, "decode_tok_s": 150.5}
    lines = [{"weights_bytes": 7}, {**row, "ubatch": 2048}, {**row, "context": 512, "ubatch": 2048}, {**row, "ubatch": 512}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "clocks.csv").write_text(
        "NVIDIA H200, GPU-1-2, 580.1, 345, 3201, 0, 80.2, 40\n"
        "NVIDIA H200, GPU-1-2, 580.1, 1980, 3201, 90, 500.2, 50\n"
        "NVIDIA H200, GPU-1-2, 580.1, [N/A], 3201, 90, 500.2, 50\n"
        "NVIDIA H200, GPU-1-2, 580.1, 1755, 3201, 95, 700.0, 60\n"
        "NVIDIA H200, GP"
    )
    out = folder / "peer.json"
    script = PEERS / "report.py"
    run(script, "rows", folder / "rows.jsonl", "--engine", "llama.cpp", "--version", "1", "--weights", "w", "--note", "n", "--out", out)
    run(script, "device", out, "--samples", folder / "clocks.csv")
    report = json.loads(out.read_text())
    assert [r["context"] for r in report["rows"]] == [256, 512] and len(report["other_rows"]) == 1, report
    assert report["device_uuid"] == "1-2" and report["weights_bytes"] == 7 and report["notes"] == ["n"], report
    assert report["clocks"] == {"sm_mhz": 1980, "sm_mhz_min": 1755, "sm_mhz_max": 1980, "memory_mhz": 3201, "samples": 2}, report
    table = run(script, "table", out, out)
    assert "| 512 | 3,000 | 3,000 |" in table and "| 256 | 150.5 | 150.5 |" in table, table


class Server(http.server.BaseHTTPRequestHandler):
    """Streams two pieces; a prompt has ten tokens a message, and all but the last message's are cached."""

    asked = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        prompt = 10 * len(body["messages"])
        cached = 0 if body.get("cache_prompt") is False else prompt - 10
        usage = {"prompt_tokens": prompt, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
        events = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
        events += [{"choices": [{"delta": {"content": piece}}]} for piece in ("Ye", "s.")]
        events += [{"choices": [], "usage": usage}]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        lines = [f"data: {json.dumps(event)}" for event in events] + [": waiting", "data: [DONE]"]
        self.wfile.write("".join(line + "\n\n" for line in lines).encode())

    def log_message(self, *_):
        pass


def conversation(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    out = folder / "chat.json"
    run(PEERS / "chat.py", f"http://127.0.0.1:{server.server_port}/v1", "--engine", "x", "--out", out, "--turns", 3,
        "--rounds", 2, "--cold", "cache_prompt=false")
    server.shutdown()
    report = json.loads(out.read_text())
    warm, cold = report["runs"]
    counts = [[row[name] for name in ("turn", "prompt_tokens", "prefilled_tokens", "new_tokens")] for row in warm["rows"]]
    assert counts == [[1, 20, 10, 20], [2, 40, 10, 19], [3, 60, 10, 19]], counts
    assert (warm["cache"], cold["cache"], cold["rows"][2]["prefilled_tokens"]) == (True, False, 60), report
    assert all(0 < row["ttft_min"] <= row["ttft_s"] <= row["ttft_max"] for row in warm["rows"]), warm
    last, heads = Server.asked[-1], [body["messages"][0]["content"] for body in Server.asked[1:]]
    assert [m["content"] for m in last["messages"] if m["role"] == "assistant"] == ["Yes.", "Yes."], last
    assert len(set(heads)) == 4, "a round began as another one did"


def main():
    with tempfile.TemporaryDirectory() as folder:
        header(pathlib.Path(folder))
        reports(pathlib.Path(folder))
        conversation(pathlib.Path(folder))
    for script in PEERS.rglob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
    for script in PEERS.rglob("*.py"):
        compile(script.read_text(), script, "exec")
    print("the scripts for other engines hold")


if __name__ == "__main__":
    main()
