"""The queues of asyncio."""

from __future__ import annotations

import asyncio

import pytest
from pairs import Pairs

from ucall.aio import queue as anq

WAIT_S = 10


def test_put_and_get_are_awaited(pairs: Pairs) -> None:
    async def main() -> None:
        async with anq.Communicator(pairs.server(ack="taken")) as server:
            client = anq.Communicator(pairs.client(server._queue, ack="taken"))
            began = []
            server.on_start(began.append)
            puts = [client.put(number) for number in range(1000)]
            got = [await server.get(timeout=WAIT_S) for _ in puts]
            assert [message.data for message in got] == list(range(1000))
            await asyncio.wait_for(asyncio.gather(*puts), WAIT_S)
            waiting = [asyncio.create_task(client.get(timeout=WAIT_S)) for _ in range(3)]
            await asyncio.sleep(0.01)
            for number in range(3):
                await server.put(number)
            assert [(await it).data for it in waiting] == [0, 1, 2]
            assert began == [client.id]
            with pytest.raises(TimeoutError):
                await client.get(timeout=0.01)
            await client.close()
            with pytest.raises(ConnectionError):
                await client.get()
            with pytest.raises(ConnectionError):
                await client.put("late")

    asyncio.run(main())
