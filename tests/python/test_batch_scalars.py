"""Params of a batch that are one value for all of its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ucall
from harness import Wire, request

Serve = Callable[..., ucall.Server]
KINDS = ["plain", "async", "threads"]


def _serve_scaled(serve: Serve, kind: str, calls: list[Any]) -> ucall.Server:
    def scaled(values: list[int], factor: int = 2, *, name: str | None = None) -> list[str]:
        calls.append((values, factor, name))
        if factor < 0:
            raise ucall.RPCError(5, "negative")
        return [f"{name}:{value * factor}" for value in values]

    async def scaled_async(
        values: list[int], factor: int = 2, *, name: str | None = None
    ) -> list[str]:
        await asyncio.sleep(0)
        return scaled(values, factor, name=name)

    server = serve()
    function = scaled_async if kind == "async" else scaled
    server.batch(function, name="scaled", threads=kind == "threads")
    return server


def _results(wire: Wire, params: list[Any]) -> list[Any]:
    requests = [request("scaled", it, number) for number, it in enumerate(params)]
    wire.send(b"[" + b",".join(requests) + b"]")
    return [reply.get("result", reply.get("error")) for reply in json.loads(wire.line())]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_with_other_values_are_other_groups(serve: Serve, kind: str) -> None:
    calls: list[Any] = []
    server = _serve_scaled(serve, kind, calls)
    with Wire(server.port) as wire:
        params: list[Any] = [[1], [2, 3], {"values": 3, "factor": 2}, {"values": 4, "name": "n"}]
        params.append({"factor": 3, "values": 5})
        results = _results(wire, params)
        assert results == ["None:2", "None:6", "None:6", "n:8", "None:15"]
    groups = [([1, 3], 2, None), ([2, 5], 3, None), ([4], 2, "n")]
    assert sorted(calls, key=str) == sorted(groups, key=str)
    assert server.stats()["batches"]["scaled"] == {5: 1}


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_fails_its_group_alone(serve: Serve, kind: str) -> None:
    calls: list[Any] = []
    server = _serve_scaled(serve, kind, calls)
    with Wire(server.port) as wire:
        results = _results(wire, [[1, -1], [2], ["a"], [3, -1], [4]])
        negative = {"code": 5, "message": "negative"}
        assert (results[0], results[3]) == (negative, negative)
        assert (results[1], results[4]) == ("None:4", "None:8")
        assert results[2]["code"] == -32602
        # The next batch runs.
        assert wire.result("scaled", [5]) == "None:10"


def test_values_of_other_types_are_other_groups(serve: Serve) -> None:
    seen: list[Any] = []

    def note(values: list[int], scalar: object) -> list[int]:
        seen.append((values, scalar))
        return values

    server = serve()
    server.batch(note)
    with Wire(server.port) as wire:
        params = [[1, 1], [2, True], [3, 1.0], [4, 1], [5, [1]], [6, [1]]]
        requests = [request("note", it, number) for number, it in enumerate(params)]
        wire.send(b"[" + b",".join(requests) + b"]")
        results = [reply["result"] for reply in json.loads(wire.line())]
        assert results == [1, 2, 3, 4, 5, 6]
    assert [(values, repr(scalar)) for values, scalar in seen] == [
        ([1, 4], "1"),
        ([2], "True"),
        ([3], "1.0"),
        ([5, 6], "[1]"),
    ]


@pytest.mark.parametrize("threads", [False, True])
def test_a_generator_has_a_stream_for_each_group(serve: Serve, threads: bool) -> None:
    def repeated(values: list[int], times: int = 1) -> Iterator[list[int]]:
        for _ in range(times):
            yield [value * 10 for value in values]

    server = serve()
    server.batch(repeated, threads=threads)
    with Wire(server.port) as wire:
        for _ in range(2):
            params = [[1], [2, 3], ["a"], [3, 3]]
            requests = [request("repeated", it, number) for number, it in enumerate(params)]
            wire.send(b"[" + b",".join(requests) + b"]")
            replies = json.loads(wire.line())
            results = [reply.get("result", reply.get("error", {}).get("code")) for reply in replies]
            assert results == [[10], [20] * 3, -32602, [30] * 3]


def test_scalars_are_described_with_their_defaults(serve: Serve) -> None:
    server = serve()

    @server.batch
    def embed(texts: list[str], normalize: bool = True) -> list[list[float]]:
        return [[float(normalize)] for _ in texts]

    with Wire(server.port) as wire:
        methods = wire.result("rpc.discover")["methods"]
        (params,) = [method["params"] for method in methods if method["name"] == "embed"]
        assert [(it["name"], it["required"], it["schema"]["type"]) for it in params] == [
            ("texts", True, "string"),
            ("normalize", False, "boolean"),
        ]
        assert params[1]["schema"]["default"] is True
