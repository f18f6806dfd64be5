"""One side of a queue."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import ClassVar, Self

from ucall import _forks
from ucall._core import QueueCore
from ucall.queue.core.codec import announced_names, codec_of
from ucall.queue.core.events import ConnectionEvent
from ucall.queue.core.future import Future, Notifier
from ucall.queue.core.options import (
    CommunicatorOptions,
    check_security,
    check_workers,
    tls_settings,
)
from ucall.queue.core.process_end import at_process_end, note_opened
from ucall.queue.utils.allow import on_change

__all__ = ["Communicator"]

#: Seconds that the end of the program waits for communicators that are still open.
_EXIT_S = 5.0
#: Seconds for the thread to close at once. One that looks up a name does so once it has the answer.
_ABORT_S = 1.0

#: The options of a connection that the core takes.
_CORE_OPTIONS = (
    "transport_size",
    "queue_size",
    "message_size",
    "full",
    "ack",
    "keepalive_s",
    "expire_s",
    "handshake_s",
    "handshakes",
    "reconnect",
    "trusted",
)


class Communicator(QueueCore):
    """Exchanges messages with its peers: a client with its server, a server with its clients.

    `put(data, *peers)` enqueues an object and returns a `Future`. A client puts to its server; a
    server puts to the named clients, or to all clients of the moment, and serializes once. It never
    waits, unless ``full="block"``. `get(*peers, timeout=None)` waits for the next `Message` of the
    named peers, or of any peer. `peers()` lists the ids of all peers. All methods are thread-safe.

    `ucall.queue.new` makes communicators, as do their classes in
    `ucall.queue.{tcp,unix,shm,mqtt,grpc,nats}.{server,client}`.
    """

    #: Whether this is the server's side.
    is_server: ClassVar[bool]
    #: Whether the transport supports TLS.
    has_tls: ClassVar[bool] = True
    #: Whether the transport reads an encrypted key.
    takes_password: ClassVar[bool] = True
    #: Whether both sides are clients of a broker.
    has_broker: ClassVar[bool] = False

    _options: CommunicatorOptions
    _notifier: Notifier
    #: Done once all messages are delivered, or have failed.
    _ended: concurrent.futures.Future[None]
    _open: ClassVar[weakref.WeakSet[Communicator]] = weakref.WeakSet()
    #: What communicators run until they have ended, also those that the program has dropped.
    _running: ClassVar[set[concurrent.futures.Future[None]]] = set()

    def __new__(cls, options: CommunicatorOptions | None = None) -> Self:
        options = CommunicatorOptions() if options is None else options.of_this_process()
        cls._check(options)
        connection = options.connection
        given = {name: getattr(connection, name) for name in _CORE_OPTIONS}
        # The futures of one communicator share a class, which has their notifier.
        kind = type("Future", (Future,), {"__module__": Future.__module__})
        location = cls._location(options)
        codec, broker, tls = codec_of(options, kind), cls._broker(options), None
        if options.security is not None:
            # The TLS server is the broker, if there is one.
            is_server = cls.is_server and not cls.has_broker
            check_security(options.security, is_server, cls.takes_password)
            if location is not None:
                tls = tls_settings(options.security, is_server, cls._verified_name(options))
        made = super().__new__(
            cls, options.id, cls.is_server, location, given, options.engine, codec, tls, broker
        )
        made._options = options
        made._notifier = Notifier(made)
        setattr(kind, "_notifier", made._notifier)  # noqa: B010
        made._ended = concurrent.futures.Future()
        cls._open.add(made)
        cls._add_running(made._ended)
        note_opened()
        arguments = made._log_lines(), options.id, made._ended
        threading.Thread(
            target=_write_log, args=arguments, name="ucall-queue-log", daemon=True
        ).start()
        return made

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__()

    @classmethod
    def _add_running(cls, run: concurrent.futures.Future[None]) -> None:
        cls._running.add(run)
        run.add_done_callback(cls._running.discard)

    @classmethod
    def _check(cls, options: CommunicatorOptions) -> None:
        if not hasattr(cls, "is_server"):
            raise TypeError(
                f"{cls.__name__} has no transport: use ucall.queue.new(protocol, purpose, options) "
                "or a class such as ucall.queue.tcp.client.Communicator"
            )
        check_workers(options)
        if options.security is not None and not cls.has_tls:
            raise ValueError(f"security: {cls.__module__} has no TLS")

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> tuple[str, int | str] | str | None:
        """The argument ``location`` of `QueueCore`; None if the transport opens the links."""
        return options.netloc

    @classmethod
    def _verified_name(cls, options: CommunicatorOptions) -> str:
        """The name in the server's certificate, unless the options have one."""
        return options.netloc.host

    @classmethod
    def _broker(cls, options: CommunicatorOptions) -> tuple[str, str | None, str | None] | None:
        """The topic, user and password for the broker; None without a broker."""
        return None

    @property
    def id(self) -> uuid.UUID:
        """The id of this communicator."""
        return self._options.id

    @property
    def options(self) -> CommunicatorOptions:
        """The options that it was made with."""
        return self._options

    def on_start(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Calls ``callback(peer)``, on ucall's thread, when a session with a peer begins."""
        self._notifier.on_start.append(callback)
        self._notifier.start()

    def on_end(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Calls ``callback(peer)``, on ucall's thread, when a session with a peer has ended."""
        self._notifier.on_end.append(callback)
        self._notifier.start()

    def on_connection(self, callback: Callable[[ConnectionEvent], object]) -> None:
        """Calls ``callback(event)``, on ucall's thread, for each change of a connection."""
        self._notifier.on_connection.append(callback)
        self._notifier.start()

    def close(self, timeout: float | None = None, *, final: bool = False) -> None:
        """Waits until all messages, sent and received, are acknowledged, then closes.

        `get` still returns messages that were received. A peer without a connection is waited for
        until ``expire_s``. A message that a peer put with ``ack="explicit"`` and that was not
        acknowledged stays with the peer, for the next communicator with this id. The log has a
        warning with the number of messages that were not acknowledged.

        Args:
            timeout: Seconds to wait. Then the communicator closes, and the futures of messages that
                are not acknowledged fail. If its thread looks up a name just then, they do once it
                has the answer, for which this waits a second at most.
            final: Closes the clients of a server as well. By default they wait until it is started
                again, and go on with a new session. Has no effect on a client.
        """
        self._close(False, final and self.is_server)
        if not self._wait_closed(timeout):
            self._close(True)
            self._wait_closed(_ABORT_S)
        self._open.discard(self)

    def __del__(self) -> None:
        # Its messages are delivered nevertheless.
        self._close(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes the communicator."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.id}>"


def _write_log(
    lines: Iterable[tuple[int, str]], id: uuid.UUID, ended: concurrent.futures.Future[None]
) -> None:
    """Logs the events of connections and their reasons, until the communicator ends."""
    log = logging.getLogger("ucall")
    try:
        for level, line in lines:
            log.log(level, "queue %s: %s", id, line)
    finally:
        ended.set_result(None)


@at_process_end
def _close_all() -> None:
    still_open = list(Communicator._open)
    # All close at the same time, so that they share the time limit.
    for communicator in still_open:
        communicator._close(False)
    end = time.monotonic() + _EXIT_S
    for communicator in still_open:
        communicator.close(max(0.0, end - time.monotonic()))
    # Those that the program has dropped close, too, and the last lines of all are logged.
    concurrent.futures.wait(list(Communicator._running), max(_ABORT_S, end - time.monotonic()))


@_forks.in_child
def _mark_all_forked() -> None:
    """A forked child has its parent's communicators without their threads."""
    for communicator in list(Communicator._open):
        communicator._mark_forked()
    Communicator._open.clear()
    Communicator._running.clear()


def _announce_all() -> None:
    for communicator in list(Communicator._open):
        communicator._announce(announced_names(communicator._options))


def accepts_here(peer: uuid.UUID | None, name: str) -> bool:
    """Whether the peer is in this process and accepts the name by now."""
    open_here = [it for it in list(Communicator._open) if it.id == peer]
    return any(name in (announced_names(it._options) or ()) for it in open_here)


on_change.append(_announce_all)
