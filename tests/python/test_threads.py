"""Plain functions that block, in threads."""

from __future__ import annotations

import contextvars
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from functions import sum

import ucall
from harness import Wire, eventually, request

Serve = Callable[..., ucall.Server]


def block(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


def test_a_blocking_function_delays_no_other_call(serve: Serve) -> None:
    server = serve(sum)
    assert server(threads=True)(block) is block
    with Wire(server.port) as wire:
        wire.send(request("block", [0.3, "slow"], id=1) + request("sum", [1, 2], id=2))
        assert json.loads(wire.line()) == {"jsonrpc": "2.0", "id": 2, "result": 3}
        assert json.loads(wire.line()) == {"jsonrpc": "2.0", "id": 1, "result": "slow"}


def test_a_function_in_a_thread_may_stop_its_server(serve: Serve) -> None:
    def stop() -> str:
        server.stop()
        return "stopped"

    server = serve(stop, threads=1)
    with Wire(server.port) as wire:
        assert wire.result("stop") == "stopped"
        assert wire.rest() == b""
    other = serve(sum)
    server.stop()
    server.start()
    server.add(lambda: other.stop() or other.port, name="stop_other")
    with Wire(server.port) as wire:
        assert wire.result("stop_other") == other.port
    other.start()


def test_threads_grow_on_demand_up_to_a_limit(serve: Serve) -> None:
    seen: set[str] = set()

    def name(seconds: float) -> None:
        seen.add(threading.current_thread().name)
        time.sleep(seconds)

    server = serve(max_threads=5)
    server.add(name, threads=True)
    with Wire(server.port) as wire:
        for _ in range(3):
            wire.result("name", [0])
        assert len(seen) <= 3
        start = time.monotonic()
        wire.send(b"".join(request("name", [0.1], id=n) for n in range(20)))
        assert {json.loads(wire.line())["id"] for _ in range(20)} == set(range(20))
        assert time.monotonic() - start >= 0.4
    assert len(seen) == 5


def test_a_server_may_run_all_in_threads(serve: Serve) -> None:
    def where() -> str:
        return threading.current_thread().name

    async def where_async() -> str:
        return threading.current_thread().name

    all_meet = threading.Barrier(3)

    def meet() -> str:
        all_meet.wait(60)
        return where()

    server = serve(threads=3)
    server.add(where)
    server.add(meet)
    server.add(where_async)
    server.add(where, name="inline", threads=False)
    with Wire(server.port) as wire:
        assert wire.result("where").startswith("ucall-thread-")
        assert not wire.result("where_async").startswith("ucall-thread-")
        assert not wire.result("inline").startswith("ucall-thread-")
        wire.send(b"".join(request("meet", id=n) for n in range(9)))
        names = {json.loads(wire.line())["result"] for _ in range(9)}
        assert len(names) == 3


def test_failures(serve: Serve) -> None:
    def fail(kind: str) -> object:
        if kind == "rpc":
            raise ucall.RPCError(5, "no", {"a": 1})
        if kind == "object":
            return object()
        raise KeyError(kind)

    server = serve()
    server.add(fail, threads=True)
    with Wire(server.port) as wire:
        assert wire.error("fail", ["rpc"]) == {"code": 5, "message": "no", "data": {"a": 1}}
        assert wire.error("fail", ["x"])["code"] == -32603
        assert "object" in wire.error("fail", ["object"])["data"]
        assert wire.error("fail", [1])["code"] == -32602
        assert wire.error("fail")["code"] == -32602


def test_each_call_has_its_own_context_variables(serve: Serve) -> None:
    variable = contextvars.ContextVar("variable", default=0)

    def count() -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    server = serve(max_threads=1)
    server.add(count, threads=True)
    with Wire(server.port) as wire:
        assert [wire.result("count") for _ in range(3)] == [1, 1, 1]


def test_replies_are_never_crossed_while_clients_disconnect(serve: Serve) -> None:
    server = serve()
    server.add(block, threads=True)
    wrong: list[Any] = []

    def call(client: int) -> None:
        for number in range(20):
            with Wire(server.port) as wire:
                mine = f"{client}.{number}"
                wire.send(request("block", [0.002, mine]) * 2)
                if (client + number) % 3 == 0:
                    continue
                for _ in range(2):
                    result = json.loads(wire.line())["result"]
                    if result != mine:
                        wrong.append((mine, result))

    threads = [threading.Thread(target=call, args=[client]) for client in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_the_server_stops_while_a_thread_runs(serve: Serve) -> None:
    began, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        may_end.wait(60)

    server = serve(drain_timeout_s=0.3)
    server.add(block, threads=True)
    server.add(hold, threads=True)
    with Wire(server.port) as wire:
        wire.send(request("hold"))
        assert began.wait(60)
        server.stop()
        assert json.loads(wire.line())["error"]["code"] == -32007
    may_end.set()
    server.start()
    with Wire(server.port) as wire:
        assert wire.result("block", [0, 1]) == 1


def test_a_slow_function_is_named_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(block, sum, slow_call_s=0.5)
    took_s = []
    with Wire(server.port) as wire:
        for _ in range(3):
            wire.result("block", [0.6])
            start = time.monotonic()
            wire.result("sum", [1, 2])
            took_s.append(time.monotonic() - start)
    warned = [record.getMessage() for record in caplog.records if record.name == "ucall"]
    named = [line for line in warned if line.startswith("block held up all other calls for ")]
    assert len(named) == 1 and "threads=True" in named[0]
    # If even that is slow, the log names it as well.
    assert warned == named or max(took_s) > 0.5


def test_a_slow_async_function_is_named_with_its_own_remedy(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def block_the_loop() -> None:
        time.sleep(0.6)

    server = serve(block_the_loop, slow_call_s=0.5)
    with Wire(server.port) as wire:
        for _ in range(2):
            wire.result("block_the_loop", [])
    warned = [record.getMessage() for record in caplog.records if record.name == "ucall"]
    named = [line for line in warned if line.startswith("block_the_loop held up all other calls")]
    assert len(named) == 1 and named[0].endswith("or run it by asyncio.to_thread")


def test_notifications_run_too(serve: Serve) -> None:
    seen: list[int] = []

    def note(a: int) -> None:
        seen.append(a)

    server = serve()
    server.add(note, threads=True)
    with Wire(server.port) as wire:
        wire.send(request("note", [1], ...))
    assert eventually(lambda: seen == [1])
