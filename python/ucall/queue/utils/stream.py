"""Streams of bytes in chunks, and the serializers between objects and streams."""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from ucall._core import PickleLoader, bytes_view
from ucall.queue.utils.allow import accepted_names, allow_by_name, find, on_change
from ucall.queue.utils.arrays import Reducers

__all__ = ["BytesSerializer", "PickleSerializer", "Stream"]

#: Chunks of this length are sent from where they are; shorter neighbours are joined.
_APART_BYTES = 64 * 1024
#: What nests nothing, and has a length.
_ATOMS = {bytes, str}
#: The pickler writes at least as many bytes for a level: one makes an object, one memoizes it.
_LEVEL_BYTES = 2


class Stream:
    """Bytes in chunks, read from the front, and the out-of-band buffers of a pickle.

    Args:
        chunks: Bytes-like objects. They are not copied.
        buffers: Bytes-like objects, in the order of their pickle (PEP 574).
    """

    __slots__ = ("_at", "_chunks", "buffers")

    def __init__(self, chunks: Iterable[Any] = (), buffers: Iterable[Any] = ()) -> None:
        self._chunks = [bytes_view(chunk) for chunk in chunks]
        self._at = 0
        self.buffers = list(buffers)

    @property
    def chunks(self) -> list[Any]:
        """The chunks that are left to read."""
        if self._at and self._chunks:
            self._chunks[0] = self._chunks[0][self._at :]
            self._at = 0
        return self._chunks

    @property
    def nbytes(self) -> int:
        """How many bytes are left to read."""
        return sum(len(chunk) for chunk in self._chunks) - self._at

    def write(self, data: Any) -> int:
        """Appends a bytes-like object without a copy; returns its length in bytes."""
        view = bytes_view(data)
        self._chunks.append(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Reads up to ``size`` bytes; all bytes by default."""
        left = self.nbytes if size < 0 else size
        parts = []
        while left > 0 and self._chunks:
            parts.append(self._read_part(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def readinto(self, target: Any) -> int:
        """Fills a writable buffer; returns the number of bytes read."""
        view = bytes_view(target)
        done = 0
        while done < len(view) and self._chunks:
            part = self._read_part(len(view) - done)
            view[done : done + len(part)] = part
            done += len(part)
        return done

    def _read_part(self, size: int) -> memoryview:
        """Reads up to ``size`` bytes of the first chunk."""
        part = self._chunks[0][self._at : self._at + size]
        self._at += len(part)
        if self._at == len(self._chunks[0]):
            del self._chunks[0]
            self._at = 0
        return part

    def readline(self) -> bytes:
        """Reads up to the next newline, and that."""
        parts = []
        while self._chunks:
            rest = bytes(self._chunks[0][self._at :])
            end = rest.find(b"\n") + 1
            parts.append(self.read(end or len(rest)))
            if end:
                break
        return b"".join(parts)

    def toview(self) -> memoryview:
        """The unread bytes as one view: a copy if there are several chunks."""
        chunks = self.chunks
        return memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return self.nbytes


class _NamingPickler(pickle.Pickler):
    """A pickler with a given `persistent_id`: Python 3.13.0 ignores one set on an instance."""

    def __init__(self, file: Any, keep: Callable[[Any], Any], name: Callable[[Any], Any]) -> None:
        super().__init__(file, 5, buffer_callback=keep)
        self._name = name

    def persistent_id(self, obj: Any) -> Any:
        return self._name(obj)


class PickleSerializer:
    """Pickle protocol 5 with out-of-band buffers: arrays and long bytes are not copied.

    Loading does not run the interpreter's unpickler. It makes values of these types, from
    arguments that it checks: ``None``, ``bool``, ``int``, ``float``, ``complex``, ``str``,
    ``bytes``, ``bytearray``, ``list``, ``tuple``, ``dict``, ``set``, ``frozenset``, ``range``,
    ``slice``, `Decimal`, `Fraction`, the types of ``datetime``, `ZoneInfo`, `UUID`, paths and pure
    paths, ``ipaddress``'s types, `OrderedDict`, `deque`, `Counter`, exceptions of ``builtins``, and
    NumPy's arrays and scalars that hold no objects. `ucall.queue.allow` adds classes of your own.
    Anything else raises `pickle.UnpicklingError`.

    Args:
        allow: Called with ``"module.name"``; returns whether that is loaded as well.
            `allow_by_name` makes one.
        dump: The pickler's `persistent_id`.
        load: The unpickler's `persistent_load`.
        trust: Loads with `pickle.loads`, by which any peer gets full control of this process.
            Excludes ``allow``.
        max_depth: Levels of nesting, also of what is dumped, unless it trusts.
        max_expansion: Bytes of objects per byte of pickle, plus 1 MiB.
        max_collisions: Keys of one dict, or members of one set, with the same hash.

    Raises:
        ValueError: Both ``trust`` and ``allow`` are given.
    """

    __slots__ = ("_allow", "_dump", "_limits", "_load", "_loader", "_plain", "_restore", "_trust")

    def __init__(
        self,
        allow: Callable[[str], object] | None = None,
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
        *,
        trust: bool = False,
        max_depth: int = 128,
        max_expansion: int = 128,
        max_collisions: int = 100,
    ) -> None:
        if trust and allow is not None:
            raise ValueError("trust=True loads every name: leave out allow=")
        self._allow = allow
        self._trust = trust
        self._dump = dump
        self._load = load
        self._limits = (max_depth, max_expansion, max_collisions)
        self._plain = dump is None and load is None
        self._loader = PickleLoader(functools.partial(find, allow), load, *self._limits)
        self._restore: Callable[[Any, list[Any]], Any] = (
            self._restore_trusted if trust else self._loader
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """`multiprocessing` passes the options of a communicator to another process."""
        depth, expansion, collisions = self._limits
        make = functools.partial(
            type(self),
            trust=self._trust,
            max_depth=depth,
            max_expansion=expansion,
            max_collisions=collisions,
        )
        return make, (self._allow, self._dump, self._load)

    allow_by_name = staticmethod(allow_by_name)

    def dump(self, data: Any) -> Stream:
        """Pickles an object: the stream has its pickle and its out-of-band buffers.

        Raises:
            pickle.PicklingError, TypeError, ...: The object cannot be pickled, or this serializer
                would refuse it.
        """
        return Stream(*self._pieces(data))

    def load(self, data: Stream) -> Any:
        """Makes the object of a stream.

        Raises:
            pickle.UnpicklingError: The pickle names an object that is not allowed, is not of
                protocol 5, exceeds a limit, or has arguments that its types refuse.
        """
        return self._restore(data.toview(), data.buffers)

    def _accepted_names(self) -> list[str] | None:
        """The names that it loads besides the default ones; None if that cannot be known."""
        return None if self._trust else accepted_names(self._allow)

    def _pieces(self, data: Any) -> tuple[list[Any], list[Any]]:
        if type(data) in _ATOMS and self._dump is None and len(data) < _APART_BYTES:
            # The same bytes, in a third of the time.
            return [pickle.dumps(data, 5)], []
        buffers: list[Any] = []
        writer = _Writer()
        if self._dump is None:
            pickler = pickle.Pickler(writer, 5, buffer_callback=buffers.append)
        else:
            pickler = _NamingPickler(writer, buffers.append, self._dump)
        numpy = sys.modules.get("numpy")
        if numpy is not None and not self._trust:
            if copyreg.dispatch_table != _table_made_of:
                _make_table(numpy)
            pickler.dispatch_table = _table
        pickler.dump(data)
        pieces = writer.joined()
        if not self._trust and (len(pieces) > 1 or len(pieces[0]) > _LEVEL_BYTES * self._limits[0]):
            self._check_depth(pieces)
        return pieces, [bytes_view(buffer) for buffer in buffers] if buffers else buffers

    def _check_depth(self, pieces: list[Any]) -> None:
        """Refuses what a receiver with the same limits would refuse as too deep."""
        if self._loader.nests_too_deep(pieces):
            raise pickle.PicklingError(
                f"it nests deeper than max_depth, {self._limits[0]} levels: no receiver reads it"
            )

    def _restore_trusted(self, block: Any, buffers: list[Any]) -> Any:
        # Copied out first: shared memory may change while it is read.
        unpickler = pickle.Unpickler(io.BytesIO(bytes(block)), buffers=buffers)
        if self._load is not None:
            unpickler.persistent_load = self._load  # type: ignore[method-assign]
        return unpickler.load()


# `copyreg`'s table with NumPy's cheaper reducers, and the copy of the table it was made from.
_table: dict[type, Any] = {}
_table_made_of: dict[type, Any] | None = None


def _make_table(numpy: ModuleType) -> None:
    global _table, _table_made_of
    _table_made_of = dict(copyreg.dispatch_table)
    _table = Reducers(numpy)


def _forget_table() -> None:
    global _table_made_of
    _table_made_of = None


on_change.append(_forget_table)


class _Writer:
    """The file that a pickler writes to: a list of chunks."""

    __slots__ = ("_chunks", "write")

    def __init__(self) -> None:
        self._chunks: list[Any] = []
        self.write = self._chunks.append

    def joined(self) -> list[Any]:
        """The chunks, with short neighbours joined."""
        chunks = self._chunks
        if len(chunks) == 1:
            return chunks
        pieces: list[Any] = []
        short: list[Any] = []
        for chunk in chunks:
            if len(chunk) < _APART_BYTES:
                short.append(chunk)
                continue
            pieces += [b"".join(short), chunk] if short else [chunk]
            short = []
        return [*pieces, b"".join(short)] if short else pieces


class BytesSerializer:
    """Sends bytes-like objects unchanged, and receives them as `bytes`."""

    __slots__ = ()

    def dump(self, data: Any) -> Stream:
        """A stream of one bytes-like object; raises TypeError for any other."""
        return Stream([data])

    def load(self, data: Stream) -> bytes:
        """All bytes of the stream."""
        return data.read()
