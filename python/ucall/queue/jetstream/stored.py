"""What both sides of a queue over JetStream share."""

from __future__ import annotations

import concurrent.futures
import os
import time
import uuid
import weakref
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ucall import _forks
from ucall.queue.core.options import CommunicatorOptions, check_security, check_workers
from ucall.queue.core.process_end import at_process_end, note_opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucall.queue.core.events import ConnectionEvent
    from ucall.queue.jetstream.receiver import Receiver
    from ucall.queue.jetstream.sender import Sender

__all__ = ["StoredQueue"]

#: Seconds that the end of the program waits for queues that are still open.
_EXIT_S = 5.0
#: The defaults have no effect here, so any other value is refused.
_UNUSED = {"handshake_s": 10.0, "handshakes": 1024, "trusted": False}


class StoredQueue:
    """A queue that a NATS server stores with JetStream, so that it outlives all other processes.

    Clients put, and servers get. All servers with one topic are a group: each message goes to one
    of them, and to another one if the first does not acknowledge it.
    """

    #: Whether this is a server, which gets.
    is_server: ClassVar[bool]
    _open: ClassVar[weakref.WeakSet[StoredQueue]] = weakref.WeakSet()
    #: The work of queues until it has ended, also of those that the program has dropped.
    _running: ClassVar[set[concurrent.futures.Future[None]]] = set()

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        options = CommunicatorOptions() if options is None else options.of_this_process()
        self._options = options
        self._check(options)
        self._pid = os.getpid()
        # They import asyncio.
        from ucall.queue.jetstream.receiver import Receiver
        from ucall.queue.jetstream.sender import Sender

        self._work: Sender | Receiver = Receiver(options) if self.is_server else Sender(options)
        self._open.add(self)
        self._running.add(self._work.ended)
        self._work.ended.add_done_callback(self._running.discard)
        note_opened()

    @classmethod
    def _check(cls, options: CommunicatorOptions) -> None:
        from ucall.queue.core.nats_options import check_nats

        if not hasattr(cls, "is_server"):
            raise TypeError("StoredQueue has no side: use ucall.queue.new")
        check_workers(options)
        if options.security is not None:
            check_security(options.security, False, True)
        connection = options.connection
        for name, default in _UNUSED.items():
            if getattr(connection, name) != default:
                raise ValueError(f"{name}: has no effect over JetStream")
        if cls.is_server and connection.ack not in ("taken", "explicit"):
            raise ValueError(
                'ack: expected "taken" or "explicit" for a server over JetStream, got '
                f"{connection.ack!r}: a message that only its process has received could be lost"
            )
        if not cls.is_server and connection.ack != "received":
            raise ValueError("ack: is for servers over JetStream; the broker acknowledges a put")
        if connection.full not in ("error", "block"):
            raise ValueError(f'full: expected "error" or "block", got {connection.full!r}')
        if options.broker.replicas < 1:
            raise ValueError(f"broker: expected replicas from 1 on, got {options.broker.replicas}")
        check_nats(options)

    @property
    def id(self) -> uuid.UUID:
        """The id of this communicator, which is the ``peer`` of the messages that it puts."""
        return self._options.id

    @property
    def options(self) -> CommunicatorOptions:
        """The options that it was made with."""
        return self._options

    @property
    def state(self) -> Literal["connecting", "connected", "closing", "closed"]:
        """Whether it is connected to the broker, and the queue exists there."""
        return self._work.state

    def on_connection(self, callback: Callable[[ConnectionEvent], object]) -> None:
        """Calls ``callback(event)``, on a thread of ucall's, for each change of the connection.

        It is ``"started"`` once the queue is ready; ``"lost"``, when the connection to the broker
        is lost, or the stream or its consumer was deleted; ``"resumed"``, when the connection is
        there again, or the consumer, and ``"started"`` when another stream took the place of a lost
        one; ``"ended"`` after `close`. ``peer`` is None.
        """
        self._reject_forked()
        self._work.events.add(callback)

    def close(self, timeout: float | None = None) -> None:
        """Closes it.

        A client waits until the broker has stored all messages, for ``expire_s`` at most if the
        broker is gone. A server gives the messages back that it has not acknowledged.

        Args:
            timeout: Seconds to wait. Then the futures of messages that are not stored fail.
        """
        self._open.discard(self)
        if not self._is_forked:
            self._work.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        # The constructor may have raised.
        work = self.__dict__.get("_work")
        if work is not None and not self._is_forked:
            work.close_nowait()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.id}>"

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _sender(self) -> Sender:
        self._reject_forked()
        return self._work  # type: ignore[return-value]

    def _receiver(self) -> Receiver:
        self._reject_forked()
        return self._work  # type: ignore[return-value]

    def _reject_forked(self) -> None:
        if self._is_forked:
            raise RuntimeError("a communicator belongs to the process that made it")


@at_process_end
def _close_all() -> None:
    still_open = list(StoredQueue._open)
    # All close at the same time, so that they share the time limit.
    for queue in still_open:
        queue._work.close_nowait()
    end = time.monotonic() + _EXIT_S
    for queue in still_open:
        queue.close(max(0.0, end - time.monotonic()))
    # Those that the program has dropped close, too.
    concurrent.futures.wait(list(StoredQueue._running), max(0.0, end - time.monotonic()))


@_forks.in_child
def _forget_all() -> None:
    """A forked child has none of its parent's threads, one of which may hold a lock."""
    StoredQueue._open.clear()
    StoredQueue._running.clear()
