"""Draining servers: running calls finish, new ones get -32002, and no reply is lost."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from typing import Any

import pytest

from harness import (
    HOST,
    Wire,
    eventually,
    http,
    let_read,
    program,
    request,
    send_line,
    without_address,
)

SOURCE = """
import asyncio, importlib, sys, threading, time, ucall
options = {"drain_timeout_s": float(sys.argv[2]) if len(sys.argv) > 2 else 3000}
options = ucall.options.arguments({"slow_call_s": 60} | options)
server = importlib.import_module("ucall." + sys.argv[1]).Server(port=0, **options)

@server
async def pause(seconds: float):
    await asyncio.sleep(seconds)
    return "slept"

@server(threads=True)
def block(seconds: float):
    time.sleep(seconds)
    return "slept"

released = threading.Event()

@server
async def hold():
    await asyncio.to_thread(released.wait)
    return "held"

@server(threads=True)
def hold_thread():
    released.wait()
    return "held"

@server
def sum(a: int, b: int):
    return a + b

@server.on_shutdown
async def bye():
    print("bye")

def release():
    sys.stdin.readline()
    released.set()

threading.Thread(target=release, daemon=True).start()
server.on_startup(lambda: print(server.port))
server.run()
print("returned")
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM]
#: A drain may close a connection that has been idle for this time.
GRACE_S = 0.1


def _ended(process: Any) -> None:
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "bye\nreturned\n")
    assert without_address(errors) == ""


def _refuses(wire: Wire) -> bool:
    """Whether new calls get -32002."""
    code: int = wire.call("sum", [1, 2]).get("error", {}).get("code", 0)
    return code == -32002


@pytest.mark.parametrize("sent", SIGNALS)
def test_running_calls_may_finish(engine: str, sent: signal.Signals) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as raw, Wire(port) as over_http:
            raw.send(request("hold") + request("hold_thread"))
            over_http.send(http(request("hold")))
            let_read(port)
            process.send_signal(sent)
            assert eventually(lambda: _refuses(raw))
            send_line(process)
            assert [json.loads(raw.line())["result"] for _ in range(2)] == ["held"] * 2
            status, head, body = over_http.reply()
            assert (status, json.loads(body)["result"]) == (200, "held")
            assert b"connection: close" in head.lower()
            assert raw.rest() == b"" and over_http.rest() == b""
        _ended(process)


def test_calls_during_a_drain_are_refused(engine: str) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as busy, Wire(port) as raw, Wire(port) as idle:
            busy.send(http(request("hold")))
            assert raw.result("sum", [1, 2]) == idle.result("sum", [1, 2]) == 3
            raw.send(request("hold"))
            let_read(port)
            process.send_signal(signal.SIGTERM)
            assert idle.rest() == b""
            raw.send(request("sum", [1, 2], 7))
            reply = json.loads(raw.line())
            assert (reply["id"], reply["error"]["code"]) == (7, -32002)
            send_line(process)
            assert json.loads(raw.line())["result"] == "held"
            assert raw.rest() == b""
            assert json.loads(busy.reply()[2])["result"] == "held"
        _ended(process)


ANNOUNCED = b'{"jsonrpc":"2.0","method":"$/drain"}'


def test_clients_over_raw_tcp_learn_of_a_drain(engine: str) -> None:
    """At once, and at the end with the number of requests that were read."""
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire, Wire(port) as idle, Wire(port) as over_http:
            over_http.send(http(request("sum", [1, 2])))
            assert over_http.reply()[0] == 200
            assert wire.result("sum", [1, 2]) == idle.result("sum", [1, 2]) == 3
            wire.send(request("hold"))
            let_read(port)
            process.send_signal(signal.SIGTERM)
            refused: list[bool] = []

            def refuses() -> bool:
                refused.append(_refuses(wire))
                assert wire.drain_notices in ([], [ANNOUNCED])
                return refused[-1]

            assert eventually(refuses)
            send_line(process)
            assert json.loads(wire.line())["result"] == "held"
            assert wire.rest() == b""
            read = b'{"jsonrpc":"2.0","method":"$/drain","params":{"read":%d}}' % (2 + len(refused))
            assert wire.drain_notices == [ANNOUNCED, read]
            assert (idle.rest(), idle.drain_notices) == (b"", [ANNOUNCED])
            # HTTP has no messages that answer no request.
            assert over_http.rest() == b""
        _ended(process)


