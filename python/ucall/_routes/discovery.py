"""Answers ``rpc.discover`` and ``GET /openrpc.json``. The document is made when first asked for."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ucall import _core
from ucall._routes.documents import Document

if TYPE_CHECKING:
    from ucall._functions.methods import Methods, NativeMethod, Served

__all__ = ["Discovery"]

METHOD = "rpc.discover"
PATH = "/openrpc.json"


class Discovery:
    """The OpenRPC document of a server."""

    def __init__(self, methods: Methods, title: str, version: str, description: str) -> None:
        self._methods = methods
        self._texts = title, version, description
        self._lock = threading.Lock()
        self._document: dict[str, Any] = {}
        #: The document as it is sent, and what it was made of.
        self._sent: tuple[object, Document] | None = None
        #: The functions and native methods that the document describes.
        self._described: tuple[dict[str, Served] | None, dict[str, NativeMethod] | None] = (
            None,
            None,
        )

    def register(self, core: _core.Server, bases: Iterable[str]) -> None:
        """Has a server answer with the document, also below the paths of calls; in a thread,
        because making it takes a while."""
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
            _core.insert_route(
                core,
                base + PATH,
                ["GET"],
                self.respond,
                str,
                mode="thread_generator",
                is_public=False,
                wants_peer=False,
            )

    def document(self) -> dict[str, Any]:
        """The document of the functions that there are now."""
        from ucall.schema.description import describe_functions

        with self._lock:
            present = self._methods.served, self._methods.natives
            if not all(map(operator.is_, present, self._described)):
                self._document = describe_functions(self._methods, *self._texts).openrpc()
                self._described = present
            return self._document

    def respond(self, request: _core.HttpRequest) -> Iterator[bytes]:
        """Yields the response to ``GET /openrpc.json``."""
        import json

        document, sent = self.document(), self._sent
        if sent is None or sent[0] is not document:
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            sent = self._sent = document, Document(text.encode(), "application/json")
        return sent[1].respond(request)
