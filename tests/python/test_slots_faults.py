"""Generators that take calls between their steps, where threads or memory are short."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from serving import Serve

import ucall
from harness import Wire, eventually, request


@dataclass
class Text:
    text: str


def test_calls_fail_whose_generator_gets_no_thread(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    server = serve()

    @server.batch(slots=4, threads=True)
    def take(slots: ucall.Slots[Text]) -> Iterator[ucall.SlotItems[str]]:
        while True:
            yield [(slot, ucall.END) for slot in slots.active]

    with Wire(server.port) as wire, monkeypatch.context() as patched:
        patched.setattr("_thread.start_new_thread", refuse)
        wire.send(b"".join(request("take", ["a"], id=id) for id in range(20)))
        assert {wire.message()["error"]["code"] for _ in range(20)} == {-32603}
        patched.undo()
        assert wire.result("take", ["a"]) == []


def test_params_of_calls_that_have_ended_count_no_longer(serve: Serve) -> None:
    """Also if no other call comes, in whose step they would be dropped."""
    joined, may_end = [0], threading.Event()

    def length(text: str) -> int:
        return len(text)

    def has_joined(count: int) -> bool:
        return joined[0] == count

    server = serve(length, max_held_bytes=8 << 20)

    @server.batch(slots=8, threads=True)
    def take(slots: ucall.Slots[Text]) -> Iterator[ucall.SlotItems[str]]:
        while True:
            joined[0] += len(slots.joined)
            yield [(slot, ucall.END) for slot in slots.active if may_end.wait(0.001)]

    with Wire(server.port) as wire:
        for count in range(1, 8):
            wire.send(request("take", ["x" * 1_000_000], id=count))
            assert eventually(lambda count=count: has_joined(count))
        may_end.set()
        assert [wire.message()["result"] for _ in range(7)] == [[]] * 7
        assert eventually(lambda: wire.call("length", ["x" * 3_000_000]).get("result") == 3_000_000)
