"""Batches whose calls have several rows each: ``rows=True``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_batch_processes import npy, serving

import ucall
from harness import HOST, Wire, eventually, request
from ucall._functions import signatures
from ucall._functions.registration import BatchRules
from ucall._functions.rows import wrap

Serve = Callable[..., ucall.Server]
KINDS = ["plain", "async", "threads"]


class Blocking:
    """A function that holds its first batch until it is released, and its batches."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.may_end = threading.Event()

    def __call__(self, texts: list[str], suffix: str = "") -> list[str]:
        self.batches.append(texts)
        assert self.may_end.wait(60)
        return [text.upper() + suffix for text in texts]

    def serve(self, serve: Serve, kind: str, **rules: Any) -> ucall.Server:
        def call(texts: list[str], suffix: str = "") -> list[str]:
            return self(texts, suffix)

        async def call_async(texts: list[str], suffix: str = "") -> list[str]:
            return await asyncio.to_thread(self, texts, suffix)

        function: Any = call_async if kind == "async" else call
        server = serve()
        server.batch(function, name="call", rows=True, threads=kind == "threads", **rules)
        return server


def _texts(start: int, count: int) -> list[str]:
    return [f"t{number}" for number in range(start, start + count)]


def _replies(wire: Wire, count: int) -> dict[int, Any]:
    replies = [json.loads(wire.line()) for _ in range(count)]
    return {reply["id"]: reply.get("result", reply.get("error")) for reply in replies}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_more_rows_than_a_batch_is_split_and_joined(serve: Serve, kind: str) -> None:
    blocking = Blocking()
    blocking.may_end.set()
    server = blocking.serve(serve, kind, max_size=64)
    with Wire(server.port) as wire:
        for count in (0, 1, 64, 65, 300):
            texts = _texts(0, count)
            assert wire.result("call", [texts]) == [text.upper() for text in texts]
    assert [len(batch) for batch in blocking.batches] == [1, 64, 64, 1, *[64] * 4, 44]


def test_rows_of_several_calls_share_batches(serve: Serve) -> None:
    blocking = Blocking()
    server = blocking.serve(serve, "threads", max_size=8)
    with Wire(server.port) as wire:
        wire.send(request("call", [["first"]], id=0))
        assert eventually(lambda: len(blocking.batches) == 1)
        wire.send(b"".join(request("call", [_texts(n, n)], id=n) for n in (3, 5, 4, 20)))
        wire.send(request("call", [_texts(0, 2), "!"], id=2))
        assert wire.result("rpc.discover")  # All of them have arrived.
        blocking.may_end.set()
        found = _replies(wire, 6)
    expected = {n: [text.upper() for text in _texts(n, n)] for n in (3, 4, 5, 20)}
    assert found == {0: ["FIRST"], 2: ["T0!", "T1!"], **expected}
    assert all(len(batch) <= 8 for batch in blocking.batches)
    assert _texts(3, 3) + _texts(4, 4) in blocking.batches, "of close weights, and no third one"


def test_each_call_fails_alone(serve: Serve) -> None:
    def check(values: list[int], more: list[int]) -> list[Any]:
        if 9 in values:
            raise KeyError("nine")
        results = zip(values, more, strict=True)
        return [ucall.RPCError(5, "no") if a < 0 else a + b for a, b in results]

    server = serve()
    server.batch(check, rows=True)
    with Wire(server.port) as wire:
        params = [[[1, 2], [3, 4]], [[1], [1, 2]], [[-1, 2], [1, 1]], [[], []], ["x", "y"]]
        wire.send(b"".join(request("check", it, n) for n, it in enumerate(params)))
        found = _replies(wire, 5)
        assert found[0] == [4, 6] and found[3] == []
        assert found[1]["code"] == -32602 and "expected 1 rows, as values has" in found[1]["data"]
        assert found[2] == {"code": 5, "message": "no"}
        assert found[4]["code"] == -32602
        assert wire.error("check", [[9], [9]])["code"] == -32603


def test_a_wrong_number_of_results_names_both(serve: Serve) -> None:
    server = serve()
    server.batch(lambda texts: texts[1:], name="call", rows=True)
    server.batch(lambda texts: "text", name="text", rows=True)
    with Wire(server.port) as wire:
        problem = "expected 3 results for a batch of 3, got 2"
        assert problem in wire.error("call", [[1, 2, 3]])["data"]
        assert "expected a list of 1 results" in wire.error("text", [[1]])["data"]


