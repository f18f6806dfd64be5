"""Buffers that a program uses again after `put`, before they are sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from pairs import free_location

from ucall import aio
from ucall import queue as nq

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

COPIED_BYTES = 64 * 1024


def frames(size: int) -> list[Any]:
    kinds = [numpy.ones(size, "u1"), numpy.ones((2, size // 2), "u1", order="F"), bytearray(size)]
    return [*kinds, [numpy.ones(size, "u1"), numpy.ones(size, "u1")]]


def change(frame: Any) -> None:
    for part in frame if isinstance(frame, list) else [frame]:
        part[:] = b"\7" * len(part) if isinstance(part, bytearray) else 7


@pytest.mark.parametrize(
    ("size", "copy", "is_copied"),
    [(COPIED_BYTES, False, True), (COPIED_BYTES + 2, False, False), (1_000_000, True, True)],
)
def test_what_put_has_copied_may_change_before_it_is_sent(
    size: int, copy: bool, is_copied: bool
) -> None:
    location = free_location()
    options = nq.CommunicatorOptions(netloc=location)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(nq.new(options=options))
        sent = frames(size)
        # There is no server yet, so nothing is sent.
        futures = [client.put(frame, copy=copy) for frame in sent]
        for frame in sent:
            change(frame)
        server = stack.enter_context(
            nq.new(purpose="server", options=nq.CommunicatorOptions(netloc=location))
        )
        received = [server.get(timeout=60).data for _ in sent]
        for frame in received:
            for part in frame if isinstance(frame, list) else [frame]:
                assert (7 in numpy.asarray(part)) is not is_copied
        for future in futures:
            future.result(60)


def test_bytes_of_a_serializer_are_copied() -> None:
    location, plain = free_location(), nq.BytesSerializer()
    serialization = nq.SerializationOptions(load=plain.load, dump=plain.dump)
    options = nq.CommunicatorOptions(netloc=location, serialization=serialization)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(nq.new(options=options))
        frame = bytearray(COPIED_BYTES)
        client.put(frame)
        change(frame)
        options = nq.CommunicatorOptions(netloc=location, serialization=serialization)
        server = stack.enter_context(nq.new(purpose="server", options=options))
        assert server.get(timeout=60).data == bytes(COPIED_BYTES)


def test_asyncio_copies_long_buffers_too() -> None:
    async def run() -> Any:
        location = free_location()
        async with aio.queue.new(options=nq.CommunicatorOptions(netloc=location)) as client:
            frame = numpy.ones(1_000_000, "u1")
            put = client.put(frame, copy=True)
            change(frame)
            options = nq.CommunicatorOptions(netloc=location)
            async with aio.queue.new(purpose="server", options=options) as server:
                message = await server.get(timeout=60)
                await put
                return message.data

    assert (asyncio.run(run()) == 1).all()
