"""Tells clients what has changed: ``subscriptions/listen``, and what older versions have for it.

A call that listens is a future, which ends with the server's drain or by its client. What
`ucall.Server.publish` sends, in this process or in another worker, comes by the bus, on the
worker's thread, and goes on to the calls that listen for it. So nothing waits, and nothing runs
while nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from ucall._core import Context
from ucall._mcp.bus import notification, send
from ucall._mcp.registry import Registry, list_changed
from ucall._mcp.texts import invalid
from ucall._mcp.versions import NEWEST, era
from ucall.errors import RPCError
from ucall.types.messages import kind_of

__all__ = ["URIS_MAX", "Subscriptions"]

Json = dict[str, Any]

_RESOURCE_UPDATED: Final = "notifications/resources/updated"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"

#: By the members of a filter, the capabilities whose lists they ask for.
_LISTS = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
_URIS = "resourceSubscriptions"
#: The URIs of one call.
URIS_MAX = 1024


@dataclass(eq=False)
class _Listening:
    """A call that listens."""

    id: str | int | float
    ctx: Context
    methods: set[str]
    uris: set[str]
    future: Future[Json] = field(default_factory=Future)

    def wants(self, method: str, params: Mapping[str, Any]) -> bool:
        if method == _RESOURCE_UPDATED:
            return params.get("uri") in self.uris
        return method in self.methods

    def tell(self, method: str, params: Json) -> bool:
        """Sends a notification; `False` if the client takes none."""
        params = {**params, "_meta": {**params.get("_meta", {}), _SUBSCRIPTION_ID: self.id}}
        if self.ctx.transport == "http":
            return send(self.ctx, notification(method, params))
        # A connection has limits for messages that wait.
        self.ctx.notify(method, params)
        return True


class Subscriptions:
    """The calls that listen to one server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._listening: set[_Listening] = set()

    def register(self) -> None:
        """Has the server answer them."""
        registry = self._registry
        registry.add_method("subscriptions/listen", self.listen, "future")
        registry.add_method("resources/subscribe", self.subscribe)
        registry.add_method("resources/unsubscribe", self.unsubscribe)
        registry.on_tools_change.append(lambda: registry.report_change("tools"))
        registry.bus.observers.append(self._observe)
        registry.bus.on_drain.append(self._end)

    def listen(self, params: Json, version: str, ctx: Context) -> Future[Json]:
        """Sends what the client listens for, until it ends the call or the server drains."""
        if era(version).has_handshake:
            raise RPCError(-32601, "Method not found")
        call_id = ctx.id
        if call_id is None:
            raise invalid("id: expected a request")
        agreed = self._agreed(params.get("notifications"))
        methods = {list_changed(_LISTS[name]) for name in agreed if name in _LISTS}
        listening = _Listening(call_id, ctx, methods, set(agreed.get(_URIS, ())))
        if not listening.tell(_ACKNOWLEDGED, {"notifications": agreed}):
            raise invalid("Accept: expected text/event-stream")
        self._listening.add(listening)
        self._registry.bus.listen(1)
        listening.future.add_done_callback(lambda _: self._remove(listening))
        return listening.future

    def subscribe(self, params: Json, version: str, ctx: Context) -> Json:
        """Subscribes a connection to a resource, as clients of older versions do. Over HTTP there
        is no way to the client of an older version, so that it hears nothing."""
        uri = _resource(self._registry, params, version)
        if ctx.transport != "http":
            ctx.subscribe(uri)
        return {}

    def unsubscribe(self, params: Json, version: str, ctx: Context) -> Json:
        uri = _resource(self._registry, params, version)
        if ctx.transport != "http":
            ctx.unsubscribe(uri)
        return {}

    def _agreed(self, asked: object) -> Json:
        """The part of a filter that the server honours."""
        if not isinstance(asked, dict):
            raise invalid(f"notifications: expected an object, got {kind_of(asked)}")
        agreed: Json = {}
        for name, capability in _LISTS.items():
            wanted = asked.get(name, False)
            if not isinstance(wanted, bool):
                raise invalid(f"notifications.{name}: expected a boolean, got {kind_of(wanted)}")
            if wanted and capability in self._registry.capabilities:
                agreed[name] = True
        uris = asked.get(_URIS, [])
        if not isinstance(uris, list) or not all(isinstance(it, str) for it in uris):
            raise invalid(f"notifications.{_URIS}: expected an array of strings")
        if len(uris) > URIS_MAX:
            raise invalid(f"notifications.{_URIS}: expected at most {URIS_MAX}, got {len(uris)}")
        known = [uri for uri in uris if self._registry.has_resource(uri)]
        return agreed | ({_URIS: known} if known else {})

    def _observe(self, method: str, params: Json) -> None:
        for listening in tuple(self._listening):
            if listening.wants(method, params):
                listening.tell(method, params)

    def _end(self) -> None:
        for listening in tuple(self._listening):
            result = {"_meta": {_SUBSCRIPTION_ID: listening.id}}
            listening.future.set_result(self._registry.complete(result, NEWEST))

    def _remove(self, listening: _Listening) -> None:
        self._listening.discard(listening)
        self._registry.bus.listen(-1)


def _resource(registry: Registry, params: Json, version: str) -> str:
    """The resource that a client of an older version names."""
    if not era(version).has_handshake:
        raise RPCError(-32601, "Method not found")
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise invalid(f"uri: expected a string, got {kind_of(uri)}")
    if not registry.has_resource(uri):
        raise invalid({"uri": uri}, "Resource not found")
    return uri
