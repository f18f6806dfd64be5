"""Runs batches of an example before the server listens, as the first ones of a model are slow: it
compiles, chooses algorithms and reserves memory for each size.

A batch runs where those of callers do: on the server's thread, in its event loop or in a thread.
Each size runs twice: the first run is the slow one, the second shows the time of such a batch.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from ucall import _core
from ucall._core import Context
from ucall._functions import batches, signatures
from ucall._server import launch

if TYPE_CHECKING:
    from ucall._functions.registration import BatchRules

__all__ = ["WarmUp", "run_all", "sizes"]

T = TypeVar("T")

#: Makes the argument of a parameter for a batch of a size.
Column = Callable[[int], Any]


def sizes(max_size: int) -> list[int]:
    """The sizes that a function is warmed up with: the powers of two, and the largest size."""
    powers = (1 << power for power in itertools.count())
    return [*itertools.takewhile(lambda size: size < max_size, powers), max_size]


class WarmUp:
    """The example of a function's batches.

    Args:
        name: The function's name.
        function: The function.
        hints: Its annotations.
        rules: The limits of its batches, and the example.
        in_thread: Whether its batches run in threads.

    Raises:
        TypeError: The example does not fit the function; the message names it.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        hints: dict[str, object],
        rules: BatchRules,
        in_thread: bool,
    ) -> None:
        self.name = name
        self.is_async = signatures.is_async(function)
        self._in_thread = in_thread
        self._function = function
        self._yields = signatures.yields(function)
        self._sizes = sizes(rules.max_size)
        #: Whether the size of a batch says what it weighs.
        self.has_sizes = not self._yields and (rules.rows or rules.weight is None)
        self._example = _example(name, function, hints, rules.warm_up or ())
        #: The seconds that a batch of each size has taken; empty before it is warm.
        self.times: dict[int, float] = {}

    @property
    def is_warm(self) -> bool:
        return bool(self.times)

    def run(self) -> None:
        """Runs a plain function where its batches run.

        Raises:
            RuntimeError: It fails; the message names the size.
        """
        self._run_in_thread().result() if self._in_thread else self._run()

    async def run_async(self) -> None:
        """Runs an async function: see `run`."""
        times: dict[int, float] = {}
        for size in self._sizes * 2:
            began = time.perf_counter()
            try:
                made = self._call(size)
                self._check(await (_first_async(made) if self._yields else made), size)
            except Exception as failure:
                raise self._failure(size, failure) from failure
            times[size] = time.perf_counter() - began
        self.times = times

    def _run(self) -> None:
        times: dict[int, float] = {}
        for size in self._sizes * 2:
            began = time.perf_counter()
            try:
                made = self._call(size)
                self._check(_first(made) if self._yields else made, size)
            except Exception as failure:
                raise self._failure(size, failure) from failure
            times[size] = time.perf_counter() - began
        self.times = times

    def _run_in_thread(self) -> Future[None]:
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._run()
            except BaseException as failure:
                done.set_exception(failure)
            else:
                done.set_result(None)

        threading.Thread(target=run, name="ucall-warm-up", daemon=True).start()
        return done

    def described(self, seconds: float) -> str:
        """A line of the log: the sizes, and how long their batches take."""
        times = (f"{size}: {self.times[size] * 1e3:.3g} ms" for size in self._sizes)
        return f"{self.name} is warm after {seconds:.3g} s; batches of {', '.join(times)}"

    def _call(self, size: int) -> Any:
        by_position, by_name = self._example
        named = {name: column(size) for name, column in by_name.items()}
        return self._function(*(column(size) for column in by_position), **named)

    def _check(self, made: Any, size: int) -> None:
        results = None if isinstance(made, (str, dict)) else list(made)
        if results is None or len(results) != size:
            got = type(made).__name__ if results is None else str(len(results))
            raise ValueError(f"expected {size} results, got {got}")
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _failure(self, size: int, failure: Exception) -> RuntimeError:
        reason = f"{type(failure).__name__}: {failure}"
        return RuntimeError(f"{self.name}: warm_up: a batch of {size} failed: {reason}")


def run_all(core: _core.Server, warm_ups: Iterable[WarmUp]) -> Awaitable[None] | None:
    """Runs those that have not run. What it returns, if anything, runs the async ones."""
    cold = [it for it in warm_ups if not it.is_warm]
    for it in cold:
        if not it.is_async:
            began = time.perf_counter()
            it.run()
            _report(core, it, began)
    cold = [it for it in cold if it.is_async]
    return _run_async(core, cold) if cold else None


async def _run_async(core: _core.Server, cold: list[WarmUp]) -> None:
    for it in cold:
        began = time.perf_counter()
        await it.run_async()
        _report(core, it, began)


def _report(core: _core.Server, warm_up: WarmUp, began: float) -> None:
    if warm_up.has_sizes:
        _core.seed_batches(core, warm_up.name, sorted(warm_up.times.items()))
    launch.announce(warm_up.described(time.perf_counter() - began))


def _first(generator: Iterator[T]) -> T:
    """The items of the first step, which is the slow one."""
    try:
        return next(generator)
    finally:
        generator.close()  # type: ignore[attr-defined]


async def _first_async(generator: AsyncIterator[T]) -> T:
    try:
        return await anext(generator)
    finally:
        await generator.aclose()  # type: ignore[attr-defined]


def _example(
    name: str, function: Callable[..., Any], hints: dict[str, object], values: Sequence[object]
) -> tuple[list[Column], dict[str, Column]]:
    """What makes the arguments of a batch of a size: those by position, and those by name."""
    parameters = [
        it.replace(annotation=hints.get(it.name, it.empty))
        for it in inspect.signature(function).parameters.values()
    ]
    if any(batches.item_of(it.annotation) is Context for it in parameters):
        raise TypeError(f"{name}: warm_up: a batch that takes contexts has none before its calls")
    needed = [it.name for it in parameters if it.default is it.empty]
    if not len(needed) <= len(values) <= len(parameters):
        expected = ", ".join(it.name for it in parameters)
        raise TypeError(
            f"{name}: warm_up: expected a value for each parameter ({expected}), got {len(values)}"
        )
    by_position: list[Column] = []
    by_name: dict[str, Column] = {}
    for parameter, value in zip(parameters, values, strict=False):
        column = _column(parameter.annotation, value)
        if parameter.kind is parameter.KEYWORD_ONLY:
            by_name[parameter.name] = column
        else:
            by_position.append(column)
    return by_position, by_name


def _column(annotation: Any, value: object) -> Column:
    if batches.is_array(annotation):
        import numpy

        return lambda size: numpy.stack([numpy.asarray(value)] * size)
    is_unknown = annotation in (Any, inspect.Parameter.empty)
    if not is_unknown and batches.item_of(annotation) is annotation:
        return lambda size: value  # One value for all calls of a batch.
    return lambda size: [value] * size
