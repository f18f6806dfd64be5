"""Generators that take calls between their steps."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from decoding import KINDS, Decoder, Prompt
from functions import add
from serving import Serve
from streaming import cancel_request, stream_request

import ucall
from harness import HOST, Wire, eventually, program, request
from ucall.client import Client

Yielded = Iterator[ucall.SlotItems[object]]


def served(
    serve: Serve, kind: str, slots: int = 8, held: bool = False, **options: Any
) -> tuple[ucall.Server, Decoder]:
    server, decoder = serve(add, metrics=True), Decoder(kind, slots)
    decoder.is_held = held
    decoder.add_to(server, **options)
    return server, decoder


def decode(n: int, size: int = 0, *, id: int = 1, **meta: Any) -> bytes:
    """A call that takes its items."""
    return stream_request("decode", n, size, id=id, token=id, **meta)


def gauge(server: ucall.Server, name: str) -> float:
    """A gauge among the metrics, whatever its labels are."""
    text = httpx.get(f"http://{HOST}:{server.port}/metrics").text
    return sum(float(it) for it in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def by_call(wire: Wire, count: int) -> tuple[dict[int, list[Any]], dict[int, Any]]:
    """The items and the replies of as many calls."""
    items: dict[int, list[Any]] = {}
    replies: dict[int, Any] = {}
    while len(replies) < count:
        message = wire.message()
        if "id" in message:
            replies[message["id"]] = message
        else:
            items.setdefault(message["params"]["token"], []).append(message["params"]["value"])
    return items, replies


@pytest.mark.parametrize("kind", KINDS)
def test_items_come_one_by_one_and_lists_at_the_end(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(decode(3))
        items, replies = by_call(wire, 1)
        assert items == {1: [0, 1, 2]}
        assert replies[1] == {"jsonrpc": "2.0", "id": 1, "result": None}
        assert wire.result("decode", [3]) == [0, 1, 2]
        assert wire.result("decode", {"n": 2, "size": 1}) == ["x", "x"]
        assert wire.result("decode", [0]) == []
    assert decoder.runs == 1 and decoder.closed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_many_callers_share_the_slots(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, slots=3)
    calls = {id: id % 7 for id in range(40)}
    with Wire(server.port) as wire:
        wire.send(b"".join(decode(n, id=id) for id, n in calls.items()))
        items, replies = by_call(wire, len(calls))
    assert items == {id: list(range(n)) for id, n in calls.items() if n}
    assert all(reply["result"] is None for reply in replies.values())
    assert max(len(active) for _, _, active in decoder.seen) == 3
    assert set(decoder.indices) == {0, 1, 2}
    # A slot is never empty while a call waits.
    total = sum(max(n, 1) for n in calls.values())
    assert decoder.steps <= total / 3 + 7
    sizes = server.stats()["batches"]["decode"]
    assert sum(sizes.values()) == decoder.steps and max(sizes) == 3


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_newcomer_joins_at_the_next_step(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, held=True)
    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.send(decode(-1))
        decoder.allow()
        assert wire.message()["params"]["value"] == 0
        other.send(decode(2, id=2))
        assert other.result("add", [1, 2]) == 3  # The server has read both.
        decoder.allow(3)
        assert by_call(other, 1)[0] == {2: [0, 1]}
        assert eventually(lambda: len(decoder.seen) == 4)
        # The second step may have begun before the newcomer came.
        assert [joined for joined, _, _ in decoder.seen if joined] == [[-1], [2]]
        steps = [active for _, _, active in decoder.seen]
        assert steps[0] == [-1] and sorted(steps[2]) == [-1, 2]
        decoder.is_held = False
        decoder.allow()


@pytest.mark.parametrize("how", ["cancels", "leaves", "is late"])
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_call_that_ends_frees_its_slot_before_the_next_step(
    serve: Serve, kind: str, how: str
) -> None:
    """There is one slot, and a call that waits for it."""
    server, decoder = served(serve, kind, slots=1, held=True)
    with Wire(server.port) as wire, Wire(server.port) as other:
        meta = {"timeout_ms": 300} if how == "is late" else {}
        wire.send(decode(-1, **meta))
        decoder.allow()
        assert wire.message()["params"]["value"] == 0
        other.send(decode(1, id=2))
        assert other.result("add", [1, 2]) == 3
        if how == "cancels":
            wire.send(cancel_request(1))
            assert wire.message()["error"]["code"] == -32800
        elif how == "leaves":
            wire.reset()
            assert eventually(lambda: decoder.contexts[0].cancelled)
        else:
            assert wire.message()["error"]["code"] == -32001
        decoder.allow(2)
        assert by_call(other, 1)[0] == {2: [0]}
        assert decoder.seen[-1] == ([1], [-1], [1])
        assert decoder.contexts[0].cancelled and not decoder.contexts[1].cancelled


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_calls_that_end_take_no_slot(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, slots=1)
    with Wire(server.port) as wire:
        wire.send(decode(-1, size=1, id=0))
        wire.send(b"".join(decode(5, id=id) for id in range(1, 101)))
        wire.send(b"".join(cancel_request(id) for id in range(100, -1, -1)))
        _, replies = by_call(wire, 101)
        assert {reply["error"]["code"] for reply in replies.values()} == {-32800}
        assert wire.result("decode", [2]) == [0, 1]
    assert {n for joined, _, _ in decoder.seen for n in joined} <= {-1, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_params_fail_alone(serve: Serve, kind: str) -> None:
    server, _ = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(decode(2, id=1) + stream_request("decode", "x", id=2) + decode(13, id=3))
        items, replies = by_call(wire, 3)
        assert items[1] == [0, 1] and replies[1]["result"] is None
        assert [replies[id]["error"]["code"] for id in (2, 3)] == [-32602, -32602]
        assert "n" in replies[2]["error"]["data"]
        assert replies[3]["error"]["data"] == "n: 13 brings bad luck"
        assert wire.error("decode", [])["code"] == -32602


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_as_an_item_fails_its_call_alone(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind)
    with Wire(server.port) as wire:
        wire.send(decode(3, id=1) + decode(98, id=2))
        items, replies = by_call(wire, 2)
        assert items == {1: [0, 1, 2]}
        assert replies[2]["error"] == {"code": 7, "message": "no more"}
    assert decoder.runs == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_that_raises_fails_its_calls_once_and_starts_again(
    serve: Serve, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    server, decoder = served(serve, kind, slots=2)
    with caplog.at_level(logging.ERROR, "ucall"), Wire(server.port) as wire:
        wire.send(b"".join(decode(n, id=id) for id, n in enumerate([99, 4, 3, 2])))
        items, replies = by_call(wire, 4)
        codes = [replies[id].get("error", {}).get("code") for id in range(4)]
        assert codes[0] == -32603 and codes[2:] == [None, None]
        assert items[2] == [0, 1, 2] and items[3] == [0, 1]
        assert wire.result("decode", [1]) == [0]
    assert decoder.runs == 2 and decoder.closed == 1
    assert [it.message.partition(" (")[0] for it in caplog.records] == ["decode raised"]


def test_each_call_of_a_generator_that_always_raises_fails(serve: Serve) -> None:
    def broken(slots: ucall.Slots[Prompt]) -> Yielded:
        raise OSError("no device")
        yield []

    server = serve()
    for threads in (False, True):
        server.batch(broken, name="broken", slots=4, threads=threads)
        with Wire(server.port) as wire:
            wire.send(b"".join(stream_request("broken", id=id) for id in range(20)))
            replies = by_call(wire, 20)[1]
            assert {reply["error"]["code"] for reply in replies.values()} == {-32603}


class Faults:
    """A generator that errs in its second step, with the call that it has ended in its first."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.other: list[ucall.Slot[Prompt]] = []

    def run(self, slots: ucall.Slots[Prompt]) -> Iterator[Any]:
        (first,) = slots.active
        if self.fault == "an ended call":
            yield [(first, 1), (first, ucall.END)]
            assert slots.left == [first]
            yield [(first, 2)]
        elif self.fault == "an ended call in one step":
            yield [(first, ucall.END), (first, 2)]
        elif self.fault == "another function":
            yield [(self.other[0], 1)]
        elif self.fault == "no pairs":
            yield [1]
        elif self.fault == "no list":
            yield None
        elif self.fault == "an index":
            yield [(0, 1)]
        elif self.fault == "a longer pair":
            yield [(first, 1, 2)]
        elif self.fault == "the end":
            yield [(first, 1)]

    def keep(self, slots: ucall.Slots[Prompt]) -> Yielded:
        self.other += slots.active
        yield [(slot, ucall.END) for slot in slots.active]


