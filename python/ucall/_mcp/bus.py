"""Messages between the calls of a server: those that `ucall.Server.publish` sends, and its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from ucall import _core
from ucall._core import Context

__all__ = ["Bus", "notification", "send"]

Json = dict[str, Any]

#: How the messages begin that may concern a client of MCP.
_BEGINNING = b'{"jsonrpc":"2.0","method":"notifications/'
#: The method of messages of this server alone.
_OWN = "$/bus"


class Bus:
    """What is published in this process and in other workers, on the worker's thread.

    It costs nothing while no call listens.
    """

    def __init__(self, core: _core.Server) -> None:
        self._core = core
        self._count = 0
        self._lock = threading.Lock()
        #: Get the params of own messages, by topic.
        self.handlers: dict[str, Callable[[Json], object]] = {}
        #: Get each notification that is published: its method and its params.
        self.observers: list[Callable[[str, Json], object]] = []
        #: Called when a drain begins.
        self.on_drain: list[Callable[[], object]] = []

    def register(self) -> None:
        """Has the core call it."""
        _core.set_listener(self._core, self._published)

    def listen(self, change: int) -> None:
        """Adds to the number of calls that listen, from any thread."""
        with self._lock:
            self._count += change
            _core.set_listeners(self._core, self._count)

    def publish(self, topic: str, params: Json) -> None:
        """Sends an own message to all workers."""
        self._core.publish(topic, _OWN, params, str)

    def _published(self, topic: str | None, text: bytes | None) -> None:
        if topic is None or text is None:
            for end in self.on_drain:
                end()
        elif topic in self.handlers:
            self.handlers[topic](json.loads(text)["params"])
        elif text.startswith(_BEGINNING):
            message = json.loads(text)
            params = message.get("params", {})
            if isinstance(params, dict):
                for observe in self.observers:
                    observe(message["method"], params)


def send(ctx: Context, message: Json) -> bool:
    """Sends a message before the reply to a call; `False` if the caller takes none."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return ctx._mcp_send(text.encode())


def notification(method: str, params: Json) -> Json:
    """A notification of JSON-RPC."""
    return {"jsonrpc": "2.0", "method": method, "params": params}
