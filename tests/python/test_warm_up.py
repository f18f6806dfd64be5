"""`warm_up` of `Server.batch`: the batches that run before a server listens."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ucall
from harness import Wire
from ucall._functions.warm_up import sizes

#: Each size twice, the first run of each before the second.
SIZES = [1, 2, 4, 6] * 2


def new_server(engine: str) -> ucall.Server:
    server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(port=0)
    return server


def test_the_sizes_are_the_powers_of_two_and_the_largest() -> None:
    assert [sizes(most) for most in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]


@pytest.mark.parametrize("kind", ["inline", "thread", "async"])
def test_each_size_runs_before_the_server_listens_where_batches_do(
    engine: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_server(engine)
    seen: list[Any] = []
    threads: set[str] = set()
    model = server.model(lambda: 2)

    def double(values: list[int]) -> list[int]:
        seen.append(len(values) if set(values) == {7} else values)
        threads.add(threading.current_thread().name)
        return [value * model() for value in values]

    async def double_async(values: list[int]) -> list[int]:
        return double(values)

    function = double_async if kind == "async" else double
    options: dict[str, Any] = {"threads": True} if kind == "thread" else {}
    server.batch(function, name="double", max_size=6, warm_up=(7,), **options)
    assert seen == []
    with caplog.at_level(logging.INFO, "ucall"), server:
        assert seen == SIZES
        [name] = threads
        assert name == ("ucall-warm-up" if kind == "thread" else f"ucall:{server.port}")
        with Wire(server.port) as wire:
            assert wire.result("double", [3]) == 6
        assert seen == [*SIZES, [3]]
    [line] = [it for it in caplog.messages if "is warm" in it]
    assert line.startswith("double is warm after ")
    for size in (1, 2, 4, 6):
        assert f" {size}: " in line
    with server:  # It is warm.
        assert seen == [*SIZES, [3]]


def test_arrays_are_stacked(engine: str) -> None:
    server = new_server(engine)
    seen: list[Any] = []

    @server.batch(max_size=2, warm_up=[np.ones((2, 3), np.float32), "a"])
    def shapes(arrays: NDArray[np.float32], texts: list[str]) -> list[int]:
        seen.append((arrays.shape, arrays.dtype, texts))
        return [0] * len(texts)

    with server:
        assert seen[:2] == [
            ((1, 2, 3), np.dtype(np.float32), ["a"]),
            ((2, 2, 3), np.dtype(np.float32), ["a", "a"]),
        ]


def test_scalars_are_one_value_for_the_batch(engine: str) -> None:
    server = new_server(engine)
    seen: list[Any] = []

    @server.batch(max_size=2, warm_up=("a", True))
    def embed(texts: list[str], *, normalize: bool, scale: float = 2.0) -> list[float]:
        seen.append((texts, normalize, scale))
        return [0.0] * len(texts)

    with server:
        assert seen[:2] == [(["a"], True, 2.0), (["a", "a"], True, 2.0)]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_generators_take_their_first_step(engine: str, is_async: bool) -> None:
    server = new_server(engine)
    seen: list[Any] = []

    def count(starts: list[int]) -> Iterator[list[int]]:
        try:
            for step in range(1000):
                yield [start + step for start in starts]
        finally:
            seen.append((len(starts), step))

    async def count_async(starts: list[int]) -> AsyncIterator[list[int]]:
        try:
            for step in range(1000):
                yield [start + step for start in starts]
        finally:
            seen.append((len(starts), step))

    server.batch(count_async if is_async else count, max_size=2, warm_up=(1,))
    with server:
        assert seen == [(1, 0), (2, 0)] * 2


@pytest.mark.parametrize("kind", ["inline", "thread", "async"])
@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (ValueError("no memory"), "ValueError: no memory"),
        ([ValueError("no memory"), 1], "ValueError: no memory"),
        ([1], "expected 2 results, got 1"),
        ("ab", "expected 2 results, got str"),
        (5, "TypeError"),
    ],
    ids=["raises", "an item failed", "too few", "text", "no results"],
)
def test_a_server_whose_batch_fails_does_not_start(
    engine: str, kind: str, result: Any, reason: str
) -> None:
    server = new_server(engine)

    def embed(texts: list[str]) -> list[int]:
        if len(texts) == 1:
            return [0]
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    async def embed_async(texts: list[str]) -> list[int]:
        return embed(texts)

    options: dict[str, Any] = {"threads": True} if kind == "thread" else {}
    function = embed_async if kind == "async" else embed
    server.batch(function, name="embed", max_size=2, warm_up=("a",), **options)
    with pytest.raises(RuntimeError, match=f"embed: warm_up: a batch of 2 failed: .*{reason}"):
        server.start()
    assert "not running" in repr(server)


def test_an_example_that_does_not_fit_is_rejected() -> None:
    server = ucall.Server(port=0)

    def two(texts: list[str], counts: list[int]) -> list[int]:
        return counts

    def with_contexts(texts: list[str], contexts: list[ucall.Context]) -> list[int]:
        return [0]

    wrong: list[tuple[Any, Any, str]] = [
        (two, "ab", "warm_up: expected a tuple with a value for each parameter, got str"),
        (
            two,
            ("a",),
            r"two: warm_up: expected a value for each parameter \(texts, counts\), got 1",
        ),
        (two, ("a", 1, 2), "got 3"),
        (two, (), "got 0"),
        (with_contexts, ("a",), "with_contexts: warm_up: a batch that takes contexts has none"),
    ]
    for function, example, problem in wrong:
        with pytest.raises(TypeError, match=problem):
            server.batch(function, warm_up=example)


def test_the_redefinition_of_a_function_is_warmed_up_in_its_place(engine: str) -> None:
    server = new_server(engine)
    seen: list[list[str]] = []
    for example in ("old", "new"):

        @server.batch(max_size=1, warm_up=(example,))
        def embed(texts: list[str]) -> list[int]:
            seen.append(texts)
            return [0]

    with server:
        assert seen == [["new"]] * 2
