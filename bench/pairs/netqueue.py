"""A pair of net-queue, from PyPI: the server gets. Modes: sync, mqtt, async (futures)."""

import asyncio
import sys
import time

import net_queue as nq
from common import arguments, count, listening, put_for, put_for_async

role, mode, port, size, seconds = arguments()
purpose = nq.Purpose.SERVER if role == "get" else nq.Purpose.CLIENT
options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", port))
protocol = nq.Protocol.MQTT if mode == "mqtt" else nq.Protocol.TCP
with nq.new(protocol, purpose, options) as queue:
    if role == "get":
        listening()
        # A first message, as in net-queue's own benchmark: before it the client may lose a put.
        peer = queue.get().peer
        queue.put(None, peer)
        count(lambda: queue.get().data)
        sys.exit()
    while True:
        try:
            queue.put(None).result()
            break
        except ConnectionError:
            # During the handshake a peer has another name.
            time.sleep(0.01)
    queue.get()
    if mode == "async":

        async def main() -> None:
            await put_for_async(seconds, size, lambda data: asyncio.wrap_future(queue.put(data)))

        asyncio.run(main())
    else:
        put_for(seconds, size, queue.put, lambda future: future.result())
