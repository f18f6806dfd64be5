"""Between a serializer and the core, which knows pieces of memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.utils.stream import BytesSerializer, PickleSerializer, Stream

__all__ = ["codec_of"]

Pieces = tuple[list[Any], list[Any]]
Codec = tuple[
    type, Callable[[Any], Pieces], Callable[[Any, list[Any]], Any], Callable[[Any], Any] | None
]


def codec_of(options: CommunicatorOptions, future: type) -> Codec:
    """What the core is told about serializing."""
    serialization, connection = options.serialization, options.connection
    dump, load = serialization.dump, serialization.load
    dumper = _pickler(dump, "dump")
    loader = _pickler(load, "load")
    if dumper is not None and loader is not None:
        # `bytes` and `str` go as they are: no serializer could say them shorter.
        plain = None if dumper._plain and loader._plain else _wrap_load(load)
        return future, dumper._pieces, loader._restore, plain
    return (
        future,
        _dumping(dump, connection.put_merge),
        _loading(load, connection.get_merge),
        _wrap_load(load),
    )


def _pickler(method: object, name: str) -> PickleSerializer | None:
    """The serializer that a method is of, if it is ours and not derived from it."""
    owner = getattr(method, "__self__", None)
    if type(owner) is PickleSerializer and method == getattr(owner, name):
        return owner
    return None


def _wrap_load(load: Callable[[Stream], Any]) -> Callable[[Any], Any]:
    """For what a peer sent as it is, and this side reads with a serializer of its own."""

    def load_plain(data: bytes | str) -> Any:
        is_bytes = isinstance(getattr(load, "__self__", None), BytesSerializer)
        stream = data if is_bytes and isinstance(data, bytes) else pickle.dumps(data, 5)
        return load(Stream([stream]))

    return load_plain


def _dumping(dump: Callable[[Any], Any], merge: bool) -> Callable[[Any], Pieces]:
    def pieces(data: Any) -> Pieces:
        dumped = dump(data)
        if isinstance(dumped, Stream):
            chunks: list[Any] = dumped.chunks
            buffers: list[Any] = dumped.buffers
        elif isinstance(dumped, bytes | bytearray | memoryview):
            chunks, buffers = [dumped], []
        elif isinstance(dumped, Iterable):
            chunks, buffers = list(dumped), []
        else:
            chunks, buffers = [dumped], []
        if merge and len(chunks) != 1:
            return [b"".join(chunks)], buffers
        return chunks, buffers

    return pieces


def _loading(load: Callable[[Stream], Any], merge: bool) -> Callable[[Any, list[Any]], Any]:
    def restore(block: Any, buffers: list[Any]) -> Any:
        view = memoryview(block)
        size = len(view) if merge else _CHUNK
        chunks = [view[at : at + size] for at in range(0, len(view), size or 1)]
        return load(Stream(chunks, [memoryview(buffer) for buffer in buffers]))

    return restore


_CHUNK = 64 * 1024
