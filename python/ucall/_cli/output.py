"""Writes the result in the requested form, to a file or to standard output."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ucall._cli.values import UsageError
from ucall.types.images import FORMATS, sniff_format

if TYPE_CHECKING:
    from ucall._client.response import Response

__all__ = ["check_output", "emit", "printable", "write", "write_item"]

#: What a `.npy` begins with, and its base64.
_NPY_MAGIC = b"\x93NUMPY"
_NPY_MAGIC_BASE64 = "k05VTVBZ"
#: Of a longer array a terminal shows the first and the last.
_ITEMS_SHOWN = 200


def check_output(kind: str, path: str | None) -> None:
    """Checks before the call that its result can be written.

    Raises:
        UsageError: The file cannot be written, or an image would go to the terminal.
    """
    if path is None:
        if kind == "image" and sys.stdout.isatty():
            raise UsageError("a terminal cannot show an image: use -o FILE")
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"{path}: Is a directory")
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: No such file or directory")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"{path}: Permission denied")


def write(response: Response, kind: str, path: str | None) -> None:
    """Writes the result in a form of `ucall._cli.arguments.FORMATS`.

    Raises:
        UsageError: The result does not have this form, or the file cannot be written.
    """
    is_terminal = path is None and sys.stdout.isatty()
    try:
        data = _WRITERS[kind](response, is_terminal)
    except ValueError as error:
        raise UsageError(f"--format {kind}: {error}") from None
    if path is None:
        emit(data)
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def write_item(item: object) -> None:
    """Writes an item of a stream as a line of JSON to standard output, at once."""
    text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
    if sys.stdout.isatty():
        text = _escape_controls(text)
    emit(text.encode() + b"\n")


def emit(data: bytes) -> None:
    """Writes to standard output, at once.

    Raises:
        BrokenPipeError: Its reader has closed it.
        UsageError: It cannot be written, as on a full disk.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Python would write the rest when it ends, and replace the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise UsageError(f"standard output: {error.strerror}") from None


def printable(text: str) -> str:
    """Escapes control characters."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _json(response: Response, is_terminal: bool) -> bytes:
    """Indented on a terminal, with arrays as what they are, else compact."""
    if is_terminal and (array := _array(response)) is not None:
        return _described(array)
    result = response.json
    if is_terminal:
        result = _with_arrays_named(result)
        text = _escape_controls(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        text = json.dumps(result, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def _raw(response: Response, is_terminal: bool) -> bytes:
    if not is_terminal:
        return response.text
    return _escape_controls(response.text.decode().rstrip()).encode() + b"\n"


def _bytes(response: Response, is_terminal: bool) -> bytes:
    data = response.bytes
    if is_terminal and not _is_text(data):
        raise ValueError(f"{len(data)} bytes that are not text: use -o FILE")
    return data


def _numpy(response: Response, is_terminal: bool) -> bytes:
    try:
        import numpy
    except ImportError:
        raise ValueError("needs NumPy: pip install numpy") from None
    array = response.numpy
    if is_terminal:
        return _described(array)
    out = io.BytesIO()
    numpy.save(out, array, allow_pickle=False)
    return out.getvalue()


def _array(response: Response) -> Any:
    """The array of a result that is one in a `.npy`; ``None`` of another, or without NumPy."""
    with suppress(ImportError, ValueError):
        if response.bytes.startswith(_NPY_MAGIC):
            return response.numpy
    return None


def _described(array: Any) -> bytes:
    """The dtype, the shape and the first items of an array."""
    import numpy

    text = numpy.array2string(array, threshold=_ITEMS_SHOWN, edgeitems=3)
    return f"{array.dtype} {array.shape}\n{text}\n".encode()


def _with_arrays_named(value: Any) -> Any:
    """A result in which the dtype and the shape stand for each `.npy`."""
    if isinstance(value, dict):
        return {name: _with_arrays_named(it) for name, it in value.items()}
    if isinstance(value, list):
        return [_with_arrays_named(it) for it in value]
    if isinstance(value, str) and value.startswith(_NPY_MAGIC_BASE64):
        with suppress(ImportError, ValueError):
            from ucall.types.arrays import decode_array

            array = decode_array(base64.b64decode(value))
            return f"{array.dtype} {array.shape}"
    return value


def _image(response: Response, is_terminal: bool) -> bytes:
    data = response.bytes
    if sniff_format(data) is None:
        raise ValueError(f"the result is not an image in any of the formats {', '.join(FORMATS)}")
    return data


def _escape_controls(text: str) -> str:
    """Escapes control characters of JSON text, where they occur only within strings."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\r\t" else json.dumps(letter)[1:-1]
        for letter in text
    )


_WRITERS: dict[str, Callable[[Response, bool], bytes]] = {
    "json": _json,
    "raw": _raw,
    "bytes": _bytes,
    "numpy": _numpy,
    "image": _image,
}


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\n\t" for letter in text)
