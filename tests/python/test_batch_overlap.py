"""Batches in threads whose function releases the interpreter's lock: what runs beside it."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ucall
from harness import Wire, eventually, http, request

Serve = Callable[..., ucall.Server]
#: A thread tries whether the function releases the lock, and tries again after 16 batches.
CALLS = 400
MARK = 8_545_000_017


def _calls(params: list[Any], first: int = 0) -> bytes:
    return b"".join(request("call", [it], id=first + index) for index, it in enumerate(params))


def _replies(wire: Wire, count: int) -> dict[int, Any]:
    replies = [json.loads(wire.line()) for _ in range(count)]
    return {reply["id"]: reply.get("result", reply.get("error")) for reply in replies}


@pytest.fixture
def young_objects() -> Callable[[], list[list[int]]]:
    """The lists ``[MARK, number]`` that exist."""
    gc.collect()
    gc.freeze()

    def find() -> list[list[int]]:
        lists = [it for it in gc.get_objects() if type(it) is list and len(it) == 2]
        return [it for it in lists if it[0] == MARK]

    # They stay frozen: to look at all objects of the tests takes a second of each collection.
    return find


def test_results_are_written_while_the_next_batch_runs(
    serve: Serve, young_objects: Callable[[], list[list[int]]]
) -> None:
    beside = []

    def call(numbers: list[int]) -> list[list[int]]:
        beside.append(bool(young_objects()))
        time.sleep(0.002)
        return [[MARK, number] for number in numbers]

    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        wire.send(_calls(list(range(CALLS))))
        assert _replies(wire, CALLS) == {number: [MARK, number] for number in range(CALLS)}
    assert any(beside) and not beside[0]


@pytest.mark.parametrize("kept", ["list", "items", "members", "array", "view", "buffer"])
def test_results_that_the_function_keeps_do_not_change(serve: Serve, kept: str) -> None:
    arrays = [np.zeros(size, np.int64) for size in range(9)]
    numbers_kept: list[int] = []
    items = [[0] for _ in range(8)]
    members = [{"it": [0]} for _ in range(8)]

    def call(numbers: list[int]) -> Any:
        size = len(numbers)
        array = arrays[size]
        array[:], numbers_kept[:] = numbers, numbers
        for item, member, number in zip(items, members, numbers, strict=False):
            item[0] = member["it"][0] = number
        # Another thread would write the results of the last batch now.
        time.sleep(0.002)
        return {
            "list": numbers_kept,
            "items": items[:size],
            "members": [dict(member) for member in members[:size]],
            "array": array,
            "view": array[:size],
            "buffer": array.data,
        }[kept]

    def expected(number: int) -> Any:
        return {"items": [number], "members": {"it": [number]}}.get(kept, number)

    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        wire.send(_calls(list(range(CALLS))))
        assert _replies(wire, CALLS) == {number: expected(number) for number in range(CALLS)}


def test_calls_that_wait_are_read_while_a_batch_runs(
    serve: Serve, young_objects: Callable[[], list[list[int]]]
) -> None:
    begun: set[int] = set()
    ahead: set[int] = set()

    def call(pairs: list[list[int]]) -> list[int]:
        begun.update(number for _, number in pairs)
        time.sleep(0.01)
        ahead.update(number for _, number in young_objects() if number not in begun)
        return [number for _, number in pairs]

    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        wire.send(_calls([[MARK, number] for number in range(CALLS)]))
        assert _replies(wire, CALLS) == {number: number for number in range(CALLS)}
    assert ahead


def test_as_many_calls_are_read_as_one_batch_has(
    serve: Serve, young_objects: Callable[[], list[list[int]]]
) -> None:
    """More urgent calls overtake those that were read."""
    begun: set[int] = set()
    gates = [threading.Event() for _ in range(3)]

    def call(pairs: list[list[int]]) -> list[int]:
        numbers = [number for _, number in pairs]
        begun.update(numbers)
        time.sleep(0.002)
        if (group := numbers[0] // CALLS) > 0:
            assert gates[group - 1].wait(30)
        return numbers

    def ahead() -> set[int]:
        return {number for _, number in young_objects()} - begun

    def send(wire: Wire, first: int, priority: int) -> None:
        meta = {"_meta": {"priority": priority}}
        calls = [request("call", [[MARK, first + it]], id=first + it) for it in range(16)]
        wire.send(b"".join(json.dumps(json.loads(it) | meta).encode() + b"\n" for it in calls))

    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        # The server learns that the function releases the lock.
        wire.send(_calls([[MARK, number] for number in range(CALLS)]))
        assert len(_replies(wire, CALLS)) == CALLS
        most = 0
        for group, priority in enumerate((-8, 0, 7), start=1):
            send(wire, group * CALLS, priority)
            assert eventually(lambda group=group: group * CALLS in begun)
            # The other thread may not be idle yet, so that none are read.
            eventually(lambda group=group: len(ahead()) >= 8 * group, timeout_s=0.5)
            most = max(most, len(ahead()))
            gates[group - 1].set()
        assert len(_replies(wire, 3 * 16)) == 3 * 16
    assert most <= 8


def test_python_code_reads_no_params_while_a_batch_runs(serve: Serve) -> None:
    running, beside = threading.Event(), []

    @dataclass
    class Item:
        number: int

        def __post_init__(self) -> None:
            beside.append(running.is_set())

    def call(items: list[Item]) -> list[int]:
        running.set()
        time.sleep(0.005)
        running.clear()
        return [item.number for item in items]

    call.__annotations__["items"] = list[Item]
    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        wire.send(_calls([{"number": number} for number in range(CALLS)]))
        assert _replies(wire, CALLS) == {number: number for number in range(CALLS)}
    assert len(beside) == CALLS and not any(beside)


def test_each_call_has_its_own_outcome(serve: Serve) -> None:
    failed: set[int] = set()

    def call(numbers: list[int]) -> list[Any]:
        time.sleep(0.001)
        if any(number % 100 == 50 for number in numbers):
            failed.update(numbers)
            raise ucall.RPCError(7, "all")
        if any(number % 100 == 75 for number in numbers):
            failed.update(numbers)
            return []
        return [ucall.RPCError(8, "one") if it % 10 == 3 else it for it in numbers]

    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        wire.send(_calls(["no number" if it % 10 == 7 else it for it in range(CALLS)]))
        replies = _replies(wire, CALLS)
    assert len(replies) == CALLS
    for number, reply in replies.items():
        if number % 10 == 7:
            assert reply["code"] == -32602, number
        elif number in failed:
            assert reply["code"] in (7, -32603), number
        elif number % 10 == 3:
            assert reply["code"] == 8, number
        else:
            assert reply == number


def test_a_call_that_ends_drops_what_was_read(
    serve: Serve, young_objects: Callable[[], list[list[int]]]
) -> None:
    begun: set[int] = set()
    going_on = [threading.Event() for _ in range(10)]

    def call(pairs: list[list[int]]) -> list[int]:
        numbers = [number for _, number in pairs]
        begun.update(numbers)
        time.sleep(0.002)
        if held := [number for number in numbers if number >= CALLS]:
            assert going_on[held[0] // CALLS - 1].wait(30)
        return numbers

    def read(numbers: set[int]) -> bool:
        return bool({number for _, number in young_objects()} & numbers - begun)

    def leaves(server: ucall.Server, first: int) -> bool:
        """Whether calls are read ahead, whose client then leaves."""
        waiting = set(range(first, first + 16))
        calls = [request("call", [[MARK, number]], id=number) for number in sorted(waiting)]
        with Wire(server.port) as leaving:
            leaving.send(http(b"[" + b",".join(calls) + b"]"))
            assert eventually(lambda: bool(begun & waiting))
            are_read = eventually(lambda: read(waiting), timeout_s=1)
        ended = waiting - begun
        assert ended and eventually(lambda: not read(ended))
        going_on[first // CALLS - 1].set()
        with Wire(server.port) as wire:
            assert wire.result("call", [[MARK, 0]]) == 0
        assert not ended & begun
        return are_read

    server = serve()
    server.batch(call, threads=True, max_size=8)
    with Wire(server.port) as wire:
        # The server learns that the function releases the lock.
        wire.send(_calls([[MARK, number] for number in range(CALLS)]))
        assert len(_replies(wire, CALLS)) == CALLS
    # The other thread may not be idle yet.
    assert any(leaves(server, CALLS * attempt) for attempt in range(1, 11))


def test_a_server_stops_while_calls_are_read(serve: Serve) -> None:
    def call(numbers: list[int]) -> list[int]:
        time.sleep(0.001)
        return numbers

    for _ in range(5):
        server = serve(drain_timeout_s=0.1)
        server.batch(call, threads=True, max_size=8)
        with Wire(server.port) as wire:
            wire.send(_calls(list(range(4 * CALLS))))
            assert json.loads(wire.line())
            server.stop()
