"""Processes for functions that compute: the standard library's pool, with two things of our own.

A process of the pool imports the module of its functions, which may make a server and run it: see
`ucall._hosting` for how that is kept from happening. And large arrays of NumPy go through shared
memory, one copy on each side, instead of through a pickle and a pipe.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import shared_memory, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

from ucall import _hosting

__all__ = ["Pool"]

#: Arrays from so many bytes on go through shared memory.
_SHARED_BYTES_MIN = 256 * 1024


class Pool:
    """A pool of processes, started when it is first needed, and anew when one was killed.

    Args:
        processes: How many, at most.
    """

    def __init__(self, processes: int) -> None:
        if processes < 1:
            raise ValueError(f"processes: expected at least 1, got {processes}")
        self._processes = processes
        self._lock = threading.Lock()
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def submitter(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What takes the function's arguments and returns a future of its result."""
        return functools.partial(self._submit, function)

    def _submit(
        self, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> concurrent.futures.Future[Any]:
        packed = [_packed(argument) for argument in arguments]
        packed_named = {name: _packed(argument) for name, argument in named.items()}
        call = functools.partial(_run, function, packed, packed_named)
        try:
            inner = self._running().submit(call)
        except BrokenProcessPool:
            self.close()
            inner = self._running().submit(call)
        outer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        inner.add_done_callback(functools.partial(self._pass_on, outer))
        return outer

    def _pass_on(
        self, outer: concurrent.futures.Future[Any], inner: concurrent.futures.Future[Any]
    ) -> None:
        if not outer.set_running_or_notify_cancel():
            return
        try:
            outer.set_result(_unpacked(inner.result()))
        except BaseException as failure:
            outer.set_exception(failure)

    def _running(self) -> concurrent.futures.ProcessPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = concurrent.futures.ProcessPoolExecutor(
                    self._processes, mp_context=_Context(), initializer=_begin
                )
            return self._executor

    def close(self) -> None:
        """Ends the processes at once: nobody waits any more for what they are at."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is None:
            return
        # The pool forgets its processes in the shutdown. The end of the program waits for them.
        processes = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


class _Process(SpawnProcess):
    """A process that knows, while it starts, what it is for."""

    @staticmethod
    def _Popen(process: BaseProcess) -> Any:
        with _environment(_hosting.POOL, "1"):
            return SpawnProcess._Popen(process)


class _Context(SpawnContext):
    """Starts processes afresh: a fork would take the server's ring and threads along."""

    Process = _Process

    def get_preparation_data(self, name: str) -> dict[str, Any]:
        return spawn.get_preparation_data(name)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _begin() -> None:
    """In the new process, when modules are imported: functions may run servers of their own."""
    os.environ.pop(_hosting.POOL, None)


def _run(function: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> Any:
    unpacked = [_unpacked(argument) for argument in arguments]
    result = function(*unpacked, **{name: _unpacked(it) for name, it in named.items()})
    return _packed(result)


@dataclass(frozen=True)
class _Shared:
    """An array that lies in shared memory, whose taker unlinks it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def _packed(value: Any) -> Any:
    """Moves a large array to shared memory; anything else goes as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return value
    if value.nbytes < _SHARED_BYTES_MIN or value.dtype.hasobject or value.dtype.fields:
        return value
    memory = shared_memory.SharedMemory(create=True, size=value.nbytes)
    numpy.ndarray(value.shape, value.dtype, memory.buf)[...] = value
    shared = _Shared(memory.name, value.shape, value.dtype.str)
    memory.close()
    return shared


def _unpacked(value: Any) -> Any:
    """The array itself, copied out, so that its memory goes back at once."""
    if not isinstance(value, _Shared):
        return value
    import numpy

    memory = shared_memory.SharedMemory(name=value.name)
    try:
        return numpy.ndarray(value.shape, value.dtype, memory.buf).copy()
    finally:
        memory.close()
        memory.unlink()
