"""Passes the messages of a connection to the calls that wait for them. It does no I/O."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeAlias

from ucall._client.sockets import not_sent
from ucall._core import FrameSupport, Notification, Reply
from ucall.errors import ConnectionError

__all__ = ["WAITING_BYTES_MAX", "DrainNotice", "Inbox", "Message", "Router", "check_waiting_bytes"]

Message: TypeAlias = Reply | Notification

#: Bytes of items, or of notifications, that wait until the program reads them.
WAITING_BYTES_MAX = 1_048_576
#: Receiving stops at half of the limit, and one receive of asyncio may bring 256 KiB more.
_WAITING_BYTES_LEAST = 524_288
_NOTIFICATIONS_MAX = 1024


def check_waiting_bytes(bytes_max: int) -> None:
    """Raises ``ValueError`` for a limit that one receive could exceed."""
    if bytes_max < _WAITING_BYTES_LEAST:
        least = _WAITING_BYTES_LEAST
        raise ValueError(f"max_waiting_bytes: expected {least} or more, got {bytes_max}")


class DrainNotice:
    """What the server of a connection has said of its drain."""

    __slots__ = ("has_begun", "requests_read")

    def __init__(self) -> None:
        self.has_begun = False
        #: How many requests it has read, once it reads no more.
        self.requests_read: int | None = None

    def take(self, message: Notification) -> bool:
        """Reads a notification; ``False`` if it is about something else."""
        if message.method != "$/drain":
            return False
        self.has_begun = True
        read = message.params.get("read") if isinstance(message.params, dict) else None
        if isinstance(read, int):
            self.requests_read = read
        return True

    def marked(self, error: Exception, number: int) -> Exception:
        """A copy of the exception for the request of this number on the connection, from 1."""
        error = copy.copy(error)
        read = self.requests_read
        if read is not None and read < number and isinstance(error, ConnectionError):
            return not_sent(error)
        return error


class Inbox:
    """The messages to one call, or to one subscription, that the program has not read.

    Threads take items while another one adds them. They hold no lock meanwhile: a signal handler,
    or `__del__` of a stream, could wait for that of the connection then, whose thread wants this.

    Args:
        wake: Is called after each change.
    """

    __slots__ = ("_received_bytes", "error", "items", "number", "reply", "wake")

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        #: Each with the number of bytes that were received before it.
        self.items: deque[tuple[Notification, int]] = deque()
        #: What adds items writes it, for a subscription on two connections while a server drains:
        #: what they miss counts again once those items are taken.
        self._received_bytes = 0
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self.wake = wake
        #: The number of its request on the connection, from 1.
        self.number = 0

    @property
    def is_ready(self) -> bool:
        """Whether `take` has a message to return or an error to raise."""
        return bool(self.items) or self.reply is not None or self.error is not None

    def take(self) -> Message:
        """Removes the next item; the reply after all items.

        Raises:
            ucall.ConnectionError: There will be no reply.
        """
        if self.items:
            return self.take_item()
        if self.reply is not None:
            return self.reply
        assert self.error is not None, "nothing was received"
        raise self.error

    def take_item(self) -> Notification:
        """Removes the next item, of one or more."""
        return self.items.popleft()[0]

    @property
    def waiting_bytes(self) -> int:
        """The bytes of all items."""
        first = self._first()
        return self._received_bytes - first[1] if first else 0

    def put_item(self, item: Notification, bytes_max: int) -> None:
        """Adds an item, unless the call has ended. Too many bytes of items beyond the first end it
        with an error."""
        if self.reply is not None or self.error is not None:
            return
        first = self._first()
        if first and self._received_bytes - first[1] - len(first[0]) + len(item) > bytes_max:
            self.fail(
                ConnectionError(
                    "more items than max_waiting_bytes arrived before the program read them"
                    f" ({bytes_max} bytes)"
                )
            )
            return
        self._append(item)

    def put_latest(self, notification: Notification, bytes_max: int) -> None:
        """Adds a notification, and drops the oldest ones beyond the limits."""
        bytes_max -= len(notification)
        with suppress(IndexError):  # None is left, or another thread has taken the last one.
            while len(self.items) >= _NOTIFICATIONS_MAX or self.waiting_bytes > bytes_max:
                self.items.popleft()
        self._append(notification)

    def put_reply(self, reply: Reply) -> None:
        """Sets the reply, unless the call has ended. A second one is dropped."""
        if self.reply is None and self.error is None:
            self.reply = reply
            self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the call with an error, unless it has its reply."""
        if self.reply is None and self.error is None:
            self.error = error
            self._wake()

    def _append(self, item: Notification) -> None:
        length, before = len(item), self._received_bytes
        self._received_bytes = before + length
        self.items.append((item, before))
        self._wake()

    def _first(self) -> tuple[Notification, int] | None:
        with suppress(IndexError):
            return self.items[0]
        return None

    def _wake(self) -> None:
        if self.wake is not None:
            self.wake()


