"""Models that each process which serves loads once, before its first call.

The name of a decorated function is the `Model`, which functions call for what the function has
returned. It is pickled by that name, so that a process of a pool finds its own one.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ucall._functions import signatures
from ucall._workers import process_role

__all__ = ["Model"]

T = TypeVar("T")

#: The value of a model that is not loaded.
_ABSENT: Any = object()


class Model(Generic[T]):
    """What `ucall.Server.model` makes of a function that loads a model: call it for the model.

    Args:
        load: The function, plain or async, which may take the device of its process.
        in_processes: Whether the processes of ``processes=`` load it, rather than the server's own
            process; ``None``: if there are any.

    Raises:
        TypeError: It is no function, or takes more than the device.
    """

    def __init__(self, load: Callable[..., Any], in_processes: bool | None) -> None:
        if not callable(load):
            raise TypeError(f"model: expected a function, got {type(load).__name__}")
        functools.update_wrapper(self, load)
        self.name = str(getattr(load, "__qualname__", load))
        self.in_processes = in_processes
        self.is_async = signatures.is_async(load)
        self._load = load
        self._takes_device = signatures.takes_argument(load, "the device of the process")
        self._value: T = _ABSENT

    def __call__(self) -> T:
        """The model.

        Raises:
            RuntimeError: This process has not loaded it.
        """
        if self._value is _ABSENT:
            raise RuntimeError(
                f"the model {self.name!r} is not loaded in this process: a server loads it when it "
                "starts, in the processes of processes= if it has any, else in its own; "
                "server.model(in_processes=...) chooses"
            )
        return self._value

    @property
    def is_loaded(self) -> bool:
        """Whether this process has loaded it."""
        return self._value is not _ABSENT

    def load(self) -> Awaitable[None] | None:
        """Loads it, unless that has been done; awaits what an async function returns."""
        if self.is_loaded:
            return None
        loaded = self._load(process_role.device) if self._takes_device else self._load()
        if self.is_async or isinstance(loaded, Awaitable):
            return self._await(loaded)
        self._value = loaded
        return None

    async def _await(self, loading: Awaitable[T]) -> None:
        self._value = await loading

    def __reduce__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<model {self.name}, {'loaded' if self.is_loaded else 'not loaded'}>"
