"""The server's event loop behaves as asyncio's: each test runs on both."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import socket
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ucall
from harness import Wire, eventually, program, request
from ucall._server import event_loop

Loop = asyncio.AbstractEventLoop
Serve = Callable[..., ucall.Server]


@pytest.fixture(params=["ours", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    made = event_loop.Loop() if request.param == "ours" else asyncio.SelectorEventLoop()
    yield made
    made.close()


def run(loop: Loop, seconds: float = 0.05) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run_forever()


def test_callbacks_run_in_order_and_timers_by_time(loop: Loop) -> None:
    ran: list[Any] = []
    now = loop.time()
    for delay in (0.03, 0.01, 0.02, 0.01):
        loop.call_at(now + delay, lambda delay=delay: ran.append((delay, loop.time() - now)))
    for number in range(3):
        loop.call_soon(ran.append, number)
    run(loop, 0.06)
    assert ran[:3] == [0, 1, 2]
    assert [delay for delay, _ in ran[3:]] == [0.01, 0.01, 0.02, 0.03]
    assert all(at >= delay - 1e-6 for delay, at in ran[3:])


def test_cancelled_callbacks_do_not_run(loop: Loop) -> None:
    ran: list[str] = []
    soon = loop.call_soon(ran.append, "soon")
    before = loop.time()
    later = loop.call_later(0.01, ran.append, "later")
    after = loop.time()
    kept = loop.call_later(0.02, ran.append, "kept")
    for handle in (soon, later):
        assert not handle.cancelled()
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()
    assert before + 0.009 < later.when() < after + 0.011
    run(loop)
    assert ran == ["kept"] and not kept.cancelled()
    kept.cancel()
    assert kept.cancelled()


def test_finished_callbacks_are_released(loop: Loop) -> None:
    class Callback:
        def __call__(self) -> None: ...

    callbacks = [Callback(), Callback(), Callback()]
    watched = [weakref.ref(callback) for callback in callbacks]
    handles = [loop.call_soon(callbacks[0])]
    handles += [loop.call_later(60, callbacks[1])]
    loop.call_later(60, callbacks[2])
    handles[1].cancel()
    callbacks.clear()
    run(loop, 0)
    loop.close()
    del handles
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3


def test_cancelled_timers_are_pruned(loop: Loop) -> None:
    tracemalloc.start()
    try:
        for _ in range(5_000):
            loop.call_later(60, print).cancel()
        run(loop, 0)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 5_000 * 16


def test_an_exception_goes_to_the_handler_and_other_callbacks_run(loop: Loop) -> None:
    told: list[dict[str, Any]] = []
    ran: list[int] = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        raise LookupError("x")

    loop.call_soon(fail)
    loop.call_soon(ran.append, 1)
    loop.call_later(0.001, fail)
    run(loop)
    assert ran == [1] and len(told) == 2
    assert isinstance(told[0]["exception"], LookupError) and "fail" in told[0]["message"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_base_exceptions_end_the_run(loop: Loop, kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind

    ran: list[int] = []
    loop.call_soon(leave)
    loop.call_soon(ran.append, 1)
    with pytest.raises(kind):
        loop.run_forever()
    run(loop)
    assert ran == [1]


def test_stop_runs_the_callbacks_already_queued(loop: Loop) -> None:
    ran: list[str] = []
    loop.call_soon(loop.stop)
    loop.call_soon(lambda: (ran.append("there"), loop.call_soon(ran.append, "new")))
    loop.run_forever()
    assert ran == ["there"]
    run(loop)
    assert ran == ["there", "new"]


def test_callbacks_run_in_the_callers_or_the_given_context(loop: Loop) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []
    record_value: Callable[[], None] = lambda: seen.append(variable.get())  # noqa: E731
    other = contextvars.copy_context()
    variable.set("mine")
    loop.call_soon(record_value)
    loop.call_soon(record_value, context=other)
    loop.call_later(0.001, record_value)
    loop.call_later(0.002, record_value, context=other)
    run(loop)
    assert seen == ["mine", "unset", "mine", "unset"]


def test_a_spinning_task_starves_no_other(loop: Loop) -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def main() -> None:
        spinning = asyncio.ensure_future(spin())
        await asyncio.sleep(0.02)
        reader, writer = await asyncio.open_connection(sock=await connected(loop))
        writer.write(b"x")
        await reader.readexactly(1)
        writer.close()
        spinning.cancel()

    loop.run_until_complete(main())


async def connected(loop: Loop) -> Any:
    ours, theirs = socket.socketpair()
    threading.Thread(target=lambda: theirs.sendall(theirs.recv(1)), daemon=True).start()
    ours.setblocking(False)
    return ours


def test_another_thread_wakes_the_loop(loop: Loop) -> None:
    ran: list[str] = []

    def call() -> None:
        loop.call_soon_threadsafe(ran.append, "called")
        loop.call_soon_threadsafe(loop.stop)

    loop.call_later(60, loop.stop)
    loop.call_soon(threading.Timer(0.02, call).start)
    began = time.monotonic()
    loop.run_forever()
    assert ran == ["called"] and time.monotonic() - began < 50


def test_a_closed_loop_rejects_callbacks(loop: Loop) -> None:
    loop.close()
    for ask in (
        lambda: loop.call_soon(print),
        lambda: loop.call_later(1, print),
        lambda: loop.call_at(1, print),
        lambda: loop.call_soon_threadsafe(print),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            ask()


def test_a_delay_must_be_a_number(loop: Loop) -> None:
    for delay in (None, "1"):
        with pytest.raises(TypeError):
            loop.call_later(delay, print)  # type: ignore[arg-type]


def test_debug_mode_names_slow_callbacks_and_rejects_coroutines(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01  # type: ignore[attr-defined]
    loop.call_soon(time.sleep, 0.02)

    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        loop.call_soon(coroutine)
    refused: list[str] = []

    def from_other_thread() -> None:
        try:
            loop.call_soon(print)
        except RuntimeError as failure:
            refused.append(str(failure))

    async def main() -> None:
        await asyncio.to_thread(from_other_thread)
        await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, logger="asyncio"):
        loop.run_until_complete(main())
    slow = [record.getMessage() for record in caplog.records if "took" in record.getMessage()]
    assert any("sleep" in line and line.startswith("Executing") for line in slow), slow
    assert "thread" in refused[0]
    loop.run_until_complete(loop.shutdown_default_executor())


def _add_reader(loop: Loop, done: Callable[[], object]) -> None:
    ours, theirs = socket.socketpair()

    def read() -> None:
        loop.remove_reader(ours)
        ours.close()
        theirs.close()
        done()

    loop.add_reader(ours, read)
    theirs.send(b"x")


async def _finish(done: Callable[[], object]) -> None:
    await asyncio.sleep(0)
    done()


def _resolve_future(loop: Loop, done: Callable[[], object]) -> None:
    future = loop.create_future()
    future.add_done_callback(lambda _: done())
    future.set_result(None)


#: What a function may ask of its loop, and what calls `done` then.
REQUESTS: dict[str, Callable[[Loop, Callable[[], object]], object]] = {
    "call_soon": lambda loop, done: loop.call_soon(done),
    "call_soon twice": lambda loop, done: loop.call_soon(loop.call_soon, done),
    "call_later": lambda loop, done: loop.call_later(0.001, done),
    "call_at": lambda loop, done: loop.call_at(loop.time() + 0.001, done),
    "call_soon_threadsafe": lambda loop, done: loop.call_soon_threadsafe(done),
    "another thread": lambda loop, done: threading.Timer(
        0.01, loop.call_soon_threadsafe, [done]
    ).start(),
    "create_task": lambda loop, done: loop.create_task(_finish(done)),
    "a future": _resolve_future,
    "run_in_executor": lambda loop, done: loop.run_in_executor(None, done),
    "add_reader": _add_reader,
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_plain_function_may_use_the_loop(serve: Serve, name: str) -> None:
    """The turn that ran the function has to end its wait: nothing else arrives after it."""
    done = threading.Event()

    async def start() -> None: ...

    def use_loop() -> None:
        REQUESTS[name](asyncio.get_running_loop(), done.set)

    with Wire(serve(start, use_loop).port) as wire:
        wire.result("start")
        wire.result("use_loop")
        assert done.wait(60)


EXITS = """
import asyncio, sys, ucall
server = ucall.Server(port=0)
@server
async def exit_by_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
@server
async def exit_when_cancelled() -> None:
    try:
        await asyncio.sleep(3000)
    except asyncio.CancelledError:
        sys.exit(4)
