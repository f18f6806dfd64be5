"""A connection of a test: bytes to the other side and back, without a client library.

Servers in Python and in C are called over it, and scripted servers answer over it.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
_DRAIN = b'{"jsonrpc":"2.0","method":"$/drain"'


def request(method: str, params: Any = None, id: Any = 1) -> bytes:
    """The text of one call; no params with ``None``, a notification with ``id=...``."""
    call: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        call["params"] = params
    if id is not ...:
        call["id"] = id
    return json.dumps(call).encode()


class Wire:
    """A connection to a port of this machine, to the path of a Unix socket, or one that is open."""

    def __init__(
        self,
        address: int | str | Path | socket.socket,
        timeout_s: float = 60,
        *,
        context: ssl.SSLContext | None = None,
        name: str = HOST,
        buffer_bytes: int | None = None,
    ) -> None:
        """``context`` is that of TLS, where the server has this name; ``buffer_bytes`` limits what
        the kernel receives before it is read."""
        if isinstance(address, socket.socket):
            self.socket = address
        else:
            self.socket = _connected(address, timeout_s, buffer_bytes)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname=name)
        self.received = bytearray()
        #: The notifications of a drain, which `line` and `rest` leave out.
        self.drain_notices: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def end(self) -> None:
        """Shuts down the sending side."""
        self.socket.shutdown(socket.SHUT_WR)

    def more(self) -> bool:
        """Receives more bytes; false at the end."""
        data = self.socket.recv(1 << 20)
        self.received += data
        return bool(data)

    def take(self, size: int) -> bytes:
        """The next bytes; fewer of them at the end."""
        while len(self.received) < size and self.more():
            pass
        taken = bytes(self.received[:size])
        del self.received[:size]
        return taken

    def take_to(self, end: bytes) -> bytes:
        """The bytes up to this end and with it; without it where the connection ends."""
        searched = 0
        while (found := self.received.find(end, searched)) < 0:
            searched = max(0, len(self.received) - len(end))
            if not self.more():
                return self.take(len(self.received))
        return self.take(found + len(end))

    def line(self) -> bytes:
        """The next raw reply, without its newline; empty at the end."""
        while (line := self.take_to(b"\n").removesuffix(b"\n")).startswith(_DRAIN):
            self.drain_notices.append(line)
        return line

    def reply(self, has_body: bool = True) -> tuple[int, bytes, bytes]:
        """The next HTTP reply: status, head without its date, body. Status 0 at the end."""
        text = self.take_to(b"\r\n\r\n")
        if not text.endswith(b"\r\n\r\n"):
            return 0, b"", text
        head = text.removesuffix(b"\r\n\r\n")
        body = self.take(length_in(head) if has_body else 0)
        return int(head.split()[1]), re.sub(rb"(?i)\r\ndate: [^\r]*", b"", head), body

    def rest(self) -> bytes:
        """All bytes until the server closes."""
        while self.more():
            pass
        lines = self.take(len(self.received)).splitlines(keepends=True)
        self.drain_notices += [line.rstrip() for line in lines if line.startswith(_DRAIN)]
        return b"".join(line for line in lines if not line.startswith(_DRAIN))

    def message(self) -> Any:
        """The document of the next line."""
        line = self.line()
        assert line, "the server has closed the connection"
        return json.loads(line)

    def stream(self) -> tuple[list[Any], Any]:
        """The items of the next stream, and its reply."""
        items = []
        while "id" not in (message := self.message()):
            assert message["method"] == "$/progress"
            items.append(message["params"]["value"])
        return items, message

    def call(self, method: str, params: Any = None) -> Any:
        """The whole reply object of one raw call."""
        self.send(request(method, params))
        return json.loads(self.line())

    def result(self, method: str, params: Any = None) -> Any:
        """The result of one raw call; fails on an error."""
        reply = self.call(method, params)
        assert "result" in reply, reply
        return reply["result"]

    def error(self, method: str, params: Any = None) -> dict[str, Any]:
        """The error of one raw call; fails on a result."""
        reply = self.call(method, params)
        assert "error" in reply, reply
        error: dict[str, Any] = reply["error"]
        return error


def _connected(
    address: int | str | Path, timeout_s: float, buffer_bytes: int | None
) -> socket.socket:
    made = socket.socket(socket.AF_INET if isinstance(address, int) else socket.AF_UNIX)
    try:
        if buffer_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        made.settimeout(timeout_s)
        if isinstance(address, int):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect((HOST, address))
        else:
            made.connect(str(address))
    except BaseException:
        made.close()
        raise
    return made


def length_in(head: bytes) -> int:
    """The length of the body after a head."""
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0


class UdpWire(Wire):
    """A socket that sends datagrams as they are, and receives documents."""

    def __init__(self, port: int | None, *, host: str = HOST, source: str = "") -> None:
        assert port is not None
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.settimeout(60)
        if source:
            made.bind((source, 0))
        made.connect((host, port))
        super().__init__(made)

    def send(self, data: Any) -> None:
        """Sends bytes, or a document."""
        super().send(data if isinstance(data, bytes) else json.dumps(data).encode())

    def message(self) -> Any:
        return json.loads(self.socket.recv(65_536))

    def exchange(self, data: Any) -> Any:
        self.send(data)
        return self.message()
