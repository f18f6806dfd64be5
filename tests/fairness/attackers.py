"""One attacker of each kind: ``python -m fairness.attackers PORT KIND...`` prints a line when
all of them have begun, and goes on until its input ends.

Each is a function that one connection after another calls, which the server may close at any time.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

#: An attacker that a server rejects tries again after this time, as a fast one would.
_RETRY_S = 0.02
_STREAMS = 10_000

Attack = Callable[["Attacker"], None]


class Attacker:
    """A thread that attacks until the process ends."""

    def __init__(self, port: int, attack: Attack) -> None:
        self.port = port
        self._attack = attack
        self.has_begun = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with suppress(OSError):
                self._attack(self)
            self.has_begun.set()
            time.sleep(_RETRY_S)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return connection

    def request(self, method: str, params: object, id: object, **meta: object) -> bytes:
        """A call in raw TCP; a notification without an id."""
        call: dict[str, object] = {"jsonrpc": "2.0", "method": method}
        call |= {"params": params} | ({} if id is None else {"id": id})
        call |= {"_meta": meta} if meta else {}
        return json.dumps(call, separators=(",", ":")).encode() + b"\n"

    def send(self, connection: socket.socket, data: bytes) -> None:
        """Sends for ten seconds at most: a server need not read it."""
        connection.settimeout(10)
        with suppress(TimeoutError):
            connection.sendall(data)


def hold(attacker: Attacker, connections: list[socket.socket], seconds: float = 3.0) -> None:
    """Keeps connections open without reading them."""
    attacker.has_begun.set()
    time.sleep(seconds)
    for connection in connections:
        connection.close()


def take_connections(attacker: Attacker) -> None:
    """Opens many connections: idle, subscribed, and WebSockets that answer pings."""
    held: list[socket.socket] = []
    with suppress(OSError):
        for number in range(300):
            connection = attacker.connect()
            held.append(connection)
            connection.settimeout(1)
            if number % 3 == 1:
                connection.sendall(attacker.request("follow", [f"topic{number}"], 1))
            elif number % 3 == 2:
                key = base64.b64encode(os.urandom(16)).decode()
                connection.sendall(
                    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Key: " + key.encode() + b"\r\n\r\n"
                )
    attacker.has_begun.set()
    ends = time.monotonic() + 3
    while time.monotonic() < ends and held:
        for connection in select.select(held, [], [], 0.2)[0]:
            if not _answer_ping(connection):
                held.remove(connection)
                connection.close()
    for connection in held:
        connection.close()


def _answer_ping(connection: socket.socket) -> bool:
    try:
        data = connection.recv(4096)
        if data[:1] == b"\x89":
            payload = data[2 : 2 + data[1]]
            connection.sendall(struct.pack("BB", 0x8A, 0x80 | len(payload)) + bytes(4) + payload)
    except OSError:
        return False
    return bool(data)


def take_streams(attacker: Attacker) -> None:
    """Begins more streams than may run, and reads none."""
    with attacker.connect() as connection:
        calls = (attacker.request("ticks", [], it, progressToken=it) for it in range(_STREAMS))
        attacker.send(connection, b"".join(calls))
        hold(attacker, [connection])


def take_generators(attacker: Attacker) -> None:
    """Begins streams that yield nothing, which no time limit ends."""
    with attacker.connect() as connection:
        calls = (attacker.request("idle", [], it, progressToken=it) for it in range(_STREAMS))
        attacker.send(connection, b"".join(calls))
        hold(attacker, [connection])


def cancel(attacker: Attacker) -> None:
    """Cancels unknown calls beside many streams."""
    with attacker.connect() as connection:
        calls = (attacker.request("idle", [], it, progressToken=it) for it in range(_STREAMS))
        attacker.send(connection, b"".join(calls))
        attacker.has_begun.set()
        cancels = b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"z"}}\n' * 1000
        for _ in range(20):
            attacker.send(connection, cancels)


def batch_streams(attacker: Attacker) -> None:
    """Begins streams in batches, and reads none."""
    with attacker.connect() as connection:
        calls = [attacker.request("ticks", [], it, progressToken=it) for it in range(1000)]
        batch = b"[" + b",".join(call.strip() for call in calls) + b"]\n"
        attacker.send(connection, batch * 8)
        hold(attacker, [connection])


def subscribe(attacker: Attacker) -> None:
    """Subscribes to long topics on several connections."""
    held = []
    for number in range(10):
        connection = attacker.connect()
        held.append(connection)
        topics = (f"{number}-{it}" + "x" * 240 for it in range(1024))
        attacker.send(connection, b"".join(attacker.request("follow", [it], 1) for it in topics))
    hold(attacker, held)


def send_bodies(attacker: Attacker) -> None:
    """Begins long bodies, and does not end them."""
    held = []
    for _ in range(8):
        connection = attacker.connect()
        held.append(connection)
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n"
        attacker.send(connection, head + b"[" * 1_000_000)
    hold(attacker, held)


def pass_deadlines(attacker: Attacker) -> None:
    """Calls whose time the attacker has chosen too short, which is no fault of an upstream."""
    with attacker.connect() as connection:
        attacker.has_begun.set()
        for number in range(200):
            attacker.send(connection, attacker.request("slow", [1], number, timeout_ms=5))
            time.sleep(0.01)


def ask_for_much(attacker: Attacker) -> None:
    """Asks for replies that are longer than the relay may pass on."""
    with attacker.connect() as connection:
        attacker.has_begun.set()
        for number in range(20):
            attacker.send(connection, attacker.request("big", [1_048_577], number))
            connection.settimeout(5)
            connection.recv(4096)
            time.sleep(0.1)


def notify_much(attacker: Attacker) -> None:
    """Sends notifications of nearly the greatest length."""
    with attacker.connect() as connection:
        note = attacker.request("note", ["x" * 16_776_900], None)
        attacker.has_begun.set()
        for _ in range(3):
            attacker.send(connection, note)
            time.sleep(0.2)


def break_lines(attacker: Attacker) -> None:
    """Sends params with line breaks, and requests between them."""
    inner = attacker.request("ok", [], 0).decode()
    body = f'{{"jsonrpc":"2.0","id":1,"method":"note","params":[\n{inner}\n]}}'
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with attacker.connect() as connection:
        attacker.has_begun.set()
        for _ in range(100):
            attacker.send(connection, (head + body).encode())
            connection.recv(4096)
            time.sleep(0.01)


#: By what is attacked.
ATTACKS: dict[str, tuple[Attack, ...]] = {
    "server": (
        take_connections,
        take_streams,
        take_generators,
        cancel,
        batch_streams,
        subscribe,
        send_bodies,
    ),
    "relay": (
        take_streams,
        take_generators,
        pass_deadlines,
        ask_for_much,
        notify_much,
        break_lines,
    ),
}


def main(port: str, *names: str) -> None:
    attacks = [globals()[name] for name in names]
    for attacker in [Attacker(int(port), attack) for attack in attacks]:
        attacker.has_begun.wait(30)
    print("begun", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