def test_arrays_are_joined_by_their_first_dimension(serve: Serve) -> None:
    shapes: list[tuple[int, ...]] = []

    def double(rows: np.ndarray) -> np.ndarray:
        shapes.append(rows.shape)
        return rows * 2

    server = serve()
    server.batch(double, rows=True, max_size=64, threads=True)
    with ucall.client.Client(f"tcp://{HOST}:{server.port}") as client:
        for count in (300, 1, 64):
            rows = np.arange(3 * count, dtype="f4").reshape(count, 3)
            assert (client.double(rows).numpy == rows * 2).all()
        assert shapes == [(64, 3)] * 4 + [(44, 3), (1, 3), (64, 3)]
        shapes.clear()
        with client.batch() as calls:
            made = [calls.double(np.full((n, 3 + n % 2), n, "f4")) for n in range(1, 5)]
        for n, result in enumerate(made, 1):
            assert (result.numpy == np.full((n, 3 + n % 2), 2 * n, "f4")).all()
        assert sorted(shapes) == [(4, 4), (6, 3)], "a group of each shape"
    with Wire(server.port) as wire:
        assert wire.error("double", [npy(np.zeros(()))])["code"] == -32602


def test_rows_have_weights(serve: Serve) -> None:
    batches: list[list[str]] = []

    def call(texts: list[str], factor: int = 1) -> list[int]:
        batches.append(texts)
        return [len(text) for text in texts]

    server = serve()
    weight = lambda text, factor: len(text) * factor  # noqa: E731
    server.batch(call, rows=True, weight=weight, max_weight=10)
    with Wire(server.port) as wire:
        texts = ["a" * 4, "b" * 6, "c", "d" * 10, "e"]
        assert wire.result("call", [texts]) == [4, 6, 1, 10, 1]
        assert batches == [texts[:2], texts[2:3], texts[3:4], texts[4:]]
        refused = wire.error("call", [["a" * 11, "b"]])
        assert refused["code"] == -32602 and "max_weight, 10, got 11" in refused["data"]
        assert wire.error("call", [["a" * 6], 2])["code"] == -32602


SCRIPT = """
import importlib, os, sys
import numpy as np
import ucall
server = importlib.import_module("ucall." + sys.argv[1]).Server(port=0)

def length(text):
    return len(text)

@server.batch(processes=2, rows=True, max_size=4, weight=length, max_weight=10, warm_up=("a",))
def sizes(texts: list[str]) -> list[int]:
    return [len(texts)] * len(texts)

@server.batch(processes=1, rows=True, max_size=64)
def double(rows: np.ndarray) -> np.ndarray:
    assert len(rows) <= 64
    return rows * 2

server.on_startup(lambda: print(server.port))
server.run()
"""


def test_rows_are_split_in_processes(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine, SCRIPT) as (_, wire):
        assert wire.result("sizes", [["a"] * 6]) == [4] * 4 + [2] * 2
        assert wire.result("sizes", [["a" * 6] * 2]) == [1, 1]
        port = wire.socket.getpeername()[1]
        with ucall.client.Client(f"tcp://{HOST}:{port}") as client:
            for count in (2, 300):
                rows = np.arange(100 * count, dtype="f4").reshape(count, 100)
                assert (client.double(rows).numpy == rows * 2).all()


def test_the_description_shows_lists_of_rows(serve: Serve) -> None:
    def call(texts: list[str], suffix: str = "") -> list[int]:
        return [len(text) for text in texts]

    server = serve()
    server.batch(call, rows=True)
    with Wire(server.port) as wire:
        [method] = [it for it in wire.result("rpc.discover")["methods"] if it["name"] == "call"]
    texts = method["params"][0]["schema"]
    assert texts["type"] == "array" and texts["items"]["type"] == "string"
    assert method["result"]["schema"]["type"] == "array"


def test_functions_unfit_for_rows_are_rejected() -> None:
    server = ucall.Server(port=0)

    def stream(texts: list[str]) -> Iterator[list[str]]:
        yield texts

    def with_contexts(contexts: list[ucall.Context], texts: list[str]) -> list[str]:
        return texts

    def scalar(text: str) -> str:
        return text

    for function, problem in [
        (stream, "is a generator"),
        (with_contexts, "Context cannot be served"),
        (scalar, "needs a parameter that is a list"),
    ]:
        with pytest.raises(TypeError, match=problem):
            server.batch(function, rows=True)
    with pytest.raises(TypeError, match="rows"):
        server.batch(stream, slots=2, rows=True)


def test_batches_of_rows_are_full_whatever_their_calls() -> None:
    seen: list[int] = []

    def call(texts: list[str], *, more: list[int]) -> list[str]:
        seen.append(len(texts))
        return texts

    hints = signatures.evaluate_annotations(call, "call")
    joined = wrap(call, "call", hints, BatchRules(5, 0, 1, rows=True))
    for sizes in ([3], [5], [6], [4, 4], [1, 0, 9, 7]):
        columns = [_texts(10 * n, size) for n, size in enumerate(sizes)]
        assert joined(columns, more=[[0] * size for size in sizes]) == columns
        total = sum(sizes)
        assert seen == [5] * (total // 5) + [total % 5] * (total % 5 > 0)
        seen.clear()
