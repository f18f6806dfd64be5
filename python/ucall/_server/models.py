"""What a server does for models: it loads them in each process that serves."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from ucall._functions.loading import Model
    from ucall._functions.table import Functions
    from ucall._server.lifespan import LifespanHooks

__all__ = ["ModelDecorators"]

T = TypeVar("T")


class ModelDecorator(Protocol):
    """Makes a model of a function that loads it."""

    @overload
    def __call__(self, load: Callable[..., Awaitable[T]], /) -> Model[T]: ...

    @overload
    def __call__(self, load: Callable[..., T], /) -> Model[T]: ...


class ModelDecorators:
    """The part of `ucall.Server` that loads models."""

    _functions: Functions
    _lifespan: LifespanHooks

    @overload
    def model(self, load: Callable[[], Awaitable[T]], /) -> Model[T]: ...

    @overload
    def model(self, load: Callable[[Any], Awaitable[T]], /) -> Model[T]: ...

    @overload
    def model(self, load: Callable[[], T], /) -> Model[T]: ...

    @overload
    def model(self, load: Callable[[Any], T], /) -> Model[T]: ...

    @overload
    def model(self, *, in_processes: bool | None = None) -> ModelDecorator: ...

    def model(self, load: Any = None, *, in_processes: bool | None = None) -> Any:
        """Registers a function that loads a model, once in each process that serves::

            @server.model
            def encoder(device: str | None) -> Encoder:
                return Encoder(device or "cpu")

            @server.batch(threads=True)
            def embed(texts: list[str]) -> list[list[float]]:
                return encoder().encode(texts)

        The decorated name is called for what the function has returned. Models are loaded before
        ``/readyz`` turns green and before the first call: in the server's process in the order of
        the startup hooks, which may use the models before them, and in each process of
        ``processes=``, where models must be at the top of a module, in that of the hooks of
        `on_process_start`. The function may be async. If it raises, the server does not start; in
        the successor of a process that has died, as if such a hook had raised.

        Args:
            load: Takes nothing, or the device of its process: that of ``devices=``, else ``None``.
            in_processes: Whether the processes of ``processes=`` load the model, and the server's
                own process, with its threads, does not. By default if the server has any.

        Raises:
            TypeError: It is no function, or takes more than the device.
        """
        from ucall._functions.loading import Model

        def add(load: Callable[..., T]) -> Model[T]:
            model: Model[T] = Model(load, in_processes)
            self._functions.pools.add_model(model)
            self._functions.is_async |= model.is_async
            self._lifespan.startup.append(
                functools.partial(self._functions.pools.load_model, model)
            )
            return model

        return add if load is None else add(load)
