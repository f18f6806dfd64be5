"""The client for browsers at ``GET /ucall.js``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from ucall import _core
from ucall._routes.documents import Document

__all__ = ["register"]


def register(core: _core.Server, bases: Iterable[str]) -> None:
    """Has a server answer ``GET /ucall.js`` with the client for browsers, an ES module, below the
    paths of calls."""
    for base in bases:
        # In a thread, because the first request imports and compresses.
        _core.insert_route(
            core,
            f"{base}/ucall.js",
            ["GET"],
            _respond,
            str,
            mode="thread_generator",
            is_public=True,
            wants_peer=False,
        )


def _respond(request: _core.HttpRequest) -> Iterator[bytes]:
    return _script().respond(request)


@functools.cache
def _script() -> Document:
    # Imported with the first request, because few servers get one.
    from pathlib import Path

    script = (Path(__file__).parents[1] / "static" / "ucall.js").read_bytes()
    return Document(script, "text/javascript; charset=utf-8")
