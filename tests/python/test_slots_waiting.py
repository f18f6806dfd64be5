"""Calls that wait for a slot: which are first, and how many may."""

from __future__ import annotations

import pytest
from serving import Serve
from test_slots import by_call, decode, served

from harness import Wire, request


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_calls_of_a_higher_priority_get_slots_first(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, slots=1, held=True)
    with Wire(server.port) as wire:
        wire.send(decode(2))
        decoder.allow()
        assert wire.message()["params"]["value"] == 0
        for id, (n, priority) in enumerate([(3, -1), (4, 0), (5, 7), (6, 7)], 2):
            wire.send(decode(n, id=id, priority=priority))
        wire.send(request("add", [1, 2], id=9))
        assert wire.message()["result"] == 3  # The server has read all.
        decoder.is_held = False
        decoder.allow()
        by_call(wire, 5)
    assert [joined for joined, _, _ in decoder.seen if joined] == [[2], [5], [6], [4], [3]]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_no_more_calls_wait_for_a_slot_than_the_option_allows(serve: Serve, kind: str) -> None:
    server, decoder = served(serve, kind, slots=2, held=True, max_waiting=2)
    with Wire(server.port) as wire:
        wire.send(b"".join(decode(2, id=id) for id in range(5)))
        refused = wire.message()
        assert refused["id"] == 4 and refused["error"]["code"] == -32003
        assert refused["error"]["data"]["max_waiting"] == 2
        decoder.is_held = False
        decoder.allow()
        assert sorted(by_call(wire, 4)[1]) == [0, 1, 2, 3]
        assert wire.result("decode", [1]) == [0]
