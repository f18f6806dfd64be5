"""Checks how a function is to run, and describes it for the core."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ucall._functions import signatures
from ucall._server import checked

if TYPE_CHECKING:
    from ucall._asgi.mount import Application
    from ucall._core import Call, Context
    from ucall.types.registry import TypeRegistry

__all__ = [
    "Address",
    "BatchRules",
    "Hook",
    "Hooks",
    "Registration",
    "Spans",
    "StreamRules",
    "described_run",
    "register",
    "register_route",
]

#: What happens to the items of a stream whose reader is slow.
OVERFLOWS = ("pause", "drop_oldest", "drop_newest", "close")

Function = Callable[..., Any]
#: What runs around calls.
Hook = Callable[["Context", "Call"], Any]


@dataclass(frozen=True)
class BatchRules:
    """The limits of a function's batches, which the core reads by their names."""

    max_size: int
    max_wait_ms: float
    parallel: int
    weight: Callable[..., int] | None = None
    max_weight: int | None = None
    #: A value for each parameter, which batches run with before the server listens.
    warm_up: Sequence[object] | None = None
    #: The number of calls that one generator has at once, in place of batches.
    slots: int | None = None
    #: The number of processes that run them, if they do not run in the server's.
    processes: int | None = None
    #: The devices of the processes, which take them in turn.
    devices: Sequence[str] | None = None
    #: Whether a call has several rows, which may be in several batches.
    rows: bool = False

    def __post_init__(self) -> None:
        self._check_processes()
        if not isinstance(self.warm_up, (tuple, list, type(None))):
            got = type(self.warm_up).__name__
            raise TypeError(f"warm_up: expected a tuple with a value for each parameter, got {got}")
        if self.slots is not None:
            self._check_slots(self.slots)
        checked.positive("max_size", self.max_size)
        checked.positive("parallel", self.parallel)
        if self.weight is not None and not callable(self.weight):
            raise TypeError(f"weight: expected a function, got {type(self.weight).__name__}")
        if self.max_weight is not None:
            checked.positive("max_weight", self.max_weight)
            if self.weight is None:
                raise TypeError("max_weight: expected weight=, a function of a call's arguments")
        if not 0 <= self.max_wait_ms <= 60_000:
            raise ValueError(f"max_wait_ms: expected 0 to 60,000, got {self.max_wait_ms}")

    def _check_slots(self, slots: int) -> None:
        checked.positive("slots", slots)
        rules = (self.max_size, self.max_wait_ms, self.parallel, self.weight, self.warm_up)
        if rules != (64, 0, 1, None, None) or self.rows:
            raise TypeError(
                "slots: a generator with slots takes calls as they come, "
                "and no max_size, max_wait_ms, parallel, weight, warm_up or rows"
            )

    def _check_processes(self) -> None:
        if self.devices is not None:
            are_names = all(isinstance(device, str) and device for device in self.devices)
            if isinstance(self.devices, str) or not are_names:
                raise TypeError(f"devices: expected a list of names, got {self.devices!r}")
            if not self.devices:
                raise ValueError("devices: expected at least one")
        if self.processes is not None:
            checked.positive("processes", self.processes)

    @property
    def process_devices(self) -> tuple[str | None, ...]:
        """The device of each process; none if batches run in the server's process."""
        devices: Sequence[str | None] = self.devices or [None]
        count = self.processes
        if count is None:
            count = 0 if self.devices is None else len(devices)
        return tuple(devices[number % len(devices)] for number in range(count))

    @property
    def process_count(self) -> int:
        """The number of processes; 0 if batches run in the server's process."""
        return len(self.process_devices)


@dataclass(frozen=True)
class StreamRules:
    """How the callers of a generator get its items: the options of `ucall.Server.add`."""

    stream: str | None = None
    overflow: str | None = None

    def __post_init__(self) -> None:
        if self.stream not in (None, "only"):
            raise ValueError(f"stream: expected 'only', got {self.stream!r}")
        if self.overflow not in (None, *OVERFLOWS):
            expected = ", ".join(map(repr, OVERFLOWS))
            raise ValueError(f"overflow: expected one of {expected}, got {self.overflow!r}")

    def check_unused(self, name: str) -> None:
        """Raises TypeError if any option is given, as the function is no generator."""
        for option in ("stream", "overflow"):
            if getattr(self, option) is not None:
                raise TypeError(f"{name}: {option}: is for generators, and this is none")

    @property
    def described(self) -> tuple[bool, str]:
        return self.stream == "only", self.overflow or "pause"


