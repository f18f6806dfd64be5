"""Processes for functions that take batches. Each runs them on its main thread, and has a device.

One queue is for all processes of a pool; the least busy one gets the next batch. A thread starts
each process and serves it in the core, without the interpreter's lock, which passes the params of
the calls on as they are: the process reads them, calls the function and writes the results.
`pool_process` starts the processes.

The workers of a server share processes: those of their host (`ucall._workers.pool_host`), which has
the same pools as each of them. A pool of a worker serves the host in place of its processes.

| a process | its batch | its successor |
|---|---|---|
| dies | fails; an idempotent one runs once more | starts at once, if it served for a second |
| runs a batch past ``timeout_ms`` | has failed | likewise; the process is killed |
| writes something else to its socket | as if it died | likewise; the process is killed |
| dies before it is ready | waits for another one, or fails without one | starts after a pause |
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from ucall import _core
from ucall._functions import pool_process
from ucall._functions.pool_process import PoolContext
from ucall._functions.process_hooks import ProcessHook, run_hooks
from ucall._workers import process_role

if TYPE_CHECKING:
    from ucall._functions.exceptions import ExceptionHandlers
    from ucall._functions.methods import ReplyOptions
    from ucall._functions.registration import Address, BatchRules, Spans
    from ucall.types.registry import TypeRegistry

__all__ = ["BatchPool"]

#: A process that has served this long did not die of its start.
_STABLE_S = 1.0
_BACK_OFF_MIN_S = 0.1
_BACK_OFF_MAX_S = 10.0
#: How long a process that has closed its socket may take to end.
_EXIT_S = 1.0
#: How often a pool of replaced functions checks whether their calls have ended.
_RETIRE_S = 0.1

Function = Callable[..., Any]
#: Connects a worker with the pool of its host that has this key.
Connect = Callable[[str], socket.socket]


@dataclass(frozen=True)
class _Function:
    """A function as its processes get it. They describe it anew."""

    function: Function
    name: str
    rules: BatchRules
    types: TypeRegistry
    #: Whether the size of a batch says what it weighs.
    has_sizes: bool

    def describe(self, spans: Spans | None) -> _core.ProcessDescription:
        """Describes the function for the process; with `spans` it makes those of its batches."""
        from ucall._functions import batches, results, signatures

        function, rules = self.function, self.rules
        hints = signatures.evaluate_annotations(function, self.name)
        signature = batches.describe(function, self.name, hints, self.types, rows=rules.rows)
        if rules.rows:
            from ucall._functions import rows

            function = rows.wrap(function, self.name, hints, rules)
        times: list[tuple[int, float]] = []
        if self.rules.warm_up is not None:
            from ucall._functions.warm_up import WarmUp

            warm_up = WarmUp(self.name, self.function, hints, self.rules, in_thread=False)
            warm_up.run()
            times = sorted(warm_up.times.items()) if self.has_sizes else []
        encode = results.encoder_of(
            self.types.encode, self.function, hints, takes_batches=not rules.rows
        )
        if spans is not None:
            from ucall._functions.registration import Registration

            plain = Registration(function, signature, "thread", rules, None, hints)
            traced = spans.wrap(plain)
            function, signature = traced.function, traced.signature or signature
        return self.name, function, signature, encode, times


class BatchPool:
    """Processes that run the batches of some functions, from `start` to `close`.

    Args:
        devices: That of each process, or None.
        parallel: The most batches that one process has at once: it runs one of them.
        hooks: Run in each process before its first batch.
        report: Called with False when a process is ready, and with True when it has ended.
        start_timeout_s: In which a process has to be ready.
        spans: If the calls are traced.
    """

    def __init__(
        self,
        devices: Sequence[str | None],
        parallel: int,
        hooks: Sequence[ProcessHook],
        options: ReplyOptions,
        report: Callable[[bool], object],
        start_timeout_s: float,
        spans: Spans | None,
    ) -> None:
        self.report = report
        self.spans = spans
        self.start_timeout_s = start_timeout_s
        self.devices = tuple(devices)
        self._parallel = parallel
        self.hooks = hooks
        self.options = options
        #: Set before the processes start.
        self.exceptions: ExceptionHandlers | None = None
        self.functions: list[_Function] = []
        #: Those of its functions that were not replaced.
        self.served: set[str] = set()
        #: Added, and not kept yet.
        self._added: _Function | None = None
        self.core = _core.BatchProcesses(len(devices), parallel)
        self.closed = threading.Event()
        self.closed.set()
        self._served: list[_Served] = []

    @property
    def names(self) -> str:
        """The names of its functions."""
        return ", ".join(it.name for it in self.functions)

    @property
    def key(self) -> str:
        """Names the same pool of another process that runs this program."""
        import hashlib

        what = self.devices, self._parallel, [it.name for it in self.functions]
        return hashlib.sha256(repr(what).encode()).hexdigest()

    def fits(self, devices: Sequence[str | None], parallel: int) -> bool:
        """Whether it takes another function: its processes are such, and have not started."""
        return self.closed.is_set() and (self.devices, self._parallel) == (devices, parallel)

    def add(
        self, function: Function, name: str, rules: BatchRules, types: TypeRegistry
    ) -> _core.ProcessFunction:
        """Adds a function, once `keep` is called; returns what the core gets in its place."""
        has_sizes = rules.rows or rules.weight is None
        if not rules.rows:
            # The server weighs the calls: by a function that a process may not find.
            rules = replace(rules, weight=None, max_weight=None)
        self._added = _Function(function, name, rules, types, has_sizes)
        return self.core.function(self._index_of(name))

    def _index_of(self, name: str) -> int:
        """The place of a function: that of an earlier one with its name, if it has one."""
        names = [it.name for it in self.functions]
        return names.index(name) if name in names else len(names)

    def keep(self) -> None:
        """Serves the function that was added last."""
        if self._added is not None:
            index = self._index_of(self._added.name)
            self.functions[index : index + 1] = [self._added]
            self.served.add(self._added.name)
            self._added = None

    def start(self, connect: Connect | None = None) -> None:
        """Starts all processes, or connects with those of the host; returns when all are ready.

        Raises:
            RuntimeError: One could not start; the message says why.
        """
        if not self.closed.is_set():
            return
        self.closed.clear()
        self.core.open(connect is not None)
        if connect is None:
            self._served = [_Process(self, number) for number in range(len(self.devices))]
        else:
            self._served = [_Host(self, connect)]
        for served in self._served:
            served.started.result()

    def retire(self) -> None:
        """Closes the pool, from a thread of its own, once none of its functions has calls."""
        if not self.closed.is_set():
            thread = threading.Thread(target=self._close_unused, name="ucall-retire", daemon=True)
            thread.start()

    def _close_unused(self) -> None:
        while self.core.is_used:
            if self.closed.wait(_RETIRE_S):
                return
        self.close()

    def close(self) -> None:
        """Kills the processes, or leaves the host. Batches that wait or run fail."""
        self.closed.set()
        self.core.close()
        for served in self._served:
            served.end()
        self._served = []


class _Served:
    """What runs batches, one after another of it, and the thread that serves them.

    Args:
        number: That of the core.
    """

    def __init__(self, pool: BatchPool, number: int) -> None:
        self._pool = pool
        self._number = number
        self._ready_at = 0.0
        #: Set when the first one is ready, or could not start.
        self.started: Future[None] = Future()
        name = f"ucall-process-{number}"
        self._thread = threading.Thread(target=self._serve_all, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends it, and waits for its thread."""
        self._thread.join()

    def _serve_all(self) -> None:
        """Serves one after another. Linux kills processes with the thread that started them."""
        pause_s = 0.0
        while not self._pool.closed.wait(pause_s):
            self._ready_at = float("inf")
            try:
                self._serve_one()
            except Exception as failure:
                who = threading.current_thread().name
                self._fail_start(who, f"could not be served: {failure}", failure)
            was_stable = time.monotonic() - self._ready_at >= _STABLE_S
            longer_s = min(max(pause_s * 2, _BACK_OFF_MIN_S), _BACK_OFF_MAX_S)
            pause_s = 0.0 if was_stable else longer_s
        self._resolve_start(RuntimeError("the server stops"))

    def _serve_one(self) -> None:
        """Serves one from its start to its end."""
        raise NotImplementedError

    def _set_ready(self) -> None:
        self._ready_at = time.monotonic()
        self._resolve_start(None)

    def _resolve_start(self, failure: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):
            if failure is None:
                self.started.set_result(None)
            else:
                self.started.set_exception(failure)

    def _fail_start(self, who: str, why: str, cause: BaseException | None) -> None:
        failure = RuntimeError(f"its process {why}")
        failure.__cause__ = cause
        if not self.started.done():
            return self._resolve_start(failure)
        failed = self._pool.core.fail_unserved()
        _log_error("%s of %s %s: %d calls failed", who, self._pool.names, why, failed)
        return None


