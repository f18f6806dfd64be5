"""The methods of MCP that a server answers, and what all their results have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucall._functions import signatures
from ucall._mcp.bus import Bus
from ucall._mcp.older import Exchanges
from ucall._mcp.versions import era

if TYPE_CHECKING:
    from ucall import _core
    from ucall._functions.methods import Methods
    from ucall._functions.registration import Registration

__all__ = ["Registry", "list_changed"]

Json = dict[str, Any]

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


class Registry:
    """Registers methods of MCP with the core of a server.

    Args:
        core: The core.
        methods: The functions of the server, and the types that they use.
        title: The name of the program.
        version: Of the program.
        instructions: What a model should know of the server; may be empty.
        is_private: Whether what the server has may depend on the caller, so that caches must not
            share it.
        max_threads: Threads for blocking functions.

    Attributes:
        capabilities: What the server offers, by the names of the specification. Read whenever a
            client asks.
        has_resource: Whether there is a resource of a URI.
        on_tools_change: Called, from any thread, after the tools of a running server have changed.
    """

    def __init__(
        self,
        core: _core.Server,
        methods: Methods,
        title: str,
        version: str,
        instructions: str,
        is_private: bool,
        max_threads: int = 128,
    ) -> None:
        self.core = core
        self.bus = Bus(core)
        self.exchanges = Exchanges(self.bus, max(1, max_threads // 2))
        self.methods = methods
        self.server_info: Json = {"name": title, "version": version}
        self.instructions = instructions
        self.capabilities: dict[str, Json] = {}
        self.has_resource: Callable[[str], bool] = lambda uri: False
        self.on_tools_change: list[Callable[[], object]] = []
        self._scope = "private" if is_private else "public"

    def add_method(self, name: str, function: Callable[..., object], mode: str = "inline") -> None:
        """Has the server answer a method.

        Args:
            function: Gets the params, as a dict, and the version of the request, which may be
                empty; and a `ucall.Context` if it has a parameter for one. Returns the result as it
                is sent, or raises `ucall.RPCError`.
            mode: Where it runs: see `ucall._functions.registration`.
        """
        types = self.methods.types
        hints = signatures.evaluate_annotations(function, name)
        signature = signatures.describe(function, name, hints, types)
        self.core.insert_mcp_method(name, function, signature, types.encode, mode=mode)

    def with_rounds(self, registration: Registration) -> Registration:
        """A function that may ask its caller for input, and can wait for clients of older versions:
        one that is async, or runs in a thread, and has a context."""
        if registration.mode not in ("task", "thread") or registration.batch is not None:
            return registration
        if not any(takes == "context" for _, _, takes, *_ in registration.signature or ()):
            return registration
        function = self.exchanges.wrap(registration.function, registration.mode == "task")
        return dataclasses.replace(registration, function=function)

    def announce(self, capability: str, **changes: bool) -> None:
        """Announces a capability, and of which changes clients hear."""
        self.capabilities[capability] = changes

    def report_change(self, capability: str) -> None:
        """Reports, from any thread, that the list of what the server offers has changed. Clients
        hear of it while it runs."""
        method = list_changed(capability)
        self.core.publish(method, method, None, str)

    def complete(
        self, result: Json, version: str, *, ttl_ms: int | None = None, scope: str | None = None
    ) -> Json:
        """A result with the members that it needs in the version of the request.

        Args:
            ttl_ms: For how long a client may keep it; ``None`` for a result that no one may keep.
            scope: Who may share it, ``"public"`` or ``"private"``; by default as the server.
        """
        if era(version).has_handshake:
            return result
        meta = {_SERVER_INFO: self.server_info, **result.get("_meta", {})}
        made = {"resultType": "complete", **result, "_meta": meta}
        if ttl_ms is not None:
            made |= {"ttlMs": ttl_ms, "cacheScope": scope or self._scope}
        return made


def list_changed(capability: str) -> str:
    """The notification that the list of tools, prompts or resources has changed."""
    return f"notifications/{capability}/list_changed"
