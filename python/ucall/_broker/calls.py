"""Calls that come through NATS, passed on to the server of this process by HTTP.

The payload of a message is the params, as JSON: a list or an object, or nothing. The payload of its
reply is the result. An error has the headers of ADR-32, and the JSON-RPC error as its payload.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ucall import _core, _process_role
from ucall._broker.connection import header_bytes
from ucall._broker.subjects import CALL_ID, ERROR, ERROR_CODE
from ucall._client.address import Address
from ucall._client.aio_pool import HttpPool
from ucall._client.base import REPLY_BYTES_MAX
from ucall._client.inbox import WAITING_BYTES_MAX
from ucall._client.options import RESERVED, Options
from ucall._client.tls import context_for
from ucall.errors import ConnectionError, HTTPError, TimeoutError

__all__ = ["LocalCalls"]

#: Calls under way, and the bytes of their messages. Past either, -32003.
_RUNNING_MAX = 1_024
_RUNNING_BYTES_MAX = 67_108_864
#: Headers of messages that concern NATS, or the connection of the caller. Those of proxies are
#: refused because the server may trust its own machine as one.
_NOT_PASSED_ON = {*RESERVED, "accept", "content-encoding", "expect", "origin", "te", "trailer"}
_NOT_PASSED_ON |= {"forwarded", "x-forwarded-for"}
_INVALID, _INTERNAL = -32600, -32603
_DRAINING, _OVERLOADED, _UNAUTHORISED, _ABORTED = -32002, -32003, -32004, -32007
#: What a status without a JSON-RPC reply stands for.
_CODES = {401: _UNAUTHORISED, 403: _UNAUTHORISED, 503: _OVERLOADED, 413: _INVALID, 431: _INVALID}
_RESULT = b'{"jsonrpc":"2.0","id":1,"result":'

Count = Callable[[int, "str | None"], None]


class LocalCalls:
    """Passes calls on to a server of this machine.

    Args:
        scheme: ``http`` or ``https``.
        host: The address that it listens on.
        port: Its port.
    """

    def __init__(self, scheme: str, host: str, port: int) -> None:
        url = _process_role.url(scheme, host, port)
        self._address = Address(url)
        # The connection does not leave this machine.
        tls = context_for(self._address, not self._address.is_secure, None)
        options = Options(self._address, None, {})
        self._pool = HttpPool(options, REPLY_BYTES_MAX, tls, _RUNNING_MAX, WAITING_BYTES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running_bytes = 0
        self._by_id: dict[str, asyncio.Task[None]] = {}
        self._writer = lru_cache(maxsize=64)(self._new_writer)

    @property
    def running(self) -> int:
        """The number of calls under way."""
        return len(self._tasks)

    def begin(self, connection: Any, method: str, message: Any, count: Count) -> None:
        """Begins a call, which replies by itself."""
        length = len(message.data)
        is_refused = (
            len(self._tasks) >= _RUNNING_MAX or self._running_bytes + length > _RUNNING_BYTES_MAX
        )
        task = asyncio.get_running_loop().create_task(
            self._run(connection, method, message, count, is_refused)
        )
        self._tasks.add(task)
        self._running_bytes += length
        id = (message.headers or {}).get(CALL_ID)
        if id is not None:
            self._by_id[id] = task

        def forget(_: object) -> None:
            self._tasks.discard(task)
            self._running_bytes -= length
            if id is not None and self._by_id.get(id) is task:
                del self._by_id[id]

        task.add_done_callback(forget)

    def cancel(self, id: str) -> None:
        """Cancels a call, if it is one of this server's."""
        if (task := self._by_id.get(id)) is not None:
            task.cancel()

    async def finish(self) -> None:
        """Waits for the replies to all calls, and closes the connections."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._pool.close()

    async def _run(
        self, connection: Any, method: str, message: Any, count: Count, is_refused: bool
    ) -> None:
        began = time.perf_counter_ns()
        headers: dict[str, str] | None
        try:
            if is_refused:
                error = {
                    "code": _OVERLOADED,
                    "message": "overloaded",
                    "data": {"retry_after_ms": 100},
                }
                payload, headers = _error_reply(error)
            else:
                payload, headers = await self._call(method, message)
        except asyncio.CancelledError:
            count(began, "cancelled")
            raise
        length = len(payload) + (header_bytes(headers) if headers else 0)
        if length > connection.max_payload:
            limit = connection.max_payload
            text = f"the reply of {length} bytes is longer than max_payload of the broker, {limit}"
            payload, headers = _error_reply({"code": _INTERNAL, "message": text})
        count(began, None if headers is None else headers[ERROR])
        if message.reply:
            with suppress(Exception):  # The caller times out.
                await connection.publish(message.reply, payload, headers=headers)

    async def _call(self, method: str, message: Any) -> tuple[bytes, dict[str, str] | None]:
        """The payload and headers of the reply."""
        id = 1 if message.reply else None
        try:
            writer = self._writer(_passed_on(message.headers or {}))
            params = json.loads(message.data) if message.data.strip() else []
            if not isinstance(params, list | dict):
                raise ValueError("expected a list or an object as params")
            args, kwargs = ((), params) if isinstance(params, dict) else (tuple(params), None)
            request = writer.call(method, args, kwargs or None, id)
        except (ValueError, TypeError, RecursionError) as error:
            return _error_reply({"code": _INVALID, "message": f"Invalid Request: {error}"})
        try:
            reply = await self._pool.exchange(request, () if id is None else (id,), None)
        except (ConnectionError, TimeoutError) as failure:
            return _error_reply(_error_of(failure))
        if reply.is_empty:
            return b"", None
        if reply.is_error:
            return _error_reply(reply.error())
        text = reply.text
        if text.startswith(_RESULT):
            return text[len(_RESULT) : -1], None
        return json.dumps(reply.result()).encode(), None

    def _new_writer(self, headers: tuple[tuple[str, str], ...]) -> _core.RequestWriter:
        return Options(self._address, None, dict(headers)).writer


def _passed_on(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers of a message that the server gets."""
    found = [
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _NOT_PASSED_ON
        and not name.lower().startswith(("nats-", "ucall-broker"))
    ]
    return (*found, ("Ucall-Broker", "nats"))


def _error_of(failure: ConnectionError | TimeoutError) -> dict[str, Any]:
    """The error of a call that got no JSON-RPC reply."""
    if isinstance(failure, HTTPError):
        code = _CODES.get(failure.status, _INTERNAL)
        return {"code": code, "message": f"{failure.status} {failure.reason}".strip()}
    if failure.may_have_run:
        return {"code": _ABORTED, "message": "the server stopped before the call ended"}
    return {"code": _DRAINING, "message": "the server is draining"}


def _error_reply(error: Any) -> tuple[bytes, dict[str, str]]:
    """An error as ADR-32 has it, with the JSON-RPC error as the payload."""
    error = error if isinstance(error, dict) else {"code": _INTERNAL, "message": str(error)}
    code, message = error.get("code", _INTERNAL), error.get("message", "")
    # Headers have one line.
    line = " ".join(str(message).encode("ascii", "replace").decode().split())[:512]
    return json.dumps(error).encode(), {ERROR_CODE: str(code), ERROR: line or "error"}
