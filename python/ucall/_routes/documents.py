"""Documents that a server answers GET with, whole or compressed.

Each encoding of a document is a representation with an ETag of its own (RFC 9110, section 8.8.3).
``Accept-Encoding`` chooses one (section 12.5.3), and the conditions of the request are compared
with it (section 13.2.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ucall._routes.response import HttpResponse, parts

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["Document", "weights"]

_WEIGHT = re.compile(r"[qQ]=([01](?:\.[0-9]{0,3})?)")
_TAG = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


class Document:
    """A text that changes rarely: caches keep it, and ask whether theirs is current."""

    def __init__(self, content: bytes, content_type: str) -> None:
        self._content = content
        self._content_type = content_type
        #: The bytes and the ETag by the encoding.
        self._representations: dict[str, tuple[bytes, str]] = {}

    def respond(
        self, request: HttpRequest, headers: Mapping[str, str] | None = None, vary: str = ""
    ) -> Iterator[bytes]:
        """Yields the response to a GET or HEAD request.

        Args:
            headers: More headers, which every representation has.
            vary: What chose the document, besides its path.
        """
        asked = request.headers
        encoding = _encoding(asked.get("accept-encoding"))
        if encoding is None:
            text = "expected gzip or identity in Accept-Encoding\n"
            return parts(HttpResponse(text, 406, headers={"Vary": "Accept-Encoding"}), request)
        body, tag = self._represent(encoding)
        sent = {
            "Cache-Control": "no-cache",
            "ETag": tag,
            "Vary": f"{vary}Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
            **(headers or {}),
        }
        if "if-match" in asked and not _matches(asked["if-match"], tag, weakly=False):
            response = HttpResponse("the document is another one\n", 412, headers=sent)
        elif "if-none-match" in asked and _matches(asked["if-none-match"], tag, weakly=True):
            response = HttpResponse(status=304, headers=sent)
        else:
            if encoding:
                sent["Content-Encoding"] = encoding
            response = HttpResponse(body, 200, self._content_type, sent)
        return parts(response, request)

    def _represent(self, encoding: str) -> tuple[bytes, str]:
        """The bytes and the ETag in an encoding, made for the first client that gets it."""
        if encoding not in self._representations:
            import gzip  # here, because few servers need them
            import hashlib

            body = gzip.compress(self._content, mtime=0) if encoding else self._content
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            self._representations[encoding] = body, tag
        return self._representations[encoding]


def weights(header: str) -> dict[str, float]:
    """The elements of an ``Accept`` or ``Accept-Encoding`` header, in lower case, with weights."""
    found: dict[str, float] = {}
    for element in header.split(","):
        name, *parameters = (part.strip() for part in element.split(";"))
        weight = [it[1] for it in map(_WEIGHT.fullmatch, parameters) if it]
        found[name.lower()] = float(weight[0]) if weight else 1.0
    return found


def _encoding(header: str | None) -> str | None:
    """``gzip`` or ``""``, as a client prefers; ``None`` if it accepts neither."""
    if header is None:
        return ""
    listed = weights(header)
    others = listed.get("*", 0.0)
    compressed = listed.get("gzip", listed.get("x-gzip", others))
    # What is not compressed is accepted unless it is excluded, but listed encodings come first.
    plain = listed.get("identity", others if "*" in listed else 1e-9)
    if max(compressed, plain) == 0:
        return None
    return "gzip" if compressed >= plain else ""


def _matches(listed: str, tag: str, *, weakly: bool) -> bool:
    """Whether ``If-Match``, or ``If-None-Match`` (weakly), names a representation."""
    if listed.strip() == "*":
        return True
    return any(it == tag and (weakly or not weak) for weak, it in _TAG.findall(listed))