class Router:
    """The calls in progress on one connection, by id, and the subscriptions of its client."""

    def __init__(
        self,
        subscriptions: Collection[Inbox],
        waiting_bytes_max: int,
        frames: FrameSupport | None = None,
    ) -> None:
        self._frames = frames
        self._subscriptions = subscriptions
        self._waiting_bytes_max = waiting_bytes_max
        self._inboxes: dict[object, Inbox] = {}
        #: What the server has said of its drain.
        self.drain = DrainNotice()

    @property
    def ids(self) -> list[object]:
        """The ids of the calls in progress."""
        return list(self._inboxes)

    @property
    def is_unused(self) -> bool:
        """Whether no call and no subscription waits for its messages."""
        return not self._inboxes and not self._subscriptions

    @property
    def is_full(self) -> bool:
        """Whether the items of a call take half of the limit: only a waiting call receives more."""
        bytes_max = self._waiting_bytes_max // 2
        return any(it.waiting_bytes > bytes_max for it in list(self._inboxes.values()))

    def add(self, ids: Collection[object], inbox: Inbox) -> None:
        """Adds a call, or the calls of a batch.

        Raises:
            ValueError: A call in progress has one of the ids.
        """
        for id in ids:
            if id in self._inboxes:
                raise ValueError(f"a call in progress on this connection has the id {id!r}")
        self._inboxes.update(dict.fromkeys(ids, inbox))

    def remove(self, ids: Collection[object]) -> None:
        """Removes calls. Later messages to them are dropped."""
        for id in ids:
            self._inboxes.pop(id, None)

    def deliver(self, message: Message) -> None:
        """Passes a message on. One to a call that has ended is dropped.

        Raises:
            ucall.ConnectionError: The server refused a request without naming its id.
        """
        if isinstance(message, Reply):
            self._deliver_reply(message)
            return
        token = message.token
        if token is None:
            if self.drain.take(message):
                return
            for subscription in list(self._subscriptions):
                subscription.put_latest(message, self._waiting_bytes_max)
        elif (inbox := self._inboxes.get(token)) is not None:
            inbox.put_item(message, self._waiting_bytes_max)

    def fail(self, error: Exception) -> None:
        """Ends all calls with an error."""
        for inbox in set(self._inboxes.values()):
            inbox.fail(self.drain.marked(error, inbox.number))
        for subscription in list(self._subscriptions):
            subscription._wake()

    def _deliver_reply(self, reply: Reply) -> None:
        inbox = None
        for part in reply.split() if reply.is_batch else (reply,):
            id = part.id
            if _is_sent(id) and (inbox := self._inboxes.get(id)) is not None:
                break
        if inbox is None and reply.is_error and reply.id is None:
            if self._frames is not None:
                self._frames.doubt()
            inbox = self._only_inbox()
            if inbox is None:
                text = reply.text.decode(errors="replace")
                raise ConnectionError(f"the server refused a request without naming its id: {text}")
        if inbox is not None:
            inbox.put_reply(reply)

    def _only_inbox(self) -> Inbox | None:
        inboxes = set(self._inboxes.values())
        return inboxes.pop() if len(inboxes) == 1 else None


def _is_sent(id: object) -> bool:
    """Whether a client may send this id. A list or a dict has no hash; null is that of a request
    which the program wrote."""
    return id is None or isinstance(id, int | float | str)
