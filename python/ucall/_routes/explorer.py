"""The page at each path of calls, by default ``GET /``: see docs/explorer.md.

It lists a server's methods and calls them.

Its source is ``explorer/``; ``make explorer`` builds ``static/explorer.html``. It is public, also
on a server with ``auth``: it contains no data of the server, and asks for the key that its requests
need.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from ucall import _core
from ucall._routes.documents import Document, weights
from ucall._routes.response import HttpResponse, parts

__all__ = ["register"]


def register(core: _core.Server, path: str, methods: Iterable[str]) -> None:
    """Has a server answer GET at a path of calls.

    Args:
        methods: Those of the program's routes at the path, now and later.
    """

    def respond(request: _core.HttpRequest) -> Iterator[bytes]:
        if weights(request.headers.get("accept", "")).get("text/html", 0.0) > 0:
            return _respond(request)
        # As the core answers without the page.
        headers = {"Allow": ", ".join(["POST", *methods, "OPTIONS"]), "Vary": "Accept"}
        return parts(HttpResponse("requests are sent with POST\n", 405, headers=headers), request)

    # In a thread, because the first request imports and compresses.
    _core.insert_route(
        core, path, ["GET"], respond, str, mode="thread_generator", is_public=True, wants_peer=False
    )


def _respond(request: _core.HttpRequest) -> Iterator[bytes]:
    document, policy = _page()
    policy += _socket_sources(request.headers.get("host", ""))
    return document.respond(request, {"Content-Security-Policy": policy}, vary="Accept, ")


def _socket_sources(host: str) -> str:
    """The server's own WebSocket, which 'self' does not include in all browsers."""
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?", host):
        return ""
    return f" ws://{host} wss://{host}"


@functools.cache
def _page() -> tuple[Document, str]:
    """The page, and its Content-Security-Policy."""
    # Imported with the first request, because few servers get one.
    import hashlib
    from base64 import b64encode
    from pathlib import Path

    html = (Path(__file__).parents[1] / "static" / "explorer.html").read_bytes()

    def hashed(tag: bytes) -> str:
        """The source of the page's only element of a name."""
        (text,) = re.findall(rb"<%b[^>]*>(.*?)</%b>" % (tag, tag), html, re.DOTALL)
        return f"'sha256-{b64encode(hashlib.sha256(text).digest()).decode()}'"

    policy = (
        f"default-src 'none'; script-src {hashed(b'script')}; style-src {hashed(b'style')}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "connect-src 'self'"
    )
    return Document(html, "text/html; charset=utf-8"), policy
