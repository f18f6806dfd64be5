"""A pair of ucall.queue: the server gets. Modes: tcp, posix (TCP on epoll), unix, async
(asyncio, TCP)."""

import asyncio

from common import arguments, count, count_async, listening, put_for, put_for_async

from ucall import queue as nq

role, mode, port, size, seconds = arguments()
purpose = nq.Purpose.SERVER if role == "get" else nq.Purpose.CLIENT
protocol = nq.Protocol.UNIX if mode == "unix" else nq.Protocol.TCP
options = nq.CommunicatorOptions(
    netloc=nq.NetworkLocation("127.0.0.1", port), engine="posix" if mode == "posix" else "auto"
)


async def main() -> None:
    from ucall.aio import queue as anq

    async with anq.new(protocol, purpose, options) as queue:
        if role == "get":

            async def take() -> object:
                return (await queue.get()).data

            listening()
            await count_async(take)
        else:
            await put_for_async(seconds, size, queue.put)


if mode == "async":
    asyncio.run(main())
else:
    with nq.new(protocol, purpose, options) as queue:
        if role == "get":
            listening()
            count(lambda: queue.get().data)
        else:
            put_for(seconds, size, queue.put, lambda future: future.result())
