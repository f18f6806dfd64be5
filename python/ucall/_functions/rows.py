"""Functions whose calls have several rows each: `ucall.Server.batch` with ``rows=True``.

The core calls a `RowsFunction` in place of the function, with the rows of each call. It joins those
of all calls, splits them where a batch is full, and gives each call the results of its rows.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from ucall._functions import batches, signatures
from ucall.errors import RPCError

__all__ = ["RowsFunction", "weigh_by", "wrap"]

Function = Callable[..., Any]
#: A list or an array.
Rows: TypeAlias = Any
#: The runs of a function: yields the arguments of each, and is sent its result.
Runs: TypeAlias = Generator[tuple[list[Any], dict[str, Any]], Any, list[Any]]

_INVALID_PARAMS = -32602


class Limits(Protocol):
    """Those of one batch."""

    @property
    def max_size(self) -> int: ...
    @property
    def weight(self) -> Callable[..., int] | None: ...
    @property
    def max_weight(self) -> int | None: ...


def weigh_by(weight: Callable[..., int] | None, max_weight: int | None) -> Callable[..., int]:
    """What weighs a call: the number of its rows, or the sum of their weights."""

    def weigh(*arguments: Any) -> int:
        rows = [it for it in arguments if _is_rows(it)]
        if weight is None:
            return max(map(len, rows), default=0)
        weights = _weights(weight, arguments)
        heaviest = max(weights, default=0)
        if max_weight is not None and heaviest > max_weight:
            problem = f"expected rows of a weight of at most max_weight, {max_weight}"
            raise RPCError(_INVALID_PARAMS, "Invalid params", f"{problem}, got {heaviest}")
        return sum(weights)

    return weigh


def _is_rows(argument: object) -> bool:
    return isinstance(argument, list) or getattr(argument, "ndim", 0) > 0


def _weights(weight: Callable[..., int], columns: Sequence[Any]) -> list[int]:
    """The weight of each row, by the row and the scalars."""
    count = max((len(it) for it in columns if _is_rows(it)), default=0)
    each = [it if _is_rows(it) else itertools.repeat(it, count) for it in columns]
    return [weight(*row) for row in zip(*each, strict=False)]


def wrap(function: Function, name: str, hints: dict[str, object], limits: Limits) -> RowsFunction:
    """What the core calls in place of a function.

    Raises:
        TypeError: It is a generator.
    """
    if signatures.yields(function):
        raise TypeError(f"{name}: rows: is for functions that return, and this is a generator")
    parameters = signatures.parameters_of(function, hints)
    kind = AsyncRowsFunction if signatures.is_async(function) else RowsFunction
    return kind(function, parameters, limits)


class RowsFunction:
    """A function, as the core calls it: an argument that has rows is a list with those of each
    call, and another one is the value that all of the calls have."""

    def __init__(
        self, function: Function, parameters: list[inspect.Parameter], limits: Limits
    ) -> None:
        self._function = function
        self._parameters = [
            (it.name, it.kind is it.KEYWORD_ONLY, batches.has_rows(it.annotation))
            for it in parameters
        ]
        self._limits = limits

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        runs = self._runs(arguments, named)
        try:
            positional, by_name = next(runs)
            while True:
                positional, by_name = runs.send(self._function(*positional, **by_name))
        except StopIteration as end:
            return end.value

    def _runs(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Runs:
        """Runs the function for all calls; returns the results of each."""
        given = iter(arguments)
        columns = [named[name] if by_name else next(given) for name, by_name, _ in self._parameters]
        calls = len(next(it for it, rows in zip(columns, self._has_rows(), strict=True) if rows))
        results: list[Any] = [None] * calls
        groups: dict[tuple[object, ...], list[int]] = {}
        for call in range(calls):
            try:
                groups.setdefault(self._key(columns, call), []).append(call)
            except RPCError as error:
                results[call] = error
        for group in groups.values():
            joined = [
                _joined([column[call] for call in group]) if rows else column
                for column, rows in zip(columns, self._has_rows(), strict=True)
            ]
            lengths = [self._length(columns, call) for call in group]
            made = yield from self._run_rows(joined, sum(lengths))
            ends = list(itertools.accumulate(lengths))
            for call, length, end in zip(group, lengths, ends, strict=True):
                results[call] = _of_call(made[end - length : end])
        return results

    def _has_rows(self) -> Iterator[bool]:
        return (rows for _, _, rows in self._parameters)

    def _rows_of(self, columns: list[Any], call: int) -> list[tuple[str, Rows]]:
        named = zip(self._parameters, columns, strict=True)
        return [(name, column[call]) for (name, _, rows), column in named if rows]

    def _length(self, columns: list[Any], call: int) -> int:
        return len(self._rows_of(columns, call)[0][1])

    def _key(self, columns: list[Any], call: int) -> tuple[object, ...]:
        """What the rows of calls have in common that the function runs for at once.

        Raises:
            RPCError: Its params have no rows, or not as many each.
        """
        rows = self._rows_of(columns, call)
        for name, it in rows:
            if not _is_rows(it):
                raise _invalid(f"{name}: expected a list, or an array with a dimension of rows")
        first, count = rows[0][0], len(rows[0][1])
        for name, it in rows:
            if len(it) != count:
                raise _invalid(f"{name}: expected {count} rows, as {first} has, got {len(it)}")
        return tuple(None if isinstance(it, list) else (it.shape[1:], it.dtype) for _, it in rows)

    def _run_rows(
        self, columns: list[Any], count: int
    ) -> Generator[tuple[list[Any], dict[str, Any]], Any, Rows]:
        """Runs the function for these rows, in batches; returns the results of all."""
        made: list[Rows] = []
        for start, end in self._batches(columns, count):
            positional: list[Any] = []
            by_name: dict[str, Any] = {}
            for (name, is_named, rows), column in zip(self._parameters, columns, strict=True):
                part = column[start:end] if rows else column
                if is_named:
                    by_name[name] = part
                else:
                    positional.append(part)
            result = yield positional, by_name
            made.append(_checked(result, end - start))
        return _joined(made) if made else []

    def _batches(self, columns: list[Any], count: int) -> Iterator[tuple[int, int]]:
        """The start and the end of each batch."""
        limits = self._limits
        weights = [0] * count
        if limits.weight is not None and limits.max_weight is not None:
            weights = _weights(limits.weight, columns)
        start, weight = 0, 0
        for row, own in enumerate(weights):
            is_full = row - start == limits.max_size
            if is_full or (row > start and weight + own > (limits.max_weight or weight + own)):
                yield start, row
                start, weight = row, 0
            weight += own
        if start < count:
            yield start, count


class AsyncRowsFunction(RowsFunction):
    """The same of an async function."""

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        runs = self._runs(arguments, named)
        try:
            positional, by_name = next(runs)
            while True:
                positional, by_name = runs.send(await self._function(*positional, **by_name))
        except StopIteration as end:
            return end.value


def _joined(parts: list[Rows]) -> Rows:
    """All rows of these, as an array if all are arrays."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, list) for part in parts):
        return [row for part in parts for row in part]
    import numpy

    return numpy.concatenate(parts)


def _checked(result: Any, count: int) -> Rows:
    """The results of so many rows, as a list or an array."""
    if getattr(result, "ndim", 0) == 0:
        if isinstance(result, (str, dict)) or not hasattr(result, "__iter__"):
            raise _mismatch(f"expected a list of {count} results")
        result = list(result)
    if len(result) != count:
        raise _mismatch(f"expected {count} results for a batch of {count}, got {len(result)}")
    return result


def _of_call(rows: Rows) -> Any:
    """The result of a call with these results, or the first exception among them."""
    if isinstance(rows, list):
        failures = (row for row in rows if isinstance(row, BaseException))
        return next(failures, rows)
    return rows


def _invalid(problem: str) -> RPCError:
    return RPCError(_INVALID_PARAMS, "Invalid params", problem)


def _mismatch(problem: str) -> RPCError:
    return RPCError(-32603, "Internal error", problem)
