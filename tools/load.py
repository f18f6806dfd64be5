"""A load generator for machines without wrk: one request at a time on keep-alive connections.

    python tools/load.py --port 8545 --seconds 5

Prints calls a second. Standard library only. Ends with status 1 if a reply is wrong or missing.
"""

import argparse
import json
import selectors
import socket
import sys
import time

BODY = b'{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
REQUEST = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
EXPECTED = {"jsonrpc": "2.0", "id": 1, "result": 76}
IDLE_SECONDS_MAX = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Loads a ucall server with calls of `sum`.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    return parser.parse_args()


def is_whole(reply: bytes) -> bool:
    """All replies here have one short JSON object as their body."""
    return reply.endswith(b"}")


def check(reply: bytes) -> None:
    head, _, body = reply.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or json.loads(body) != EXPECTED:
        sys.exit(f"a wrong reply: {reply[:300]!r}")


def connect(port: int, selector: selectors.BaseSelector) -> None:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector.register(connection, selectors.EVENT_READ, bytearray())
    connection.sendall(REQUEST)


def receive(connection: socket.socket, reply: bytearray) -> bool:
    """Receives bytes. After a whole reply, sends the next request and returns True."""
    received = connection.recv(65536)
    if not received:
        sys.exit("the server closed a connection")
    reply += received
    if not is_whole(reply):
        return False
    check(bytes(reply))
    reply.clear()
    connection.sendall(REQUEST)
    return True


def run(selector: selectors.BaseSelector, seconds: float) -> float:
    """Returns the calls per second."""
    calls = 0
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        ready = selector.select(IDLE_SECONDS_MAX)
        if not ready:
            sys.exit(f"no reply for {IDLE_SECONDS_MAX} s")
        calls += sum(receive(key.fileobj, key.data) for key, _ in ready)
    return calls / elapsed


def main() -> None:
    options = arguments()
    with selectors.DefaultSelector() as selector:
        for _ in range(options.connections):
            connect(options.port, selector)
        print(f"{run(selector, options.seconds):.0f} calls a second")


main()