@dataclass(frozen=True)
class Hooks:
    """The hooks of a function, which the core reads by their names."""

    #: What the core calls with the context and the call.
    outermost: Hook
    #: Those within, from the outside in.
    inner: Sequence[Hook]
    #: How many of these are async.
    inner_async: int
    #: How the outermost one runs: one of `_MODES`.
    mode: str
    #: Makes the coroutine that the last async hook awaits; `None` if the function returns one.
    later: Callable[[Call], Awaitable[object]] | None
    #: For the log.
    names: str


@dataclass(frozen=True)
class Registration:
    """A function as the core gets it."""

    function: Function
    signature: list[signatures.Parameter] | None
    mode: str
    batch: BatchRules | None
    stream: tuple[bool, str] | None
    #: Its annotations, by the names of its parameters and ``"return"``.
    hints: dict[str, object]
    #: What its description shows of it, if that is another function.
    described: Function | None = None
    #: What runs around its calls.
    hooks: Hooks | None = None

    @property
    def runs_as(self) -> str:
        """The mode of its calls, with the hooks around them."""
        return self.mode if self.hooks is None else self.hooks.mode


@dataclass(frozen=True)
class Address:
    """Where a server listens, as spans in other processes name it."""

    host: str
    port: int | None


class Spans(Protocol):
    """Wraps functions, so that their calls are traced."""

    #: Finds the error that the caller of a function gets for an exception.
    find_error: Callable[[BaseException], Any]

    def wrap(self, registration: Registration, /) -> Registration:
        """The registration of a function with its spans."""

    def in_process(self, function: Function, /) -> Function:
        """The function as a pool of processes runs it."""

    def address(self) -> Address:
        """The address of the server, for the spans that other processes make."""

    def mounted(self, app: Application, prefix: str, /) -> Application:
        """The application at a path with spans of its requests."""


def register(
    function: Function,
    name: str,
    registry: TypeRegistry,
    *,
    threads: bool | None,
    threads_by_default: bool,
    pool: Any | None,
    timeout_ms: float | None,
    max_waiting: int | None,
    batch: BatchRules | None,
    batch_pool: Any | None,
    stream: StreamRules,
    spans: Spans | None,
) -> Registration:
    """Decides where a function runs: inline, as a task, in a thread or in a process.

    Args:
        threads: The function's own option.
        threads_by_default: The server's option, for plain functions.
        pool: The `ucall._functions.process_pool.Pool` that it runs in, if any.
        timeout_ms: Time after which a process that runs a call is killed.
        max_waiting: Calls that may wait for a thread, a process or a batch.
        batch: The limits of its batches, if it takes batches.
        batch_pool: The `ucall._functions.batch_processes.BatchPool` that runs them, if any.
        stream: How callers get its items, if it is a generator.
        spans: If its calls are traced, continues the trace in a process. The registration is not
            traced yet: `Spans.wrap`.

    Raises:
        TypeError: The function cannot run in the requested way; the message names it.
    """
    is_async, yields = signatures.is_async(function), signatures.yields(function)
    is_wrapper = batch is None and signatures.is_plain_wrapper(function)
    if is_wrapper and (threads or pool is not None):  # It runs as what it is itself.
        is_async = yields = is_wrapper = False
    _check_conflicts(name, is_async, yields, threads, pool or batch_pool)
    if not yields:
        stream.check_unused(name)
    described = stream.described if yields else None
    in_threads = threads_by_default if threads is None else threads
    mode = _mode_of(is_async, yields, in_threads)
    if max_waiting is not None:
        checked.positive("max_waiting", max_waiting)
        if batch is None and pool is None and not mode.startswith("thread"):
            raise TypeError(
                f"{name}: max_waiting: is for functions that run in threads, processes or batches"
            )
    hints = signatures.evaluate_annotations(function, name)
    if batch is not None and batch.slots is not None:
        from ucall._functions import slots

        served, items, shown, hints = slots.adapt(function, name, hints, registry)
        return Registration(served, items, mode, batch, described, hints, shown)
    if batch is not None:
        from ucall._functions import batches

        items = batches.describe(function, name, hints, registry, rows=batch.rows)
        if batch_pool is not None:
            if any(takes == "context" for _, _, takes, *_ in items):
                problem = "a context stays in the server's process: serve it by threads=True"
                raise TypeError(f"{name}: takes the contexts of its calls; {problem}")
            in_process = batch_pool.add(function, name, batch, registry)
            rules = _rules_of_calls(batch) if batch.rows else batch
            return Registration(in_process, items, "thread", rules, None, hints)
        if batch.rows:
            from ucall._functions import rows

            joining, rules = rows.wrap(function, name, hints, batch), _rules_of_calls(batch)
            return Registration(joining, items, mode, rules, described, hints)
        return Registration(function, items, mode, batch, described, hints)
    signature = signatures.describe(function, name, hints, registry)
    if pool is not None:
        takes_context = any(takes == "context" for _, _, takes, *_ in signature or ())
        in_process = function if spans is None else spans.in_process(function)
        submit = pool.submitter(
            in_process, timeout_ms, takes_context=takes_context, max_waiting=max_waiting
        )
        return Registration(submit, signature, "future", None, None, hints)
    if is_wrapper:
        from ucall._functions import wrappers

        function = wrappers.adapt(function, is_async, yields)
    return Registration(function, signature, mode, None, described, hints)