class _Process(_Served):
    """A process and its successors."""

    def __init__(self, pool: BatchPool, number: int) -> None:
        self._process: BaseProcess | None = None
        #: Runs until the process is ready.
        self._timer: threading.Timer | None = None
        self._is_late = False
        self._lock = threading.Lock()
        super().__init__(pool, number)

    def end(self) -> None:
        with self._lock:
            # One that is ready ends by itself, so that it can export its last spans.
            exports = self._pool.spans is not None and self._ready_at != float("inf")
            if self._process is not None and not exports:
                self._process.kill()
        super().end()

    def _serve_one(self) -> None:
        who, self._is_late = f"process {self._number}", False
        try:
            ours, semaphore = self._start()
        except Exception as failure:
            return self._fail_start(who, f"could not start: {failure}", failure)
        process = self._process
        assert process is not None
        core, number = self._pool.core, self._number
        timer = self._timer = threading.Timer(self._pool.start_timeout_s, self._kill_late)
        timer.daemon = True
        timer.start()
        with _exit_descriptor(process) as exit_fd:
            end, reason, was_ready = core.serve(
                number, semaphore, ours.detach(), exit_fd, self._set_ready
            )
            timer.cancel()
            if end == "died" or (end == "closed" and self._pool.spans is not None):
                process.join(_EXIT_S)
            with self._lock:
                process.kill()
                process.join()
                self._process = None
        if was_ready:
            self._pool.report(True)
        if self._pool.closed.is_set():
            core.end_batches(number, "its process was killed: the server stops", False)
        elif was_ready:
            # What ran too long once would do so again.
            self._report_end(process, _how_ended(end, process.exitcode), end != "deadline")
        else:
            why = f"could not start: {reason}" if reason else _how_ended(end, process.exitcode)
            if self._is_late:
                limit_s = self._pool.start_timeout_s
                why = f"was not ready after {limit_s:g} s, process_start_timeout_s, and was killed"
            self._fail_start(who, why, None)
        return None

    def _kill_late(self) -> None:
        with self._lock:
            if self._process is not None and self._ready_at == float("inf"):
                self._is_late = True
                self._process.kill()

    def _start(self) -> tuple[socket.socket, tuple[int, int]]:
        """Starts the process. Returns the socket of its link, and those that count its batches."""
        pool, (ours, theirs) = self._pool, socket.socketpair()
        poster, acquirer = socket.socketpair()
        with theirs:
            own = theirs, acquirer, self._number, list(pool.hooks)
            address = None if pool.spans is None else pool.spans.address()
            arguments = *own, pool.functions, pool.options, pool.exceptions, address
            # A daemon: it is killed with the program, even if the server did not stop.
            process = PoolContext().Process(target=_run_batches, args=arguments, daemon=True)
            if (device := pool.devices[self._number]) is not None:
                process.environment[process_role.DEVICE] = device
            with self._lock:
                process.start()
                self._process = process
        if pool.closed.is_set():
            process.kill()
        return ours, (poster.detach(), acquirer.detach())

    def _set_ready(self) -> None:
        super()._set_ready()
        if self._timer is not None:
            self._timer.cancel()
        self._pool.report(False)

    def _report_end(self, process: BaseProcess, why: str, may_repeat: bool) -> None:
        end, why_failed = self._pool.core.end_batches, f"its process {why}"
        failed, calls = end(self._number, why_failed, may_repeat)
        line = "process %d of %s (pid %d) %s: %d calls failed"
        _log_error(line, self._number, self._pool.names, process.pid, why, failed)
        _log_calls(why_failed, calls)


