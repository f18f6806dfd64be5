"""Many connections and many calls: no reply is lost, and no object is kept."""

from __future__ import annotations

import gc
import selectors
import socket
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ucall
from harness import HOST, Wire, eventually, http, program, request

Serve = Callable[..., ucall.Server]

SOURCE = """
import importlib, sys
server = importlib.import_module("ucall." + sys.argv[1]).Server(port=0)
server.add(lambda a: a, name="echo")
server.on_startup(lambda: print(server.port))
server.run()
"""
CONNECTIONS = 1_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_connections_at_once(engine: str) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        descriptors = Path(f"/proc/{process.pid}/fd")
        with Wire(port) as wire:
            wire.result("echo", [0])
            before = len(list(descriptors.iterdir()))
        for _ in range(2):
            _call_from_everywhere(port)
        status = Path(f"/proc/{process.pid}/status").read_text()
        [peak_kib] = [int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line]
        assert peak_kib < 60 * 1024
        assert eventually(lambda: len(list(descriptors.iterdir())) <= before)


def _call_from_everywhere(port: int) -> None:
    """Calls on all connections, three times each, before reading any reply."""
    selector = selectors.DefaultSelector()
    sockets = [socket.create_connection((HOST, port), timeout=60) for _ in range(CONNECTIONS)]
    received: dict[int, bytes] = {}
    for number, connection in enumerate(sockets):
        selector.register(connection, selectors.EVENT_READ, number)
        received[number] = b""
    for turn in range(3):
        for number, connection in enumerate(sockets):
            connection.sendall(request("echo", [[number, turn]], id=number))
        waiting = set(received)
        while waiting:
            for key, _ in selector.select(10):
                data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                assert data, f"connection {key.data} was closed"
                received[key.data] += data
                if received[key.data].count(b"\n") > turn:
                    waiting.discard(key.data)
    for number, lines in received.items():
        replies = [
            b'{"jsonrpc":"2.0","id":%d,"result":[%d,%d]}' % (number, number, turn)
            for turn in range(3)
        ]
        assert lines.splitlines() == replies
    for connection in sockets:
        connection.close()


# The test counts the references to these objects.
KEY = "a key that is nobody else's"
VALUE = ["a value", {"that": 12345.5}]
DEFAULT = object()


def test_calls_keep_no_references(serve_once: Serve) -> None:
    def take(a: Any, b: Any = DEFAULT, *rest: Any, c: str = KEY, **more: Any) -> Any:
        return [VALUE, c]

    def fail(a: Any) -> None:
        raise ucall.RPCError(1, KEY, VALUE)

    held = [KEY, VALUE, DEFAULT, take, fail, None, True]
    calls = [
        request("take", [{"k": [1, 2.5, "é\n", None, True, 2**70]}]),
        request("take", [1, 2, 3, 4]),
        request("take", {"a": 1, "c": "c", "more": [1], "b": 5}),
        request("take", {"b": 1}),
        request("take", [[1], "x"]).replace(b"[1]", b'{"a":1,"a":2}'),
        request("fail", ["x"]),
        request("fail", []),
        request("nobody"),
    ]
    batch = http(b"[" + b",".join(calls * 100) + b"]")
    with Wire(serve_once(take, fail).port) as wire:

        def run(times: int) -> tuple[list[int], int]:
            for _ in range(times):
                wire.send(batch)
                assert wire.reply()[0] == 200
            gc.collect()
            return [sys.getrefcount(item) for item in held], tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            run(5)
            references, bytes_before = run(5)
            references_after, bytes_after = run(40)
        finally:
            tracemalloc.stop()
    # Other code may change the count of the interpreter's own objects a little.
    for before, after in zip(references, references_after, strict=True):
        assert abs(after - before) < 50
    assert bytes_after - bytes_before < 50_000
