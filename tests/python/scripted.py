"""A server that sends the bytes of a script, for replies that a real one would not send."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from harness import eventually, is_delivered
from wire import Wire, length_in

Script = Callable[["Peer"], None]


class Peer(Wire):
    """One accepted connection."""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            super().send(piece)

    def more(self) -> bool:
        if not super().more():
            raise EOFError
        return True

    def http_request(self) -> bytes:
        """The body of the next request; raises EOFError at the end."""
        self.head = self.take_to(b"\r\n\r\n").removesuffix(b"\r\n\r\n")
        return self.take(length_in(self.head))

    def raw_request(self) -> bytes:
        """The next line."""
        return self.take_to(b"\n").removesuffix(b"\n")

    def wait_delivered(self) -> None:
        """Returns once all sent bytes have reached the other side's kernel."""
        assert eventually(lambda: is_delivered(self.socket))

    def end(self) -> None:
        """Shuts down the sending side, and returns once the other side's kernel knows."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.wait_delivered()


class Scripted:
    """Plays one script for each connection, and repeats the last one."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        #: The number of connections whose script has ended, and whose other side knows.
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
        # ValueError: the test has closed the socket meanwhile.
        with connection, suppress(EOFError, OSError, ValueError):
            with suppress(EOFError, OSError):
                script(peer)
            peer.end()
            self.ended += 1


@contextmanager
def scripted(*scripts: Script) -> Iterator[Scripted]:
    """Runs the server during the block."""
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
    """A script that replies to every request, by default with its params."""

    def script(peer: Peer) -> None:
        while True:
            request = json.loads(peer.http_request())
            text = body(request) if body else result(request.get("params"), request["id"])
            peer.send(http_reply(text, *headers))

    return script
