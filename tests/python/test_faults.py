"""Functions that fail in every way that Python has, on every kind of thread. Each fails only its
own call; the same process answers the next one."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from serving import Serve

from harness import Wire, eventually, new_interpreter, program, request, send_line


class RaisingException(Exception):
    """An exception whose `repr` fails."""

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class RaisingDel:
    """An object whose `__del__` fails."""

    def __del__(self) -> None:
        raise RuntimeError("raised in __del__")


class Fatal(BaseException):
    pass


def raising(error: BaseException | type[BaseException]) -> Callable[[], object]:
    def broken() -> object:
        raise error

    return broken


def returning(make: Callable[[], Any]) -> Callable[[], object]:
    def broken() -> object:
        return make()

    return broken


def recurse() -> object:
    return recurse()


def a_cycle() -> object:
    cycle: list[object] = []
    cycle.append(cycle)
    return cycle


def deep_list() -> object:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def raises_in_del() -> object:
    RaisingDel()
    raise KeyError("k")


def endless_chain() -> object:
    error = ValueError("x")
    error.__context__ = KeyError("y")
    error.__context__.__context__ = error
    raise error


BREAKS: dict[str, Callable[[], object]] = {
    "raises": raising(ValueError("x")),
    "raises a class": raising(ZeroDivisionError),
    "raises what cannot be shown": raising(RaisingException()),
    "raises in a circle": endless_chain,
    "a group": raising(ExceptionGroup("g", [ValueError("x"), KeyError("y")])),
    "MemoryError": raising(MemoryError()),
    "RecursionError": recurse,
    "StopIteration": raising(StopIteration()),
    "GeneratorExit": raising(GeneratorExit()),
    "StopAsyncIteration": raising(StopAsyncIteration()),
    "CancelledError": raising(asyncio.CancelledError()),
    "SystemExit": raising(SystemExit(3)),
    "sys.exit": lambda: sys.exit("gone"),
    "BaseException": raising(Fatal()),
    "warns": raising(UserWarning("w")),
    "an object": returning(object),
    "a lone surrogate": returning(lambda: "\ud800"),
    "a nan": returning(lambda: float("nan")),
    "an int without end": returning(lambda: 10**5000),
    "a cycle": a_cycle,
    "a deep one": deep_list,
    "a generator": returning(lambda: (i for i in range(3))),
    "a coroutine": returning(lambda: asyncio.sleep(0)),
    "a bad key": returning(lambda: {(1, 2): 3}),
    "one whose end fails": returning(RaisingDel),
    "one that is deleted": raises_in_del,
    "a class": returning(lambda: int),
}

#: Exceptions with another code than -32603.
CODES = {"CancelledError": -32007}


@contextmanager
def ignored_unraisables() -> Iterator[None]:
    """Collects errors of `__del__` and coroutines that are never awaited."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = before


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("kind", ["plain", "async", "threads"])
def test_a_failing_function_fails_only_its_call(serve: Serve, kind: str) -> None:
    async def start() -> int:
        return threading.get_ident()

    server = serve(start)
    for name, broken in BREAKS.items():
        if kind == "async":
            server.add(_awaited(broken), name=name)
        else:
            server.add(broken, name=name, threads=kind == "threads")
    with ignored_unraisables(), Wire(server.port) as wire:
        worker = wire.result("start")
        for name in BREAKS:
            for _ in range(3):
                assert wire.error(name)["code"] == CODES.get(name, -32603), name
                assert wire.result("start") == worker, name
        # And in one batch, among calls that succeed.
        calls = [request(name, id=name) for name in BREAKS] + [request("start", id="good")]
        wire.send(b"[" + b",".join(calls) + b"]")
        text = wire.line()
        assert text.count(b'"code":-32603') == len(BREAKS) - len(CODES)
        assert text.count(b'"result"') == 1


@pytest.mark.parametrize("host", ["asyncio", "uvloop"])
def test_sys_exit_does_not_end_the_host_loop(engine: str, host: str) -> None:
    source = """
import asyncio, sys, importlib, ucall, ucall.posix, ucall.uring
server = getattr(ucall, sys.argv[1]).Server(port=0)
@server
async def leave(after: float) -> None:
    await asyncio.sleep(after)
    sys.exit("gone")
async def main():
    server.on_startup(lambda: print(server.port))
    await server.serve()
importlib.import_module(sys.argv[2]).run(main())
"""
    with program(source, engine, host) as process, Wire(int(process.stdout.readline())) as wire:
        for after in (0.0, 0.01, 0.0):
            assert wire.error("leave", [after])["code"] == -32603


