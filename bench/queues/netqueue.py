"""A pair of net-queue, from PyPI: the server gets. Modes: sync, async (its futures, awaited)."""

import asyncio

import net_queue as nq
from common import arguments, count, put_for, put_for_async

role, mode, port, size, seconds = arguments()
purpose = nq.Purpose.SERVER if role == "get" else nq.Purpose.CLIENT
options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", port))
with nq.new(purpose=purpose, options=options) as queue:
    if role == "get":
        count(lambda: queue.get().data)
    elif mode == "async":

        async def main() -> None:
            await put_for_async(seconds, size, lambda data: asyncio.wrap_future(queue.put(data)))

        asyncio.run(main())
    else:
        put_for(seconds, size, queue.put, lambda future: future.result())
