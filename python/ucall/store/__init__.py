"""A durable key-value store, which a server serves without Python.

    store = ucall.store.open("/var/lib/app/kv")
    server.store("kv", store)
    store.put("user:1", {"name": "Ada"})
    store.get("user:1")

Calls of ``kv.get``, ``kv.put`` and so on read and write the same entries, and so do other processes
that open the same directory: see docs/store.md. ``python -m ucall.store`` checks, dumps, loads and
compacts a store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, overload

from ucall._core import Store as StoreCore
from ucall.types.encode import encode_scalar, is_derived

__all__ = ["Entry", "Key", "Operation", "Store", "open"]

#: ``("put", key, value)``, ``("delete", key)``, ``("cas", key, version, value)`` or
#: ``("increment", key, by)``.
Operation: TypeAlias = tuple[Any, ...]

#: A str stands for its UTF-8.
Key: TypeAlias = str | bytes

_PAGE: Final = 1_000


class Entry(NamedTuple):
    """What a store has for a key."""

    #: What JSON has, or ``bytes``.
    value: Any
    #: Grows with each write of the store, and is never given twice.
    version: int


def open(
    path: str | os.PathLike[str],
    *,
    durability: Literal["commit", "none"] = "commit",
    max_bytes: int = 64 << 30,
    max_value_bytes: int = 16 << 20,
    max_watch_bytes: int = 64 << 20,
    readonly: bool = False,
) -> Store:
    """Opens the store in a directory, and creates it if there is none.

    Args:
        path: The directory, on a local disk.
        durability: ``"commit"``: a write ends after the disk has it. ``"none"``: after other
            processes can read it; if the system crashes, writes are lost, and the file may be
            damaged.
        max_bytes: The size up to which entries fill the file.
        max_value_bytes: The size of one value.
        max_watch_bytes: The size of the changes that are kept for slow watchers.
        readonly: Reads a store that exists, also on a read-only volume. Methods that write raise
            OSError.

    Raises:
        OSError: It cannot be opened, or is open in this process with other options.
    """
    core = StoreCore(
        path,
        max_bytes=max_bytes,
        max_value_bytes=max_value_bytes,
        max_watch_bytes=max_watch_bytes,
        durability=durability,
        readonly=readonly,
    )
    # Each process opens it again when it first needs it, so that this one may fork before.
    core.open()
    core.close()
    return Store(core)


class Store:
    """A store: the result of `open`. Its methods may be called on any thread.

    Writes wait for the disk, so async functions call them by `asyncio.to_thread`, and plain ones
    are served by ``@server(threads=True)``. All methods raise ValueError for a key or a value past
    its limit, and OSError when the system fails.
    """

    def __init__(self, core: StoreCore) -> None:
        self._core = core

    def get(self, key: Key) -> Entry | None:
        """The value of a key and its version; ``None`` without such a key."""
        found = self._core.get(key)
        return None if found is None else _entry(*found)

    def put(self, key: Key, value: Any, *, ttl_ms: int | None = None) -> int:
        """Sets the value of a key; returns its new version.

        Args:
            key: 1 to 511 bytes; a str stands for its UTF-8.
            value: What JSON has, a NumPy scalar that a result may have, or bytes or an array of
                numbers in C order, as another object with the buffer protocol.
            ttl_ms: The milliseconds after which the key is absent.
        """
        version = self._core.put(key, *_encode(value), ttl_ms=_ttl(ttl_ms), version=None)
        assert version is not None
        return version

    def cas(self, key: Key, version: int, value: Any, *, ttl_ms: int | None = None) -> int | None:
        """Sets the value of a key that has this version; 0: of one that is absent.

        Returns:
            The new version; ``None`` if the key has another one, and nothing was written.
        """
        return self._core.put(key, *_encode(value), ttl_ms=_ttl(ttl_ms), version=version)

    def delete(self, key: Key) -> bool:
        """Removes a key; returns whether there was one."""
        return self._core.delete(key)

    def increment(self, key: Key, by: int = 1) -> int:
        """Adds to the integer of a key, and returns the sum. An absent key has 0.

        Raises:
            ValueError: The value is no integer, or the sum has more than 64 bits.
        """
        return self._core.increment(key, by)

    def batch(self, operations: Sequence[Operation]) -> list[Any] | None:
        """Runs all operations or none, in their order.

        Args:
            operations: Tuples of the name of a method (`put`, `delete`, `cas` or `increment`) and
                its arguments.

        Returns:
            Their results; ``None`` if a ``cas`` found another version, and nothing was written.
        """
        return self._core.batch([_operation(operation) for operation in operations])

    @overload
    def scan(
        self,
        prefix: Key = "",
        *,
        start: Key | None = None,
        end: Key | None = None,
        keys: Literal["str"] = "str",
    ) -> Iterator[tuple[str | bytes, Entry]]: ...

    @overload
    def scan(
        self,
        prefix: Key = "",
        *,
        start: Key | None = None,
        end: Key | None = None,
        keys: Literal["bytes"],
    ) -> Iterator[tuple[bytes, Entry]]: ...

    def scan(
        self,
        prefix: Key = "",
        *,
        start: Key | None = None,
        end: Key | None = None,
        keys: Literal["str", "bytes"] = "str",
    ) -> Iterator[tuple[Any, Entry]]:
        """The keys and their entries, in the order of the keys' bytes.

        A key is a str, or bytes if it is no UTF-8. It reads one page after another, so it may miss
        writes that are made meanwhile.

        Args:
            prefix: What the keys begin with.
            start: The first key.
            end: The key before which it ends.
            keys: ``"bytes"``: all keys are bytes, such as those that are packed numbers, some of
                which are UTF-8 by chance.
        """
        if keys not in ("str", "bytes"):
            raise ValueError(f"keys: expected 'str' or 'bytes', got {keys!r}")
        return self._scan(prefix, start, end, keys == "bytes")

    def _scan(
        self, prefix: Key, start: Key | None, end: Key | None, bytes_keys: bool
    ) -> Iterator[tuple[Any, Entry]]:
        cursor: str | bytes | None = None
        while True:
            found, cursor = self._core.scan(
                prefix=prefix,
                start=start,
                end=end,
                limit=_PAGE,
                cursor=cursor,
                bytes_keys=bytes_keys,
            )
            for key, stored in found:
                yield key, _entry(*stored)
            if cursor is None:
                return

    def sync(self) -> None:
        """Waits until the disk has all writes; for ``durability="none"``."""
        self._core.sync()

    def close(self) -> None:
        """Closes the store in this process, unless a server serves it. The next use opens it."""
        self._core.close()


def _entry(version: int, is_json: bool, stored: bytes) -> Entry:
    return Entry(json.loads(stored) if is_json else stored, version)


def _encode(value: Any) -> tuple[Any, bool]:
    """A buffer, and whether it is JSON text."""
    if is_derived(type(value), "numpy", "generic"):  # They have the buffer protocol, too.
        value = encode_scalar(value)
    try:
        memoryview(value)
    except (ValueError, BufferError):
        pass  # The core says what it expects.
    except TypeError:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(), True
    return value, False


def _ttl(ttl_ms: int | None) -> int | None:
    if ttl_ms is not None and ttl_ms < 1:
        raise ValueError(f"ttl_ms: expected a positive number, got {ttl_ms}")
    return ttl_ms


_OPERATIONS = {
    "put": "('put', key, value) or ('put', key, value, ttl_ms)",
    "cas": "('cas', key, version, value) or ('cas', key, version, value, ttl_ms)",
    "delete": "('delete', key)",
    "increment": "('increment', key) or ('increment', key, by)",
}


def _operation(operation: Operation) -> tuple[object, ...]:
    match operation:
        case ("put", key, value):
            return ("put", key, *_encode(value), None, None)
        case ("put", key, value, ttl_ms):
            return ("put", key, *_encode(value), _ttl(ttl_ms), None)
        case ("cas", key, version, value):
            return ("put", key, *_encode(value), None, version)
        case ("cas", key, version, value, ttl_ms):
            return ("put", key, *_encode(value), _ttl(ttl_ms), version)
        case ("delete", key):
            return ("delete", key)
        case ("increment", key):
            return ("increment", key, 1)
        case ("increment", key, by):
            return ("increment", key, by)
        case (str(name), *_) if name in _OPERATIONS:
            raise TypeError(f"operations: expected {_OPERATIONS[name]}, got {operation!r}")
    raise TypeError(f"operations: expected tuples of {', '.join(_OPERATIONS)}, got {operation!r}")
