"""A server that says just what a test tells it to, for what a real one would never do."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from harness import eventually, is_delivered

Script = Callable[["Peer"], None]


class Peer:
    """One accepted connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._received = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def http_request(self) -> bytes:
        """The body of the next request; raises EOFError at the end."""
        while b"\r\n\r\n" not in self._received:
            self._more()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        self.head = head
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        length = int(found[1]) if found else 0
        while len(self._received) < length:
            self._more()
        body, self._received = self._received[:length], self._received[length:]
        return body

    def raw_request(self) -> bytes:
        """The next line."""
        while b"\n" not in self._received:
            self._more()
        line, _, self._received = self._received.partition(b"\n")
        return line

    def wait_delivered(self) -> None:
        """Returns once all that was sent has come to the other side, be it read there or not."""
        assert eventually(lambda: is_delivered(self.socket))

    def end(self) -> None:
        """Says that no more will come, and returns once that has come to the other side."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.wait_delivered()

    def reset(self) -> None:
        """Closes with a reset rather than an end."""
        linger = b"\x01\0\0\0\0\0\0\0"
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._received += data


class Scripted:
    """Plays one script for each connection, the last one again and again."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        #: Connections whose script is over, which their other side knows.
        self.ended = 0
        self._scripts = scripts
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for peer in self._peers:
            peer.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
            self.accepted += 1
            self._peers.append(connection)
            threading.Thread(target=self._play, args=(script, connection), daemon=True).start()

    def _play(self, script: Script, connection: socket.socket) -> None:
        peer = Peer(connection)
        # What a test closes meanwhile has no descriptor any more: ValueError.
        with connection, suppress(EOFError, OSError, ValueError):
            with suppress(EOFError, OSError):
                script(peer)
            peer.end()
            self.ended += 1


@contextmanager
def scripted(*scripts: Script) -> Iterator[Scripted]:
    """A server that runs while the block does."""
    server = Scripted(scripts)
    try:
        yield server
    finally:
        server.close()


def result(value: Any, id: Any = 1) -> bytes:
    """A reply's text."""
    reply = {"jsonrpc": "2.0", "id": id, "result": value}
    return json.dumps(reply, separators=(",", ":")).encode()


def http_reply(body: bytes, *headers: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    """A reply with its length."""
    lines = [f"HTTP/{version} {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answering(body: Callable[[Any], bytes] | None = None, *headers: str) -> Script:
    """A script that answers every request, by default with its params."""

    def script(peer: Peer) -> None:
        while True:
            request = json.loads(peer.http_request())
            text = body(request) if body else result(request.get("params"), request["id"])
            peer.send(http_reply(text, *headers))

    return script