FAULTS = {
    "another function": "slot 0 belongs to another generator",
    "no pairs": "expected pairs of a slot and an item, got int",
    "no list": "expected pairs of a slot and an item, got NoneType",
    "an index": "expected a ucall.Slot in front of each item, got int",
    "a longer pair": "expected pairs of a slot and an item, got tuple",
    "the end": "the generator returned before ucall.END of a call",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("threads", [False, True])
def test_what_is_no_item_of_a_call_is_an_error(serve: Serve, fault: str, threads: bool) -> None:
    server, faults = serve(), Faults(fault)
    server.batch(faults.run, name="run", slots=2, threads=threads)
    server.batch(faults.keep, name="keep", slots=2)
    with Wire(server.port) as wire:
        assert wire.result("keep", [1]) == []
        for _ in range(2):
            error = wire.error("run", [1])
            assert error["code"] == -32603
            assert error["data"] == f"result: {FAULTS[fault]}"


@pytest.mark.parametrize("fault", ["an ended call", "an ended call in one step"])
@pytest.mark.parametrize("threads", [False, True])
def test_an_item_after_the_end_is_an_error(
    serve: Serve, caplog: pytest.LogCaptureFixture, fault: str, threads: bool
) -> None:
    """The call has its reply, so those beside it fail."""
    server, faults = serve(), Faults(fault)
    server.batch(faults.run, name="run", slots=1, threads=threads)
    with Wire(server.port) as wire, caplog.at_level(logging.ERROR, "ucall"):
        wire.send(stream_request("run", id=1) + stream_request("run", id=2))
        items, replies = by_call(wire, 2)
    assert replies[1]["result"] is None
    if fault == "an ended call":
        assert items == {"t": [1]}
        assert replies[2]["error"]["data"] == ("result: an item for slot 0 after its ucall.END")


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_reader_pauses_its_call_alone(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, slots=2)
    with Wire(server.port) as slow, Wire(server.port) as wire:
        slow.send(decode(-1, size=10_000))
        assert eventually(lambda: decoder.steps > 0)
        for id in range(30):
            wire.send(decode(50, id=id))
            assert by_call(wire, 1)[0] == {id: list(range(50))}

        def is_paused() -> bool:
            before = len(decoder.seen)
            assert wire.result("decode", [2]) == [0, 1]
            return not any(-1 in active for _, _, active in decoder.seen[before:])

        assert eventually(is_paused)
        steps = decoder.steps
        assert wire.result("add", [1, 2]) == 3
        assert decoder.steps == steps  # Nothing runs while all callers are slow.
        for _ in range(1_000):
            assert len(slow.message()["params"]["value"]) == 10_000
        assert decoder.steps > steps


def test_an_item_for_a_paused_call_fails_it_alone(serve: Serve) -> None:
    def ignorant(slots: ucall.Slots[Prompt]) -> Yielded:
        calls: list[ucall.Slot[Prompt]] = []
        while True:
            calls = [slot for slot in calls + slots.joined if slot not in slots.left]
            yield [(slot, "x" * slot.params.size) for slot in calls]

    server = serve(add)
    server.batch(ignorant, slots=2, threads=True)
    with Wire(server.port) as slow, Wire(server.port) as wire:
        slow.send(stream_request("ignorant", size=10_000, id=1))
        wire.send(stream_request("ignorant", size=1, id=2))
        while True:
            message = slow.message()
            if "id" in message:
                break
            for _ in range(200):
                assert "error" not in wire.message()
        assert message["error"]["data"] == (
            "result: the generator yields an item for a slot that is not in Slots.active"
        )
        assert "error" not in wire.message()


@pytest.mark.parametrize("steps", [999, 1_000])
def test_a_call_that_gets_no_item_is_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture, steps: int
) -> None:
    def silent(slots: ucall.Slots[Prompt]) -> Yielded:
        for _ in range(steps):
            yield []
        yield [(slot, ucall.END) for slot in slots.active]

    server = serve()
    server.batch(silent, slots=2, threads=True)
    with Wire(server.port) as wire, caplog.at_level(logging.WARNING, "ucall"):
        assert wire.result("silent", [1]) == []
    lines = [it.message for it in caplog.records if "silent: " in it.message]
    advice = "yield an item or ucall.END for each slot of Slots.active, or set timeout_ms"
    line = f"silent: slot 0 has had no item for 1,000 steps: {advice}"
    assert lines == ([line] if steps == 1_000 else [])


