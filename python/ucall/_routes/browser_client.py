"""The files that every server serves: the client for browsers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ucall._routes.documents import Document

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["BROWSER_CLIENT", "browser_client"]

BROWSER_CLIENT = "/ucall.js"


def browser_client(request: HttpRequest) -> Iterator[bytes]:
    """Yields the response to a request for the client for browsers, an ES module."""
    return _script().respond(request)


@functools.cache
def _script() -> Document:
    # Imported with the first request, because few servers get one.
    from pathlib import Path

    script = (Path(__file__).parents[1] / "static" / "ucall.js").read_bytes()
    return Document(script, "text/javascript; charset=utf-8")
