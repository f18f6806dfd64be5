"""One side of a queue."""

from __future__ import annotations

import atexit
import os
import time
import uuid
import weakref
from collections.abc import Callable
from typing import ClassVar, Self

from ucall._core import QueueCore
from ucall.queue.core import log_writer
from ucall.queue.core.codec import codec_of
from ucall.queue.core.future import Future
from ucall.queue.core.notifier import Notifier
from ucall.queue.core.options import CommunicatorOptions
from ucall.queue.core.security import check, tls_settings

__all__ = ["Communicator"]

# Time for messages to go out when a program ends that has not closed its communicators.
_EXIT_S = 5.0


class Communicator(QueueCore):
    """Puts to and gets from its peers: a client's is the server, a server's are its clients.

    `put(data, *peers)` puts an object in line and returns a `Future`. Clients put to the server; a
    server puts to all clients that there are, or to those named, and serialises once. Never waits,
    unless ``full="block"``. `get(*peers, timeout=None)` waits for the next `Message`, from anybody
    or from those named. `peers()` are the ids of the peers that there are. All are thread-safe.

    Use the classes in `ucall.queue.{tcp,unix,shm,mqtt,grpc}.{server,client}`, or `ucall.queue.new`.
    """

    #: Set by each class.
    is_server: ClassVar[bool]
    #: Whether `SecurityOptions` can be had. Where they cannot, asking for them is refused.
    has_tls: ClassVar[bool] = True
    #: Whether a key of theirs may be encrypted.
    takes_password: ClassVar[bool] = True

    _options: CommunicatorOptions
    _notifier: Notifier
    _open: ClassVar[weakref.WeakSet[Communicator]] = weakref.WeakSet()

    def __new__(cls, options: CommunicatorOptions | None = None) -> Self:
        options = CommunicatorOptions() if options is None else options
        if options.security is not None and not cls.has_tls:
            raise ValueError(f"security: {cls.__module__} has no TLS")
        connection = options.connection
        given = {name: getattr(connection, name) for name in _CORE_OPTIONS}
        kind = type("Future", (Future,), {"__module__": Future.__module__})
        location = cls._location(options)
        codec, broker, tls = codec_of(options, kind), cls._broker(options), None
        if options.security is not None:
            # A broker is the server of both sides.
            is_server = cls.is_server and broker is None
            check(options.security, is_server, cls.takes_password)
            if location is not None:
                tls = tls_settings(options.security, is_server, cls._verified_name(options))
        made = super().__new__(
            cls, options.id, cls.is_server, location, given, options.engine, codec, tls, broker
        )
        made._options = options
        made._notifier = Notifier(made)
        setattr(kind, "_notifier", made._notifier)  # noqa: B010
        cls._open.add(made)
        if cls.is_server or tls is not None or broker is not None:
            log_writer.start(made._log_lines(), str(options.id))
        return made

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__()

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> tuple[str, int | str] | str | None:
        """Where the core listens or connects; None if `_open_link` is used."""
        raise NotImplementedError

    @classmethod
    def _verified_name(cls, options: CommunicatorOptions) -> str:
        """The name that a server's certificate is to be for, if the options do not say."""
        return options.netloc.host

    @classmethod
    def _broker(cls, options: CommunicatorOptions) -> tuple[str, str | None, str | None] | None:
        """The topic, user and password, if peers meet at a broker."""
        return None

    @property
    def id(self) -> uuid.UUID:
        """Who this is."""
        return self._options.id

    @property
    def options(self) -> CommunicatorOptions:
        """What it was told when it was made."""
        return self._options

    def on_start(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Has ``callback(peer)`` called whenever a session begins, on a thread of ucall's."""
        self._notifier.on_start.append(callback)
        self._notifier.start()

    def on_end(self, callback: Callable[[uuid.UUID], object]) -> None:
        """Has ``callback(peer)`` called whenever a session is over for good."""
        self._notifier.on_end.append(callback)
        self._notifier.start()

    def close(self, timeout: float | None = None) -> None:
        """Ends in order: waits until what was put is acknowledged, and what the peers put has come.

        `get` still returns what came. A peer that is gone is waited for until ``expire_s``. What a
        peer put with ``ack="explicit"`` and is not acknowledged by now stays with that peer, for
        the next communicator with this id.

        Args:
            timeout: After so many seconds it ends as it is: what has not arrived fails.
        """
        self._close(False)
        if not self._wait_closed(timeout):
            self._close(True)
            self._wait_closed(None)
        self._open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes."""
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.id}>"


# The options of a connection that the core has, too.
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


@atexit.register
def _close_all() -> None:
    left = list(Communicator._open)
    # All at once: none waits for the time of another.
    for communicator in left:
        communicator._close(False)
    end = time.monotonic() + _EXIT_S
    for communicator in left:
        communicator.close(max(0.0, end - time.monotonic()))


def _mark_all_forked() -> None:
    """The threads of this process's communicators are its parent's."""
    for communicator in list(Communicator._open):
        communicator._mark_forked()
    Communicator._open.clear()


os.register_at_fork(after_in_child=_mark_all_forked)