def test_a_reader_of_nothing_loses_its_slot(serve: Serve) -> None:
    server = serve(send_timeout_s=1)
    Decoder("thread", slots=1).add_to(server)
    with Wire(server.port) as hostile, Wire(server.port) as wire:
        hostile.send(decode(-1, size=10_000))
        assert hostile.socket.recv(1)
        assert wire.result("decode", [2]) == [0, 1]


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_other_rules_for_slow_readers(serve: Serve, overflow: str) -> None:
    server, decoder = served(serve, "thread", slots=2, stream="only", overflow=overflow)
    with Wire(server.port) as slow, Wire(server.port) as wire:
        slow.send(decode(-1, size=10_000))
        assert eventually(lambda: decoder.steps > 2_000)
        wire.send(decode(3, id=2))
        assert by_call(wire, 1)[0] == {2: [0, 1, 2]}
        assert wire.error("decode", [1])["code"] == -32600


@pytest.mark.parametrize("kind", KINDS)
def test_readers_of_nothing_leave_nothing(serve: Serve, kind: str) -> None:
    """Callers take all slots, read nothing and leave; others wait in vain, and leave as well."""
    server, decoder = served(serve, kind, slots=4)
    for _ in range(3):
        wires = [Wire(server.port) for _ in range(50)]
        for wire in wires:
            wire.send(decode(-1, size=10_000))
        assert eventually(lambda: decoder.steps > 0)
        for wire in wires:
            wire.reset()
    with Wire(server.port) as wire:
        assert wire.result("decode", [3]) == [0, 1, 2]
    assert eventually(lambda: gauge(server, "ucall_running_calls") == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_generator_waits_and_is_closed_by_the_drain(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind)
    with Wire(server.port) as wire:
        assert wire.result("decode", [1]) == [0]
    steps = decoder.steps
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5
    assert eventually(lambda: decoder.closed == 1)
    assert (decoder.runs, decoder.steps) == (1, steps)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_drain_lets_calls_end(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, held=True)
    with Wire(server.port) as wire:
        wire.send(decode(3))
        decoder.allow()
        assert wire.message()["params"]["value"] == 0
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        decoder.allow(2)
        items, replies = [], []
        while not replies:
            message = wire.message()
            if message.get("method") == "$/progress":
                items.append(message["params"]["value"])
            elif "id" in message:
                replies.append(message)
        assert items == [1, 2] and replies[0]["result"] is None
    stopping.join()
    assert eventually(lambda: decoder.closed == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_definition_replaces_the_generator(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind)
    with Wire(server.port) as wire:
        assert wire.result("decode", [1]) == [0]
        decoder.add_to(server)
        assert wire.result("decode", [1]) == [0]
        assert eventually(lambda: decoder.closed == 1)
    assert decoder.runs == 2


def test_an_idle_generator_takes_no_thread_of_the_pool(serve: Serve) -> None:
    server = serve(max_threads=1)
    decoder = Decoder("thread")
    decoder.add_to(server)
    server.add(add, threads=True)
    with Wire(server.port) as wire:
        assert wire.result("decode", [1]) == [0]
        assert wire.result("add", [1, 2]) == 3


HOLDS_THE_LOCK = """
import sys
from dataclasses import dataclass
import ucall, ucall.posix, ucall.uring

@dataclass
class Prompt:
    n: int

server = getattr(ucall, sys.argv[1]).Server(port=0)
sys.setswitchinterval(1000)

@server.batch(slots=4, threads=True)
def decode(slots: ucall.Slots[Prompt]):
    yield [(slot, 0) for slot in slots.active]
    while True:
        pass

server.on_startup(lambda: print(server.port))
server.run()
"""


def test_items_reach_callers_while_a_step_holds_the_lock(engine: str) -> None:
    with program(HOLDS_THE_LOCK, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port, timeout_s=20) as wire:
            call = json.loads(request("decode", [1]))
            wire.send(json.dumps(call | {"_meta": {"progressToken": 1}}).encode())
            assert wire.message()["params"]["value"] == 0


def test_over_http(serve: Serve) -> None:
    server, _ = served(serve, "thread")
    call = json.loads(request("decode", [2], "a"))
    with httpx.Client(base_url=f"http://{HOST}:{server.port}") as client:
        headers = {"Accept": "text/event-stream"}
        with client.stream("POST", "/", json=call, headers=headers) as response:
            lines = [json.loads(line[6:]) for line in response.iter_lines() if line]
    assert [line["params"]["value"] for line in lines[:-1]] == [0, 1]
    assert lines[-1]["result"] is None
    with Client(f"http://{HOST}:{server.port}") as client:
        assert list(client.stream.decode(n=2, size=1)) == ["x", "x"]


def test_the_description_has_the_params_of_a_call(serve: Serve) -> None:
    server, _ = served(serve, "thread")
    with Wire(server.port) as wire:
        (method,) = (it for it in wire.result("rpc.discover")["methods"] if it["name"] == "decode")
    assert [(it["name"], it["required"]) for it in method["params"]] == [
        ("n", True),
        ("size", False),
    ]
    assert method["params"][1]["schema"]["default"] == 0


def test_the_tool_of_mcp_reports_items(serve: Serve) -> None:
    server = serve(mcp=True)
    Decoder("thread").add_to(server)
    params = {"name": "decode", "arguments": {"n": 2}, "_meta": {"progressToken": "p"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream"}
    url = f"http://{HOST}:{server.port}/mcp"
    with httpx.stream("POST", url, json=call, headers=headers, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    messages = [json.loads(line[6:]) for line in lines]
    assert [it["params"]["progress"] for it in messages[:-1]] == [1, 2]
    assert messages[-1]["result"]["structuredContent"] == {"result": [0, 1]}


@dataclass
class WithContext:
    ctx: ucall.Context


def _of_str(slots: ucall.Slots[str]) -> Yielded:
    yield []


def _of_context(slots: ucall.Slots[WithContext]) -> Yielded:
    yield []


def _of_two(slots: ucall.Slots[Prompt], more: int) -> Yielded:
    yield []


def _fits(slots: ucall.Slots[Prompt]) -> Yielded:
    yield []


def _returns(slots: ucall.Slots[Prompt]) -> list[int]:
    return []


@pytest.mark.parametrize(
    ("function", "options", "problem"),
    [
        (_of_str, {}, "_of_str: slots: expected ucall.Slots.P., where P is a dataclass"),
        (_of_context, {}, "_of_context: parameter 'ctx': the context of a call is Slot.context"),
        (_of_two, {}, "_of_two: slots: expected one parameter, with the annotation"),
        (_returns, {}, "_returns: slots: is for generators, and this is none"),
        (_fits, {"slots": 0}, "slots: expected a positive"),
        (_fits, {"max_size": 2}, "slots: a generator with slots takes calls as they come"),
        (_fits, {"parallel": 2}, "slots: a generator with slots takes calls as they come"),
    ],
)
def test_functions_that_do_not_fit(function: Any, options: dict[str, Any], problem: str) -> None:
    server = ucall.Server(port=0)
    with pytest.raises((TypeError, ValueError), match=f"^{problem}"):
        server.batch(function, **{"slots": 4} | options)


def test_a_thousand_callers_that_come_and_leave(serve: Serve) -> None:
    server, decoder = served(serve, "thread", slots=16)

    def caller(number: int) -> None:
        with Wire(server.port) as wire:
            wire.send(decode(-1 if number % 3 else 5, size=100))
            if number % 3 == 0:
                assert len(by_call(wire, 1)[0][1]) == 5
            elif number % 3 == 1:
                wire.message()
                wire.reset()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(caller, range(1_000)))
    assert eventually(lambda: gauge(server, "ucall_running_calls") == 0)
    with Wire(server.port) as wire:
        assert wire.result("decode", [2]) == [0, 1]
    assert decoder.runs == 1
    assert eventually(lambda: len(decoder._positions) <= 1)
