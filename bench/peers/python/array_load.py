"""Calls a server of arrays by gRPC, ZeroMQ or chunked HTTP, one call at a time on each connection.

    python -m array_load {grpc|zeromq|chunked} METHOD PORT REQUEST CONNECTIONS SECONDS

REQUEST is a file with the message. All replies are compared with the first, which is written to
REQUEST.reply. Prints the number of calls and the seconds as JSON, like `bench/load`.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

BYTES_MAX = 64 << 20


async def grpc(method: str, port: int, message: bytes, connections: int, seconds: float) -> list:
    import grpc.aio

    lengths = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
    # Otherwise channels of a process share one connection.
    options = [*((name, BYTES_MAX) for name in lengths), ("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(connections)
    ]
    calls = [channel.unary_unary(method) for channel in channels]
    first = await calls[0](message)
    begin = time.perf_counter()

    async def repeat(call) -> int:
        count = 0
        while time.perf_counter() - begin < seconds:
            assert await call(message) == first, "another reply"
            count += 1
        return count

    counts = await asyncio.gather(*map(repeat, calls))
    elapsed = time.perf_counter() - begin
    for channel in channels:
        await channel.close()
    return [first, sum(counts), elapsed]


async def zeromq(method: str, port: int, message: bytes, connections: int, seconds: float) -> list:
    import zmq

    context, poller = zmq.Context(), zmq.Poller()
    sockets = [context.socket(zmq.DEALER) for _ in range(connections)]
    is_short = len(message) < 65536
    for socket in sockets:
        socket.connect(f"tcp://127.0.0.1:{port}")
        poller.register(socket, zmq.POLLIN)
    sockets[0].send(message)
    first, count = sockets[0].recv(), 0
    begin = time.perf_counter()
    for socket in sockets:
        socket.send(message, copy=is_short)
    while (elapsed := time.perf_counter() - begin) < seconds:
        for socket, _ in poller.poll(1000):
            assert socket.recv(copy=is_short)[:] == first if is_short else has_length(socket, first)
            count += 1
            socket.send(message, copy=is_short)
    context.destroy(linger=0)
    return [first, count, elapsed]


def has_length(socket, first: bytes) -> bool:
    """Of long replies only the length is compared, so that the load is not what is measured."""
    return len(socket.recv(copy=False)) == len(first)


async def chunked(method: str, port: int, message: bytes, connections: int, seconds: float) -> list:
    """HTTP with chunked replies, which `bench/load` does not read."""
    how = {"limit": BYTES_MAX}
    opened = [await asyncio.open_connection("127.0.0.1", port, **how) for _ in range(connections)]
    reader, writer = opened[0]
    writer.write(message)
    first = await reader.readuntil(b"\r\n0\r\n\r\n")
    begin = time.perf_counter()

    async def repeat(reader, writer) -> int:
        count = 0
        while time.perf_counter() - begin < seconds:
            writer.write(message)
            assert (await reader.readexactly(len(first)))[-256:] == first[-256:], "another reply"
            count += 1
        return count

    counts = await asyncio.gather(*(repeat(*each) for each in opened))
    return [first, sum(counts), time.perf_counter() - begin]


kind, method, port, path, connections, seconds = sys.argv[1:]
message = Path(path).read_bytes()
load = {"grpc": grpc, "zeromq": zeromq, "chunked": chunked}[kind]
first, calls, elapsed = asyncio.run(
    load(method, int(port), message, int(connections), float(seconds))
)
Path(f"{path}.reply").write_bytes(first)
found = {"requests": calls, "duration": elapsed, "errors": 0, "unanswered": 0}
print(json.dumps(found))
