"""The params of waiting calls count towards `max_held_bytes`."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
from collections.abc import Iterator

import pytest
from serving import Serve

import ucall
from harness import Wire, eventually, http, request

#: Less than the params of four calls. Receiving takes more meanwhile.
HELD_BYTES_MAX = 1_000_000
LARGE = http(request("wait", ["x" * 300_000]))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The event that the calls wait for; set at the end, so that the server can stop."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture(params=["threads", "batch", "async"])
def server(request: pytest.FixtureRequest, serve: Serve, gate: threading.Event) -> ucall.Server:
    """A server of `wait(text)`, which waits for the gate: in one thread, a batch, or a task."""

    def wait(text: str) -> int:
        assert gate.wait(20)
        return len(text)

    def wait_together(texts: list[str]) -> list[int]:
        return [wait(text) for text in texts]

    async def wait_in_task(text: str) -> int:
        while not gate.is_set():
            await asyncio.sleep(0.001)
        return len(text)

    server = serve(max_held_bytes=HELD_BYTES_MAX, max_threads=1)
    if request.param == "threads":
        server.add(wait, threads=True)
    elif request.param == "batch":
        server.batch(wait_together, name="wait", threads=True)
    else:
        server.add(wait_in_task, name="wait")
    return server


def is_taken(server: ucall.Server, wire: Wire) -> bool:
    """Sends a large call, and returns whether the server accepts it."""
    before = server.stats()["calls"]
    wire.send(LARGE)

    def is_refused() -> bool:
        return bool(select.select([wire.socket], [], [], 0)[0])

    assert eventually(lambda: server.stats()["calls"] > before or is_refused())
    is_taken = server.stats()["calls"] > before
    assert is_taken or wire.reply()[0] == 503
    return is_taken


def test_queued_calls_stay_within_max_held_bytes(
    server: ucall.Server, gate: threading.Event
) -> None:
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.port)) for _ in range(8)]
        taken = [wire for wire in wires if is_taken(server, wire)]
        assert 1 <= len(taken) <= 4
        gate.set()
        assert [wire.reply()[0] for wire in taken] == [200] * len(taken)
    with Wire(server.port) as wire:
        wire.send(LARGE)
        assert wire.reply()[0] == 200


def test_disconnected_callers_free_their_queued_calls(server: ucall.Server) -> None:
    with Wire(server.port) as first:
        # It occupies the one thread, or runs as the batch that other calls wait for.
        first.send(http(request("wait", ["x"])))
        for _ in range(10):
            with Wire(server.port) as wire:
                assert is_taken(server, wire)
            assert eventually(lambda: server.stats()["connections"] == 1)


def test_a_closed_connection_cancels_only_its_calls(serve: Serve) -> None:
    running: set[int] = set()
    ended: list[int] = []

    async def wait(number: int) -> None:
        running.add(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    server = serve(wait)
    wires = [Wire(server.port) for _ in range(4)]
    try:
        # Alternately, so that the calls of the connections are interleaved.
        for number in range(40):
            wires[number % 4].send(http(request("wait", [number])))
        assert eventually(lambda: len(running) == 40)
        for place, wire in enumerate([wires[2], wires[0], wires[3], wires[1]], 1):
            wire.socket.close()
            assert eventually(lambda: len(ended) == 10 * place)  # noqa: B023
            assert sorted(ended[-10:]) == list(range(wires.index(wire), 40, 4))
    finally:
        for wire in wires:
            wire.socket.close()
