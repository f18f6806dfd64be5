"""Puts: publishes messages until the broker has stored each.

Each message has an id, by which the broker detects one that is sent again. One that is sent again
is marked, because the broker forgets the ids after some minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
import uuid
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import nats.errors
import nats.js.api as api

from ucall._nats.connection import header_bytes
from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.errors import ConnectionError, FullError
from ucall.queue.jetstream.future import PutFuture
from ucall.queue.jetstream.payload import PEER, REPEATED, dumped
from ucall.queue.jetstream.session import Session, log, reason_of
from ucall.queue.nats_transport import NO_READER

__all__ = ["Sender"]

#: Messages and bytes that wait for the broker's acknowledgement at a time.
_SENT_MAX = 1024
_SENT_BYTES_MAX = 8 << 20
#: Seconds without an acknowledgement after which a message is sent again.
_ANSWER_S = 5.0
#: The usual reply for a message that is stored.
_STORED = re.compile(rb'\{"stream":"[^"\\]+", ?"seq":[1-9][0-9]*\}')
#: The header of a message's id.
_ID = api.Header.MSG_ID.value
#: A message's weight beside its bytes, as in queues over other transports.
_WEIGHT = 128
#: JetStream's error for a message that it could not store; if the stream is full, its text says so.
_NOT_STORED = 10077


@dataclass(slots=True, eq=False)
class _Put:
    """A message that is not stored yet."""

    payload: bytes
    headers: dict[str, str]
    weight: int
    future: PutFuture
    sent_at: float = 0.0


class Sender(Session):
    """The client's side."""

    def __init__(self, options: CommunicatorOptions) -> None:
        #: Messages to send, by their futures, and those that are sent, by the numbers of their
        #: replies.
        self._waiting: OrderedDict[Future[None], _Put] = OrderedDict()
        self._sent: dict[int, _Put] = {}
        self._sent_bytes = self._bytes = 0
        #: Calls of `put` that wait for room.
        self._blocked = 0
        #: The ids of messages are unique, also after a restart with the same id.
        self._incarnation, self._numbers = uuid.uuid4().hex, itertools.count(1)
        self._peer = str(options.id)
        #: When the broker last stored a message, or all were stored. None once an outage was
        #: reported: from then on messages wait until the broker is back.
        self._progress_at: float | None = None
        #: Nothing is sent before this time: the broker refuses messages.
        self._pause_until = 0.0
        #: The subjects of replies, and the number of the last one.
        self._inbox, self._replies = "", 0
        super().__init__(options)

    def put(self, data: Any) -> Future[None]:
        """Enqueues an object: see `ucall.queue.jetstream.client.Communicator.put`."""
        payload, headers = dumped(self._options.serialization.dump, data)
        connection = self._options.connection
        if len(payload) > connection.message_size:
            raise ValueError(f"the message is longer than message_size: {len(payload)} bytes")
        headers[PEER] = self._peer
        put = _Put(payload, headers, len(payload) + _WEIGHT, PutFuture(self))
        with self._lock:
            while self._bytes and self._bytes + put.weight > connection.queue_size:
                if connection.full == "error":
                    raise FullError
                if self._is_closing:
                    break
                self._blocked += 1
                self._condition.wait()
                self._blocked -= 1
            if self._is_closing:
                put.future.finish(ConnectionError(self._options.id))
                return put.future
            self._give_id(put)
            self._bytes += put.weight
            self._waiting[put.future] = put
            is_first = len(self._waiting) == 1
        if is_first:
            self._wake()
        return put.future

    def withdraw(self, future: Future[None]) -> None:
        """Removes the message of a cancelled future, if it still waits."""
        with self._lock:
            put = self._waiting.pop(future, None)
        if put is not None:
            future.set_running_or_notify_cancel()
            self._forget(put)
            self._wake()

    def _give_id(self, put: _Put) -> None:
        put.headers[_ID] = f"{self._incarnation}:{next(self._numbers)}"

    def _may_end(self) -> bool:
        return self._is_closing and not self._bytes

    async def _while_wanted(self, work: Any) -> bool:
        expiring = asyncio.ensure_future(self._expire())
        try:
            return await super()._while_wanted(work)
        finally:
            expiring.cancel()

    async def _prepare(self) -> None:
        await super()._prepare()
        self._inbox = self._broker.new_inbox()
        await self._broker.subscribe(f"{self._inbox}.*", cb=self._handle_reply)

    async def _work(self) -> None:
        await self._while_wanted(self._send_all())

    async def _send_all(self) -> None:
        while True:
            now = time.monotonic()
            if self._may_send(now):
                self._send_overdue_again(now)
                if (put := self._next_put()) is not None:
                    await self._send(put, now)
                else:
                    await self._next_change()
            else:
                await self._next_change(timeout_s=max(0.01, self._pause_until - now))

    def _may_send(self, now: float) -> bool:
        return self._broker.is_connected and now >= self._pause_until

    def _next_put(self) -> _Put | None:
        if len(self._sent) >= _SENT_MAX or self._sent_bytes >= _SENT_BYTES_MAX:
            return None
        with self._lock:
            return self._waiting.popitem(last=False)[1] if self._waiting else None

    async def _send(self, put: _Put, now: float) -> None:
        if not put.sent_at and not put.future.begin():
            self._forget(put)
            return
        length = len(put.payload) + header_bytes(put.headers)
        if length > self._broker.max_payload:
            reason = f"expected up to {self._broker.max_payload} bytes (the broker's max_payload)"
            self._finish(put, ValueError(f"{reason}, got {length}"))
            return
        put.sent_at = now
        self._replies += 1
        self._sent[self._replies] = put
        self._sent_bytes += put.weight
        reply = f"{self._inbox}.{self._replies}"
        try:
            await self._broker.publish(self.topic, put.payload, reply, put.headers)
        except (nats.errors.Error, OSError) as error:
            self._reason = reason_of(error)
            self._send_again(self._replies)

    async def _handle_reply(self, message: Any) -> None:
        """Handles a reply of the stream, or the broker's that there is none."""
        number = int(message.subject.rpartition(".")[2])
        if number not in self._sent:
            # The message was sent again since.
            return
        if _STORED.fullmatch(message.data):
            self._finish(self._answered(number), None)
            return self._resume()
        if message.headers and message.headers.get("Status") == NO_READER:
            self._reason = "no stream takes the topic, or its leader is being elected"
            self._suspicious.set()
            return self._refused(number)
        try:
            reply = json.loads(message.data)
            error = reply.get("error")
            is_of_stream, is_stored = "stream" in reply, reply.get("seq", 0) > 0
            code, number_of_error = (error["code"], error["err_code"]) if error else (0, 0)
        except (ValueError, TypeError, LookupError, AttributeError):
            # Not from a stream. The message is sent again.
            return
        if error:
            self._reason = str(error.get("description"))
            self._refused(number, code, number_of_error)
        elif is_of_stream and is_stored:
            self._finish(self._answered(number), None)
        elif is_of_stream:
            # The broker keeps the id of a message that it has refused, because the stream was full,
            # and takes the next one with it for a duplicate. It would store neither.
            self._reason = "the broker has not stored the message that had the same id"
            self._give_id(self._sent[number])
            self._refused(number)
        self._resume()

    def _resume(self) -> None:
        """Sends more once there is room for half of what may be in flight."""
        if len(self._sent) <= _SENT_MAX // 2 and self._sent_bytes <= _SENT_BYTES_MAX // 2:
            self._wanted.set()

    def _refused(self, number: int, code: int = 503, number_of_error: int = 0) -> None:
        is_full = number_of_error == _NOT_STORED and "maximum" in self._reason
        if is_full and self._options.connection.full == "error":
            error: Exception = FullError(None, f"the stream is full: {self._reason}")
            self._finish(self._answered(number), error)
        elif code < 500:
            error = ConnectionError(None, f"the broker refuses it: {self._reason}")
            self._finish(self._answered(number), error)
        else:
            if is_full:
                self._progress_at = time.monotonic()
            self._send_again(number)
            self._pause_until = time.monotonic() + self._options.connection.reconnect[1] / 10

    def _answered(self, number: int) -> _Put:
        put = self._sent.pop(number)
        self._sent_bytes -= put.weight
        return put

    def _send_overdue_again(self, now: float) -> None:
        """Sends messages again of which the broker, or its connection, has lost the reply."""
        while self._sent:
            number, put = next(iter(self._sent.items()))
            if now - put.sent_at < _ANSWER_S:
                break
            self._send_again(number)

    def _handle_connected(self) -> None:
        """Replies may be lost with the connection before."""
        for number in reversed(list(self._sent)):
            self._send_again(number)
        super()._handle_connected()

    def _send_again(self, number: int) -> None:
        put = self._answered(number)
        put.headers[REPEATED] = "1"
        with self._lock:
            self._waiting[put.future] = put
            self._waiting.move_to_end(put.future, last=False)
        self._wanted.set()

    def _finish(self, put: _Put, error: Exception | None) -> None:
        self._forget(put)
        if error is None:
            self._progress_at = time.monotonic()
            self._stored += 1
        put.future.finish(error)

    def _forget(self, put: _Put) -> None:
        with self._lock:
            self._bytes -= put.weight
            if self._blocked:
                self._condition.notify_all()

    async def _expire(self) -> None:
        """Fails all messages once none was stored for ``expire_s``."""
        expire_s, was_closing = self._options.connection.expire_s, False
        self._progress_at = time.monotonic()
        while True:
            now = time.monotonic()
            if self._is_closing and not was_closing:
                was_closing, self._progress_at = True, now
            if self._progress_at is not None and not self._bytes:
                self._progress_at = now
            elif self._progress_at is not None and now - self._progress_at >= expire_s:
                self._fail_all(f"not stored within expire_s: {self._reason}")
                self._progress_at = None
            await asyncio.sleep(min(0.1, expire_s / 4))

    def _fail_all(self, reason: str) -> None:
        puts, self._sent, self._sent_bytes = list(self._sent.values()), {}, 0
        with self._lock:
            puts += self._waiting.values()
            self._waiting.clear()
        count = 0
        for put in puts:
            if put.sent_at or put.future.begin():
                count += 1
                error = ConnectionError(None, reason)
                error.may_have_arrived = put.sent_at > 0
                self._finish(put, error)
            else:
                self._forget(put)
        if count:
            lost = "1 message was" if count == 1 else f"{count} messages were"
            log.warning("NATS's stream %s: %s: %s not stored", self.stream, reason, lost)

    def _handle_ended(self) -> None:
        with self._lock:
            self._is_closing = True
        self._fail_all("closed")
