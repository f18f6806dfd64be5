"""The responses of routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ucall._core import json_text

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["Encode", "HttpResponse", "as_response", "parts", "parts_later"]

Headers = Mapping[str, str | list[str]] | Iterable[tuple[str, str]]
#: Replaces an object that JSON does not have by one that it has.
Encode = Callable[[Any], object]

#: Headers that the server writes, each with the reason why a response cannot.
_RESERVED = {
    "access-control-allow-origin": "the server writes it for allow_origins",
    "connection": "the server writes it",
    "content-length": "the server writes it",
    "content-type": "give it as content_type",
    "date": "the server writes it",
    "keep-alive": "the server writes it",
    "trailer": "the server writes it",
    "transfer-encoding": "the server writes it",
    "upgrade": "the server writes it",
}
_BODILESS = (204, 304)


class HttpResponse:
    """The response of a route: see `ucall.Server.http`.

    Args:
        body: bytes, or a buffer of bytes, which is copied; or str, which is sent as UTF-8; or an
            iterator of both, plain or async, whose parts are sent as they come; or another value
            that functions return, such as a dict or a dataclass, which is sent as JSON.
        status: 200 to 599.
        content_type: By default ``text/plain; charset=utf-8`` for str,
            ``application/octet-stream`` for bytes and iterators, and ``application/json`` for
            others. A text without a charset is sent with that of UTF-8, if the body or the first
            part is a str.
        headers: More headers. Those of the connection and of the body's length are the server's. A
            header that is repeated, such as Set-Cookie, has a list of values; or pairs of names and
            values make such lists.

    Raises:
        TypeError: The body or a header has another type.
        ValueError: The status has no body, or is none of a response; or a header is invalid, or
            the server's.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        body: object = b"",
        status: int = 200,
        content_type: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        if isinstance(body, (bytearray, memoryview)):
            body = bytes(body)
        self.body = body
        self.status = status
        self.content_type = _media_type_of(body) if content_type is None else content_type
        self.headers = _by_name(headers or {})
        self._check()

    def _check(self) -> None:
        if self.body is None:
            raise TypeError("body: expected bytes, str, an iterator or a value of JSON, got None")
        if not isinstance(self.status, int) or not 200 <= self.status <= 599:
            raise ValueError(f"status: expected 200 to 599, got {self.status!r}")
        is_empty = isinstance(self.body, (bytes, str)) and not self.body
        if self.status in _BODILESS and not is_empty:
            raise ValueError(f"body: expected none, as status {self.status} has no body")
        _check_value("content_type", self.content_type)
        for name, value in self._header_lines():
            _check_header(name, value)

    def _header_lines(self) -> Iterator[tuple[str, str]]:
        for name, values in self.headers.items():
            for value in values if isinstance(values, list) else [values]:
                yield name, value

    def __repr__(self) -> str:
        return f"<ucall.HttpResponse {self.status} {self.content_type}>"

    def _head(self, length: str, is_text: bool) -> bytes:
        """The status line and the headers, with the blank line.

        Args:
            length: The header of the body's length; empty if that is unknown.
            is_text: Whether the body, or its first part, is a str.
        """
        self._check()  # The attributes may have changed.
        lines = [f"HTTP/1.1 {int(self.status)} {_reason(self.status)}"]
        if self.status not in _BODILESS:
            # The core looks for the chunked coding in the first header.
            lines.append(length or "Transfer-Encoding: chunked")
            kind = _with_charset(self.content_type) if is_text else self.content_type
            lines.append(f"Content-Type: {kind}")
        lines.extend(f"{name}: {value}" for name, value in self._header_lines())
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def as_response(result: object, path: str) -> HttpResponse:
    if isinstance(result, HttpResponse):
        return result
    if result is None:
        remedy = "return ucall.HttpResponse(status=204) for no body"
        raise TypeError(f"{path}: expected a response to be returned, got None: {remedy}")
    return HttpResponse(result)


def parts(response: HttpResponse, request: HttpRequest, encode: Encode = str) -> Iterator[bytes]:
    """Yields a response: as a whole, or its head and then its body.

    The first chunk is made before the head is sent, so that its exception can have a status.

    Args:
        encode: Replaces objects that JSON does not have.
    """
    body = response.body
    if isinstance(body, AsyncIterator):
        raise TypeError("body: an async iterator must be returned by an async function")
    if not isinstance(body, Iterator):
        whole = _whole(body, encode)
        yield response._head(f"Content-Length: {len(whole)}", isinstance(body, str)) + whole
        return
    try:
        if request.method == "HEAD":
            yield response._head("", False)
            return
        first = next(body, b"")
        sent = _chunk(first)
        yield response._head("", isinstance(first, str))
        yield sent
        for chunk in body:
            yield _chunk(chunk)
    finally:
        if close := getattr(body, "close", None):
            close()


async def parts_later(
    response: HttpResponse, request: HttpRequest, encode: Encode = str
) -> AsyncGenerator[bytes]:
    """Yields a response as `parts` does. Its body may be an async iterator."""
    body = response.body
    if not isinstance(body, AsyncIterator):
        for part in parts(response, request, encode):
            yield part
        return
    try:
        if request.method == "HEAD":
            yield response._head("", False)
            return
        first = await anext(body, b"")
        sent = _chunk(first)
        yield response._head("", isinstance(first, str))
        yield sent
        async for chunk in body:
            yield _chunk(chunk)
    finally:
        if close := getattr(body, "aclose", None):
            await close()


def _whole(body: object, encode: Encode) -> bytes:
    """A body that is no iterator."""
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json_text(body, encode)


def _media_type_of(body: object) -> str:
    if isinstance(body, str):
        return "text/plain; charset=utf-8"
    is_binary = isinstance(body, (bytes, Iterator, AsyncIterator))
    return "application/octet-stream" if is_binary else "application/json"


def _with_charset(kind: str) -> str:
    """A media type with the charset of a str: browsers take a page without one for Latin-1."""
    # Without the quoted values of parameters.
    unquoted = "".join(kind.lower().split('"')[::2])
    names = {it.partition("=")[0].strip() for it in unquoted.split(";")}
    if not unquoted.startswith("text/") or "charset" in names:
        return kind
    return f"{kind.rstrip('; ')}; charset=utf-8"


def _chunk(chunk: object) -> bytes:
    if isinstance(chunk, str):
        return chunk.encode()
    if not isinstance(chunk, bytes):
        raise TypeError(f"body: expected bytes or str to be yielded, got {_type_of(chunk)}")
    return chunk


def _by_name(headers: Headers) -> dict[str, str | list[str]]:
    """The values of each header; a list of those of a repeated one."""
    if isinstance(headers, Mapping):
        return dict(headers)
    values: dict[str, str | list[str]] = {}
    for name, value in headers:
        if name not in values:
            values[name] = value
        else:
            before = values[name]
            values[name] = [*(before if isinstance(before, list) else [before]), value]
    return values


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not name.isascii() or not name.replace("-", "a").isidentifier():
        raise ValueError(f"headers: expected the name of a header, got {name!r}")
    if reason := _RESERVED.get(name.lower()):
        raise ValueError(f"headers: {name} cannot be set: {reason}")
    _check_value(f"headers: {name}", value)


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected str, got {_type_of(value)}")
    if not value.isprintable() or max(value, default="") > "\xff":
        raise ValueError(f"{name}: expected printable Latin-1, got {value!r}")


def _reason(status: int) -> str:
    from http import HTTPStatus  # here, because importing it takes long

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _type_of(value: object) -> str:
    return type(value).__name__
