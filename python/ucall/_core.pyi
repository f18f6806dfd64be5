"""The engine room of the package, in Rust (crates/ucall-python)."""

from collections.abc import Callable, Sequence
from typing import Final, final

__all__ = ["VERSION", "Server"]

VERSION: Final[str]

@final
class Server:
    def __new__(
        cls,
        engine: str,
        host: str,
        port: int,
        *,
        debug: bool,
        allowed_hosts: Sequence[str],
        allow_origins: Sequence[str],
        limits: dict[str, float],
    ) -> Server: ...
    @property
    def port(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def is_running(self) -> bool: ...
    def insert(
        self, name: str, function: Callable[..., object], signature: Sequence[object] | None
    ) -> None: ...
    def run(
        self, max_cycles: int, max_seconds: float, on_start: Callable[[], object] | None
    ) -> None: ...
    def stop(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    @staticmethod
    def default_limits() -> dict[str, float]: ...
