"""Gets: pulls messages while the program waits for them, and acknowledges them.

A pull asks for as many messages as the program has taken in a tenth of a second, so that a slow
program keeps no messages from the other servers of the group.

The broker counts how often it has delivered a message, and tells its disk and other nodes later. A
node that is killed may forget the last counts, or may have told no other node. So after a loss of
the connection, or once another node leads the group, all messages that are stored by then count as
possible repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections import deque
from typing import Any

import nats.errors
import nats.js.api as api
import nats.js.errors

from ucall._broker.connection import cancel
from ucall._core import Message
from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.errors import ConnectionError
from ucall.queue.jetstream.payload import REPEATED, loaded, sender_of
from ucall.queue.jetstream.session import Session, reason_of

__all__ = ["Receiver"]

#: The durable consumer of the stream, which all servers share.
_GROUP = "ucall"
#: Messages that one pull asks for.
_BATCH_MAX = 256
#: Seconds of work that one pull asks for.
_AHEAD_S = 0.1
#: Seconds after which a pull is repeated, because a broker that is killed forgets it.
_PULL_S = 2.0
#: Seconds without a pulled message after which another node may lead the group: electing it takes
#: longer, and it knows no pull of before.
_ELECTION_S = 1.0
#: Messages of a group that are not acknowledged, at most.
_UNACKNOWLEDGED_MAX = 65_536


class _StoredMessage(Message):
    """A message that `get` returns."""

    __slots__ = ("_is_acknowledged", "_receiver", "_reply")

    _receiver: weakref.ref[Receiver]
    _reply: str
    _is_acknowledged: bool

    def ack(self) -> None:
        """Acknowledges the message to the broker, which then removes it. Never waits.

        Raises:
            ConnectionError: This side has closed; another server gets the message again.
        """
        if not self._is_acknowledged:
            receiver = self._receiver()
            if receiver is None:
                raise ConnectionError
            receiver.acknowledge(self._reply)
            self._is_acknowledged = True


class Receiver(Session):
    """A server's side."""

    def __init__(self, options: CommunicatorOptions) -> None:
        #: Messages that were pulled and that `get` has not returned.
        self._pulled: deque[Any] = deque()
        self._pulled_at = 0.0
        #: Calls of `get` that wait.
        self._waiting = 0
        #: Messages that the program has to acknowledge, by the subjects of their replies.
        self._held: dict[str, Any] = {}
        #: Messages to acknowledge.
        self._acknowledged: deque[Any] = deque()
        self._batch = 1
        #: Messages up to this number in the stream may be repeats; as of this connection.
        self._repeats_to, self._repeats_as_of = 0, 1
        #: The node that leads the group, and counts its deliveries.
        self._leader: str | None = None
        self._pull: Any = None
        super().__init__(options)

    def get(self, timeout: float | None) -> Message:
        """Returns the next message: see `ucall.queue.jetstream.server.Communicator.get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            self._waiting += 1
            try:
                while not self._pulled:
                    if self._is_closing:
                        raise ConnectionError(self._options.id)
                    self._wake()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError("no message came in time")
                    self._condition.wait(left)
            finally:
                self._waiting -= 1
            stored = self._pulled.popleft()
            self._held[stored.reply] = stored
            is_last = not self._pulled
        if is_last and self._waiting:
            self._wake()
        return self._message(stored)

    def _message(self, stored: Any) -> Message:
        headers = stored.headers or {}
        peer = sender_of(headers)
        known = stored.metadata
        redelivered = known.num_delivered > 1 or known.sequence.stream <= self._repeats_to
        redelivered |= REPEATED in headers

        def made(data: Any) -> Message:
            message = _StoredMessage(peer, data, redelivered)
            message._receiver, message._reply = weakref.ref(self), stored.reply
            message._is_acknowledged = False
            if self._options.connection.ack == "taken":
                message.ack()
            return message

        try:
            data = loaded(self._options.serialization.load, stored.data, headers)
        except Exception as error:
            # An exception without attributes does not get them.
            with contextlib.suppress(AttributeError):
                error.peer, error.queue_message = peer, made(None)  # type: ignore[attr-defined]
            raise
        return made(data)

    def acknowledge(self, reply: str) -> None:
        """Acknowledges a message, from any thread."""
        with self._condition:
            stored = self._held.pop(reply, None)
            if stored is None:
                # `close` has given it back.
                raise ConnectionError(self._options.id)
            self._acknowledged.append(stored)
            is_first = len(self._acknowledged) == 1
        if is_first:
            self._wake()

    def _may_end(self) -> bool:
        return self._is_closing

    async def _prepare(self) -> None:
        await super()._prepare()
        await self._until_done(self._join_group)
        self._pull = await self._js.pull_subscribe_bind(consumer=_GROUP, stream=self.stream)

    async def _join_group(self) -> None:
        try:
            self._leader = await self._find_leader()
        except nats.js.errors.NotFoundError:
            config = api.ConsumerConfig(
                durable_name=_GROUP,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self._options.connection.expire_s,
                max_ack_pending=_UNACKNOWLEDGED_MAX,
            )
            await self._js.add_consumer(self.stream, config)

    async def _find_leader(self) -> str | None:
        found = await self._js.consumer_info(self.stream, _GROUP)
        return found.cluster.leader if found.cluster else None

    async def _work(self) -> None:
        helpers = [asyncio.ensure_future(self._pull_all()), asyncio.ensure_future(self._renew())]
        try:
            await self._while_wanted(self._acknowledge_all())
        finally:
            await cancel(*helpers)
            await self._give_back()

    async def _acknowledge_all(self) -> None:
        while True:
            await self._send_acknowledgements()
            await self._next_change()

    async def _send_acknowledgements(self) -> None:
        while self._acknowledged and self._broker.is_connected:
            stored = self._acknowledged.popleft()
            try:
                await stored.ack()
            except nats.errors.Error:
                # The broker sends the message again, and marks it.
                return

    async def _pull_all(self) -> None:
        """Pulls messages whenever the program waits for one."""
        while True:
            if not self._waiting or self._pulled or not self._broker.is_connected:
                await self._next_change()
                continue
            took_s = max(time.monotonic() - self._pulled_at, 1e-6)
            # At most twice as many as the last time.
            batch = min(2 * self._batch, int(self._batch * _AHEAD_S / took_s))
            self._batch = max(1, min(_BATCH_MAX, batch))
            try:
                if took_s > _ELECTION_S:
                    await self._notice_leader()
                # nats-py waits for all messages that a pull asks for, so the first one goes alone,
                # and has the number of those that are there.
                left = await self._pull_once(1, _PULL_S)
                if count := min(left, self._batch - 1):
                    await self._pull_once(count, _AHEAD_S)
            except (nats.errors.TimeoutError, TimeoutError):
                pass
            except (nats.errors.Error, OSError) as error:
                # Such as while a new leader is elected.
                self._reason = reason_of(error)
                await asyncio.sleep(self._options.connection.reconnect[1] / 10)

    async def _pull_once(self, count: int, timeout_s: float) -> int:
        """Pulls messages; returns the number of those that no server has pulled yet."""
        pulled = await self._pull.fetch(count, timeout=timeout_s)
        while self._repeats_as_of != self._connections:
            connection = self._connections
            await self._until_done(self._count_stored)
            self._repeats_as_of = connection
        with self._condition:
            self._pulled.extend(pulled)
            self._pulled_at = time.monotonic()
            self._condition.notify_all()
        return pulled[-1].metadata.num_pending if pulled else 0

    async def _notice_leader(self) -> None:
        leader = await self._find_leader()
        if self._leader and leader and leader != self._leader:
            await self._count_stored()
        # There is none during an election, nor at first.
        self._leader = leader or self._leader

    async def _count_stored(self) -> None:
        self._repeats_to = (await self._js.stream_info(self.stream)).state.last_seq

    async def _renew(self) -> None:
        """Reports to the broker that this process works on its messages."""
        interval_s = self._options.connection.expire_s / 3
        while True:
            await asyncio.sleep(interval_s)
            with self._condition:
                # The program does not get these now, so that other servers should.
                idle = list(self._pulled)
                self._pulled.clear()
                held = list(self._held.values())
            with contextlib.suppress(nats.errors.Error):
                for stored in idle:
                    await stored.nak()
                for stored in held:
                    if stored.reply in self._held:
                        await stored.in_progress()

    async def _give_back(self) -> None:
        """Gives the messages to other servers that are not acknowledged."""
        with self._condition:
            rest = [*self._pulled, *self._held.values()]
            self._pulled.clear()
            self._held.clear()
        with contextlib.suppress(Exception):
            await self._pull.unsubscribe()
            await self._send_acknowledgements()
            for stored in rest:
                await stored.nak()
            await self._broker.flush(timeout=1)

    def _handle_ended(self) -> None:
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
