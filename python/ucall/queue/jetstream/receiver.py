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
from dataclasses import dataclass, replace
from typing import Any

import nats.errors
import nats.js.api as api
import nats.js.errors

from ucall._core import Message
from ucall._nats.connection import cancel
from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.errors import ConnectionError
from ucall.queue.jetstream.deliveries import Counted, Deliveries, Delivery, Repeats, Uncounted
from ucall.queue.jetstream.payload import REPEATED, loaded, sender_of
from ucall.queue.jetstream.pulls import Event, Pull, Pulls
from ucall.queue.jetstream.session import Session, reason_of

__all__ = ["Receiver"]

#: The durable consumer of the stream, which all servers share.
_GROUP = "ucall"
#: What ends a pull without an error: no messages, or its time is over.
_ENDED = {"404", "408"}
#: Seconds without a pulled message after which another node may lead the group: electing it takes
#: longer, and it knows no pull of before.
_ELECTION_S = 1.0
#: Seconds for the answer of a new group.
_ANSWER_S = 2.0
#: Messages of a group that are not acknowledged, at most.
_UNACKNOWLEDGED_MAX = 65_536
#: What is sent for a message: that another server gets it, and that this one still works on it.
_NAK, _IN_PROGRESS = b"-NAK", b"+WPI"


class _StoredMessage(Message):
    """A message that `get` returns."""

    __slots__ = ("_deliveries", "_receiver", "_reply")

    _receiver: weakref.ref[Receiver]
    #: Those that it belongs to; None once it is acknowledged.
    _deliveries: Deliveries | None
    _reply: str

    def ack(self) -> None:
        """Acknowledges the message to the broker, which then removes it. Never waits.

        Raises:
            ConnectionError: This side has closed; another server gets the message again.
        """
        if self._deliveries is not None:
            receiver = self._receiver()
            if receiver is None:
                raise ConnectionError
            receiver.acknowledge(self._deliveries, self._reply)
            self._deliveries = None


@dataclass(frozen=True, slots=True)
class _Group:
    """What the broker knows of the group."""

    #: The node that counts its deliveries; None without a cluster.
    leader: str | None
    made_at: Any