def _rules_of_calls(batch: BatchRules) -> BatchRules:
    """The limits of calls that have rows: they weigh as much as these."""
    from ucall._functions import rows

    weight = rows.weigh_by(batch.weight, batch.max_weight)
    max_weight = batch.max_size if batch.weight is None else batch.max_weight
    return replace(batch, weight=weight, max_weight=max_weight)


#: The core's modes of functions that return and of generators: async, in a thread, neither. Each
#: has calls of its own and batches of calls:
#:
#: | mode             | a call                      | a batch                                     |
#: | inline           | a switch would cost more    | one array expression for all                |
#: | task             | awaits                      | awaits one request to a model's server      |
#: | thread           | blocks                      | a model that computes without the lock      |
#: | generator        | computes each item          | the next item of all, by one expression     |
#: | async_generator  | awaits each item            | awaits the next token of all                |
#: | thread_generator | blocks for each item        | a model that computes the next token of all |
#:
#: Processes run calls and batches that return: items would need a way back to the server's process.
#: Batches that run there are of the mode thread, too.
_MODES = {
    False: ("task", "thread", "inline"),
    True: ("async_generator", "thread_generator", "generator"),
}


def described_run(mode: str, processes: int | None, batch: BatchRules | None) -> str:
    """How a function runs, in words, unless that is as by default: one call after another on the
    server's thread."""
    parts = []
    if batch is not None and batch.slots is not None:
        parts.append(f"in {batch.slots} slots")
    elif batch is not None:
        parts.append(f"in batches of up to {batch.max_size}{' rows' if batch.rows else ''}")
    if processes is None and batch is not None:
        processes = batch.process_count or None
    if processes is not None:
        devices = "" if batch is None or not batch.devices else f" on {', '.join(batch.devices)}"
        parts.append(f"in {processes} process{'es' if processes > 1 else ''}{devices}")
    elif mode in ("thread", "thread_generator"):
        parts.append("in threads")
    if batch is not None and batch.warm_up is not None:
        parts.append("warm")
    return ", ".join(parts)


def register_route(
    path: str, is_async: bool, threads: bool | None, threads_by_default: bool, *, stream_body: bool
) -> str:
    """Decides where the generator of a route's responses runs.

    Raises:
        TypeError: It cannot run in the requested way.
    """
    _check_conflicts(path, is_async, True, threads, None)
    in_threads = threads_by_default if threads is None else threads
    if stream_body and not (is_async or in_threads):
        raise TypeError(
            f"{path}: stream_body: expected an async function, or threads=True: others would hold "
            "up the server until the body has arrived"
        )
    return _mode_of(is_async, True, in_threads)


def _mode_of(is_async: bool, yields: bool, in_threads: bool) -> str:
    return _MODES[yields][0 if is_async else 1 if in_threads else 2]


def _check_conflicts(
    name: str, is_async: bool, yields: bool, threads: bool | None, pool: Any | None
) -> None:
    if threads is not None and not isinstance(threads, bool):
        raise TypeError(
            f"{name}: threads: expected True or False, got {threads!r}; "
            "how many there are is Server(max_threads=...)"
        )
    if yields and pool is not None:
        raise TypeError(
            f"{name}: is a generator, and cannot run in another process; "
            "serve it by threads=True, or return a list"
        )
    if is_async and pool is not None:
        raise TypeError(f"{name}: is async, and cannot run in another process")
    if is_async and threads:
        raise TypeError(
            f"{name}: is async, and runs as a task; threads=True is for plain functions"
        )
    if threads and pool is not None:
        raise TypeError(f"{name}: expected threads or processes, not both")
