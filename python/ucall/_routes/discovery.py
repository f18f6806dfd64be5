"""Answers ``rpc.discover``, ``GET /openrpc.json`` and ``GET /openapi.json``. The documents are made
when first asked for."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ucall import _core
from ucall._routes.documents import Document

if TYPE_CHECKING:
    from ucall._functions.methods import Methods, NativeMethod, Served, ServedRoute
    from ucall.schema.openrpc import Description

__all__ = ["Discovery"]

METHOD = "rpc.discover"


class Discovery:
    """The OpenRPC and the OpenAPI document of a server."""

    def __init__(self, methods: Methods, title: str, version: str, description: str) -> None:
        self._methods = methods
        self._texts = title, version, description
        self._lock = threading.Lock()
        #: The functions, native methods and routes that the documents describe.
        self._described: tuple[
            dict[str, Served] | None,
            dict[str, NativeMethod] | None,
            dict[tuple[str, str], ServedRoute] | None,
        ] = (None, None, None)
        self._description: Description | None = None
        self._document: dict[str, Any] = {}
        #: The documents as they are sent, by their paths.
        self._sent: dict[str, Document] = {}

    def register(self, core: _core.Server, bases: Iterable[str]) -> None:
        """Has a server answer with the documents, also below the paths of calls; in a thread,
        because making them takes a while."""
        core.insert(
            METHOD,
            self.document,
            [],
            str,
            mode="thread",
            timeout_ms=None,
            max_waiting=None,
            batch=None,
            stream=None,
            is_idempotent=True,
            is_public=False,
            auth=None,
            scopes=[],
            hooks=None,
        )
        for base in bases:
            for path in _PATHS:
                _core.insert_route(
                    core,
                    base + path,
                    ["GET"],
                    functools.partial(self._respond, path),
                    str,
                    mode="thread_generator",
                    is_public=False,
                    wants_peer=False,
                )

    def document(self) -> dict[str, Any]:
        """The OpenRPC document of the functions that there are now."""
        with self._lock:
            description = self._describe()
            self._document = self._document or description.openrpc()
            return self._document

    def _describe(self) -> Description:
        """The description of what there is now; another one drops the documents of the last."""
        from ucall.schema.description import describe_functions

        present = self._methods.served, self._methods.natives, self._methods.routes
        if self._description is None or not all(map(operator.is_, present, self._described)):
            self._description = describe_functions(self._methods, *self._texts)
            self._described = present
            self._document, self._sent = {}, {}
        return self._description

    def _respond(self, path: str, request: _core.HttpRequest) -> Iterator[bytes]:
        """Yields the response to GET at one of the paths."""
        import json

        with self._lock:
            description = self._describe()
            if (sent := self._sent.get(path)) is None:
                document = _PATHS[path](description)
                text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
                sent = self._sent[path] = Document(text.encode(), "application/json")
        return sent.respond(request)


_PATHS: dict[str, Callable[[Description], dict[str, Any]]] = {
    "/openrpc.json": lambda description: description.openrpc(),
    "/openapi.json": lambda description: description.openapi(),
}
