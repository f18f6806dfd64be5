"""A client that takes messages of the server."""

from __future__ import annotations

import json
import ssl
from typing import Any

from websockets.sync.client import ClientConnection, connect

from harness import HOST, Wire, request

__all__ = ["Client"]


class Client:
    """A client of raw TCP or WebSocket, with or without TLS."""

    def __init__(self, over: str, port: int, context: ssl.SSLContext | None = None) -> None:
        self.over = over
        if over == "raw":
            self.wire = Wire(port)
            if context:
                self.wire.socket = context.wrap_socket(self.wire.socket, server_hostname=HOST)
        else:
            scheme = "wss" if context else "ws"
            url = f"{scheme}://{HOST}:{port}"
            self.websocket: ClientConnection = connect(
                url, ssl=context, max_size=None, open_timeout=60
            )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        (self.wire.socket if self.over == "raw" else self.websocket).close()

    def send(self, method: str, *params: Any, id: Any = 1) -> None:
        message = request(method, params, id)
        self.wire.send(message) if self.over == "raw" else self.websocket.send(message.decode())

    def next(self) -> dict[str, Any]:
        text = self.wire.line() if self.over == "raw" else self.websocket.recv(60)
        message: dict[str, Any] = json.loads(text)
        return message

    def call(self, method: str, *params: Any) -> Any:
        self.send(method, *params)
        reply = self.next()
        assert "result" in reply, reply
        return reply["result"]

    def message(self) -> tuple[str, Any]:
        """The next notification of the server."""
        message = self.next()
        assert message.keys() <= {"jsonrpc", "method", "params"}, message
        return message["method"], message.get("params")
