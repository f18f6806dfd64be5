"""Gets: pulls messages while the program waits for them, and acknowledges them.

A pull asks for as many messages as the program has taken in a tenth of a second, so that a slow
program keeps no messages from the other servers of the group.

The broker counts how often it has delivered a message, and writes that to its disk and to other
nodes later. A node that is killed may lose the last counts, also for the others. So after a loss of
the connection, or once another node leads the group, all messages that are stored by then count as
possible repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import weakref
from collections import deque
from typing import Any

import nats.errors
import nats.js.api as api
import nats.js.errors

from ucall._core import Message
from ucall._nats.connection import cancel
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
#: Seconds after the end of a pull in which the broker reports it.
_REPORT_S = 0.5
#: What ends a pull without an error: no messages, or its time is over.
_ENDED = {"404", "408"}
#: Seconds without a pulled message after which another node may lead the group: electing it takes
#: longer, and it knows no pull of before.
_ELECTION_S = 1.0
#: Messages of a group that are not acknowledged, at most.
_UNACKNOWLEDGED_MAX = 65_536


class _StoredMessage(Message):
    """A message that `get` returns."""

    __slots__ = ("_is_acknowledged", "_receiver", "_reply", "_streams")

    _receiver: weakref.ref[Receiver]
    _reply: str
    _is_acknowledged: bool
    _streams: int

    def ack(self) -> None:
        """Acknowledges the message to the broker, which then removes it. Never waits.

        Raises:
            ConnectionError: This side has closed; another server gets the message again.
        """
        if not self._is_acknowledged:
            receiver = self._receiver()
            if receiver is None:
                raise ConnectionError
            receiver.acknowledge(self._reply, self._streams)
            self._is_acknowledged = True


class Receiver(Session):
    """A server's side."""

    def __init__(self, options: CommunicatorOptions) -> None:
        #: Messages that were pulled and that `get` has not returned.
        self._pulled: deque[Any] = deque()
        self._pulled_at = 0.0
        #: Calls of `get` that wait.
        self._waiting = 0
        #: The last `get` found no message, also if it did not wait, and none was pulled since.
        self._is_wanted = False
        #: Messages that the program has to acknowledge, by the subjects of their replies.
        self._held: dict[str, Any] = {}
        #: Messages to acknowledge.
        self._acknowledged: deque[Any] = deque()
        self._batch = 1
        #: Messages of a pull that are to come, and whether it is one of a single message.
        self._expected, self._is_first = 0, False
        #: Nothing is pulled before this time: a pull is under way, or the broker has refused one.
        self._pull_at = 0.0
        #: The subject of the pulled messages.
        self._inbox = ""
        #: Messages up to this number in the stream may be repeats; as of this connection.
        self._repeats_to, self._repeats_as_of = 0, 1
        #: The node that leads the group, and counts its deliveries.
        self._leader: str | None = None
        #: When the group was made, and the number of its last delivery to this side.
        self._group_made_at: Any = None
        self._last_delivery = 0
        #: Streams before this one, whose messages nothing can acknowledge any more.
        self._streams = 0
        self._subscription: Any = None
        super().__init__(options)

    def get(self, timeout: float | None) -> Message:
        """Returns the next message: see `ucall.queue.jetstream.server.Communicator.get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
            self._is_wanted = not self._pulled
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
            is_last, streams = not self._pulled, self._streams
        if is_last and self._waiting:
            self._wake()
        return self._message(stored, streams)

    def _message(self, stored: Any, streams: int) -> Message:
        headers = stored.headers or {}
        peer = sender_of(headers)
        known = stored.metadata
        redelivered = known.num_delivered > 1 or known.sequence.stream <= self._repeats_to
        redelivered |= REPEATED in headers

        def made(data: Any) -> Message:
            message = _StoredMessage(peer, data, redelivered)
            message._receiver, message._reply = weakref.ref(self), stored.reply
            message._is_acknowledged, message._streams = False, streams
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

    def acknowledge(self, reply: str, streams: int) -> None:
        """Acknowledges a message, from any thread."""
        with self._lock:
            if streams != self._streams:
                # It is gone with its stream; another message may have its number.
                return
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
        self._inbox = self._broker.new_inbox()
        self._subscription = await self._broker.subscribe(self._inbox, cb=self._handle_pulled)

    async def _make_stored(self) -> None:
        await super()._make_stored()
        await self._until_done(self._join_group)

    async def _is_stored(self) -> bool:
        return await super()._is_stored() and (await self._group()).created == self._group_made_at

    def _handle_made_again(self, is_new: bool) -> None:
        with self._lock:
            self._last_delivery = 0
            # Another group does not know what was delivered before.
            self._repeats_to, self._repeats_as_of = 0, self._connections if is_new else 0
            if is_new:
                self._streams += 1
                self._pulled.clear()
                self._held.clear()
                self._acknowledged.clear()
        self._end_pull()

    async def _join_group(self) -> None:
        try:
            group = await self._group()
        except nats.js.errors.NotFoundError:
            config = api.ConsumerConfig(
                durable_name=_GROUP,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self._options.connection.expire_s,
                max_ack_pending=_UNACKNOWLEDGED_MAX,
            )
            await self._js.add_consumer(self.stream, config)
            group = await self._group()
        self._leader, self._group_made_at = _leader_of(group), group.created

    async def _group(self) -> Any:
        """What the broker knows of the group.

        Raises:
            nats.js.errors.NotFoundError: There is none.
            nats.js.errors.ServiceUnavailableError: Its leader is being elected.
        """
        found = await self._js.consumer_info(self.stream, _GROUP)
        if found.cluster and not found.cluster.leader:
            reason = "the leader of its consumer is being elected"
            raise nats.js.errors.ServiceUnavailableError(description=reason)
        return found

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
        """Pulls messages whenever the program waits for one, or has found none."""
        while True:
            now = time.monotonic()
            is_wanted = (self._waiting or self._is_wanted) and not self._pulled
            if not is_wanted or not self._broker.is_connected:
                await self._next_change()
            elif now < self._pull_at:
                await self._next_change(timeout_s=min(self._pull_at - now, 1.0))
            else:
                await self._pull(now)

    async def _pull(self, now: float) -> None:
        self._is_wanted = False
        took_s = max(now - self._pulled_at, 1e-6)
        # At most twice as many as the last time.
        batch = min(2 * self._batch, int(self._batch * _AHEAD_S / took_s))
        self._batch = max(1, min(_BATCH_MAX, batch))
        try:
            if took_s > _ELECTION_S:
                await self._notice_leader()
            # A pull takes messages for as long as it lasts, so one that waits takes a single one.
            await self._request(1, _PULL_S, is_first=True)
        except (nats.errors.Error, OSError) as error:
            self._pause(reason_of(error))

    async def _request(self, count: int, seconds: float, *, is_first: bool = False) -> None:
        """Asks for messages. `_handle_pulled` takes them."""
        self._expected, self._is_first = count, is_first
        self._pull_at = time.monotonic() + seconds + _REPORT_S
        request = json.dumps({"batch": count, "expires": int(seconds * 1e9)}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{_GROUP}"
        await self._broker.publish(subject, request, self._inbox)

    def _pause(self, reason: str) -> None:
        """Pulls nothing for a while, such as while a new leader is elected."""
        self._reason = reason
        self._pull_at = time.monotonic() + self._options.connection.reconnect[1] / 10
        self._wanted.set()

    async def _handle_pulled(self, message: Any) -> None:
        """Takes a message, or the broker's report of the end of a pull."""
        if not message.reply:
            headers = message.headers or {}
            if headers.get("Status") in _ENDED:
                self._end_pull()
            else:
                self._suspicious.set()
                self._pause(headers.get("Description", "the broker has refused to send messages"))
            return
        delivery = message.metadata.sequence.consumer
        if delivery <= self._last_delivery:
            # Another group has this name, or its leader has lost its last counts.
            await self._until_done(self._verify_stored)
        self._last_delivery = delivery
        while self._repeats_as_of != self._connections:
            connection = self._connections
            await self._until_done(self._count_stored)
            self._repeats_as_of = connection
        with self._lock:
            self._pulled.append(message)
            self._is_wanted = False
            self._pulled_at = time.monotonic()
            self._condition.notify()
        self._expected -= 1
        if self._is_first and (there := min(message.metadata.num_pending, self._batch - 1)):
            try:
                await self._request(there, _AHEAD_S)
            except (nats.errors.Error, OSError) as error:
                self._pause(reason_of(error))
        elif self._expected <= 0:
            self._end_pull()

    def _end_pull(self) -> None:
        self._expected, self._is_first, self._pull_at = 0, False, 0.0
        self._wanted.set()

    def _handle_connected(self) -> None:
        """The broker may have forgotten the pull."""
        self._pull_at = 0.0
        super()._handle_connected()

    async def _notice_leader(self) -> None:
        leader = _leader_of(await self._group())
        if leader != self._leader:
            await self._count_stored()
        self._leader = leader

    async def _count_stored(self) -> None:
        self._repeats_to = (await self._js.stream_info(self.stream)).state.last_seq

    async def _renew(self) -> None:
        """Reports to the broker that this process works on its messages."""
        interval_s = self._options.connection.expire_s / 3
        while True:
            await asyncio.sleep(interval_s)
            with self._lock:
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
        with self._lock:
            rest = [*self._pulled, *self._held.values()]
            self._pulled.clear()
            self._held.clear()
        with contextlib.suppress(Exception):
            await self._subscription.unsubscribe()
            await self._send_acknowledgements()
            for stored in rest:
                await stored.nak()
            await self._broker.flush(timeout=1)

    def _handle_ended(self) -> None:
        with self._lock:
            self._is_closing = True
            self._condition.notify_all()


def _leader_of(group: Any) -> str | None:
    """The node that leads the group; None without a cluster."""
    leader: str | None = group.cluster.leader if group.cluster else None
    return leader
