"""What `ucall._core` has for several processes: counters, stores and batches."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, Self, final

from typing_extensions import Buffer

from ucall._core import Server

__all__ = [
    "BatchProcesses",
    "BrokerCalls",
    "ProcessDescription",
    "ProcessFunction",
    "SharedCounters",
    "Store",
    "insert_store",
    "refuse_worker",
    "run_batches",
]

#: A function as its process describes it: its name, itself, its signature and its encoder.
ProcessDescription = tuple[
    str, Callable[..., Any], Sequence[object], Callable[[Any], object], Sequence[tuple[int, float]]
]

@final
class BatchProcesses:
    def __new__(cls, count: int, parallel: int) -> Self: ...
    def function(self, index: int) -> ProcessFunction: ...
    @property
    def ready(self) -> int: ...
    @property
    def is_used(self) -> bool: ...
    def open(self, has_host: bool) -> None: ...
    def serve(
        self,
        process: int,
        semaphore: tuple[int, int] | None,
        socket: int,
        exit: int,
        on_ready: Callable[[], object],
    ) -> tuple[Literal["closed", "died", "deadline", "invalid", "failed"], str, bool]: ...
    def serve_worker(self, socket: int) -> None: ...
    def end_batches(
        self, process: int, why: str, may_repeat: bool
    ) -> tuple[int, list[tuple[str, str]]]: ...
    def fail_unserved(self) -> int: ...
    def close(self) -> None: ...

@final
class ProcessFunction:
    def __call__(self, *arguments: Any) -> Any: ...

def refuse_worker(socket: int, reason: str) -> None: ...
def run_batches(
    sockets: tuple[int, int],
    functions: Sequence[ProcessDescription],
    failure: str | None,
    *,
    debug: bool,
    max_reply_bytes: int,
    find_error: Callable[[BaseException], object] | None,
) -> None: ...

@final
class BrokerCalls:
    def __new__(cls, server: Server, methods: Sequence[str]) -> Self: ...
    def call(self, method: int, params: bytes, head: bytes, has_reply: bool) -> int | None: ...
    def cancel(self, number: int) -> None: ...
    def fileno(self) -> int: ...
    def take_replies(self) -> list[tuple[int, bytes]]: ...
    def count(self, method: int, nanoseconds: int, error: str | None) -> None: ...
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
