"""A pair of pyzmq: raw bytes from PUSH to PULL, unacknowledged. Modes: sync, async."""

import asyncio

import zmq
import zmq.asyncio
from common import arguments, count, count_async, listening, put_for, put_for_async, window

role, mode, port, size, seconds = arguments()
context = zmq.asyncio.Context() if mode == "async" else zmq.Context()
socket = context.socket(zmq.PULL if role == "get" else zmq.PUSH)
# Both sides together hold at most what other contenders have in flight; ZeroMQ has no such limit.
socket.set_hwm(min(1000, max(1, window(size) // 2)))
where = f"tcp://127.0.0.1:{port}"
if role == "get":
    socket.bind(where)
    listening()
else:
    socket.connect(where)


async def main() -> None:
    if role == "get":
        await count_async(socket.recv)
    else:
        await put_for_async(seconds, size, lambda data: socket.send(data, copy=size < 65536))


if mode == "async":
    asyncio.run(main())
elif role == "get":
    count(socket.recv)
else:
    put_for(seconds, size, lambda data: socket.send(data, copy=size < 65536), lambda _: None)
socket.close()
context.term()
