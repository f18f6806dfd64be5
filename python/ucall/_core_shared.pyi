"""The classes of `ucall._core` whose state processes share: counters and stores."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Self, final

from typing_extensions import Buffer

from ucall._core import Server

__all__ = ["BrokerCalls", "SharedCounters", "Store", "insert_store"]

@final
class BrokerCalls:
    def __new__(
        cls, server: Server, methods: Sequence[str], calls_max: int, calls_bytes_max: int
    ) -> Self: ...
    def attach(self, socket: int, received: bytes, max_payload: int, guard: int) -> bool: ...
    def counts(self) -> list[tuple[int, int, int, str]]: ...

@final
class Store:
    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        max_bytes: int,
        max_value_bytes: int,
        max_watch_bytes: int,
        durability: str,
        readonly: bool,
    ) -> Store: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def get(self, key: str | bytes) -> tuple[int, bool, bytes] | None: ...
    def put(
        self,
        key: str | bytes,
        value: Buffer,
        is_json: bool,
        *,
        ttl_ms: int | None,
        version: int | None,
    ) -> int | None: ...
    def delete(self, key: str | bytes) -> bool: ...
    def increment(self, key: str | bytes, by: int) -> int: ...
    def batch(self, operations: Sequence[tuple[object, ...]]) -> list[Any] | None: ...
    def scan(
        self,
        *,
        prefix: str | bytes,
        start: str | bytes | None,
        end: str | bytes | None,
        limit: int,
        cursor: str | bytes | None,
        bytes_keys: bool,
    ) -> tuple[list[tuple[str | bytes, tuple[int, bool, bytes]]], str | bytes | None]: ...
    def dump(self, write: Callable[[bytes], object]) -> None: ...
    def load(self, lines: bytes, first: int) -> None: ...
    def check(self) -> tuple[int, list[tuple[str | bytes, str]]]: ...
    def compact(self) -> tuple[int, int]: ...
    def sync(self) -> None: ...

@final
class SharedCounters:
    def __new__(cls, descriptor: int) -> Self: ...
    def fileno(self) -> int: ...
    @property
    def page_indices(self) -> list[int]: ...
    def retire(self, index: int) -> None: ...

def insert_store(
    server: Server, name: str, store: Store
) -> list[tuple[str, str, str, str, str | None]]: ...
