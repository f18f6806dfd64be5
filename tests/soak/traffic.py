"""Clients: well-behaved ones, which check every reply, and hostile ones.

Each is a function that does one thing with a server and returns the number of replies. It repeats
in a thread of its own until the end. The server may close the connections of hostile clients.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
PATIENCE_S = 30
#: Between two rounds of a client.
GOOD_PAUSE_S, HOSTILE_PAUSE_S = 0.005, 0.2


@dataclass
class Target:
    """The server of the traffic, and the results."""

    port: int
    tls: ssl.SSLContext | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    #: Errors of well-behaved clients.
    faults: list[str] = field(default_factory=list)

    def connect(self, plain: bool = False) -> socket.socket:
        connection = socket.create_connection((HOST, self.port), timeout=PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None or plain:
            return connection
        return self.tls.wrap_socket(connection, server_hostname="localhost")

    def rest(self, seconds: float) -> None:
        self.stop.wait(seconds)


def call(method: str, *params: object, id: int = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": id}).encode()


def post(body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([HEAD + b"Content-Length: %d" % len(body), *lines, b"", b""]) + body


def read_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed")
        received += piece
    return received


def reset(connection: socket.socket) -> None:
    """Closes so that the peer reads a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def connections(target: Target) -> int:
    """The number of the server's connections, including this one."""
    with target.connect() as connection:
        connection.sendall(call("connections"))
        return int(json.loads(read_until(connection, b"}\n"))["result"])


# Well-behaved clients.


def keep_alive(target: Target) -> int:
    connection: http.client.HTTPConnection
    if target.tls:
        connection = http.client.HTTPSConnection(
            "localhost", target.port, timeout=PATIENCE_S, context=target.tls
        )
    else:
        connection = http.client.HTTPConnection(HOST, target.port, timeout=PATIENCE_S)
    try:
        for number in range(200):
            connection.request("POST", "/", call("sum", number, 1))
            reply = json.load(connection.getresponse())
            assert reply["result"] == number + 1, reply
    finally:
        connection.close()
    return 200


def raw_pipeline(target: Target) -> int:
    with target.connect() as connection:
        for _ in range(20):
            connection.sendall(b"".join(call("sum", id, 1, id=id) for id in range(50)))
            lines = b""
            while lines.count(b"\n") < 50:
                lines += connection.recv(1 << 16)
            for id, line in enumerate(lines.splitlines()):
                assert json.loads(line) == {"jsonrpc": "2.0", "id": id, "result": id + 1}
    return 1000


def batches(target: Target) -> int:
    names: list[tuple[str, object]] = [("sleep", 2), ("block", 2), ("double", 4), ("fail", None)]
    calls = [
        call(name, *([] if param is None else [param]), id=id)
        for id, (name, param) in enumerate(names * 5)
    ]
    with target.connect() as connection:
        for _ in range(10):
            connection.sendall(b"[" + b",".join(calls) + b"]")
            replies = json.loads(read_until(connection, b"]\n"))
            assert [reply["id"] for reply in replies] == list(range(20)), replies
            assert sum("error" in reply for reply in replies) == 5, replies
    return 200


def large_bodies(target: Target) -> int:
    data = "QUJD" * random.choice([1000, 100_000, 1_000_000])
    with target.connect() as connection:
        connection.sendall(call("echo", data))
        reply = json.loads(read_until(connection, b"}\n"))
        assert reply["result"] == data
    return 1


def short_visits(target: Target) -> int:
    for number in range(20):
        with target.connect() as connection:
            connection.sendall(post(call("sum", number, 2), b"Connection: close"))
            reply = b""
            while piece := connection.recv(4096):
                reply += piece
            assert reply.endswith(b'"result":%d}' % (number + 2)), reply
    return 20


# Hostile clients.


def slow_head(target: Target) -> int:
    with target.connect(plain=True) as connection:
        for byte in HEAD * 10:
            connection.sendall(bytes([byte]))
            target.rest(0.1)
            if target.stop.is_set():
                break
    return 0


def slow_body(target: Target) -> int:
    with target.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        while not target.stop.is_set():
            connection.sendall(b" ")
            target.rest(0.5)
    return 0


def never_reads(target: Target) -> int:
    with target.connect() as connection:
        connection.settimeout(3)
        while not target.stop.is_set():
            connection.sendall(call("text", 100_000) * 20)
    return 0


def resets(target: Target) -> int:
    for _ in range(20):
        connection = target.connect()
        text = post(call("sleep", 50)) + call("echo", "QUJD" * random.randrange(10_000))
        connection.sendall(text[: random.randrange(len(text))])
        reset(connection)
    return 0


def disconnects_during_calls(target: Target) -> int:
    for name in ("sleep", "block", "double"):
        with target.connect() as connection:
            connection.sendall(b"".join(call(name, 20, id=id) for id in range(30)))
    return 0


GARBAGE = [
    b"\0" * 1000,
    b"GET / HTTP/9.9\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Content-Length: 99999999999\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
    HEAD + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
    b"[" * 100_000,
    b'{"a":"\\ud800"}',
    b"[" + b"1," * 2000 + b"1]",
    b'{"jsonrpc":"2.0","method":"' + b"m" * 100_000 + b'","id":1}',
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 500,
]


def garbage(target: Target) -> int:
    for text in GARBAGE:
        with target.connect(plain=random.random() < 0.3) as connection:
            connection.sendall(text)
            connection.sendall(random.randbytes(random.randrange(3000)))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    return 0


def stalls(target: Target) -> int:
    """Connections that send nothing, or only the start of a handshake."""
    idle = [target.connect(plain=True) for _ in range(20)]
    for connection in idle[::2]:
        connection.sendall(b"\x16\x03\x01\x02")
    target.rest(2)
    for connection in idle:
        connection.close()
    return 0


Client = Callable[[Target], int]
GOOD: list[Client] = [keep_alive, keep_alive, raw_pipeline, batches, large_bodies, short_visits]
HOSTILE: list[Client] = [
    *[slow_head] * 10,
    *[slow_body] * 10,
    *[never_reads] * 5,
    *[resets, disconnects_during_calls, garbage] * 2,
    *[stalls] * 2,
]


def start(target: Target) -> list[threading.Thread]:
    """Starts all clients, each in a thread."""
    threads = []
    for client, is_good in [(it, True) for it in GOOD] + [(it, False) for it in HOSTILE]:
        arguments: tuple[Any, ...] = (client, target, is_good)
        threads.append(threading.Thread(target=_repeat, args=arguments, daemon=True))
        threads[-1].start()
    return threads


def _repeat(client: Client, target: Target, is_good: bool) -> None:
    while not target.stop.is_set():
        try:
            target.done["calls checked"] += client(target)
        except (OSError, http.client.HTTPException) as error:
            if is_good and not target.stop.is_set():
                target.faults.append(f"{client.__name__}: {error!r}")
        except AssertionError as error:
            target.faults.append(f"{client.__name__}: {error}"[:300])
        target.done[client.__name__] += 1
        # Slow enough to leave the processor to the server.
        target.rest(GOOD_PAUSE_S if is_good else HOSTILE_PAUSE_S)
