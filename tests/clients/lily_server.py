"""Starts `lily serve` on a free port and stops it again."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time

START_SECONDS = 60
STOP_SECONDS = 20


@contextlib.contextmanager
def lily_serve(lily, *args, script=None):
    """Yields the base URL, `http://127.0.0.1:PORT`. `script` is a list of dictionaries, see docs/script.md."""
    with contextlib.ExitStack() as stack:
        command = [lily, "serve", "--port", "0", *args]
        if script is not None:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".jsonl"))
            file.write("".join(json.dumps(line) + "\n" for line in script))
            file.flush()
            command += ["--script", file.name]
        env = {k: v for k, v in os.environ.items() if not k.startswith("LILY_")}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
        log, lines = [], queue.Queue()

        def read():
            for line in process.stderr:
                log.append(line)
                lines.put(line)
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield wait_for_address(lines, log)
        except BaseException:
            print("lily serve said:\n" + "".join(log))
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"lily serve did not stop within {STOP_SECONDS} s of SIGTERM") from None
            reader.join()
        assert code == 0, f"lily serve ended with {code}:\n{''.join(log)}"


def wait_for_address(lines, log):
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            line = lines.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"lily serve gave no address within {START_SECONDS} s:\n{''.join(log)}") from None
        if line is None:
            raise AssertionError(f"lily serve ended at once:\n{''.join(log)}")
        if found := re.search(r"http://[0-9.]+:[0-9]+", line):
            return found.group()
