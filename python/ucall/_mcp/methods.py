"""The methods by which a client and a server learn of each other."""

from __future__ import annotations

from typing import Any

from ucall._mcp.log import LEVELS
from ucall._mcp.registry import Registry
from ucall._mcp.versions import ERAS, NEWEST_WITH_HANDSHAKE, era
from ucall.errors import RPCError

__all__ = ["register"]

Json = dict[str, Any]

#: How long a client may keep what the server offers, as a deployment may offer something else.
TTL_MS = 60_000

#: What the capabilities say of notifications.
_CHANGES = ("listChanged", "subscribe")


def register(registry: Registry) -> None:
    """Has the server answer them."""
    answers = _Answers(registry)
    registry.add_method("server/discover", answers.discover)
    registry.add_method("initialize", answers.initialize)
    registry.add_method("notifications/initialized", answers.initialized)
    registry.add_method("ping", answers.ping)
    registry.add_method("logging/setLevel", answers.set_level)
    registry.capabilities["logging"] = {}


class _Answers:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def discover(self, params: Json, version: str) -> Json:
        """The versions that a client may use, newest first, and what the server offers."""
        result = {"supportedVersions": list(ERAS), **self._offer(version)}
        return self._registry.complete(result, version, ttl_ms=TTL_MS)

    def initialize(self, params: Json, version: str) -> Json:
        """The version that the client asks for if it has this handshake, else the newest that has.

        It begins no session: the server keeps nothing of it.
        """
        _check_handshake(version)
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RPCError(-32602, "Invalid params", "protocolVersion: expected a str")
        agreed = asked if asked in ERAS and era(asked).has_handshake else NEWEST_WITH_HANDSHAKE
        info = self._registry.server_info
        return {"protocolVersion": agreed, "serverInfo": info, **self._offer(agreed)}

    def initialized(self, params: Json, version: str) -> None:
        """Nothing depends on it."""

    def ping(self, params: Json, version: str) -> Json:
        _check_handshake(version)
        return {}

    def set_level(self, params: Json, version: str) -> Json:
        """Clients may ask for a level, which is not kept: there is no session. They get all."""
        _check_handshake(version)
        if params.get("level") not in LEVELS:
            expected = f"level: expected one of {', '.join(LEVELS)}"
            raise RPCError(-32602, "Invalid params", expected)
        return {}

    def _offer(self, version: str) -> Json:
        registry = self._registry
        capabilities = registry.capabilities
        if era(version).has_handshake:  # Over HTTP, changes have no way to such clients.
            capabilities = {
                name: {key: it for key, it in options.items() if key not in _CHANGES}
                for name, options in capabilities.items()
            }
        offer: Json = {"capabilities": capabilities}
        return offer | ({"instructions": registry.instructions} if registry.instructions else {})


def _check_handshake(version: str) -> None:
    if not era(version).has_handshake:
        raise RPCError(-32601, "Method not found")
