"""A client that takes messages of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from harness import HOST, Wire, request

__all__ = ["Client"]


class Client:
    """A client of raw TCP or WebSocket, with or without TLS."""

    def __init__(self, over: str, port: int, context: ssl.SSLContext | None = None) -> None:
        self.over = over
        if over == "raw":
            self.wire = Wire(port, context=context)
        else:
            scheme = "wss" if context else "ws"
            url = f"{scheme}://{HOST}:{port}"
            # `websockets.sync` has two threads at one TLS, which `ssl` bears since 3.13.1 only.
            self._websocket_end = contextlib.ExitStack()
            self._runner = self._websocket_end.enter_context(asyncio.Runner())
            self.websocket = self._runner.run(_connected(url, context))
            self._websocket_end.callback(lambda: self._runner.run(self.websocket.close()))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.over == "raw":
            self.wire.close()
        else:
            self._websocket_end.close()

    def send(self, method: str, *params: Any, id: Any = 1) -> None:
        message = request(method, params, id)
        if self.over == "raw":
            self.wire.send(message)
        else:
            self._runner.run(self.websocket.send(message.decode()))

    def next(self) -> dict[str, Any]:
        text = self.wire.line() if self.over == "raw" else self._runner.run(self._text())
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

    async def _text(self) -> str | bytes:
        async with asyncio.timeout(60):
            return await self.websocket.recv()


async def _connected(url: str, context: ssl.SSLContext | None) -> ClientConnection:
    return await connect(url, ssl=context, max_size=None, open_timeout=60)
