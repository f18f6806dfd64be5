"""Passes what a server publishes on to the other servers of its group, and takes theirs.

Each worker sends its own messages, over the connection of its registration. The process that has
registered receives those of other servers, for all workers. Sending never waits: messages queue for
the thread of the brokers, up to a limit.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import json
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ucall import _core
from ucall._nats.connection import start
from ucall._nats.subjects import check_group, publish_subject
from ucall._workers import process_role

__all__ = ["Publisher"]

log = logging.getLogger("ucall")

#: Bytes of messages that wait for the connection. Past it, new ones are dropped.
_WAITING_BYTES_MAX = 8_388_608


class Publisher:
    """Sends and receives the messages of `Server.publish`.

    Args:
        core: The server.
        encode: Replaces objects that JSON does not have.
        group: The name of the servers.

    Raises:
        ValueError: The name is invalid.
    """

    def __init__(self, core: _core.Server, encode: Callable[[object], object], group: str) -> None:
        self._core = core
        self._encode = encode
        self._group = check_group(group)
        # All workers of a server have the same.
        shared = process_role.tickets or secrets.token_bytes(16)
        self._origin = hashlib.sha256(b"ucall publisher" + shared).hexdigest()[:22]
        self._writer = _core.RequestWriter(None, encode)
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._is_sending = False
        self._sending: Future[None] | None = None
        self._connection: Any = None
        #: Messages that the other servers did not get.
        self.dropped = 0

    def publish(self, topic: str, method: str, params: Any) -> None:
        """Sends a message, without waiting.

        Raises:
            TypeError, ValueError: See `Server.publish`.
        """
        args, kwargs = ((), params) if isinstance(params, dict) else (tuple(params or ()), None)
        document = self._writer.call(method, args, kwargs or None, None).document
        head: dict[str, Any] = {"origin": self._origin, "topic": topic}
        if not params:  # The writer does not distinguish empty ones.
            head["params"] = params
        message = json.dumps(head)[:-1].encode() + b',"message":' + document.strip() + b"}"
        with self._lock:
            if self._waiting_bytes + len(message) > _WAITING_BYTES_MAX:
                self.dropped += 1
                return
            self._waiting.append(message)
            self._waiting_bytes += len(message)
            if self._is_sending or self._connection is None:
                return
            self._is_sending = True
            self._sending = start(self._send_all())

    async def register(self, connection: Any, *, receives: bool) -> None:
        """Uses a connection, and if it ``receives``, takes the other servers' messages from it."""
        with self._lock:
            self._connection = connection
            if self._waiting and not self._is_sending:
                self._is_sending = True
                self._sending = start(self._send_all())
        if receives:
            await connection.subscribe(publish_subject(self._group), cb=self._receive)

    async def close(self) -> None:
        """Sends what waits."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)

    async def _send_all(self) -> None:
        """Sends all messages that wait."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_sending = False
                    return
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message)
            try:
                await self._connection.publish(publish_subject(self._group), message)
            except Exception as error:
                self.dropped += 1
                log.warning("a message for the other servers is dropped: %s", error)

    async def _receive(self, received: Any) -> None:
        """Takes a message, which any user of the broker that may publish may have sent."""
        try:
            message = json.loads(received.data)
            if message["origin"] == self._origin:
                return
            document = message["message"]
            params = message["params"] if "params" in message else document["params"]
            self._core.publish(message["topic"], document["method"], params, self._encode)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.debug("a message of another server is invalid: %r", error)