@server
async def exit_child() -> None:
    async def child() -> None:
        await asyncio.sleep(0)
        sys.exit(5)
    await asyncio.create_task(child())
@server
def stop() -> None:
    server.stop(at_once=True)
server.on_startup(lambda: print(server.port))
server.run()
print("stopped")
"""


def test_a_callback_that_exits_ends_the_server() -> None:
    with program(EXITS) as process, Wire(int(process.stdout.readline())) as wire:
        wire.send(request("exit_by_callback"))
        assert process.wait(60) == 3


def test_a_task_that_exits_ends_its_call_alone() -> None:
    with program(EXITS) as process, Wire(int(process.stdout.readline())) as wire:
        for _ in range(3):
            assert wire.error("exit_child")["code"] == -32603
        process.terminate()
        assert process.wait(60) == 0


def test_a_task_that_exits_while_the_server_stops_lets_it_stop() -> None:
    with program(EXITS) as process, Wire(int(process.stdout.readline())) as wire:
        wire.send(request("exit_when_cancelled") + request("stop"))
        assert process.wait(60) == 0
        assert process.stdout.readline() == "stopped\n"


async def order() -> list[str]:
    """The order in which the steps and callbacks of some tasks run."""
    loop, ran = asyncio.get_running_loop(), []

    async def steps(name: str, count: int) -> None:
        for number in range(count):
            ran.append(f"{name} step {number}")
            if number % 3 == 1:
                loop.call_soon(ran.append, f"{name} callback {number}")
            if number % 4 == 2:
                future: asyncio.Future[None] = loop.create_future()
                loop.call_soon(future.set_result, None)
                await future
                loop.call_soon(ran.append, f"{name} callback {number}")
            await asyncio.sleep(0)

    await asyncio.gather(*(steps(name, 5 + number) for number, name in enumerate("abcd")))
    return ran


def test_steps_of_tasks_keep_their_place_among_callbacks(serve: Serve) -> None:
    with Wire(serve(order).port) as wire:
        expected = asyncio.run(order())
        assert expected.index("a callback 1") < expected.index("a step 2")
        for _ in range(10):
            assert wire.result("order") == expected


async def exits(ran: list[str]) -> None:
    await asyncio.sleep(0)
    ran.append("exits")
    raise SystemExit(1)


async def goes_on(ran: list[str]) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    ran.append("went on")


def test_a_task_that_exits_stops_no_other(serve: Serve) -> None:
    ran: list[str] = []

    async def start() -> None:
        background.update(map(asyncio.ensure_future, (exits(ran), goes_on(ran))))

    background: set[Any] = set()
    with Wire(serve(start).port) as wire:
        assert wire.result("start") is None
        assert eventually(lambda: ran == ["exits", "went on"])
        for task in background:
            task.exception()
