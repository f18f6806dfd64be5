"""Queues for asyncio: `ucall.queue` with awaitable `put` and `get`.

from ucall import queue as nq
from ucall.aio import queue as anq

async with anq.new(purpose=nq.Purpose.CLIENT) as queue:
    await queue.put("Hello, Server!")
    message = await queue.get()
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Self

from ucall import queue as nq
from ucall.queue import (
    CommunicatorOptions,
    ConnectionEvent,
    Future,
    Message,
    Protocol,
    Purpose,
)

__all__ = ["Communicator", "new"]


def new(
    protocol: Protocol = Protocol.TCP,
    purpose: Purpose = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Makes a communicator for the event loop that it is first used in. See `ucall.queue.new`.

    Raises:
        ValueError: The protocol is JetStream.
    """
    if protocol == Protocol.JETSTREAM:
        raise ValueError("JetStream has no communicator for asyncio: wrap that of ucall.queue")
    return Communicator(nq.new(protocol, purpose, options))


class Communicator:
    """A communicator for one event loop, which it never blocks. It waits without a thread.

    Args:
        queue: The communicator to wrap. Do not use it elsewhere.
    """

    def __init__(self, queue: nq.Communicator) -> None:
        self._queue = queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pipe: tuple[int, int] | None = None
        #: The futures of `put`, and whether the log says so if they fail with the session.
        self._puts: dict[Any, tuple[asyncio.Future[None], bool]] = {}
        #: Messages of `get` calls that were cancelled.
        self._requeued: deque[Message] = deque()
        self._gets: deque[tuple[tuple[uuid.UUID, ...], asyncio.Future[Message]]] = deque()
        self._is_polling = False

    @property
    def id(self) -> uuid.UUID:
        """The id of this communicator."""
        return self._queue.id

    @property
    def options(self) -> CommunicatorOptions:
        """The options that it was made with."""
        return self._queue.options

    @property
    def address(self) -> tuple[str, int] | None:
        """The host and port that a TCP server listens on."""
        return self._queue.address

    @property
    def state(self) -> Literal["connecting", "listening", "connected", "closing", "closed"]:
        """Whether it is connected: see `ucall.queue.Communicator.state`."""
        return self._queue.state

    def peers(self) -> list[uuid.UUID]:
        """The ids of the current peers."""
        return self._queue.peers()

    def put(self, data: Any, *peers: uuid.UUID, copy: bool = False) -> asyncio.Future[None]:
        """Enqueues an object and returns a future, which need not be awaited.

        Do not change arrays and buffers of more than 64 KiB until it is done, unless ``copy`` is
        set.

        Cancelling the future cancels the message, unless it is on the wire. If the queue is full,
        ``full="block"`` raises `FullError`, because an event loop must not wait.
        """
        loop = self._attach()
        receipt: Future = self._queue._put_nowait(data, *peers, copy=copy)
        awaited: asyncio.Future[None] = loop.create_future()
        # One that fails at once was never in the queue, so the log does not count it.
        self._puts[receipt] = awaited, not receipt.done()
        self._queue._watch(receipt)
        awaited.add_done_callback(lambda it: receipt.cancel() if it.cancelled() else None)
        self._poll_soon()
        return awaited

    async def get(self, *peers: uuid.UUID, timeout: float | None = None) -> Message:
        """Waits for the next message. See `ucall.queue.Communicator.get`."""
        loop = self._attach()
        if not self._gets:
            with contextlib.suppress(TimeoutError):
                return self._take(peers)
        awaited: asyncio.Future[Message] = loop.create_future()
        self._gets.append((peers, awaited))
        self._poll_soon()
        try:
            # `asyncio.wait_for` of CPython 3.11 loses a cancellation once the message has arrived.
            async with asyncio.timeout(timeout):
                return await awaited
        except BaseException as error:
            with contextlib.suppress(ValueError):
                self._gets.remove((peers, awaited))
            is_resolved = awaited.done() and not awaited.cancelled()
            if is_resolved and isinstance(error, TimeoutError):
                # The message arrived as the time ended.
                return awaited.result()
            if is_resolved and awaited.exception() is None:
                # The message arrived as this was cancelled: the next `get` returns it.
                self._requeued.append(awaited.result())
                self._poll_soon()
            raise

    def on_start(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Calls ``callback(peer)`` in the event loop when a session begins."""
        self._queue._notifier.on_start.append(callback)

    def on_end(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Calls ``callback(peer)`` in the event loop when a session has ended for good."""
        self._queue._notifier.on_end.append(callback)

    def on_connection(self, callback: Callable[[ConnectionEvent], object]) -> None:
        """Calls ``callback(event)`` in the event loop for each change of a connection."""
        self._queue._notifier.on_connection.append(callback)

    async def close(self, timeout: float | None = None, *, final: bool = False) -> None:
        """Closes in order: see `ucall.queue.Communicator.close`.

        If it is cancelled, it closes at once, as after the timeout.
        """
        close = functools.partial(self._queue.close, timeout, final=final)
        closing = asyncio.ensure_future(asyncio.to_thread(close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            # The event loop waits for the thread before it ends.
            self._queue._close(True)
            await closing
            raise
        finally:
            self._poll()
            self._remove_pipe()

    def _remove_pipe(self) -> None:
        if self._loop is not None and self._pipe is not None:
            self._loop.remove_reader(self._pipe[0])
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = None

    async def __aenter__(self) -> Self:
        self._attach()
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Closes."""
        await self.close()

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._pipe = os.pipe()
            for descriptor in self._pipe:
                os.set_blocking(descriptor, False)
            self._queue._set_wake_pipe(self._pipe[1])
            loop.add_reader(self._pipe[0], self._handle_wake)
            # `_poll` arms the pipe. A `get` that finds a message does not call it.
            self._poll_soon()
        elif self._loop is not loop:
            raise RuntimeError("a communicator belongs to the event loop that it was first used in")
        return loop

    def _poll_soon(self) -> None:
        # One poll for all calls in one iteration of the event loop.
        if not self._is_polling and self._loop is not None:
            self._is_polling = True
            self._loop.call_soon(self._poll)

    def _handle_wake(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 64)
        self._poll()

    def _poll(self) -> None:
        """Resolves all finished futures, and arms the pipe for the others."""
        self._is_polling = False
        self._queue._arm_wake()
        while self._resolve_puts() or self._resolve_gets():
            self._queue._arm_wake()

    def _resolve_puts(self) -> bool:
        futures, events = self._queue._next_changes(0)
        for future in futures:
            awaited, is_logged = self._puts.pop(future, (None, False))
            if awaited is None or awaited.done():
                continue
            raised = future.exception()
            if raised is None:
                awaited.set_result(None)
            else:
                awaited.set_exception(raised)
                if is_logged and isinstance(raised, ConnectionError):
                    # The log has one line for all; asyncio would have one for each.
                    awaited.exception()
        notifier = self._queue._notifier
        for event in events:
            for callback, argument in notifier.calls(event):
                # A callback that raises must not stop the others.
                if self._loop is not None:
                    self._loop.call_soon(callback, argument)
        return bool(futures or events)

    def _take(self, peers: tuple[uuid.UUID, ...]) -> Message:
        for message in self._requeued:
            if not peers or message.peer in peers:
                self._requeued.remove(message)
                return message
        return self._queue.get(*peers, timeout=0)

    def _resolve_gets(self) -> bool:
        resolved = False
        for _ in range(len(self._gets)):
            peers, awaited = self._gets.popleft()
            if awaited.done():
                continue
            try:
                awaited.set_result(self._take(peers))
                resolved = True
            except TimeoutError:
                self._gets.append((peers, awaited))
                if not peers:
                    # No message is left for the calls after it either.
                    self._gets.rotate(1)
                    break
            except Exception as error:
                awaited.set_exception(error)
                resolved = True
        return resolved
