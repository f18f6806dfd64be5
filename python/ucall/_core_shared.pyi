"""The classes of `ucall._core` whose state processes share: counters and stores."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self, final

from typing_extensions import Buffer

__all__ = ["SharedCounters", "Store"]

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
    ) -> Store: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def get(self, key: str | Buffer) -> tuple[int, bool, bytes] | None: ...
    def put(
        self,
        key: str | Buffer,
        value: Buffer,
        is_json: bool,
        *,
        ttl_ms: int | None,
        version: int | None,
    ) -> int | None: ...
    def delete(self, key: str | Buffer) -> bool: ...
    def increment(self, key: str | Buffer, by: int) -> int: ...
    def batch(self, operations: Sequence[tuple[object, ...]]) -> list[Any] | None: ...
    def scan(
        self,
        *,
        prefix: str | Buffer,
        start: str | Buffer | None,
        end: str | Buffer | None,
        limit: int,
        cursor: str | Buffer | None,
    ) -> tuple[list[tuple[str | bytes, tuple[int, bool, bytes]]], str | bytes | None]: ...
    def compact(self, target: str | PathLike[str]) -> None: ...
    def sync(self) -> None: ...

@final
class SharedCounters:
    def __new__(cls, descriptor: int) -> Self: ...
    def fileno(self) -> int: ...
    @property
    def page_indices(self) -> list[int]: ...
    def retire(self, index: int) -> None: ...
