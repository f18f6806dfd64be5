"""The files that every server serves: the client for browsers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ucall._response import HttpResponse, parts

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["BROWSER_CLIENT", "browser_client"]

BROWSER_CLIENT = "/ucall.js"


def browser_client(request: HttpRequest) -> Iterator[bytes]:
    """Yields the response to a request for the client for browsers, an ES module."""
    script, etag = _script()
    headers = {
        "Cache-Control": "no-cache",  # caches ask whether theirs is current
        "ETag": etag,
        "X-Content-Type-Options": "nosniff",
    }
    known = request.headers.get("if-none-match", "").split(",")
    if any(it.strip().removeprefix("W/") in (etag, "*") for it in known):
        response = HttpResponse(status=304, headers=headers)
    else:
        response = HttpResponse(script, 200, "text/javascript; charset=utf-8", headers)
    return parts(response, request)


@functools.cache
def _script() -> tuple[bytes, str]:
    # Imported with the first request, because few servers get one.
    import hashlib
    from pathlib import Path

    script = (Path(__file__).parent / "static" / "ucall.js").read_bytes()
    return script, f'"{hashlib.sha256(script).hexdigest()[:32]}"'
