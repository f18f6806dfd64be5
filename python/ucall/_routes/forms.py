"""Forms in the bodies of requests: `HttpRequest.form`.

The package ``multipart`` parses ``multipart/form-data`` while it arrives. Texts stay in memory; a
file that is longer than ``spool_bytes`` goes to the disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl

from ucall._server import checked
from ucall.errors import RPCError
from ucall.types.messages import require

if TYPE_CHECKING:
    from ucall._core import HttpRequest

__all__ = ["Form", "FormFile", "Values", "read", "read_later"]

T = TypeVar("T")

#: RFC 2046, section 5.1.1.
_BOUNDARY_CHARACTERS_MAX = 70
_INVALID_PARAMS = -32602


@dataclass(frozen=True)
class FormLimits:
    """The options of `HttpRequest.form`."""

    max_parts: int
    max_header_bytes: int
    max_text_bytes: int
    max_file_bytes: int | None
    spool_bytes: int

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None:
                checked.positive(field.name, value)


class FormFile:
    """A file of a form: `Form.files`.

    Attributes:
        file: A binary file at its beginning, which is closed and removed after the response.
        filename: As the client names it; it may contain ``/`` and be ``..`` or empty.
        content_type: As the client says; empty without one.
        size: In bytes.
    """

    __slots__ = ("content_type", "file", "filename", "size")

    def __init__(self, filename: str, content_type: str, spool_bytes: int) -> None:
        self.file = tempfile.SpooledTemporaryFile(max_size=spool_bytes)  # noqa: SIM115
        self.filename = filename
        self.content_type = content_type
        self.size = 0


class Values(Mapping[str, T], Generic[T]):
    """The values by their names: the first one of each name, or all by `get_list`."""

    def __init__(self) -> None:
        self._lists: dict[str, list[T]] = {}

    def __getitem__(self, name: str) -> T:
        return self._lists[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def get_list(self, name: str) -> list[T]:
        """All values of a name; empty if there is none."""
        return list(self._lists.get(name, ()))

    def _add(self, name: str, value: T) -> None:
        self._lists.setdefault(name, []).append(value)


class Form(Values[str]):
    """A form: its texts by their names, and its `files`."""

    def __init__(self) -> None:
        super().__init__()
        self.files: Values[FormFile] = Values()
        self._is_read = False

    def close(self) -> None:
        """Closes and removes the files."""
        for name in self.files:
            for file in self.files.get_list(name):
                file.file.close()


def read(request: HttpRequest, **limits: Any) -> Form:
    """Reads the form of a request, whose function is plain."""
    reader = _reader_of(request, limits)
    for part in request.stream() if reader.is_open else ():
        reader.take(part)
    return _ended(reader)


async def read_later(request: HttpRequest, **limits: Any) -> Form:
    """Reads the form of a request, whose function is async."""
    reader = _reader_of(request, limits)
    if reader.is_open:
        async for part in request.stream():
            reader.take(part)
    return _ended(reader)


def _ended(reader: _Reader) -> Form:
    form = reader.end()
    form._is_read = True
    return form


class _Reader(Protocol):
    """Reads a form from the parts of a body."""

    is_open: bool

    def take(self, part: bytes) -> None:
        """Takes what has arrived."""

    def end(self) -> Form:
        """The form, after the last part."""


class _ReadForm:
    """A form that was read before."""

    is_open = False

    def __init__(self, form: Form) -> None:
        self._form = form

    def take(self, part: bytes) -> None:
        raise AssertionError("nothing is left")

    def end(self) -> Form:
        return self._form


class _UrlencodedReader:
    """Reads ``application/x-www-form-urlencoded``, at its end."""

    is_open = True

    def __init__(self, request: HttpRequest, form: Form, limits: FormLimits) -> None:
        self._request, self._form, self._limits = request, form, limits
        self._text = bytearray()

    def take(self, part: bytes) -> None:
        self._text += part
        _check("bytes", len(self._text), "max_text_bytes", self._limits.max_text_bytes)
        self._request._hold(len(self._text))

    def end(self) -> Form:
        count = self._text.count(b"&") + 1
        _check("fields", count, "max_parts", self._limits.max_parts)
        try:
            pairs = parse_qsl(self._text.decode(), keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            raise _refusal("expected UTF-8, percent-encoded") from None
        for name, value in pairs:
            self._form._add(name, value)
        return self._form


class _MultipartReader:
    """Reads ``multipart/form-data``, part by part."""

    is_open = True

    def __init__(
        self, request: HttpRequest, multipart: Any, boundary: str, form: Form, limits: FormLimits
    ) -> None:
        self._request, self._form, self._limits = request, form, limits
        self._error = multipart.MultipartError
        self._limit_reached = multipart.ParserLimitReached
        self._parser = multipart.PushMultipartParser(
            boundary, max_header_size=limits.max_header_bytes
        )
        self._parts = 0
        #: The bytes of all texts.
        self._text_bytes = 0
        #: Those of files in memory.
        self._file_bytes = 0
        #: The part that arrives.
        self._segment: Any = None
        self._text = bytearray()
        self._file: FormFile | None = None

    def take(self, part: bytes) -> None:
        with self._refusing():
            for event in self._parser.parse(part):
                if event is None:
                    self._end_part()
                elif isinstance(event, bytes | bytearray):
                    self._take_content(event)
                else:
                    self._begin_part(event)
        self._request._hold(self._text_bytes + self._file_bytes)

    def end(self) -> Form:
        with self._refusing():
            self._parser.close()
        return self._form

    def _begin_part(self, segment: Any) -> None:
        self._parts += 1
        _check("parts", self._parts, "max_parts", self._limits.max_parts)
        if not segment.name:
            raise _refusal("expected a name in the Content-Disposition of each part")
        self._segment = segment
        if segment.filename is not None:
            spool_bytes = self._limits.spool_bytes
            self._file = FormFile(segment.filename, segment.content_type or "", spool_bytes)
            self._form.files._add(segment.name, self._file)

    def _take_content(self, content: bytes | bytearray) -> None:
        if self._file is None:
            self._text += content
            self._text_bytes += len(content)
            _check(
                "bytes of texts", self._text_bytes, "max_text_bytes", self._limits.max_text_bytes
            )
            return
        self._file.size += len(content)
        if (limit := self._limits.max_file_bytes) is not None:
            _check("bytes of a file", self._file.size, "max_file_bytes", limit)
        self._file.file.write(content)
        spooled = self._limits.spool_bytes
        before = self._file.size - len(content)
        self._file_bytes += _in_memory(self._file.size, spooled) - _in_memory(before, spooled)

    def _end_part(self) -> None:
        if (file := self._file) is not None:
            self._file = None
            file.file.seek(0)
            return
        try:
            text = self._text.decode()
        except UnicodeDecodeError:
            raise _refusal(f"{self._segment.name}: expected UTF-8") from None
        self._text.clear()
        self._form._add(self._segment.name, text)

    def _refusing(self) -> _Refusing:
        return _Refusing(self._error, self._limit_reached, self._limits)


class _Refusing:
    """Raises what the parser raises as an error for the client."""

    def __init__(self, error: type, limit_reached: type, limits: FormLimits) -> None:
        self._error, self._limit_reached, self._limits = error, limit_reached, limits

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, self._limit_reached):
            limit = self._limits.max_header_bytes
            problem = f"expected headers of a part of at most {limit:,} bytes (max_header_bytes)"
            raise _refusal(f"{problem}, and 8 of them") from None
        if isinstance(error, self._error):
            raise _refusal(f"expected valid multipart/form-data: {error}") from None


def _reader_of(request: HttpRequest, options: dict[str, Any]) -> _Reader:
    limits = FormLimits(**options)
    if (known := request._form) is not None:
        if not known._is_read:
            raise RuntimeError("form: its body was not read to the end before")
        return _ReadForm(known)
    header = request.headers.get("content-type", "")
    form = Form()
    media_type = header.partition(";")[0].strip().lower()
    if media_type == "application/x-www-form-urlencoded":
        reader: _Reader = _UrlencodedReader(request, form, limits)
    elif media_type == "multipart/form-data":
        multipart = require("multipart", "HttpRequest.form")
        if not hasattr(multipart, "PushMultipartParser"):
            found = "'multipart' is another package: pip install --force-reinstall multipart"
            raise ImportError(f"HttpRequest.form: {found}", name="multipart")
        boundary = multipart.parse_options_header(header)[1].get("boundary", "")
        if not 1 <= len(boundary) <= _BOUNDARY_CHARACTERS_MAX or not boundary.isprintable():
            expected = f"a boundary of 1 to {_BOUNDARY_CHARACTERS_MAX} characters"
            raise _refusal(f"Content-Type: expected {expected}")
        reader = _MultipartReader(request, multipart, boundary, form, limits)
    else:
        expected = "multipart/form-data or application/x-www-form-urlencoded"
        raise _refusal(f"Content-Type: expected {expected}, got {media_type!r}")
    request._keep_form(form)
    return reader


def _in_memory(size: int, spool_bytes: int) -> int:
    """The bytes of a file that are not on the disk."""
    return size if size <= spool_bytes else 0


def _check(what: str, found: int, option: str, limit: int) -> None:
    if found > limit:
        raise _refusal(f"expected at most {limit:,} {what} ({option})")


def _refusal(problem: str) -> RPCError:
    return RPCError(_INVALID_PARAMS, f"form: {problem}")
