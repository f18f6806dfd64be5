"""Queues for asyncio: the same puts and gets as `ucall.queue`, awaited.

from ucall import queue as nq
from ucall.aio import queue as anq

async with anq.new(purpose=nq.Purpose.CLIENT) as queue:
    await queue.put("Hello, Server!")
    message = await queue.get()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from ucall import queue as nq
from ucall.queue import CommunicatorOptions, Future, Message, Protocol, Purpose

__all__ = ["Communicator", "new"]


def new(
    protocol: Protocol = Protocol.TCP,
    purpose: Purpose = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Makes a communicator for the event loop that it is first used in. See `ucall.queue.new`."""
    return Communicator(nq.new(protocol, purpose, options))


class Communicator:
    """Puts and gets without holding up an event loop: no thread waits for it.

    Args:
        queue: What it is made around. Nobody else may use that.
    """

    def __init__(self, queue: nq.Communicator) -> None:
        self._queue = queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pipe: tuple[int, int] | None = None
        self._puts: dict[Any, asyncio.Future[None]] = {}
        #: What came for gets that were cancelled.
        self._requeued: deque[Message] = deque()
        self._gets: deque[tuple[tuple[uuid.UUID, ...], asyncio.Future[Message]]] = deque()
        self._is_polling = False

    @property
    def id(self) -> uuid.UUID:
        """Who this is."""
        return self._queue.id

    @property
    def options(self) -> CommunicatorOptions:
        """What it was told when it was made."""
        return self._queue.options

    @property
    def address(self) -> tuple[str, int] | None:
        """Where a TCP server listens."""
        return self._queue.address

    def peers(self) -> list[uuid.UUID]:
        """The ids of the peers that there are."""
        return self._queue.peers()

    def put(self, data: Any, *peers: uuid.UUID) -> asyncio.Future[None]:
        """Puts an object in line, at once. What it returns may be awaited, or not.

        Cancelling it takes the message back, unless it is on the wire. With ``full="block"`` it
        raises `FullError` when the queue is full: an event loop does not wait.
        """
        loop = self._attach()
        receipt: Future = self._queue._put_nowait(data, *peers)
        awaited: asyncio.Future[None] = loop.create_future()
        self._puts[receipt] = awaited
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
            return await asyncio.wait_for(awaited, timeout)
        except BaseException:
            if awaited.done() and not awaited.cancelled() and awaited.exception() is None:
                # It came just as this was cancelled, and is the next one's.
                self._requeued.append(awaited.result())
                self._poll_soon()
            raise

    def on_start(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Has ``callback(peer)`` called, by the event loop, whenever a session begins."""
        self._queue._notifier.on_start.append(callback)

    def on_end(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Has ``callback(peer)`` called, by the event loop, whenever a session is over for good."""
        self._queue._notifier.on_end.append(callback)

    async def close(self, timeout: float | None = None) -> None:
        """Ends in order. See `ucall.queue.Communicator.close`."""
        await asyncio.to_thread(self._queue.close, timeout)
        self._poll()
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
            # Also asks to be woken: a `get` that finds a message does not.
            self._poll_soon()
        elif self._loop is not loop:
            raise RuntimeError("a communicator belongs to the event loop that it was first used in")
        return loop

    def _poll_soon(self) -> None:
        # Once for all that is put in one step of the event loop.
        if not self._is_polling and self._loop is not None:
            self._is_polling = True
            self._loop.call_soon(self._poll)

    def _handle_wake(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._pipe[0], 64)
        self._poll()

    def _poll(self) -> None:
        """Gives all that there is, and asks to be woken for the rest."""
        self._is_polling = False
        self._queue._arm_wake()
        while self._resolve_puts() or self._resolve_gets():
            self._queue._arm_wake()

    def _resolve_puts(self) -> bool:
        futures, sessions = self._queue._next_changes(0)
        for future in futures:
            awaited = self._puts.pop(future, None)
            if awaited is None or awaited.done():
                continue
            raised = future.exception()
            if raised is None:
                awaited.set_result(None)
            else:
                awaited.set_exception(raised)
        notifier = self._queue._notifier
        for began, peer in sessions:
            for callback in list(notifier.on_start if began else notifier.on_end):
                # One that raises keeps nobody else from what is theirs.
                if self._loop is not None:
                    self._loop.call_soon(callback, peer)
        return bool(futures or sessions)

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
                    # Nothing is there for those behind it either, whoever they wait for.
                    self._gets.rotate(1)
                    break
            except Exception as error:
                awaited.set_exception(error)
                resolved = True
        return resolved
