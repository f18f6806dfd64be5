"""Connections to NATS, by nats-py, in an event loop on a thread of this process."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ucall import _forks
from ucall._client.sockets import not_sent
from ucall._nats.subjects import printable
from ucall.errors import ConnectionError

__all__ = ["BrokerOptions", "cancel", "check_options", "connect", "header_bytes", "start"]

log = logging.getLogger("ucall")

T = TypeVar("T")
BrokerOptions = Mapping[str, Any]

#: The options of `nats.connect` that a program may set.
_ALLOWED = {
    "connect_timeout",
    "inbox_prefix",
    "max_outstanding_pings",
    "nkeys_seed",
    "nkeys_seed_str",
    "password",
    "pending_size",
    "ping_interval",
    "reconnect_time_wait",
    "tls",
    "tls_handshake_first",
    "tls_hostname",
    "token",
    "user",
    "user_credentials",
}
#: nats-py would take four minutes to notice that a broker is silent.
_PING_INTERVAL_S = 10
#: Seconds after which a task that has not ended is cancelled again.
_CANCEL_AGAIN_S = 0.05

_loop: asyncio.AbstractEventLoop | None = None
# Reentrant, because a client may be collected while the thread is made, and closes its connection.
_starting = threading.RLock()


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Runs a coroutine on the thread of the brokers, which the first one starts."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="ucall-broker", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop)


@_forks.in_child
def _forget_thread() -> None:
    """A forked child has none of its parent's threads."""
    global _loop, _starting
    _loop, _starting = None, threading.RLock()


def check_options(options: BrokerOptions | None) -> dict[str, Any]:
    """Options for nats-py.

    Raises:
        ImportError: nats-py is not installed.
        OSError: A file of credentials cannot be read.
        ValueError: An option is not one of nats-py, or not one for programs.
    """
    _nats()
    given = dict(options or {})
    unknown = sorted(given.keys() - _ALLOWED)
    if unknown:
        raise ValueError(f"broker_options: expected {', '.join(sorted(_ALLOWED))}; got {unknown}")
    for name in ("user_credentials", "nkeys_seed"):
        files = given.get(name, ())
        for file in (files,) if isinstance(files, str | os.PathLike) else files:
            with open(file, "rb"):
                pass
    return given


async def connect(
    brokers: Sequence[str],
    options: BrokerOptions,
    name: str,
    *,
    reports: bool,
    timeout_s: float | None = None,
    on_lost: Callable[[], None] = lambda: None,
    on_connected: Callable[[], None] = lambda: None,
) -> Any:
    """Connects to one of the brokers, and again whenever the connection ends. It tries until one
    accepts.

    Args:
        name: The name of the connection, for the broker's lists.
        reports: Whether to log failures and connections.
        timeout_s: How long it tries.
        on_lost: Called when the connection has ended.
        on_connected: Called when there is a connection, the first or another one.

    Returns:
        nats-py's client.

    Raises:
        ucall.ConnectionError: No broker has accepted it in time.
    """
    level = logging.WARNING if reports else logging.DEBUG
    reporter = _Reporter(brokers, level, on_lost, on_connected)
    requires_tls = "tls" in options or any(url.startswith("tls:") for url in brokers)
    reporter.connection = connection = _client_class(requires_tls)()
    try:
        async with asyncio.timeout(timeout_s):
            await connection.connect(
                servers=list(brokers),
                name=name,
                max_reconnect_attempts=-1,
                error_cb=reporter.failed,
                disconnected_cb=reporter.disconnected,
                reconnected_cb=reporter.connected,
                **{"ping_interval": _PING_INTERVAL_S, **options},
            )
    except BaseException as error:
        # Otherwise it would go on trying.
        start(connection.close())
        if not isinstance(error, TimeoutError):
            raise
        raise not_sent(ConnectionError(reporter.failure)) from None
    await reporter.connected()
    return connection


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks, and waits until they have ended. It cancels them again and again, because
    ``asyncio.wait_for`` of CPython 3.11, which nats-py uses, may lose a cancellation."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


def header_bytes(headers: Mapping[str, str]) -> int:
    """The bytes of headers in a message, which count towards the broker's ``max_payload``."""
    return sum(len(name) + len(value.encode()) + 4 for name, value in headers.items()) + 12


class _Reporter:
    """Logs one line for each outage, and one for its end."""

    def __init__(
        self,
        brokers: Sequence[str],
        level: int,
        on_lost: Callable[[], None],
        on_connected: Callable[[], None],
    ) -> None:
        self.connection: Any = None
        self._where = printable(",".join(brokers))
        self._level = level
        self._on_lost, self._on_connected = on_lost, on_connected
        self._last = ""
        #: What the broker has said last, which a reset of the connection may hide the next time.
        self._answer = ""

    @property
    def failure(self) -> str:
        """Why there is no connection."""
        reason = self._answer or self._last or "no answer"
        return f"cannot connect to NATS at {self._where}: {reason}"

    async def failed(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if not isinstance(error, OSError):
            self._answer = reason
        if reason != self._last:
            self._last = reason
            log.log(self._level, "NATS at %s: %s; trying again", self._where, reason)

    async def disconnected(self) -> None:
        self._on_lost()
        if not self.connection.is_closed:
            await self.failed(ConnectionError("the connection has ended"))

    async def connected(self) -> None:
        self._last = self._answer = ""
        level = logging.INFO if self._level == logging.WARNING else self._level
        log.log(level, "connected to NATS at %s", self._where)
        self._on_connected()


def _client_class(requires_tls: bool) -> Any:
    """nats-py's client. If it requires TLS, it does not continue in plaintext where the broker
    offers none: an attacker on the network path could else read the credentials."""
    plain: Any = importlib.import_module("nats.aio.client").Client
    if not requires_tls:
        return plain

    class TlsClient(plain):  # type: ignore[misc]  # nats-py is optional
        async def _process_info(self, info: Any, initial_connection: bool = False) -> None:
            is_secure = (
                info.get("tls_required")
                or self.options["tls_handshake_first"]
                or self._current_server.uri.scheme == "wss"
            )
            if initial_connection and not is_secure:
                raise importlib.import_module("nats.errors").Error("the broker requires no TLS")
            await super()._process_info(info, initial_connection)

    return TlsClient


def _nats() -> Any:
    try:
        return importlib.import_module("nats")
    except ImportError as missing:
        text = "NATS needs nats-py: pip install 'nats-py[nkeys]'"
        raise ImportError(text, name=missing.name) from None
