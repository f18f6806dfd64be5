"""Streams of bytes in pieces, and what turns objects into them and back."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ucall._core import check_pickle
from ucall.queue.utils.allow import AllowedNames, allow_by_name, allowed_by_default

__all__ = ["BytesSerializer", "PickleSerializer", "Stream"]

# What is long goes as a piece of its own, and is neither copied nor joined.
_APART_BYTES = 64 * 1024


class Stream:
    """Bytes in pieces, to be read from the front, and the buffers that a serializer left out.

    Args:
        chunks: Bytes-like objects, which are not copied.
        buffers: Bytes-like objects beside the stream, in the order of the pickle protocol's
            out-of-band buffers.
    """

    __slots__ = ("_at", "_chunks", "buffers")

    def __init__(self, chunks: Iterable[Any] = (), buffers: Iterable[Any] = ()) -> None:
        self._chunks = [memoryview(chunk).cast("B") for chunk in chunks]
        self._at = 0
        self.buffers = list(buffers)

    @property
    def chunks(self) -> list[Any]:
        """The pieces that were not read yet."""
        if self._at and self._chunks:
            self._chunks[0] = self._chunks[0][self._at :]
            self._at = 0
        return self._chunks

    @property
    def nbytes(self) -> int:
        """Bytes that were not read yet."""
        return sum(len(chunk) for chunk in self._chunks) - self._at

    def write(self, data: Any) -> int:
        """Appends a bytes-like object, which is not copied; returns its length."""
        view = memoryview(data).cast("B")
        self._chunks.append(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes from the front, all by default."""
        left = self.nbytes if size < 0 else size
        parts = []
        while left > 0 and self._chunks:
            part = self._chunks[0][self._at : self._at + left]
            parts.append(part)
            left -= len(part)
            self._at += len(part)
            if self._at == len(self._chunks[0]):
                del self._chunks[0]
                self._at = 0
        return b"".join(parts)

    def readinto(self, target: Any) -> int:
        """Fills a writable buffer from the front; returns how far."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view) and self._chunks:
            part = self._chunks[0][self._at : self._at + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
            if self._at == len(self._chunks[0]):
                del self._chunks[0]
                self._at = 0
        return done

    def readline(self) -> bytes:
        """Up to and with the next newline."""
        parts = []
        while self._chunks:
            rest = bytes(self._chunks[0][self._at :])
            end = rest.find(b"\n") + 1
            parts.append(self.read(end or len(rest)))
            if end:
                break
        return b"".join(parts)

    def toview(self) -> memoryview:
        """What was not read, as one piece: copied only if there are several."""
        chunks = self.chunks
        return memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return self.nbytes


class _NamingPickler(pickle.Pickler):
    """A pickler that was told its `persistent_id`, which Python 3.13.0 takes from a class alone."""

    def __init__(self, file: Any, keep: Callable[[Any], Any], name: Callable[[Any], Any]) -> None:
        super().__init__(file, 5, buffer_callback=keep)
        self._name = name

    def persistent_id(self, obj: Any) -> Any:
        return self._name(obj)


class PickleSerializer:
    """Pickle protocol 5 with out-of-band buffers: arrays and long bytes are not copied.

    By default only what LIMITS names is loaded: ``complex``, ``set``, ``frozenset``, ``bytearray``,
    ``range``, ``slice``, the types of ``datetime``, ``uuid.UUID``, and NumPy's arrays and scalars
    that hold no objects. Anything else raises `pickle.UnpicklingError` and runs nothing.

    Args:
        allow: Called with ``"module.name"``; what it returns true for is loaded as well.
            `allow_by_name` makes one. ``lambda name: True`` loads everything, and so gives whoever
            reaches this process full control of it.
        dump: The pickler's `persistent_id`.
        load: The unpickler's `persistent_load`.
    """

    __slots__ = ("_allow", "_dump", "_load", "_plain")

    def __init__(
        self,
        allow: Callable[[str], object] | None = None,
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
    ) -> None:
        self._allow = allow
        self._dump = dump
        self._load = load
        self._plain = dump is None and load is None

    allow_by_name = staticmethod(allow_by_name)

    def dump(self, data: Any) -> Stream:
        """The stream of an object, with the buffers that were left out of it.

        Raises:
            pickle.PicklingError, TypeError, ...: It cannot be pickled.
        """
        return Stream(*self._pieces(data))

    def load(self, data: Stream) -> Any:
        """The object of a stream.

        Raises:
            pickle.UnpicklingError: It asks for what is not allowed, is no pickle, or what it
                makes raises.
        """
        return self._restore(data.toview(), data.buffers)

    def _pieces(self, data: Any) -> tuple[list[Any], list[Any]]:
        buffers: list[Any] = []
        writer = _Writer()
        if self._dump is None:
            pickler = pickle.Pickler(writer, 5, buffer_callback=buffers.append)
        else:
            pickler = _NamingPickler(writer, buffers.append, self._dump)
        pickler.dump(data)
        return writer.finish(), [buffer.raw() for buffer in buffers]

    def _restore(self, block: Any, buffers: list[Any]) -> Any:
        # Copied out first: what is parsed stays what was checked.
        data = bytes(block)
        try:
            if self._allow is None or isinstance(self._allow, AllowedNames):
                check_pickle(data)
            unpickler = _Unpickler(io.BytesIO(data), buffers=buffers)
            unpickler.allow = self._allow
            if self._load is not None:
                unpickler.persistent_load = self._load  # type: ignore[method-assign]
            return unpickler.load()
        except Exception as error:
            raise pickle.UnpicklingError(f"refused: {error}") from error


class _Writer:
    """Takes what a pickler writes: short pieces are joined, long ones are kept as they are."""

    __slots__ = ("_chunks", "_short")

    def __init__(self) -> None:
        self._chunks: list[Any] = []
        self._short: list[Any] = []

    def write(self, piece: Any) -> int:
        if len(piece) >= _APART_BYTES:
            self._flush()
            self._chunks.append(piece)
        else:
            self._short.append(piece)
        return len(piece)

    def _flush(self) -> None:
        if self._short:
            self._chunks.append(self._short[0] if len(self._short) == 1 else b"".join(self._short))
            self._short = []

    def finish(self) -> list[Any]:
        self._flush()
        return self._chunks


class _Unpickler(pickle.Unpickler):
    """Finds exact names only."""

    allow: Callable[[str], object] | None = None

    def find_class(self, module: str, name: str) -> Any:
        found = allowed_by_default(module, name)
        if found is not None:
            return found
        if isinstance(self.allow, AllowedNames):
            # From protocol 4 on a name may lead through attributes, to anything.
            if "." not in name and self.allow(f"{module}.{name}"):
                found = super().find_class(module, name)
                if self.allow.permits(module, name, found):
                    return found
        elif self.allow is not None and self.allow(f"{module}.{name}"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


class BytesSerializer:
    """No serializer: bytes-like objects go as they are, and come as `bytes`."""

    __slots__ = ()

    def dump(self, data: Any) -> Stream:
        """The memory of a bytes-like object. Raises TypeError for anything else."""
        return Stream([data])

    def load(self, data: Stream) -> bytes:
        """All bytes."""
        return data.read()