class _Host(_Served):
    """The host of the processes that workers share, and its successors.

    It counts as a process that runs all batches at once. Its processes are counted by the first
    worker alone.
    """

    def __init__(self, pool: BatchPool, connect: Connect) -> None:
        self._connect = connect
        #: Whether the last one has ended before it was ready.
        self._was_lost = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        super().__init__(pool, 0)

    def end(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        super().end()

    def _serve_one(self) -> None:
        who, core = "the host of the processes", self._pool.core
        try:
            ours = self._connect(self._pool.key)
        except OSError as failure:
            return self._fail_start(who, f"could not start: {failure}", failure)
        with ours:
            with self._lock:
                self._socket = ours
            if self._pool.closed.is_set():
                ours.shutdown(socket.SHUT_RDWR)
            descriptor = os.dup(ours.fileno())
            _, reason, was_ready = core.serve(0, None, descriptor, -1, self._set_ready)
            with self._lock:
                self._socket = None
        if was_ready:
            self._report_processes(True)
        if self._pool.closed.is_set():
            core.end_batches(0, "the server stops", False)
        elif was_ready:
            why = "its process was killed with the host of the processes"
            failed, calls = core.end_batches(0, why, True)
            _log_error("%s of %s ended: %d calls failed", who, self._pool.names, failed)
            _log_calls(why, calls)
        elif reason or self._was_lost or not self.started.done():
            self._fail_start(who, f"could not start: {reason or 'its host has ended'}", None)
        # The supervisor may not have known of its end.
        self._was_lost = not was_ready
        return None

    def _set_ready(self) -> None:
        super()._set_ready()
        self._report_processes(False)

    def _report_processes(self, have_ended: bool) -> None:
        if process_role.worker.index == 0:
            for _ in self._pool.devices:
                self._pool.report(have_ended)


def _log_error(line: str, *arguments: object) -> None:
    import logging  # here, because importing it takes a fifth as long as all of ucall

    logging.getLogger("ucall").error(line, *arguments)


def _log_calls(why: str, calls: list[tuple[str, str]]) -> None:
    """Logs who has made each of these calls, which have failed."""
    import logging

    for text, members in calls:
        # The formatter of JSON takes the line without the call, which it has as members.
        line, extra = f"a call failed: {why}", {"ucall_call": members}
        logging.getLogger("ucall").error("%s (%s)", line, text, extra=extra)


@contextlib.contextmanager
def _exit_descriptor(process: BaseProcess) -> Any:
    """A descriptor that can be read when the process has ended; -1 where there is none."""
    try:
        descriptor = os.pidfd_open(process.pid or 0)  # type: ignore[attr-defined, unused-ignore]
    except (AttributeError, OSError):
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _how_ended(end: str, status: int | None) -> str:
    if end == "deadline":
        return "was killed at the deadline of its batch"
    if end == "invalid":
        return "was killed: something else than results came over its socket"
    status = status or 0
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _run_batches(
    connection: socket.socket,
    semaphore: socket.socket,
    number: int,
    hooks: list[ProcessHook],
    functions: list[_Function],
    options: ReplyOptions,
    exceptions: ExceptionHandlers | None,
    address: Address | None,
) -> None:
    """Runs batches in the new process until the server closes the socket.

    Args:
        address: That of the server, if calls are traced.
    """
    pool_process.begin()
    spans: Spans | None = None
    described: list[_core.ProcessDescription] = []
    failure: Exception | None = run_hooks(hooks, number)
    if failure is None:
        try:
            if address is not None:
                from ucall._tracing.server import CallSpans

                spans = CallSpans(address)
                spans.find_error = spans.find_error if exceptions is None else exceptions.find
            described = [it.describe(spans) for it in functions]
        except Exception as raised:
            failure = raised
    notes = getattr(failure, "__notes__", [])
    reason = None if failure is None else "\n".join([str(failure), *notes])
    _core.run_batches(
        (connection.detach(), semaphore.detach()),
        described,
        reason,
        debug=options.debug,
        max_reply_bytes=options.max_reply_bytes,
        find_error=None if exceptions is None else exceptions.find,
    )
