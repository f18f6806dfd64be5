"""A pair of ucall.queue: the server gets.

Modes: tcp, posix (TCP on epoll), unix, tls (TCP), shm, trusted (reusable shared memory), arrays
(unix), mqtt, grpc, nats, jetstream, async (asyncio, TCP). Messages are arrays over shared memory
and in the mode arrays, else bytes.
"""

import asyncio
from pathlib import Path

from common import arguments, count, count_async, listening, put_for, put_for_async

from ucall import queue as nq

role, mode, port, size, seconds = arguments()
purpose = nq.Purpose.SERVER if role == "get" else nq.Purpose.CLIENT
protocol = nq.Protocol(mode) if mode in [*nq.Protocol] else nq.Protocol.TCP
if mode == "trusted":
    protocol = nq.Protocol.SHM
elif mode == "arrays":
    protocol = nq.Protocol.UNIX
OUTPUT = Path(__file__).resolve().parents[2] / ".bench"
security = None
if mode == "tls" and role == "get":
    security = nq.SecurityOptions(OUTPUT / "tls.pem", OUTPUT / "tls.pem")
elif mode == "tls":
    security = nq.SecurityOptions(authority=OUTPUT / "tls-authority.pem")
options = nq.CommunicatorOptions(
    netloc=nq.NetworkLocation("127.0.0.1", port),
    connection=nq.ConnectionOptions(
        trusted=mode == "trusted",
        ack="taken" if (mode, role) == ("jetstream", "get") else "received",
    ),
    security=security,
    engine="posix" if mode == "posix" else "auto",
)


def take_array():
    """The next array, of which a byte of each page is read."""
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
        data = None
        if mode in ("shm", "trusted", "arrays"):
            # The others do not need it, and it takes memory.
            import numpy as np

            data = np.full(size, 7, np.uint8)
        if role == "get":
            listening()
            count(take_array if data is not None else lambda: queue.get().data)
        else:
            put_for(seconds, size, queue.put, lambda future: future.result(), data)