class Receiver(Session):
    """A server's side."""

    def __init__(self, options: CommunicatorOptions) -> None:
        self._acknowledges = options.connection.ack == "taken"
        self._deliveries = Deliveries()
        self._pulls = Pulls(options.connection.reconnect[1] / 10)
        self._repeats: Repeats = Counted()
        self._group: _Group | None = None
        #: The number of the last delivery of the group to this side.
        self._last_delivery = 0
        #: Calls of `get` that wait.
        self._waiting = 0
        #: A `get` that did not wait has found no message, and none was pulled since.
        self._is_wanted = False
        #: That of the pulled messages.
        self._subscription: Any = None
        super().__init__(options)

    @property
    def _next_subject(self) -> str:
        """Where the group takes requests for messages."""
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{_GROUP}"

    def get(self, timeout: float | None) -> Message:
        """Returns the next message: see `ucall.queue.jetstream.server.Communicator.get`."""
        with self._lock:
            if not self._deliveries.pulled:
                self._wait(timeout)
            deliveries = self._deliveries
            delivery = deliveries.take(acknowledges=self._acknowledges)
            wakes = not deliveries.pulled and self._waiting
            wakes = wakes or (self._acknowledges and len(deliveries.acknowledged) == 1)
        if wakes:
            self._wake()
        return self._message(delivery, deliveries)

    def _wait(self, timeout: float | None) -> None:
        """Waits for a pulled message."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._waiting += 1
        self._is_wanted = True
        try:
            while not self._deliveries.pulled:
                if self._is_closing:
                    raise ConnectionError(self._options.id)
                self._wake()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError("no message came in time")
                self._condition.wait(left)
        finally:
            self._waiting -= 1

    def _message(self, delivery: Delivery, deliveries: Deliveries) -> Message:
        headers = delivery.headers
        peer = sender_of(headers)
        redelivered = (
            delivery.times > 1 or delivery.sequence <= self._repeats.to or REPEATED in headers
        )

        def made(data: Any) -> Message:
            message = _StoredMessage(peer, data, redelivered)
            message._deliveries = None
            if not self._acknowledges:
                message._receiver, message._reply = weakref.ref(self), delivery.reply
                message._deliveries = deliveries
            return message

        try:
            data = loaded(self._options.serialization.load, delivery.data, headers)
        except Exception as error:
            # An exception without attributes does not get them.
            with contextlib.suppress(AttributeError):
                error.peer, error.queue_message = peer, made(None)  # type: ignore[attr-defined]
            raise
        return made(data)

    def acknowledge(self, deliveries: Deliveries, reply: str) -> None:
        """Acknowledges a message, from any thread."""
        with self._lock:
            try:
                deliveries.acknowledge(reply)
            except KeyError:
                # `close` has given it back.
                raise ConnectionError(self._options.id) from None
            is_first = len(deliveries.acknowledged) == 1
        if is_first:
            self._wake()

    def _may_end(self) -> bool:
        return self._is_closing

    async def _prepare(self) -> None:
        await super()._prepare()
        inbox = self._broker.new_inbox()
        self._subscription = await self._broker.subscribe(inbox, cb=self._handle_pulled)

    async def _make_stored(self) -> None:
        await super()._make_stored()
        await self._until_done(self._join_group)

    async def _is_stored(self) -> bool:
        if not await super()._is_stored():
            return False
        return self._group is None or (await self._find_group()).made_at == self._group.made_at

    def _handle_made_again(self, is_new: bool) -> None:
        with self._lock:
            self._last_delivery = 0
            if is_new:
                self._deliveries = Deliveries()
                self._repeats = Counted()
            else:
                # Another group does not know what was delivered before.
                self._repeats = Uncounted()
        self._reset()

    async def _join_group(self) -> None:
        try:
            group = await self._find_group()
        except nats.js.errors.NotFoundError:
            config = api.ConsumerConfig(
                durable_name=_GROUP,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self._options.connection.expire_s,
                max_ack_pending=_UNACKNOWLEDGED_MAX,
            )
            await self._js.add_consumer(self.stream, config)
            await self._check_delivery()
            group = await self._find_group()
        self._group = group

    async def _check_delivery(self) -> None:
        """Deletes a new group that does not answer. nats-server makes one that never delivers if
        another connection creates the stream at the same time.

        Raises:
            nats.js.errors.ServiceUnavailableError: It did not answer.
        """
        try:
            # It refuses this, by the way on which it delivers.
            await self._broker.request(self._next_subject, b'{"batch":""}', timeout=_ANSWER_S)
        except nats.errors.TimeoutError:
            await self._js.delete_consumer(self.stream, _GROUP)
            reason = "its new consumer does not answer"
            raise nats.js.errors.ServiceUnavailableError(description=reason) from None

    async def _find_group(self) -> _Group:
        """Asks the broker for the group.

        Raises:
            nats.js.errors.NotFoundError: There is none.
            nats.js.errors.ServiceUnavailableError: Its leader is being elected.
        """
        found = await self._js.consumer_info(self.stream, _GROUP)
        if found.cluster and not found.cluster.leader:
            reason = "the leader of its consumer is being elected"
            raise nats.js.errors.ServiceUnavailableError(description=reason)
        return _Group(found.cluster.leader if found.cluster else None, found.created)

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
        broker, publish = self._broker, self._broker.publish
        while (acknowledged := self._deliveries.acknowledged) and broker.is_connected:
            try:
                await publish(acknowledged.popleft())
            except nats.errors.Error:
                # The broker sends the message again, and marks it.
                return

    async def _pull_all(self) -> None:
        """Pulls messages whenever the program waits for one, or has found none."""
        while True:
            now = time.monotonic()
            is_wanted = (self._waiting or self._is_wanted) and not self._deliveries.pulled
            # What arrives while the stream is made again would count as one of the lost stream.
            if not is_wanted or not self._is_ready or not self._broker.is_connected:
                await self._next_change()
            elif due_s := self._pulls.due_s(now):
                await self._next_change(timeout_s=min(due_s, 1.0))
            else:
                await self._pull(now)

    async def _pull(self, now: float) -> None:
        try:
            if now - self._pulls.arrived_at > _ELECTION_S:
                await self._notice_leader()
            self._is_wanted = False
            await self._request(self._pulls.want(now))
        except (nats.errors.Error, OSError) as error:
            self._refuse(reason_of(error))

    async def _request(self, pull: Pull | None) -> None:
        """Asks for messages. `_handle_pulled` takes them."""
        if pull is not None:
            request = {"batch": pull.messages, "expires": int(pull.seconds * 1e9)}
            payload = json.dumps(request).encode()
            await self._broker.publish(self._next_subject, payload, self._subscription.subject)

    def _refuse(self, reason: str) -> None:
        """Pulls nothing for a while, such as while a new leader is elected."""
        self._reason = reason
        self._pulls.step(Event.REFUSED, time.monotonic())
        self._wanted.set()

    async def _handle_pulled(self, message: Any) -> None:
        """Takes a message, or the broker's report of the end of a pull."""
        if not message.reply:
            return self._handle_status(message.headers or {})
        delivery = Delivery.of(message)
        if delivery.number <= self._last_delivery:
            # Another group has this name, or its leader has lost its last counts.
            await self._until_done(self._verify_stored)
        self._last_delivery = delivery.number
        while isinstance(self._repeats, Uncounted):
            await self._until_done(self._count_stored)
        with self._lock:
            self._deliveries.pulled.append(delivery)
            self._is_wanted = False
            if self._waiting:
                self._condition.notify()
        pull = self._pulls.step(Event.ARRIVED, time.monotonic(), delivery.there)
        if pull is not None:
            try:
                await self._request(pull)
            except (nats.errors.Error, OSError) as error:
                self._refuse(reason_of(error))

    def _handle_status(self, headers: dict[str, str]) -> None:
        if headers.get("Status") in _ENDED:
            self._pulls.step(Event.ENDED, time.monotonic())
            self._wanted.set()
        else:
            self._suspicious.set()
            self._refuse(headers.get("Description", "the broker has refused to send messages"))

    def _reset(self) -> None:
        self._pulls.step(Event.RESET, time.monotonic())
        self._wanted.set()

    def _handle_connected(self) -> None:
        """The broker may have forgotten the pull, and its last deliveries."""
        if self._broker is not None:
            self._repeats = Uncounted(self._repeats.to)
        self._reset()
        super()._handle_connected()

    async def _notice_leader(self) -> None:
        leader = (await self._find_group()).leader
        if self._group is not None and leader != self._group.leader:
            await self._count_stored()
            self._group = replace(self._group, leader=leader)

    async def _count_stored(self) -> None:
        before = self._repeats
        last = (await self._js.stream_info(self.stream)).state.last_seq
        # The connection or the stream may be another one meanwhile.
        if self._repeats is before:
            self._repeats = Counted(last)

    async def _renew(self) -> None:
        """Reports to the broker that this process works on its messages."""
        interval_s = self._options.connection.expire_s / 3
        while True:
            await asyncio.sleep(interval_s)
            with self._lock:
                deliveries = self._deliveries
                # The program does not get these now, so that other servers should.
                idle, held = deliveries.give_back_pulled(), deliveries.held()
            with contextlib.suppress(nats.errors.Error):
                for reply in idle:
                    await self._broker.publish(reply, _NAK)
                for reply in held:
                    if deliveries.is_held(reply):
                        await self._broker.publish(reply, _IN_PROGRESS)

    async def _give_back(self) -> None:
        """Gives the messages to other servers that are not acknowledged."""
        with self._lock:
            rest = self._deliveries.give_back()
        with contextlib.suppress(Exception):
            await self._subscription.unsubscribe()
            await self._send_acknowledgements()
            for reply in rest:
                await self._broker.publish(reply, _NAK)
            await self._broker.flush(timeout=1)

    def _handle_ended(self) -> None:
        with self._lock:
            self._is_closing = True
            self._condition.notify_all()
