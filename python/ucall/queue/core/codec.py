"""Adapts a serializer to the core, which sends and receives pieces of memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from ucall._core import bytes_view
from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.utils.stream import BytesSerializer, PickleSerializer, Stream

__all__ = ["announced_names", "codec_of"]

Pieces = tuple[list[Any], list[Any]]
Codec = tuple[
    type,
    Callable[[Any], Pieces],
    Callable[[Any, list[Any]], Any],
    Callable[[Any], Any] | None,
    list[str] | None,
]

#: Length of the chunks that `load` gets with ``get_merge=False``.
_CHUNK_BYTES = 64 * 1024


def codec_of(options: CommunicatorOptions, future: type) -> Codec:
    """The argument ``codec`` of `ucall._core.QueueCore`."""
    serialization, connection = options.serialization, options.connection
    dump, load = serialization.dump, serialization.load
    dumper, loader = _pickler(dump, "dump"), _pickler(load, "load")
    if dumper is not None and loader is not None:
        # Plain `bytes` and `str` need no pickle: the core sends their memory.
        plain = None if dumper._plain and loader._plain else _plain_loader(load)
        return future, dumper._pieces, loader._restore, plain, loader._accepted_names()
    return (
        future,
        _dumper(dump, connection.put_merge),
        _loader(load, connection.get_merge),
        _plain_loader(load),
        announced_names(options),
    )


def announced_names(options: CommunicatorOptions) -> list[str] | None:
    """The argument of `ucall._core.QueueCore._announce`."""
    loader = _pickler(options.serialization.load, "load")
    return None if loader is None else loader._accepted_names()


def _pickler(method: object, name: str) -> PickleSerializer | None:
    """The `PickleSerializer` that the method is bound to; None for any other or derived class."""
    owner = getattr(method, "__self__", None)
    if type(owner) is PickleSerializer and method == getattr(owner, name):
        return owner
    return None


def _plain_loader(load: Callable[[Stream], Any]) -> Callable[[Any], Any]:
    """Loads the plain `bytes` or `str` of a peer with a serializer other than the peer's."""
    takes_bytes = isinstance(getattr(load, "__self__", None), BytesSerializer)

    def load_plain(data: bytes | str) -> Any:
        is_raw = takes_bytes and isinstance(data, bytes)
        return load(Stream([data if is_raw else pickle.dumps(data, 5)]))

    return load_plain


def _dumper(dump: Callable[[Any], Any], merge: bool) -> Callable[[Any], Pieces]:
    def pieces(data: Any) -> Pieces:
        dumped, buffers = dump(data), []
        if isinstance(dumped, Stream):
            chunks, buffers = dumped.chunks, dumped.buffers
        elif isinstance(dumped, Iterable) and not isinstance(
            dumped, bytes | bytearray | memoryview
        ):
            chunks = list(dumped)
        else:
            chunks = [dumped]
        if merge and len(chunks) != 1:
            chunks = [b"".join(map(bytes_view, chunks))]
        return chunks, buffers

    return pieces


def _loader(load: Callable[[Stream], Any], merge: bool) -> Callable[[Any, list[Any]], Any]:
    def restore(block: Any, buffers: list[Any]) -> Any:
        view = memoryview(block)
        size = len(view) if merge else _CHUNK_BYTES
        chunks = [view[at : at + size] for at in range(0, len(view), size or 1)]
        return load(Stream(chunks, [memoryview(buffer) for buffer in buffers]))

    return restore
