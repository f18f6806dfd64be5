"""Calls that come through NATS: nats-py receives and answers the messages, the core runs the calls.

| a call | gets |
|---|---|
| past `_RUNNING_MAX` or `_RUNNING_BYTES_MAX` | -32003 |
| with a payload that is neither a list nor an object, or with headers unlike HTTP's | -32600 |
| with a payload above `max_body_bytes` | -32600 |
| whose reply is longer than the broker's `max_payload` | -32603 |
| without a reply subject | no reply: it is a notification |
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ucall import _core
from ucall._nats.connection import header_bytes
from ucall._nats.subjects import CALL_ID, ERROR, ERROR_CODE, cancel_subject, subject_of

__all__ = ["QUEUE", "BrokerCalls"]

log = logging.getLogger("ucall")

#: Calls in flight of one worker and notifications that have not begun, and the bytes of their
#: messages. Past either, -32003.
_RUNNING_MAX = 1_024
_RUNNING_BYTES_MAX = 67_108_864
#: The queue group of all servers, by ADR-32.
QUEUE = "q"
#: Letters of a message in the header of an error. The payload has all of it.
_ERROR_LETTERS_MAX = 512
#: What a reply of the core begins with.
_RESULT = b'{"jsonrpc":"2.0","id":1,"result":'
_ERROR = b'{"jsonrpc":"2.0","id":1,"error":'
_OVERLOADED = b'{"code":-32003,"message":"Overloaded","data":{"retry_after_ms":1000}}'
_REQUEST_LINE = "POST / HTTP/1.1\r\nHost: localhost\r\n"
_BARE_HEAD = f"{_REQUEST_LINE}\r\n".encode()
#: Headers that concern NATS, the connection or the body of an HTTP request, browsers, or proxies,
#: whose word only their own connections give.
_DROPPED = {
    "accept",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "forwarded",
    "host",
    "origin",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
}


class _Call(NamedTuple):
    """A call in flight, or a notification that has not begun."""

    method: int
    #: The subject of its reply; empty for a notification.
    subject: str
    began_ns: int
    #: The bytes of its message.
    size: int
    #: What a request to cancel names.
    id: str | None


class BrokerCalls:
    """The calls of one worker, on the thread of the brokers.

    Args:
        core: The server.
        group: The name of the servers.
        methods: The functions.
    """

    def __init__(self, core: _core.Server, group: str, methods: Sequence[str]) -> None:
        self._core = _core.BrokerCalls(core, list(methods))
        self._methods = {subject_of(group, it): number for number, it in enumerate(methods)}
        self._cancel_subject = cancel_subject(group)
        self._connection: Any = None
        self._running: dict[int, _Call] = {}
        self._running_bytes = 0
        self._numbers: dict[str, int] = {}
        self._is_closed = False
        self._sending: asyncio.Task[None] | None = None

    def counts(self) -> list[tuple[int, int, int, str]]:
        """For each function: calls, errors, nanoseconds, and the last error."""
        return self._core.counts()

    async def subscribe(self, connection: Any, subscriptions: list[Any]) -> None:
        """Subscribes to the functions, and adds each of the subscriptions to a list."""
        self._connection = connection
        asyncio.get_running_loop().add_reader(self._core.fileno(), self._begin_sending)
        for subject in self._methods:
            subscriptions.append(await connection.subscribe(subject, QUEUE, cb=self._receive))
        cancel = await connection.subscribe(self._cancel_subject, cb=self._receive_cancel)
        subscriptions.append(cancel)

    def cancel_all(self) -> None:
        """Cancels the calls: their connection has ended."""
        for number in list(self._running):
            self._cancel(number)

    async def close(self) -> None:
        """Sends the replies of calls that have ended. The server has ended."""
        self._is_closed = True
        asyncio.get_running_loop().remove_reader(self._core.fileno())
        if self._sending is not None:
            await self._sending
        await self._send_replies()

    async def _receive(self, message: Any) -> None:
        """Begins the call of a message."""
        method, began_ns = self._methods[message.subject], time.monotonic_ns()
        head, id, size = _BARE_HEAD, None, len(message.data)
        if message.headers:
            head, id = _head_of(message.headers)
            size += header_bytes(message.headers)
        number = None
        if len(self._running) < _RUNNING_MAX and self._running_bytes + size <= _RUNNING_BYTES_MAX:
            number = self._core.call(method, message.data, head, bool(message.reply))
        call = _Call(method, message.reply, began_ns, size, id)
        if number is None:
            await self._reply(call, _ERROR + _OVERLOADED + b"}")
        else:
            self._running[number] = call
            self._running_bytes += size
            if id is not None:
                self._numbers[id] = number

    async def _receive_cancel(self, message: Any) -> None:
        number = self._numbers.get(message.data.decode(errors="replace"))
        if number is not None:
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        """Cancels a call, which gets no reply: its caller waits no longer."""
        call = self._end(number)
        self._core.cancel(number)
        self._core.count(call.method, time.monotonic_ns() - call.began_ns, "Request cancelled")

    def _end(self, number: int) -> _Call:
        call = self._running.pop(number)
        self._running_bytes -= call.size
        if call.id is not None and self._numbers.get(call.id) == number:
            del self._numbers[call.id]
        return call

    def _begin_sending(self) -> None:
        asyncio.get_running_loop().remove_reader(self._core.fileno())
        self._sending = asyncio.ensure_future(self._send_replies())

    async def _send_replies(self) -> None:
        """Sends replies, and takes more only then: those that wait count towards the budget."""
        try:
            while replies := self._core.take_replies():
                for number, text in replies:
                    if number in self._running:  # It has not been cancelled.
                        await self._reply(self._end(number), text)
        finally:
            if not self._is_closed:
                loop = asyncio.get_running_loop()
                loop.add_reader(self._core.fileno(), self._begin_sending)

    async def _reply(self, call: _Call, text: bytes) -> None:
        """Counts a call that has ended, and sends its reply."""
        payload, headers, error = self._message_of(text) if text else (b"", None, None)
        self._core.count(call.method, time.monotonic_ns() - call.began_ns, error)
        if call.subject:
            try:
                await self._connection.publish(call.subject, payload, headers=headers)
            except Exception as failure:
                log.debug("a reply through NATS is lost: %r", failure)

    def _message_of(self, text: bytes) -> tuple[bytes, dict[str, str] | None, str | None]:
        """The payload and the headers of a reply, and the message of its error."""
        if text.startswith(_RESULT):
            size, payload = len(text) - len(_RESULT) - 1, text[len(_RESULT) : -1]
            headers, message = None, None
        else:
            payload = text[len(_ERROR) : -1]
            headers, message = _error_headers(payload)
            size = len(payload) + header_bytes(headers)
        if size > (max_payload := self._connection.max_payload):
            line = "the reply of {} bytes is longer than max_payload of the broker, {}"
            error = {"code": -32603, "message": line.format(size, max_payload)}
            payload = json.dumps(error).encode()
            headers, message = _error_headers(payload)
        return payload, headers, message


def _head_of(headers: dict[str, str]) -> tuple[bytes, str | None]:
    """The head of the HTTP request that the headers of a message stand for, and the id that cancels
    the call. The core refuses invalid names and values."""
    id, lines = None, [_REQUEST_LINE]
    for name, value in headers.items():
        lower = name.lower()
        if lower == CALL_ID.lower():
            id = value
        if lower not in _DROPPED and not lower.startswith("nats-"):
            lines.append(f"{name}: {value}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode(), id


def _error_headers(payload: bytes) -> tuple[dict[str, str], str]:
    """The headers of an error reply, by ADR-32, and the message of the error."""
    error = json.loads(payload)
    message: str = error["message"]
    line = " ".join(message.split())[:_ERROR_LETTERS_MAX]
    ascii_line = "".join(it if " " <= it <= "~" else "?" for it in line)
    return {ERROR_CODE: str(error["code"]), ERROR: ascii_line or "error"}, message
