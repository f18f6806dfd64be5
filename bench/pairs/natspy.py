"""A pair of nats-py, from PyPI: publishes into a stream of JetStream, and a pull consumer gets."""

import asyncio
import contextlib
import time
from collections import deque

import nats
from common import arguments, count_async, listening, used, window
from nats.js.api import ConsumerConfig, RetentionPolicy

BATCH = 256
role, mode, port, size, seconds = arguments()


async def get(stream) -> None:
    await stream.add_stream(name="bench", subjects=["bench"], retention=RetentionPolicy.WORK_QUEUE)
    config = ConsumerConfig(max_ack_pending=65_536)
    pull = await stream.pull_subscribe("bench", durable="bench", config=config)
    taken = deque()

    async def take() -> bytes:
        while not taken:
            with contextlib.suppress(TimeoutError):
                # nats-py waits so long for the rest of a batch.
                taken.extend(await pull.fetch(BATCH, timeout=0.1))
        message = taken.popleft()
        await message.ack()
        return message.data

    listening()
    await count_async(take)


async def put(stream) -> None:
    data, in_flight = b"x" * size, deque()
    # nats-py allows as many at a time.
    most = min(window(size), 4000)
    await stream.publish("bench", data)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(100 if size < 65536 else 1):
            in_flight.append(await stream.publish_async("bench", data))
            while len(in_flight) >= most:
                await in_flight.popleft()
    while in_flight:
        await in_flight.popleft()
    await stream.publish("bench", b"")
    print(used(), flush=True)


async def main() -> None:
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    await (get if role == "get" else put)(connection.jetstream())
    await connection.close()


asyncio.run(main())