def test_idle_connections_stay_open_for_two_seconds_after_sigterm(engine: str) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as witness, Wire(port) as wire:
            assert witness.result("sum", [1, 2]) == wire.result("sum", [1, 2]) == 3
            before = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert witness.rest() == b""
            assert time.monotonic() - before >= 2
            assert wire.rest() == b""
        _ended(process)


def test_a_draining_server_accepts_no_connection(engine: str) -> None:
    """A client that could connect would wait in vain, and not try another server."""
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as busy:
            busy.send(request("hold"))
            let_read(port)
            process.send_signal(signal.SIGTERM)

            def is_refused() -> bool:
                try:
                    Wire(port).socket.close()
                except ConnectionRefusedError:
                    return True
                except ConnectionResetError:  # It was in the queue of the socket that closed.
                    pass
                return False

            assert eventually(is_refused)
            assert process.poll() is None
            send_line(process)
            assert json.loads(busy.line())["result"] == "held"
        _ended(process)


def test_a_drain_ends_at_its_timeout(engine: str) -> None:
    with program(SOURCE, engine, "0.5") as process:
        port = int(process.stdout.readline())
        with Wire(port) as raw, Wire(port) as over_http:
            raw.send(request("pause", [3000]))
            over_http.send(http(request("block", [3000])))
            let_read(port)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert json.loads(raw.line())["error"]["code"] == -32007
            assert json.loads(over_http.reply()[2])["error"]["code"] == -32007
            assert time.monotonic() - start > 0.4
        _ended(process)


def test_a_second_ctrl_c_ends_at_once(engine: str) -> None:
    with program(SOURCE, engine) as process, Wire(int(process.stdout.readline())) as wire:
        wire.send(request("pause", [3000]) + request("block", [3000]))
        assert wire.result("sum", [1, 2]) == 3
        process.send_signal(signal.SIGINT)
        # Two signals at once would merge. The first has arrived when calls are rejected.
        assert eventually(lambda: _refuses(wire))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode is not None


@pytest.mark.parametrize("over", ["raw", "http"])
@pytest.mark.slow
def test_no_reply_is_lost_under_load(engine: str, over: str) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        lost: list[Any] = []
        served = [0] * 8

        def load(client: int) -> None:
            while True:
                try:
                    wire = Wire(port)
                except OSError:
                    return
                with wire:
                    if not _called_until_told(wire, client):
                        return

        def _called_until_told(wire: Wire, client: int) -> bool:
            """Whether the reply closes the connection, so that the client may reconnect."""
            before = time.monotonic()
            was_idle = False
            for number in range(1_000_000):
                began = time.monotonic()
                method, params = [("sum", [number, 1]), ("pause", [0.001])][number % 2]
                call = request(method, params, number)
                try:
                    wire.send(http(call) if over == "http" else call)
                    was_idle = time.monotonic() - before > GRACE_S
                    head, body = b"", wire.line() if over == "raw" else b""
                    if over == "http":
                        _, head, body = wire.reply()
                except OSError:
                    body = b""
                before = began
                if not body:
                    # Only the first call of a connection that was never accepted, and a late call,
                    # may find it closed.
                    if number > 0 and not was_idle:
                        lost.append((client, number))
                    return False
                reply = json.loads(body)
                if reply.get("error", {}).get("code") == -32002:
                    return False
                if reply.get("result") not in (number + 1, "slept"):
                    lost.append(reply)
                    return False
                served[client] += 1
                if b"close" in head:
                    return True
            return False

        threads = [threading.Thread(target=load, args=[client]) for client in range(8)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: min(served) > 20)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert lost == []
        _ended(process)


def test_stop_drains(engine: str) -> None:
    source = SOURCE.replace("server.run()", "server.start(); released.wait(); server.stop()")
    with program(source, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:
            wire.send(request("pause", [0.4]))
            let_read(port)
            send_line(process)
            assert json.loads(wire.line())["result"] == "slept"
            assert wire.rest() == b""
        _ended(process)


def test_the_port_is_free_at_once(engine: str) -> None:
    with program(SOURCE, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:
            wire.result("sum", [1, 2])
            process.send_signal(signal.SIGTERM)
            _ended(process)
    with socket.create_server((HOST, port)):
        pass
