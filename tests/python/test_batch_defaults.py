"""Defaults of the lists and arrays of batches: each is that of a batch with one call."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from numpy.typing import NDArray
from serving import Serve

import ucall
from harness import Wire, request

ONES = numpy.ones((1, 2), "int8")


def test_calls_with_and_without_defaults_are_in_one_batch(serve: Serve) -> None:
    batches: list[Any] = []

    def scale(
        a: list[int],
        by: list[int] = [10],  # noqa: B006
        *,
        more: NDArray[numpy.int8] = ONES,
    ) -> list[int]:
        batches.append((by, more.tolist()))
        rows = zip(a, by, more, strict=True)
        return [number * factor + int(row.sum()) for number, factor, row in rows]

    assert scale([1]) == [12]
    server = serve()
    server.batch(scale, max_size=3, max_wait_ms=30_000)
    calls = [{"a": 1}, {"a": 2, "by": 3}, {"a": 3, "more": [1, 2]}]
    with Wire(server.port) as wire:
        wire.send(b"".join(request("scale", it, at) for at, it in enumerate(calls)))
        replies = {it["id"]: it["result"] for it in (wire.message() for _ in calls)}
        assert replies == {0: 12, 1: 8, 2: 33}
        described = wire.result("rpc.discover")["methods"][0]["params"]
    assert batches[1:] == [([10, 3, 10], [[1, 1], [1, 1], [1, 2]])]
    assert [it["required"] for it in described] == [True, False, False]
    assert described[1]["schema"] == {"type": "integer", "default": 10}


def test_contexts_have_no_default_to_check(serve: Serve) -> None:
    def count(a: list[int], contexts: list[ucall.Context] | Any = None) -> list[int]:
        return [len(a)] * len(a)

    count.__annotations__["contexts"] = list[ucall.Context]
    server = serve()
    server.batch(count)
    with Wire(server.port) as wire:
        assert wire.result("count", [5]) == 1
        [described] = wire.result("rpc.discover")["methods"][0]["params"]
    assert described["name"] == "a"


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        *((list[int], default) for default in ([], [1, 2], None, 5, "a")),
        *((NDArray[numpy.int8], default) for default in ([1], numpy.ones(2), numpy.ones(()))),
    ],
)
def test_the_default_of_another_batch_is_refused(annotation: Any, default: Any) -> None:
    def scale(a: list[int], by: Any = default) -> list[int]:
        return a

    scale.__annotations__["by"] = annotation
    with pytest.raises(TypeError, match="parameter 'by': expected the default of a batch with one"):
        ucall.Server(port=0).batch(scale)


def test_rows_have_no_defaults() -> None:
    def scale(a: list[int], by: list[int] = [1]) -> list[int]:  # noqa: B006
        return a

    with pytest.raises(TypeError, match="parameter 'by': with rows a list or an array has no"):
        ucall.Server(port=0).batch(scale, rows=True)
