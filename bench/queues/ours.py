"""A pair of ucall.queue: the server gets.

Modes: tcp, posix (TCP on epoll), unix, tls (TCP), shm, trusted (shared memory that is used again),
mqtt, grpc, async (asyncio, TCP). Over shared memory arrays are sent, which is what it is for, over
the others bytes.
"""

import asyncio
from pathlib import Path

import numpy as np
from common import arguments, count, count_async, listening, put_for, put_for_async

from ucall import queue as nq

role, mode, port, size, seconds = arguments()
purpose = nq.Purpose.SERVER if role == "get" else nq.Purpose.CLIENT
protocol = nq.Protocol(mode) if mode in [*nq.Protocol] else nq.Protocol.TCP
if mode == "trusted":
    protocol = nq.Protocol.SHM
CERTIFICATES = Path(__file__).resolve().parents[2] / ".bench" / "certs"
security = None
if mode == "tls" and role == "get":
    security = nq.SecurityOptions(CERTIFICATES / "server.key", CERTIFICATES / "server.pem")
elif mode == "tls":
    security = nq.SecurityOptions(authority=CERTIFICATES / "client.pem")
options = nq.CommunicatorOptions(
    netloc=nq.NetworkLocation("127.0.0.1", port),
    connection=nq.ConnectionOptions(trusted=mode == "trusted"),
    security=security,
    engine="posix" if mode == "posix" else "auto",
)


def take_shared():
    """The next array, of which a byte in each page is looked at: the others had to be written."""
    array = queue.get().data
    if len(array) > 4096:
        array[::4096].max()
    return array


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
            count(take_shared if protocol == nq.Protocol.SHM else lambda: queue.get().data)
        else:
            data = np.full(size, 7, np.uint8) if protocol == nq.Protocol.SHM else None
            put_for(seconds, size, queue.put, lambda future: future.result(), data)
