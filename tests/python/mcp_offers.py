"""What a server offers over MCP, called without a server: as its core calls it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ucall._functions.methods import Methods
from ucall._mcp.calls import Host
from ucall._mcp.content import Content
from ucall._mcp.registry import Registry
from ucall._server.content import ContentDecorators

NEWEST, OLDER = "2026-07-28", "2025-11-25"
CAPABILITIES = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class Caller(NamedTuple):
    """The part of `ucall.Context` that MCP's methods read."""

    method: str
    request: tuple[dict[str, Any], str] | None
    user: Any = None
    #: Gets the messages that are sent on the call's stream.
    send: Callable[[dict[str, Any]], object] = print
    cancelled: bool = False

    transport: str = "http"

    def _mcp_send(self, text: bytes) -> bool:
        self.send(json.loads(text))
        return True

    @property
    def _mcp(self) -> tuple[dict[str, Any], str] | None:
        return self.request


class _Core:
    def __init__(self) -> None:
        self.methods: dict[str, tuple[Any, str, bool]] = {}
        self.published: list[str] = []

    def publish(self, topic: str, method: str, params: Any, encode: Any) -> None:
        self.published.append(method)

    def insert_mcp_method(
        self, name: str, function: Any, signature: Any, encode: Any, *, mode: str
    ) -> None:
        takes_context = any(takes == "context" for _, _, takes, *_ in signature)
        self.methods[name] = function, mode, takes_context


class Offers(ContentDecorators):
    """The decorators of a server, and calls of its methods of MCP."""

    def __init__(self, *, threads: bool = False, is_private: bool = False) -> None:
        self.core = _Core()
        texts = "shop", "1.2", ""
        methods = Methods((1000, 1000))
        self.registry = Registry(self.core, methods, *texts, is_private)  # type: ignore[arg-type]
        self.registry.bus.listen = lambda change: None  # type: ignore[method-assign]
        self.loops: list[bool] = []
        made = Content(Host(self.registry, threads, lambda: self.loops.append(True)))

        class _Functions:
            def content(self, decorator: str) -> Content:
                return made

        self._functions = _Functions()  # type: ignore[assignment]

    def mode(self, method: str) -> str:
        return self.core.methods[method][1]

    def call(
        self,
        method: str,
        version: str = NEWEST,
        user: Any = None,
        send: Callable[[dict[str, Any]], object] = print,
        **params: Any,
    ) -> Any:
        """The result of a method; raises its error."""
        function, mode, takes_context = self.core.methods[method]
        meta = {"io.modelcontextprotocol/clientCapabilities": CAPABILITIES}
        params = {"_meta": meta, **params}
        given = (params, version)
        if takes_context:
            given = (*given, Caller(method, (params, version), user, send))
        if mode == "task":
            return asyncio.run(function(*given))
        if mode == "inline":
            return function(*given)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(function(*given)))
        thread.start()
        thread.join()
        return found[0]
