"""Calls that come through NATS, which the core of this process serves.

A connection of its own carries them: the process connects and subscribes, then the core reads the
messages and writes the replies in the turns of its worker. When the connection ends, another one is
made. A drain ends the subscriptions in the core, so that messages on their way are served.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Sequence
from typing import Any

from ucall import _core
from ucall._nats.handshake import open_stream, read_until_pong
from ucall._nats.subjects import cancel_subject, printable, subject_of
from ucall.errors import ConnectionError

__all__ = ["BrokerCalls"]

log = logging.getLogger("ucall")

#: Calls under way on one connection, and the bytes of their messages. Past either, -32003.
_RUNNING_MAX = 1_024
_RUNNING_BYTES_MAX = 67_108_864
#: The queue group of all servers, by ADR-32.
QUEUE = "q"
#: The pause between two attempts to connect, as in nats-py.
_RECONNECT_TIME_WAIT_S = 2.0


class BrokerCalls:
    """Keeps a server connected to a broker, and subscribed to the subjects of its functions.

    Args:
        core: The server.
        brokers: URLs of brokers.
        options: Options of nats-py.
        group: The name of the servers.
        methods: The functions.
        name: The name of the connection, for the broker's lists.
    """

    def __init__(
        self,
        core: _core.Server,
        brokers: Sequence[str],
        options: dict[str, Any],
        group: str,
        methods: Sequence[str],
        name: str,
    ) -> None:
        self._core = _core.BrokerCalls(core, list(methods), _RUNNING_MAX, _RUNNING_BYTES_MAX)
        self._brokers = list(brokers)
        self._options = options
        self._name = name
        subjects = [f"{subject_of(group, method)} {QUEUE}" for method in methods]
        subjects.append(cancel_subject(group))
        subscriptions = (f"SUB {it} {number}\r\n" for number, it in enumerate(subjects, 1))
        self._subscribe = "".join(subscriptions).encode() + b"PING\r\n"
        self._is_subscribed = asyncio.Event()
        self._failure = ""

    def counts(self) -> list[tuple[int, int, int, str]]:
        """For each function: calls, errors, nanoseconds, and the last error."""
        return self._core.counts()

    async def subscribed(self) -> None:
        """Waits until the server is subscribed."""
        await self._is_subscribed.wait()

    async def run(self) -> None:
        """Connects, and again whenever the connection ends, until it is cancelled."""
        pause_s = self._options.get("reconnect_time_wait", _RECONNECT_TIME_WAIT_S)
        urls = list(self._brokers)
        while True:
            random.shuffle(urls)
            for url in list(urls):
                try:
                    urls = await self._serve(url)
                except Exception as error:
                    self._report(url, error)
                finally:
                    self._is_subscribed.clear()
            await asyncio.sleep(pause_s)

    async def _serve(self, url: str) -> list[str]:
        """Serves until the connection ends. Returns the nodes of the cluster."""
        stream = await open_stream(url, self._options, self._name)
        try:
            stream.transport.write(self._subscribe)
            await stream.transport.drain()
            async with asyncio.timeout(self._options.get("connect_timeout", 2)):
                received = await read_until_pong(stream.transport)
        except BaseException:
            stream.close()
            raise
        near, far = socket.socketpair()
        with near:
            near.setblocking(False)
            if not self._core.attach(stream.detach(), received, stream.max_payload, far.detach()):
                raise ConnectionError("the server does not run")
            self._failure = ""
            self._is_subscribed.set()
            await asyncio.get_running_loop().sock_recv(near, 1)
        log.log(logging.DEBUG, "the connection for calls through NATS has ended")
        return list(dict.fromkeys([*self._brokers, *stream.urls]))

    def _report(self, url: str, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if reason != self._failure:
            self._failure = reason
            # That a broker is out of reach is logged for the connection of the registration.
            is_out_of_reach = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            level = logging.DEBUG if is_out_of_reach else logging.WARNING
            log.log(level, "calls through NATS at %s: %s; trying again", printable(url), reason)