def _awaited(broken: Callable[[], object]) -> Callable[[], Any]:
    calls = itertools.count()

    async def later() -> object:
        # In the first step of its task, after a wait, and after a timer.
        step = next(calls) % 3
        if step:
            await asyncio.sleep((step - 1) / 1000)
        return broken()

    return later


@pytest.mark.parametrize("kind", ["plain", "async", "threads"])
def test_debug_shows_printable_exceptions(serve: Serve, kind: str) -> None:
    server = serve(debug=True)
    broken = BREAKS["raises what cannot be shown"]
    if kind == "async":
        server.add(_awaited(broken), name="broken")
    else:
        server.add(broken, name="broken", threads=kind == "threads")
    with Wire(server.port) as wire:
        assert "RaisingException" in wire.error("broken")["data"]


def test_results_modified_while_they_are_written(serve: Serve) -> None:
    """Encoders run during the write: objects that they free must not be read afterwards."""
    held: list[Any] = []

    class Trap:
        pass

    def clear_victims(trap: Trap) -> object:
        for victim in held:
            victim.clear()
        return "sprung"

    def of_list() -> object:
        held[:] = [[Trap(), *("x" * 50 for _ in range(1000)), {"a": "b" * 100}]]
        return held[0]

    def of_dict() -> object:
        held[:] = [{"trap": Trap(), **{str(i): "y" * 50 for i in range(1000)}}]
        return held[0]

    def growing() -> object:
        members: dict[str, Any] = {"trap": Trap()}
        held[:] = [_Grower(members)]
        return members

    server = serve()
    server.register_type(Trap, encode=clear_victims, decode=lambda _: Trap())
    for function in (of_list, of_dict, growing):
        server.add(function)
    with Wire(server.port) as wire:
        for _ in range(5):
            for name in ("of_list", "of_dict", "growing"):
                reply = wire.call(name)
                assert ("result" in reply) or reply["error"]["code"] == -32603
        held.clear()


class _Grower:
    """Adds to its dict while the dict is cleared."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members

    def clear(self) -> None:
        for number in range(1000):
            self.members[str(number)] = number


LOADED = """
import asyncio, os, sys, threading, time, ucall, ucall.posix, ucall.uring
engine, how = sys.argv[1:3]
server = getattr(ucall, engine).Server(port=0, observability=ucall.Observability(slow_call_s=60))

@server
def plain(a: list) -> list: return a
@server
async def later(a: list) -> list:
    await asyncio.sleep(0.005)
    return a
@server(threads=True)
def threaded(a: list) -> list:
    time.sleep(0.005)
    return a

server.start()
def spin():
    while True:
        sum(range(1000))
threading.Thread(target=spin, daemon=True).start()
print(server.port)
sys.stdin.readline()
if how == "exit": sys.exit(0)
if how == "raise": raise RuntimeError("on purpose")
if how == "_exit": os._exit(0)
if how == "stop": server.stop()
if how == "del": del server
"""


@pytest.mark.parametrize("how", ["end", "exit", "raise", "_exit", "stop", "del"])
def test_the_interpreter_may_exit_under_load(engine: str, how: str) -> None:
    with new_interpreter(LOADED, engine, how) as process:
        port = int(process.stdout.readline())
        stop = threading.Event()
        answered = [0] * 6

        def load(index: int) -> None:
            name = ["plain", "later", "threaded"][index % 3]
            calls = b"".join(request(name, [[index]], id=i) for i in range(20))
            try:
                with Wire(port) as wire:
                    while not stop.is_set():
                        wire.send(calls)
                        for _ in range(20):
                            if not wire.line():
                                return
                            answered[index] += 1
            except OSError:
                pass  # The program has ended.

        clients = [threading.Thread(target=load, args=(index,)) for index in range(6)]
        for client in clients:
            client.start()
        try:
            assert eventually(lambda: all(answered))
            send_line(process)
            code = process.wait(timeout=60)
        finally:
            stop.set()
            for client in clients:
                client.join()
        errors = process.stderr.read()
        assert code == (1 if how == "raise" else 0), errors
        expected = "RuntimeError: on purpose" if how == "raise" else ""
        assert errors.strip().endswith(expected) and (expected or not errors.strip()), errors
