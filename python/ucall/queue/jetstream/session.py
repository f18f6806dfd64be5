"""The connection of a queue over JetStream, and the stream that stores it.

The stream of the topic ``jobs`` is ``jobs``; characters that the name of a stream must not have are
escaped, as ``=2E``. The first communicator creates it, from its options, and an existing one is
used as it is. A stream that is deleted while it is used, or lost with the broker's disk, is made
again: a deletion is detected by the broker's answers, or by a look every two seconds, and one that
another communicator has repaired by the time at which the stream was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Literal

import nats.errors
import nats.js.api as api
import nats.js.errors

from ucall._nats.connection import cancel, connect, start
from ucall.queue.core.events import ConnectionEvent, Kind
from ucall.queue.core.nats_options import broker_urls, connection_options
from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.jetstream.events import Events

__all__ = ["Session", "log", "reason_of"]

log = logging.getLogger("ucall")

#: Seconds for which JetStream detects a message that is sent again.
_DUPLICATES_S = 120.0
#: Seconds for the last bytes to the broker.
_END_S = 1.0
#: Seconds between two looks at the stream.
_LOOK_S = 2.0
#: Seconds in which the broker removes the files of what was deleted, before it gets another one.
_REMOVAL_S = 0.1
#: The first nats-server whose group of servers survives the kill of one with all its messages.
_WITHOUT_LOSS = (2, 10)
#: JetStream's error for a stream that another communicator has created meanwhile.
_EXISTS = 10058
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


class Session:
    """One side's connection and its work, on the thread of the brokers.

    Args:
        options: Those of the communicator.
    """

    def __init__(self, options: CommunicatorOptions) -> None:
        self._options = options
        self._given = connection_options(options)
        self.topic = options.broker.topic
        self.stream = _NOT_IN_NAME.sub(lambda it: f"={ord(it[0]):02X}", self.topic)
        #: Guards what the program's threads share with the thread of the brokers. `with` a
        #: condition takes longer than `with` its lock.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._is_closing = self._is_aborted = self._is_ready = False
        #: Why nothing proceeds, for errors.
        self._reason = "no connection to NATS"
        self._broker: Any = None
        self._js: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.events = Events()
        #: When the stream was made, by which another one of its name is detected, and the messages
        #: that it had at the last look.
        self._made_at: Any = None
        self._stored = 0
        #: The stream may be gone.
        self._suspicious = asyncio.Event()
        self._looking = asyncio.Lock()
        #: Wakes `_work`: there is something to do, or a change of the connection.
        self._wanted = asyncio.Event()
        self.ended: Future[None] = start(self._run())

    @property
    def state(self) -> Literal["connecting", "connected", "closing", "closed"]:
        if self.ended.done():
            return "closed"
        if self._is_closing:
            return "closing"
        return "connected" if self._is_ready and self._broker.is_connected else "connecting"

    def close_nowait(self) -> None:
        """Begins to close."""
        with self._lock:
            self._is_closing = True
            self._condition.notify_all()
        self._wake()

    def close(self, timeout: float | None) -> None:
        """Closes, within a time."""
        self.close_nowait()
        try:
            self.ended.result(timeout)
        except TimeoutError:
            self._is_aborted = True
            self._wake()
            self.ended.result()

    def _wake(self) -> None:
        """Wakes `_work`, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            if await self._while_wanted(self._connect()):
                watching = asyncio.ensure_future(self._watch_stored())
                try:
                    await self._work()
                finally:
                    await cancel(watching)
        except Exception:
            log.exception("the queue of NATS's stream %s has failed", self.stream)
        finally:
            self._handle_ended()
            self._report("ended")
            self.events.push(None)
            if self._broker is not None:
                # It may wait for a broker that does not read.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._broker.close(), _END_S)

    async def _connect(self) -> None:
        self._broker = await connect(
            broker_urls(self._options),
            self._given,
            f"ucall queue {self._options.id}",
            reports=True,
            on_lost=self._handle_lost,
            on_connected=self._handle_connected,
        )
        version = self._broker.connected_server_version
        if (version.major, version.minor) < _WITHOUT_LOSS:
            log.warning(
                "NATS's stream %s: this nats-server may stop delivering stored messages when a"
                " process is killed; 2.10 does not",
                self.stream,
            )
        self._js = self._broker.jetstream()
        await self._prepare()
        self._suspicious.clear()
        self._is_ready = True
        self._report("started")

    def _report(self, kind: Kind, reason: str | None = None) -> None:
        self.events.push(ConnectionEvent(kind, None, reason))

    def _handle_lost(self) -> None:
        if self._is_ready:
            self._report("lost", "the connection to NATS was lost")
        self._wanted.set()

    def _handle_connected(self) -> None:
        if self._is_ready:
            self._report("resumed")
        # The broker may have lost its disk.
        self._suspicious.set()
        self._wanted.set()

    async def _watch_stored(self) -> None:
        """Looks whether the stream is still there, now and then and when there is a doubt."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._suspicious.wait()
            self._suspicious.clear()
            if self._broker.is_connected:
                # Another error than that it is gone tells nothing: a broker may elect a leader.
                with contextlib.suppress(nats.errors.Error, OSError):
                    await self._verify_stored()

    async def _verify_stored(self) -> None:
        """Makes the stream again if it is gone, and says what was lost."""
        async with self._looking:
            try:
                if await self._is_stored():
                    return
                reason = "it was made again"
            except nats.js.errors.NotFoundError as error:
                reason = reason_of(error)
            before, stored = self._made_at, self._stored
            self._is_ready = False
            log.warning("NATS's stream %s is lost: %s", self.stream, reason)
            self._report("lost", reason)
            await asyncio.sleep(_REMOVAL_S)
            await self._make_stored()
            is_new = self._made_at != before
            self._handle_made_again(is_new)
            log.warning(
                "NATS's stream %s is there again: %s",
                self.stream,
                f"the messages that it had are lost (at the last look: {stored})"
                if is_new
                else "messages that were not acknowledged are delivered again",
            )
            self._is_ready = True
            self._report("started" if is_new else "resumed")
            self._wanted.set()

    async def _is_stored(self) -> bool:
        """Whether the stream is the one that this side knows.

        Raises:
            nats.js.errors.NotFoundError: It is gone.
        """
        found = await self._js.stream_info(self.stream)
        if found.created != self._made_at:
            return False
        self._stored = found.state.messages
        return True

    async def _make_stored(self) -> None:
        """Creates the stream, unless it exists."""
        await self._until_done(self._create_stream)

    def _handle_made_again(self, is_new: bool) -> None:
        """The stream is another one if it is new; otherwise a part of it was made again."""

    async def _while_wanted(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs until it is done, or until this side closes with nothing to do."""
        working = asyncio.ensure_future(work)
        try:
            while not working.done() and not self._is_aborted and not self._may_end():
                await self._next_change(working)
        finally:
            if not working.done():
                await cancel(working)
        return working.done() and not working.cancelled() and working.result() is None

    async def _next_change(self, *others: asyncio.Future[Any], timeout_s: float = 1.0) -> None:
        """Waits until there may be something to do."""
        waking = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait(
                [waking, *others], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waking.cancel()
        self._wanted.clear()

    async def _prepare(self) -> None:
        """Creates what is missing at the broker, and subscribes."""
        await self._make_stored()

    async def _create_stream(self) -> None:
        try:
            found = await self._js.stream_info(self.stream)
        except nats.js.errors.NotFoundError:
            await self._add_stream()
            found = await self._js.stream_info(self.stream)
        self._made_at, self._stored = found.created, found.state.messages

    async def _add_stream(self) -> None:
        options = self._options
        config = api.StreamConfig(
            name=self.stream,
            subjects=[self.topic],
            retention=api.RetentionPolicy.WORK_QUEUE,
            storage=api.StorageType.FILE,
            discard=api.DiscardPolicy.NEW,
            max_bytes=options.connection.queue_size,
            num_replicas=options.broker.replicas,
            duplicate_window=max(_DUPLICATES_S, 2 * options.connection.expire_s),
        )
        try:
            await self._js.add_stream(config)
        except nats.js.errors.APIError as error:
            if error.err_code != _EXISTS:
                raise

    async def _until_done(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeats what the broker refuses, as it does while it elects a leader."""
        delay_s, most_s = self._options.connection.reconnect
        while True:
            try:
                return await work()
            except (nats.errors.Error, OSError) as error:
                reason = reason_of(error)
                if reason != self._reason:
                    self._reason = reason
                    log.warning("NATS's stream %s: %s; trying again", self.stream, reason)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, most_s)

    def _may_end(self) -> bool:
        """Whether this side closes, and has nothing to do."""
        raise NotImplementedError

    async def _work(self) -> None:
        """Sends or receives until this side closes."""
        raise NotImplementedError

    def _handle_ended(self) -> None:
        """Ends what the program waits for."""
        raise NotImplementedError


def reason_of(error: BaseException) -> str:
    """The text of an error of nats-py."""
    description = getattr(error, "description", None)
    return description or str(error) or type(error).__name__
