"""Servers: ports, threads, start and stop, and functions added meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import json
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forking
import pytest
from serving import run_on_thread

import ucall
from harness import HOST, Wire, eventually, request

Serve = Callable[..., ucall.Server]


def sum(a: int, b: int) -> int:
    return a + b


def test_the_decorator_returns_the_function_unchanged() -> None:
    server = ucall.Server(port=0)
    assert server(sum) is sum
    assert server(name="maths.sum")(sum) is sum
    assert server.add(sum, name="add") is sum


def test_names_may_have_dots_and_be_given(serve_once: Serve) -> None:
    server = serve_once(sum)
    server(name="maths.sum")(sum)
    with Wire(server.port) as wire:
        assert wire.result("sum", [1, 2]) == wire.result("maths.sum", [1, 2]) == 3


def test_a_name_is_served_once() -> None:
    server = ucall.Server(port=0)
    server.add(sum)
    server.add(sum)
    with pytest.raises(ValueError, match="'sum' is already the name of"):
        server.add(max, name="sum")
    for name in ("", "rpc.discover"):
        with pytest.raises(ValueError):
            server.add(sum, name=name)


def test_a_redefined_function_replaces_the_earlier_one(serve_once: Serve) -> None:
    def define(factor: int) -> Callable[[int], int]:
        def times(a: int) -> int:
            return a * factor

        return times

    server = serve_once(define(2))
    with Wire(server.port) as wire:
        assert wire.result("times", [5]) == 10
        server.add(define(3))
        assert wire.result("times", [5]) == 15


def test_functions_may_be_added_while_the_server_runs(serve: Serve) -> None:
    server = serve()
    with Wire(server.port) as wire:
        assert wire.error("sum", [1, 2])["code"] == -32601
        server.add(sum)
        assert wire.result("sum", [1, 2]) == 3
        for number in range(100):
            server.add(lambda number=number: number, name=f"f{number}")
            assert wire.result(f"f{number}") == number


def test_a_port_in_use_is_reported() -> None:
    with ucall.Server(port=0) as first:
        second = ucall.Server(port=first.port)
        for begin in (second.run, second.start, lambda: asyncio.run(second.serve())):
            with pytest.raises(OSError) as taken:
                begin()
            assert taken.value.errno == errno.EADDRINUSE
            assert f"{HOST}:{first.port}" in str(taken.value)
    with second:
        assert second.port == first.port


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0)])
def test_a_foreign_address_is_an_oserror(host: str, port: int) -> None:
    with pytest.raises(OSError):
        ucall.Server(host, port).run()


@pytest.mark.parametrize("host", ["localhost", "::1", "0.0.0.0"])
def test_hosts(host: str) -> None:
    server = ucall.Server(host, 0)
    server.add(sum)
    assert (server.host, server.port) == (host, None)
    try:
        server.start()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with socket.create_connection((server.host, server.port)) as wire:
        wire.sendall(b'{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}')
        assert wire.recv(99) == b'{"jsonrpc":"2.0","id":1,"result":3}\n'
    server.stop()


def test_the_server_can_be_restarted_repeatedly(serve: Serve) -> None:
    server = serve(sum)
    port = server.port
    for _ in range(5):
        with Wire(port) as wire:
            assert wire.result("sum", [1, 2]) == 3
            server.stop()
            assert wire.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            Wire(port)
        server.start()
    assert server.port == port
    assert server.stats()["calls"] == server.stats()["accepted"] == 5


@pytest.mark.parametrize("options", [{}, {"metrics": True}, {"trace": True}])
def test_a_server_that_is_dropped_releases_its_functions(options: dict[str, Any]) -> None:
    def define() -> Callable[[], None]:
        return lambda: None

    function = define()
    released = weakref.ref(function)
    with ucall.Server(port=0, **ucall.options.arguments(options)) as server:
        server.add(function, name="function")
        with Wire(server.port) as wire:
            assert wire.result("function") is None
            wire.send(request("rpc.discover"))
            assert wire.line()
    del function, server
    assert eventually(lambda: gc.collect() >= 0 and released() is None, timeout_s=20)


def test_another_server_may_bind_at_once_after_a_stop(serve: Serve) -> None:
    server = serve(sum)
    wires = [Wire(server.port) for _ in range(10)]
    assert [wire.result("sum", [1, 2]) for wire in wires] == [3] * 10
    server.stop()
    with ucall.Server(port=server.port):
        pass
    for wire in wires:
        wire.socket.close()


def test_the_context_manager(engine: str) -> None:
    server = ucall.Server(port=0)
    server.add(sum)
    assert repr(server).endswith("not running>")
    with server as entered, Wire(server.port) as wire:
        assert entered is server and repr(server).endswith(" running>")
        assert f"127.0.0.1:{server.port}" in repr(server)
        assert wire.result("sum", [1, 2]) == 3
    assert repr(server).endswith("not running>")


def test_the_server_runs_once_at_a_time(serve: Serve) -> None:
    server = serve(sum)
    for again in (server.start, server.run):
        with pytest.raises(RuntimeError, match="runs already"):
            again()
    server.stop()
    server.stop()
    server.start()


def test_a_function_may_stop_its_server(serve: Serve) -> None:
    def leave() -> str:
        server.stop()
        return "bye"

    server = serve(leave)
    with Wire(server.port) as wire:
        assert wire.result("leave") == "bye"
        assert wire.rest() == b""
    assert eventually(lambda: "not running" in repr(server))


def test_run_in_a_users_thread(engine: str) -> None:
    server = ucall.Server(port=0)
    server.add(sum)
    thread = run_on_thread(server, server.run)
    with Wire(server.port) as wire:
        assert wire.result("sum", [1, 2]) == 3
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_a_stop_before_the_first_run_is_remembered() -> None:
    server = ucall.Server(port=0)
    server.stop()
    server.run()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_stops_and_starts_from_many_threads(serve: Serve) -> None:
    server = serve(sum)

    def stop_and_start() -> None:
        for _ in range(20):
            server.stop()
            with contextlib.suppress(RuntimeError):
                server.start()

    threads = [threading.Thread(target=stop_and_start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_bounded_run_keeps_its_connections(engine: str) -> None:
    server = ucall.Server(port=0)
    server.add(sum)
    start = time.monotonic()
    server.run(max_seconds=0.05)
    assert time.monotonic() - start >= 0.05
    with Wire(server.port) as wire:
        results: list[int] = []
        caller = threading.Thread(target=lambda: results.extend(_called(wire, 20)))
        caller.start()
        while caller.is_alive():
            server.run(max_cycles=3, max_seconds=0.05)
        caller.join()
        assert results == [3] * 20 and server.stats()["accepted"] == 1
        assert server.stats()["connections"] == 1
        server.stop()
        assert wire.rest() == b"" and server.stats()["connections"] == 0
    server.run(max_cycles=0)
    server.stop()


def test_a_bounded_run_is_stopped_before_a_thread_or_a_loop_serves(engine: str) -> None:
    server = importlib.import_module(f"ucall.{engine}").Server(port=0)
    server.add(sum)
    server.run(max_cycles=0)
    with pytest.raises(RuntimeError, match=r"call stop\(\) first"):
        server.start()
    with pytest.raises(RuntimeError, match=r"call stop\(\) first"):
        asyncio.run(server.serve())
    server.stop()
    with server, Wire(server.port) as wire:
        assert wire.result("sum", [1, 2]) == 3


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("server.run(workers=1, max_seconds=0.5)", "max_seconds"),
        # The worker runs the program from its start.
        ("ucall.Server(port=0).run(max_cycles=0); server.run(workers=1)", "max_cycles"),
    ],
    ids=["supervisor", "worker"],
)
def test_a_bounded_run_has_no_workers(tmp_path: Path, source: str, bound: str) -> None:
    (tmp_path / "script.py").write_text(f"import ucall; server = ucall.Server(port=0); {source}")
    done = forking.run([sys.executable, "script.py"], cwd=tmp_path, text=True)
    assert done.returncode == 1
    assert f"ValueError: {bound}: with workers, expected no bound, got 0" in done.stderr


def _called(wire: Wire, times: int) -> list[Any]:
    return [wire.result("sum", [1, 2]) for _ in range(times)]


def test_other_threads_run_beside_a_busy_server(serve: Serve) -> None:
    server = serve(sum)
    with Wire(server.port) as wire:
        wire.send(b'{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}' * 10_000)
        for _ in range(10_000):
            assert wire.line()
    assert server.stats()["calls"] == 10_000


def test_stats_count(serve: Serve) -> None:
    server = serve(sum)
    with Wire(server.port) as wire:
        request = b'{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}'
        wire.send(request)
        reply = wire.line()
        wire.send(b"[" + request + b"," + request + b"]")
        replies = wire.line()
        stats = server.stats()
    assert (stats["calls"], stats["connections"], stats["accepted"]) == (3, 1, 1)
    assert stats["bytes_received"] == 3 * len(request) + 3
    assert stats["bytes_sent"] == len(reply) + len(replies) + 2
    assert stats["turns"] >= 2 and stats["system_calls"] >= 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"max_nesting": -1}, "max_nesting"),
        ({"max_nesting": 1_025}, "max_nesting: expected at most 1024"),
        ({"max_image_pixels": 0}, "max_image_pixels"),
        ({"max_held_image_pixels": 0}, "max_held_image_pixels"),
        ({"max_connections": 1.5}, "max_connections"),
        ({"idle_timeout_s": 0}, "idle_timeout_s"),
        ({"head_timeout_s": float("nan")}, "head_timeout_s"),
        ({"allowed_hosts": ["a b"]}, "allowed_hosts"),
        ({"allow_origins": ["example.com"]}, "allow_origins"),
        ({"allow_origins": "https://example.com"}, "allow_origins: expected a list of names"),
    ],
)
def test_invalid_options_are_rejected(options: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        ucall.Server(port=0, **ucall.options.arguments(options))


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_the_deepest_params_are_read(opening: str, closing: str) -> None:
    server = ucall.Server(port=0, limits=ucall.Limits(max_nesting=1_024))

    @server
    def count_levels(value: Any) -> int:
        levels = 0
        while value != 1:
            value = value["a"] if isinstance(value, dict) else value[0]
            levels += 1
        return levels

    def request_of(levels: int) -> bytes:
        value = opening * levels + "1" + closing * levels
        call = '{"jsonrpc":"2.0","id":1,"method":"count_levels","params":{"value":%s}}'
        return (call % value).encode()

    with server, Wire(server.port) as wire:
        wire.send(request_of(1_022))
        assert json.loads(wire.line())["result"] == 1_022
        wire.send(request_of(1_023))
        assert json.loads(wire.line())["error"]["code"] == -32700


def test_startup_is_undone_when_on_start_raises() -> None:
    seen: list[str] = []

    async def up() -> None:
        seen.append("up")

    for hook in (lambda: seen.append("up"), up):
        seen.clear()
        server = ucall.Server(port=0)
        server.on_startup(hook)
        server.on_shutdown(lambda: seen.append("down"))

        def fail() -> None:
            raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            server._run(-1, -1, None, fail)
        assert seen == ["up", "down"]
