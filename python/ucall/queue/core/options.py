"""What a communicator is told when it is made."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ucall.queue.utils.stream import PickleSerializer, Stream

__all__ = [
    "BrokerOptions",
    "CommunicatorOptions",
    "ConnectionOptions",
    "NetworkLocation",
    "SecurityOptions",
    "SerializationOptions",
]

_serializer = PickleSerializer()


class NetworkLocation(NamedTuple):
    """Where the server is.

    A Unix socket is at the path ``host``, if that has a slash; else at one of its own for this
    user, made of host and port.
    """

    host: str = "127.0.0.1"
    port: int = 51966


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Limits and habits.

    Args:
        get_merge: Hands the serializer's stream to ``load`` as one block.
        put_merge: Joins the pieces that ``dump`` makes into one block. Out-of-band buffers are sent
            from where they lie, either way.
        transport_size: Bytes that a peer may have under way to us: sent, and not returned by `get`.
            No less than 64 KiB are told to a peer, and less than this when all peers together would
            have more than ``queue_size``.
        queue_size: Bytes of messages for one peer that are not acknowledged yet. Each counts 128
            bytes more than its length, and 64 for each of its out-of-band buffers.
        message_size: Bytes of one message, in either direction. Memory for one that comes is taken
            as its bytes arrive.
        full: What `put` does when the queue is full: ``"error"`` raises `FullError`; ``"block"``
            waits; ``"drop_oldest"`` makes room by failing the futures of what was put first and is
            not on the wire; ``"drop_newest"`` fails the new one's.
        ack: What acknowledges the messages that this side puts: ``"received"``, that the peer's
            process has received them; ``"taken"``, that they were returned by the peer's `get`;
            ``"explicit"``, that the peer's program has called `Message.ack` on them and on all
            before them.
        keepalive_s: After so many seconds without a byte a peer is asked for a sign of life; after
            three times that its connection is given up.
        expire_s: A peer that is gone for so many seconds is given up: its futures fail and its
            memory is freed.
        handshake_s: Time for a new connection to say who it is, that for TLS included; past it, it
            is closed.
        handshakes: Connections of a server that have not said yet who they are; past it, the one
            that has been open for longest is closed.
        reconnect: Seconds before a lost connection is made again: at first, and at most. In between
            they double.
        trusted: Over shared memory, has memory used again that a message lay in, if the other side
            says so too, which makes long messages several times as quick. A peer could then write
            to an array that was got from it, for as long as that is looked at.
    """

    get_merge: bool = True
    put_merge: bool = True
    transport_size: int = 16 * 1024**2
    queue_size: int = 1024**3
    message_size: int = 1024**3
    full: Literal["error", "block", "drop_oldest", "drop_newest"] = "error"
    ack: Literal["received", "taken", "explicit"] = "received"
    keepalive_s: float = 10.0
    expire_s: float = 30.0
    handshake_s: float = 10.0
    handshakes: int = 1024
    reconnect: tuple[float, float] = (0.02, 2.0)
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class SerializationOptions:
    """How objects become bytes, and bytes objects."""

    load: Callable[[Stream], Any] = _serializer.load
    dump: Callable[[Any], Any] = _serializer.dump


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """TLS.

    Each has one meaning; where it would have none, it is refused with `ValueError`. Over MQTT both
    sides are clients, of their broker. Over shared memory there is no TLS.

    Args:
        key: The file of the private key of ``certificate``.
        certificate: A file of certificates. A server needs both; a client may have both, to show
            who it is.
        authority: A file of the certificates that the other side's is checked against. A client
            without it trusts the system's; a server with it takes only clients that show one.
        name: The name that the server's certificate is to be for, told to clients alone. By default
            that is the host of the location, a name or an IP address; ``"localhost"`` over a Unix
            socket.
        password: That of an encrypted ``key``; not over gRPC.
    """

    key: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None
    name: str | None = None
    password: str | bytes | None = field(default=None, repr=False)


_LOCATION = NetworkLocation()


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How peers meet at an MQTT broker.

    Args:
        topic: Under this all is published. Each server needs one of its own at its broker.
        user: Who we are to the broker; None for nobody.
        password: And our password.
    """

    topic: str = "ucall/queue"
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CommunicatorOptions:
    """Who a communicator is, where, and how it treats what it is given.

    Args:
        id: Two communicators never have the same one at the same time; one that comes back with the
            same id goes on with its queue.
        netloc: Where the server is.
        connection: See `ConnectionOptions`.
        serialization: See `SerializationOptions`.
        security: TLS; None for none.
        broker: See `BrokerOptions`; for MQTT alone.
        workers: For programs that set it; any number changes nothing. Each communicator has one
            thread that never holds the interpreter's lock; MQTT and gRPC have one more.
        engine: ``"auto"`` takes io_uring where it may; ``"uring"`` and ``"posix"`` insist.
    """

    id: uuid.UUID = field(default_factory=uuid.uuid4)
    netloc: NetworkLocation = _LOCATION
    connection: ConnectionOptions = ConnectionOptions()
    serialization: SerializationOptions = SerializationOptions()
    security: SecurityOptions | None = None
    broker: BrokerOptions = BrokerOptions()
    workers: int = 1
    engine: Literal["auto", "posix", "uring"] = "auto"
