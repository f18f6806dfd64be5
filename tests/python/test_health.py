"""Health checks: ``GET /healthz``, ``GET /readyz``, ``server.ready`` and the delay of a drain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serve
from test_workers import supervised

import ucall
from harness import HOST, Wire, eventually, http, let_read, program, request, without_address


def ask(port: int, path: str = "/readyz", method: str = "GET") -> tuple[int, str]:
    """The status and the text of a health check, over a connection of its own."""
    with Wire(port) as wire:
        return ask_over(wire, path, method)


def ask_over(wire: Wire, path: str = "/readyz", method: str = "GET") -> tuple[int, str]:
    wire.send(f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    status, _, body = wire.reply()
    return status, body.decode().removesuffix("\n")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The event that calls and checks wait for; set at the end, so that the server can stop."""
    gate = threading.Event()
    yield gate
    gate.set()


async def nothing() -> None:
    """Makes a server have an event loop."""


def refuse(_: ucall.Context) -> None:
    raise AssertionError("a health check asked auth")


def test_a_server_is_alive_and_ready_without_auth(hosted: Serve) -> None:
    server = hosted(auth=refuse)
    assert ask(server.port, "/healthz") == (200, "ok")
    assert ask(server.port) == (200, "ready")
    with Wire(server.port) as wire:
        wire.send(f"GET /readyz?verbose HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        status, head, _ = wire.reply()
        assert status == 200 and b"cache-control: no-store" in head.lower()
    assert ask(server.port, method="POST")[0] == 405
    assert server.stats()["calls"] == 0


def test_health_checks_are_answered_past_the_limit_of_running_calls(
    hosted: Serve, gate: threading.Event
) -> None:
    server = hosted(max_threads=1, max_running_calls=2)

    @server.ready
    def check() -> None:
        """Runs while no thread of the pool is free."""

    server.add(gate.wait, "hold", threads=True)
    with Wire(server.port) as wire:
        wire.send(request("hold"))
        let_read(server.port)
        assert ask(server.port) == (200, "ready")
        wire.send(request("hold"))
        let_read(server.port)
        assert ask(server.port, "/healthz") == (200, "ok")
        assert ask(server.port) == (503, "not ready: overloaded: max_running_calls is reached")
        gate.set()
        assert json.loads(wire.line())["result"] and json.loads(wire.line())["result"]
    assert ask(server.port) == (200, "ready")


def test_health_checks_are_answered_by_an_overloaded_server(serve: Serve) -> None:
    server = serve(max_held_bytes=100_000)
    with Wire(server.port) as wire:
        wire.send(http(b"x" * 200_000)[:190_000])
        assert eventually(lambda: ask(server.port)[0] == 503)
        assert ask(server.port) == (503, "not ready: overloaded: max_held_bytes is exceeded")
        assert ask(server.port, "/healthz") == (200, "ok")
    assert eventually(lambda: ask(server.port) == (200, "ready"))


@pytest.mark.parametrize("is_async", [False, True])
def test_ready_asks_the_checks_of_the_program(
    hosted: Serve, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    server, state = hosted(nothing), {"database": True, "model": None}

    def add(name: str) -> None:
        def check() -> Any:
            if isinstance(state[name], Exception):
                raise state[name]  # type: ignore[misc]
            return state[name]

        async def check_later() -> Any:
            await asyncio.sleep(0)
            return check()

        added = check_later if is_async else check
        added.__name__ = name
        assert server.ready(added) is added

    for name in state:
        add(name)
    assert ask(server.port) == (200, "ready")
    state["database"] = False
    assert ask(server.port) == (503, "not ready: database failed")
    state["model"] = OSError("the password is 1234")  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, "ucall"):
        for _ in range(3):
            answer = ask(server.port)
            assert answer == (503, "not ready: database failed; model raised OSError")
    # The log has what a public page must not show, once.
    [record] = [it for it in caplog.records if "model" in it.message]
    assert record.exc_info and "1234" in str(record.exc_info[1])
    state.update(database=True, model=None)
    assert ask(server.port) == (200, "ready")
    assert ask(server.port, "/healthz") == (200, "ok")


def test_a_check_has_a_time_limit(serve: Serve, gate: threading.Event) -> None:
    server = serve(ready_timeout_s=0.05)
    server.ready(gate.wait)
    assert ask(server.port) == (503, "not ready: wait took longer than 0.05 s")


def test_concurrent_requests_share_one_run_of_the_checks(
    serve: Serve, gate: threading.Event
) -> None:
    server, runs = serve(ready_timeout_s=60), []

    @server.ready
    def check() -> bool:
        runs.append(1)
        return gate.wait(60)

    check_health = f"GET /readyz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(8)]
        with Wire(server.port) as left:
            for wire in (*wires, left):
                wire.send(check_health)
            let_read(server.port)
        gate.set()
        assert {wire.reply()[::2] for wire in wires} == {(200, b"ready\n")}
    assert len(runs) == 1


def test_the_time_of_checks_is_above_0() -> None:
    with pytest.raises(ValueError, match="ready_timeout_s: expected a number of seconds above 0"):
        ucall.Server(port=0, timeouts=ucall.Timeouts(ready_timeout_s=0))


def test_a_route_of_the_program_replaces_a_health_check(serve: Serve) -> None:
    server = serve(auth=lambda context: None)

    @server.http("/readyz", auth=False)
    def ready(request: ucall.HttpRequest) -> str:
        return "mine"

    assert ask(server.port) == (200, "mine")
    assert ask(server.port, "/healthz") == (200, "ok")

    @server.http("/*")
    def all_others(request: ucall.HttpRequest) -> str:
        return "others"

    assert ask(server.port, "/healthz") == (200, "ok")


SOURCE = """
import importlib, sys, threading, ucall
Server = importlib.import_module("ucall." + sys.argv[1]).Server
server = Server(
    port=0,
    timeouts=ucall.Timeouts(drain_timeout_s=3000, shutdown_delay_s=float(sys.argv[2])),
)
released = threading.Event()

@server(threads=True)
def hold():
    released.wait()

def release():
    sys.stdin.readline()
    released.set()

threading.Thread(target=release, daemon=True).start()
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
server.on_startup(lambda: print(server.port))
server.run()
print("returned")
"""


def test_a_draining_server_is_alive_and_not_ready(engine: str) -> None:
    with program(SOURCE, engine, "0") as process:
        port = int(process.stdout.readline())
        with Wire(port) as busy, Wire(port) as ready, Wire(port) as live:
            for wire in (busy, ready, live):
                wire.send(request("hold") if wire is busy else b"GET ")
            let_read(port)
            process.send_signal(signal.SIGTERM)
            assert eventually(lambda: busy.call("sum").get("error", {}).get("code") == -32002)
            for wire, path in ((ready, "/readyz"), (live, "/healthz")):
                wire.send(f"{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            status, head, body = ready.reply()
            assert (status, body) == (503, b"not ready: draining\n")
            assert b"connection: close" in head.lower()
            assert live.reply()[::2] == (200, b"ok\n")
            process.stdin.write("\n")
            process.stdin.flush()
            assert json.loads(busy.line())["result"] is None
        output, log = process.communicate(timeout=60)
    log = without_address(log)
    assert (process.returncode, output) == (0, "returned\n")
    assert log == "draining: 3 connections, 1 running calls\ndrained\n"


def test_a_delayed_drain_serves_new_connections(engine: str) -> None:
    with program(SOURCE, engine, "3000") as process:
        port = int(process.stdout.readline())
        with Wire(port) as idle:
            assert ask(port) == (200, "ready")
            process.send_signal(signal.SIGTERM)
            assert eventually(lambda: ask(port) == (503, "not ready: draining"))
            assert ask(port, "/healthz") == (200, "ok")
            with Wire(port) as new:
                for wire in (new, idle):
                    wire.send(http(request("none")))
                    status, head, _ = wire.reply()
                    assert status == 200 and b"connection: close" not in head.lower()
            # A second stop changes nothing, a second Ctrl-C ends the server.
            process.send_signal(signal.SIGTERM)
            assert ask(port)[0] == 503
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            assert eventually(lambda: process.poll() is not None or _interrupt(process))
        log = without_address(process.communicate(timeout=60)[1])
    assert log.startswith("not ready any more: draining in 3000 s\n")


def _interrupt(process: Any) -> bool:
    """Presses Ctrl-C again: two signals at once may be one."""
    process.send_signal(signal.SIGINT)
    return False


def test_cancelled_calls_are_counted_at_the_end_of_a_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ucall.Server(port=0, timeouts=ucall.Timeouts(drain_timeout_s=0.05))

    @server
    async def hold() -> None:
        await asyncio.Event().wait()

    with caplog.at_level(logging.INFO, "ucall"), server, Wire(server.port) as wire:
        wire.send(request("hold"))
        let_read(server.port)
        assert eventually(lambda: server.stats()["connections"] == 1)
        server.stop()
    assert [record.message for record in caplog.records] == [
        "draining: 1 connections, 1 running calls",
        "drained: 1 calls were cancelled after drain_timeout_s",
    ]


@pytest.mark.parametrize("delay_s", [-1, float("nan"), "1"])
def test_a_delay_is_a_number_of_seconds(delay_s: Any) -> None:
    with pytest.raises(ValueError, match="shutdown_delay_s: expected a number of seconds from 0"):
        ucall.Server(port=0, timeouts=ucall.Timeouts(shutdown_delay_s=delay_s))


def test_a_stopped_server_is_ready_again_when_it_starts(serve: Serve) -> None:
    server = serve()
    server.stop()
    server.start()
    assert ask(server.port) == (200, "ready")


READY_APP = """
import ucall
server = ucall.Server(port=0, timeouts=ucall.Timeouts(shutdown_delay_s=3000))
@server.ready
def check():
    open("checked", "a").close()
@server
def pid():
    import os
    return os.getpid()
"""


def test_each_worker_answers_for_itself(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine, source=READY_APP) as it:
        pids = it.wait_for(2)
        assert ask(it.port) == (200, "ready") and (tmp_path / "checked").exists()
        it.process.send_signal(signal.SIGTERM)
        draining = "not ready: draining"
        assert eventually(lambda: {ask(it.port)[1] for _ in range(9)} == {draining})
        assert it.call("pid") in pids
        # The second Ctrl-C kills the workers.
        it.process.send_signal(signal.SIGINT)
        assert it.process.wait(60) == 0
