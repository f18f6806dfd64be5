"""A pool of processes for functions that compute. Each gets its calls from a thread, one at a time.

`concurrent.futures.ProcessPoolExecutor` fails as a whole when one process dies, and cannot kill a
process that does not finish. Here each process has its own pipe. A process that dies fails its call
only; one that exceeds the deadline of its call is killed; and the next call starts a new process.
The start of a process counts towards the deadline of the call that it is for. A process that is
ready too late is kept: otherwise no call would succeed if the start takes longer than `timeout_ms`.

Large NumPy arrays are passed in shared memory, with one copy on each side. `pool_process` starts
the processes.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import pickle
import queue
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ucall._core import Context
from ucall._functions import pool_process
from ucall._functions.pool_process import PoolContext
from ucall._functions.process_calls import PoolCall, WaitingCalls
from ucall._functions.process_context import Number, ProcessLink, SentContext, is_report
from ucall._functions.process_hooks import ProcessHook, run_hooks

__all__ = ["Pool"]

#: Arrays of this size and larger are passed in shared memory.
_SHARED_BYTES_MIN = 256 * 1024
#: The names of this process's shared memory, which begin as no other's.
_shared_prefix = f"ucall-{secrets.token_hex(6)}-"
_shared_numbers = itertools.count()

Function = Callable[..., Any]

#: A call as sent to a process: the function, its arguments, and its arguments by name.
_Request = tuple[Function, list[Any], dict[str, Any]]


class Pool:
    """Starts processes as calls need them, and again after they died.

    Args:
        processes: The largest number of processes.
        hooks: Run in each process before its first call.
        report: Called with False when a process is ready, and with True when it has ended.
        start_timeout_s: In which a process has to be ready.
    """

    def __init__(
        self,
        processes: int,
        hooks: Sequence[ProcessHook] = (),
        report: Callable[[bool], object] = lambda has_ended: None,
        start_timeout_s: float = 600.0,
    ) -> None:
        self._processes = processes
        self._start_timeout_s = start_timeout_s
        self._report = report
        self._functions: list[Function] = []
        self._hooks = hooks
        self._lock = threading.Lock()
        self._pool = self._new_pool()

    def submitter(
        self,
        function: Function,
        timeout_ms: float | None = None,
        *,
        takes_context: bool = False,
        max_waiting: int | None = None,
    ) -> Function:
        """A function with the same arguments that returns a future of the result, or raises an
        `RPCError` while `max_waiting` calls of it wait for a process.

        A call that is not finished `timeout_ms` after it was submitted has its process killed,
        unless that was still starting. The caller's own deadline does not: a caller could kill all
        processes with it.
        """
        self._functions.append(function)
        timeout_s = None if timeout_ms is None else timeout_ms / 1e3
        waiting = None if max_waiting is None else WaitingCalls(max_waiting)
        return functools.partial(self._submit, function, timeout_s, takes_context, waiting)

    def _submit(
        self,
        function: Function,
        timeout_s: float | None,
        takes_context: bool,
        waiting: WaitingCalls | None,
        /,
        *arguments: Any,
        **named: Any,
    ) -> Future[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        call = PoolCall(function, arguments, named, deadline)
        if takes_context:
            passed = (*arguments, *named.values())
            call.context = next(it for it in passed if type(it) is Context)
        with self._lock:
            if waiting is not None and self._pool.is_busy(self._processes):
                waiting.add(call.future)
                call.waiting = waiting
            self._pool.submit(call, self._processes)
        return call.future

    def start(self) -> None:
        """Starts all processes, and returns when each of them is ready for calls.

        Raises:
            RuntimeError: One could not start; the message says why.
        """
        with self._lock:
            starts = self._pool.start(self._processes)
        for started in starts:
            started.result()

    def close(self) -> None:
        """Kills the processes. The results of their calls are not needed any more."""
        with self._lock:
            pool, self._pool = self._pool, self._new_pool()
        pool.close()

    def _new_pool(self) -> _Pool:
        return _Pool(self._functions, self._hooks, self._report, self._start_timeout_s)


class _Pool:
    """The threads of a pool until it is closed, and the calls that wait for them."""

    def __init__(
        self,
        functions: list[Function],
        hooks: Sequence[ProcessHook],
        report: Callable[[bool], object],
        start_timeout_s: float,
    ) -> None:
        self.functions = functions
        self.report = report
        self.start_timeout_s = start_timeout_s
        self.hooks = hooks
        self.calls: queue.SimpleQueue[PoolCall | None] = queue.SimpleQueue()
        self.is_closed = False
        self._workers: list[_Worker] = []
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, call: PoolCall, processes: int) -> None:
        self.calls.put(call)
        with self._lock:
            self._unfinished += 1
            if len(self._workers) < min(self._unfinished, processes):
                self._workers.append(_Worker(self, len(self._workers)))

    def is_busy(self, processes: int) -> bool:
        """Whether a call would wait."""
        with self._lock:
            return self._unfinished >= processes

    def start(self, processes: int) -> list[Future[None]]:
        """Starts the processes that do not run; returns what says when each is ready."""
        with self._lock:
            starts: list[Future[None]] = [Future() for _ in range(len(self._workers), processes)]
            for started in starts:
                self._workers.append(_Worker(self, len(self._workers), started))
        return starts

    def finish(self) -> None:
        with self._lock:
            self._unfinished -= 1

    def close(self) -> None:
        self.is_closed = True
        for worker in self._workers:
            self.calls.put(None)
            worker.kill()


class _Worker:
    """A thread and its process, which starts for its first call, or now, to set ``started``."""

    def __init__(self, pool: _Pool, number: int, started: Future[None] | None = None) -> None:
        self._pool = pool
        self._number = number
        self._process: BaseProcess | None = None
        self._is_ready = False
        self._pipe: Connection | None = None
        #: The number of the call that was cancelled last, in memory that the process shares.
        self._cancelled: Number
        self._calls = 0
        #: The beginning of the names of its shared memory.
        self._prefix: str | None = None
        thread = threading.Thread(target=self._work, args=[started], name="ucall-process")
        thread.daemon = True
        thread.start()

    def _work(self, started: Future[None] | None) -> None:
        if started is not None:
            try:
                self._start_process()
                started.set_result(None)
            except BaseException as failure:
                started.set_exception(failure)
        while (call := self._pool.calls.get()) is not None and not self._pool.is_closed:
            # A call past its deadline, or whose caller has disconnected, was cancelled.
            if call.future.set_running_or_notify_cancel():
                if call.waiting is not None:
                    call.waiting.discard(call.future)
                begun = time.monotonic()
                try:
                    call.future.set_result(self._run_call(call))
                except BaseException as failure:
                    call.future.set_exception(failure)
                if call.waiting is not None:
                    call.waiting.record(time.monotonic() - begun)
            self._pool.finish()
            # Frees the arguments, which may be large, before it waits for the next call.
            del call
        self.kill()

    def _run_call(self, call: PoolCall) -> Any:
        pipe = self._pipe
        # An idle process sends nothing: there is something to read once it has died.
        if pipe is None or pipe.poll(0):
            self.kill()
            pipe = self._start_process()
        self._calls += 1
        number = self._calls
        if call.context is not None:
            call.future.tell_by(functools.partial(setattr, self._cancelled, "value", number))
        try:
            with _request(call, number) as request:
                return self._exchange(pipe, request, call)
        finally:
            call.future.tell_by(None)

    def _exchange(self, pipe: Connection, request: _Request, call: PoolCall) -> Any:
        # CPython 3.12 crashes at exit if a traceback refers to a view of the pickler's buffer.
        sent = ForkingPickler.dumps(request).tobytes()
        if call.deadline is not None and time.monotonic() >= call.deadline:
            # The process may have taken so long to start. It is ready for the next call.
            raise TimeoutError("its deadline passed before its process could run it")
        try:
            pipe.send_bytes(sent)
            while is_report(received := _receive(pipe, call.deadline)):
                if call.context is not None:
                    call.context._report(received)
        except (EOFError, ConnectionError):
            raise RuntimeError(f"its process {self._exit_reason()}") from None
        except BaseException:
            # Otherwise the next call of this process would get the reply to this one.
            self.kill()
            raise
        is_result, answer = pickle.loads(received)
        if not is_result:
            raise answer
        return _unpack(answer)

    def _start_process(self) -> Connection:
        """Starts the process; returns when it has imported the functions and run the hooks."""
        ours, theirs = PoolContext().Pipe()
        self._cancelled = PoolContext().RawValue("Q")
        arguments = (
            theirs,
            self._number,
            list(self._pool.hooks),
            self._pool.functions,
            self._cancelled,
        )
        # A daemon: it is killed with the program, even if the server did not stop.
        process = PoolContext().Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        if self._pool.is_closed:
            self.kill()
        try:
            limit_s = self._pool.start_timeout_s
            if not ours.poll(limit_s):
                self.kill()
                problem = f"was not ready after {limit_s:g} s, process_start_timeout_s"
                raise RuntimeError(f"its process {problem}, and was killed")
            self._prefix, failure = ours.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"its process {self._exit_reason()}") from None
        if failure is not None:
            self.kill()
            raise failure
        self._is_ready = True
        self._pool.report(False)
        return ours

    def _exit_reason(self) -> str:
        """Forgets the process; returns how it has ended."""
        process, self._process, self._pipe = self._process, None, None
        if process is None:
            return "was killed"
        process.join()
        self._ended()
        status = process.exitcode or 0
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def kill(self) -> None:
        process, self._process, self._pipe = self._process, None, None
        if process is not None:
            process.kill()
            process.join()
            self._ended()

    def _ended(self) -> None:
        self._release_memory()
        was_ready, self._is_ready = self._is_ready, False
        if was_ready:
            self._pool.report(True)

    def _release_memory(self) -> None:
        """Frees the results that the process had not passed on when it ended."""
        prefix, self._prefix = self._prefix, None
        if prefix is None:
            return
        with contextlib.suppress(OSError):  # Other systems than Linux list no shared memory.
            for name in os.listdir("/dev/shm"):
                if name.startswith(prefix):
                    memory = shared_memory.SharedMemory(name=name)
                    memory.close()
                    memory.unlink()


def _receive(pipe: Connection, deadline: float | None) -> bytes:
    """Waits for what a process sends next."""
    left_s = None if deadline is None else deadline - time.monotonic()
    # One that reports all the time has something to read at its deadline, too.
    if left_s is not None and (left_s <= 0 or not pipe.poll(left_s)):
        raise TimeoutError("its process was killed at the deadline")
    return pipe.recv_bytes()


def _serve(
    pipe: Connection,
    number: int,
    hooks: list[ProcessHook],
    _: list[Function],
    cancelled: Number,
) -> None:
    """Runs calls in the new process until the server closes the pipe."""
    pool_process.begin()
    failure = run_hooks(hooks, number)
    link = ProcessLink(pipe, cancelled)
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send((_shared_prefix, failure))
        while failure is None:
            link.end_call(_outcome(pipe.recv_bytes(), link))


def _outcome(request: bytes, link: ProcessLink) -> bytes:
    """Runs a call; returns a pickle of ``(True, result)`` or ``(False, exception)``."""
    try:
        function, arguments, named = pickle.loads(request)
        unpacked = [_unpack_argument(argument, link) for argument in arguments]
        unpacked_named = {name: _unpack_argument(it, link) for name, it in named.items()}
        # A new context for each call: the next one may be of another caller.
        result = contextvars.copy_context().run(function, *unpacked, **unpacked_named)
        return pickle.dumps((True, _pack(result)), pickle.HIGHEST_PROTOCOL)
    except BaseException as failure:
        lines = traceback.format_exception(failure)
        described = pickle.dumps((False, RuntimeError("".join(lines))))
        if isinstance(failure, KeyboardInterrupt):
            # The server would take it for a Ctrl-C, which this process ignores.
            return described
        failure.add_note("In its process:\n" + "".join(lines).rstrip())
        try:
            text = pickle.dumps((False, failure), pickle.HIGHEST_PROTOCOL)
            # An exception whose arguments are not those of its constructor cannot be unpickled.
            pickle.loads(text)
        except Exception:
            return described
        return text


@dataclass(frozen=True)
class _SharedArray:
    """An array in shared memory. The receiver unlinks it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def _pack(value: Any) -> Any:
    """Copies a large array to shared memory; returns other values unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return value
    if value.nbytes < _SHARED_BYTES_MIN or value.dtype.hasobject or value.dtype.fields:
        return value
    if (memory := _reserve(value.nbytes)) is None:
        return value
    numpy.ndarray(value.shape, value.dtype, memory.buf)[...] = value
    shared = _SharedArray(memory.name, value.shape, value.dtype.str)
    memory.close()
    return shared


def _reserve(size: int) -> shared_memory.SharedMemory | None:
    """Shared memory with all its pages allocated; None if there are too few.

    Writing to a page that cannot be allocated would kill the process by SIGBUS.
    """
    try:
        name = f"{_shared_prefix}{next(_shared_numbers)}"
        memory = shared_memory.SharedMemory(name, create=True, size=size)
    except OSError:
        return None
    try:
        descriptor = os.open(f"/dev/shm/{memory.name}", os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)
    except OSError:
        memory.close()
        memory.unlink()
        return None
    return memory


@contextlib.contextmanager
def _request(call: PoolCall, number: int) -> Iterator[_Request]:
    """The request of a call with this number. Frees its shared memory afterwards, unless the
    process has done so."""
    shared: list[_SharedArray] = []

    def pack(value: Any) -> Any:
        if isinstance(value, Context):
            return SentContext(number, value._takes_progress)
        value = _pack(value)
        if isinstance(value, _SharedArray):
            shared.append(value)
        return value

    try:
        named = {name: pack(argument) for name, argument in call.named.items()}
        yield call.function, [pack(argument) for argument in call.arguments], named
    finally:
        for array in shared:
            with contextlib.suppress(FileNotFoundError):
                memory = shared_memory.SharedMemory(name=array.name)
                memory.close()
                memory.unlink()


def _unpack_argument(value: Any, link: ProcessLink) -> Any:
    return link.context(value) if type(value) is SentContext else _unpack(value)


def _unpack(value: Any) -> Any:
    """Copies an array out of shared memory, and frees that; returns other values unchanged."""
    if not isinstance(value, _SharedArray):
        return value
    import numpy

    memory = shared_memory.SharedMemory(name=value.name)
    try:
        return numpy.ndarray(value.shape, value.dtype, memory.buf).copy()
    finally:
        memory.close()
        memory.unlink()
