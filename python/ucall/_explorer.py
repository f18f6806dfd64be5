"""The page at ``GET /``, which lists a server's methods and calls them: see docs/explorer.md.

Its source is ``explorer/``; ``make explorer`` builds ``static/explorer.html``. It is public, also
on a server with ``auth``: it contains no data of the server, and asks for the key that its requests
need.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ucall._response import HttpResponse, parts

if TYPE_CHECKING:
    from ucall import _core

__all__ = ["register"]


class _Page(NamedTuple):
    html: bytes
    compressed: bytes
    etag: str
    policy: str


def register(core: _core.Server) -> None:
    """Has a server answer ``GET /``."""
    # In a thread, because the first request imports and compresses.
    core.insert_route(
        "/", ["GET"], _respond, str, mode="thread_generator", is_public=True, wants_peer=False
    )


def _respond(request: _core.HttpRequest) -> Iterator[bytes]:
    """Yields the response to ``GET /``: the page for browsers, else 405."""
    if "text/html" not in request.headers.get("accept", ""):
        # As the core answers without the page.
        text, headers = "requests are sent with POST\n", {"Allow": "POST, OPTIONS"}
        return parts(HttpResponse(text, 405, headers=headers), request)
    page = _page()
    headers = {
        "Cache-Control": "no-cache",  # caches ask whether theirs is current
        "Content-Security-Policy": page.policy + _socket_sources(request.headers.get("host", "")),
        "ETag": page.etag,
        "Vary": "Accept, Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if page.etag in request.headers.get("if-none-match", ""):
        return parts(HttpResponse(status=304, headers=headers), request)
    body = page.html
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = page.compressed
    return parts(HttpResponse(body, 200, "text/html; charset=utf-8", headers), request)


def _socket_sources(host: str) -> str:
    """The server's own WebSocket, which 'self' does not include in all browsers."""
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?", host):
        return ""
    return f" ws://{host} wss://{host}"


@functools.cache
def _page() -> _Page:
    # Imported with the first request, because few servers get one.
    import gzip
    import hashlib
    from base64 import b64encode
    from pathlib import Path

    html = (Path(__file__).parent / "static" / "explorer.html").read_bytes()

    def hashed(tag: bytes) -> str:
        """The source of the page's only element of a name."""
        (text,) = re.findall(rb"<%b[^>]*>(.*?)</%b>" % (tag, tag), html, re.DOTALL)
        return f"'sha256-{b64encode(hashlib.sha256(text).digest()).decode()}'"

    policy = (
        f"default-src 'none'; script-src {hashed(b'script')}; style-src {hashed(b'style')}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "connect-src 'self'"
    )
    etag = f'"{hashlib.sha256(html).hexdigest()[:32]}"'
    return _Page(html, gzip.compress(html, mtime=0), etag, policy)
