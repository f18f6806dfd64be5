"""The gain of batching: a sentence-embedding model under 32 connections, batched or one by one."""

import json
import os
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from harness import processes
from harness.rows import OUTPUT, ROOT

PYTHON = OUTPUT / "embeddings/bin/python"
CONNECTIONS = 32
SECONDS = 3.0
METHODS = ("embed_one_by_one", "embed")


def gain(rounds: int, engines: list[str]) -> str:
    """A table, or the reason why there is none."""
    if not PYTHON.exists():
        return "Embeddings were not measured: `make bench-embeddings` installs the model."
    lines = [
        f"| embeddings at {CONNECTIONS} connections | one by one, calls/s | batched | ratio |",
        "|---|---|---|---|",
    ]
    for engine in engines:
        with _serving(engine) as port:
            found = [[_rate(port, method) for method in METHODS] for _ in range(rounds)]
        alone, batched = (statistics.median(row[index] for row in found) for index in (0, 1))
        ratio = statistics.median(row[1] / row[0] for row in found)
        lines.append(f"| ucall {engine} | {alone:.0f} | {batched:.0f} | {ratio:.1f} |")
    return "\n".join(lines)


@contextmanager
def _serving(engine: str) -> Iterator[int]:
    """Runs the example, and yields its port once the model is loaded."""
    port = processes.free_port()
    command = [str(PYTHON), "-m", "ucall", "embeddings:server"]
    with (OUTPUT / "embeddings.log").open("wb") as log:
        process = processes.start_pinned(
            [*command, "--engine", engine, "--port", str(port)],
            processes.cores()[0],
            stdout=log,
            stderr=log,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            cwd=ROOT / "examples/embeddings",
        )
    try:
        _wait_until_ready(port)
        yield port
    finally:
        process.kill()
        process.wait()


def _call(method: str, text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": [text], "id": 1}).encode()


def _wait_until_ready(port: int) -> None:
    """Waits until the model is loaded."""
    for _ in range(600):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", _call("embed", "a"))
            urllib.request.urlopen(request, timeout=60).read()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the embeddings example does not answer")


def _rate(port: int, method: str) -> float:
    """Calls a second of concurrent callers, each of which waits for its reply."""
    ends_at = time.monotonic() + SECONDS
    counts = [0] * CONNECTIONS

    def caller(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            replies = wire.makefile("rb")
            while time.monotonic() < ends_at:
                wire.sendall(_call(method, f"caller {number} says sentence {counts[number]}"))
                if b'"result"' not in replies.readline():
                    raise SystemExit(f"{method} failed")
                counts[number] += 1

    callers = [threading.Thread(target=caller, args=[number]) for number in range(CONNECTIONS)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    return sum(counts) / SECONDS
