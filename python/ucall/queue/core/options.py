"""The options of a communicator, and the checks of those for TLS."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypedDict

from ucall import _forks
from ucall._server.tls import TlsSettings
from ucall._server.tls import tls_settings as server_tls_settings
from ucall.options import TLS
from ucall.queue.utils.stream import PickleSerializer, Stream

__all__ = [
    "BrokerOptions",
    "ClientTlsSettings",
    "CommunicatorOptions",
    "ConnectionOptions",
    "NetworkLocation",
    "SecurityOptions",
    "SerializationOptions",
    "check_security",
    "check_workers",
    "tls_settings",
    "trusted_file",
]

_serializer = PickleSerializer()


class NetworkLocation(NamedTuple):
    """The address of a server.

    For a Unix socket, ``host`` is the socket's path if it contains a slash; else host and port name
    a socket in a folder of this user.
    """

    host: str = "127.0.0.1"
    port: int = 51966


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Limits, time limits and delivery of a communicator's connections.

    Args:
        get_merge: Passes ``load`` each message as one block of memory.
        put_merge: Joins the chunks that ``dump`` returns into one block. Out-of-band buffers are
            never joined or copied.
        transport_size: Bytes that a peer may send before `get` returns them, at least 64 KiB. It is
            less when all peers together would exceed ``queue_size``.
        queue_size: Bytes of unacknowledged messages for one peer. A message counts 128 bytes more
            than its length, and 64 bytes for each out-of-band buffer.
        message_size: Bytes of one message, sent or received. Memory for a received message is
            allocated as its bytes arrive.
        full: What `put` does when the queue is full: ``"error"`` raises `FullError`; ``"block"``
            waits; ``"drop_oldest"`` fails the futures of the oldest unsent messages; and
            ``"drop_newest"`` fails the future of the new message. With either, a message to several
            peers goes to those that have room.
        ack: What acknowledges the messages that this side puts: ``"received"``, their receipt by
            the peer's process; ``"taken"``, their return by the peer's `get`; ``"explicit"``, calls
            of `Message.ack` for them and all messages before them.
        keepalive_s: Seconds without a received byte after which the peer is pinged; after three
            times as many, the connection is closed.
        expire_s: Seconds without a connection after which the peer's session ends: its futures
            fail, and its memory is freed. A client goes on connecting, and what it puts from then
            on waits for the server.
        handshake_s: Seconds in which a new connection must identify its peer, the TLS handshake
            included. Past it, it is closed.
        handshakes: Connections whose peers have not identified themselves yet, of one server. Past
            it, the oldest one is closed.
        reconnect: Seconds before a lost connection is made again: the first delay, and the longest.
            Each delay is twice the one before.
        trusted: Lets received arrays view shared memory that is written again later, if the peer
            has the option too. Long messages are then several times as fast, but the peer could
            change an array while the program reads it.
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
    """The functions that turn an object into bytes, and bytes into an object."""

    load: Callable[[Stream], Any] = _serializer.load
    dump: Callable[[Any], Any] = _serializer.dump


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """TLS, by files in PEM.

    An option that has no effect on the given side or transport is refused with `ValueError`. Over
    MQTT and NATS both sides are TLS clients of the broker. Shared memory has no TLS.

    Args:
        key: The private key of ``certificate``.
        certificate: With a ``key``, this side's own certificate chain: a server needs both, a
            client may have both. Without one, what a client trusts, as ``authority``.
        authority: The authorities that sign the peer's certificate, or the peer's certificate
            itself. By default a client trusts the system's authorities and its own certificate. A
            server with it requires a certificate of every client.
        name: The name in the server's certificate, for clients alone. By default the host of the
            location, a name or an IP address; ``"localhost"`` over a Unix socket.
        password: The password of an encrypted ``key``. gRPC does not take one.
    """

    key: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None
    name: str | None = None
    password: str | bytes | None = field(default=None, repr=False)


#: Names this process, also on other machines.
_process = uuid.uuid4().hex


@_forks.in_child
def _rename_process() -> None:
    global _process
    _process = uuid.uuid4().hex


class _DrawnId(uuid.UUID):
    """The default of an id: the options replace it by an equal one, and note who has drawn it."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(int=uuid.uuid4().int)


_LOCATION = NetworkLocation()


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The topic and the login of a broker, for MQTT or NATS.

    Args:
        topic: The prefix of all topics, or subjects. Servers of one broker need different ones.
        user: The name for the login; None for no login.
        password: The password for the login.
        urls: For NATS: the servers of a cluster, as ``"nats://a:4222,nats://b:4222"``. By default
            the one at the ``netloc``.
        options: For NATS: options of nats-py's ``connect``, such as ``user_credentials``.
        replicas: For JetStream: the nodes of a cluster that store each message; 3 survive the loss
            of one. The communicator that creates the queue chooses.
    """

    topic: str = "ucall/queue"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    urls: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class CommunicatorOptions:
    """All options of a communicator.

    Args:
        id: Identifies the communicator. No two that are open at the same time may have the same
            one; a new one with the id of a closed one resumes its queue. By default a random one,
            and another one in each process that these options are passed to.
        netloc: The address of the server, or of the broker.
        connection: See `ConnectionOptions`.
        serialization: See `SerializationOptions`.
        security: TLS; None for plaintext.
        broker: See `BrokerOptions`; used by MQTT and NATS alone.
        workers: Only 1: one thread, which never holds the interpreter lock, serves all connections
            of a communicator. All gRPC communicators of a process share one more, and all NATS
            connections another one.
        engine: ``"auto"`` uses io_uring if the system allows it, else epoll or kqueue; ``"uring"``
            and ``"posix"`` require one of them.
    """

    id: uuid.UUID = field(default_factory=_DrawnId)
    netloc: NetworkLocation = _LOCATION
    connection: ConnectionOptions = ConnectionOptions()
    serialization: SerializationOptions = SerializationOptions()
    security: SecurityOptions | None = None
    broker: BrokerOptions = BrokerOptions()
    workers: int = 1
    engine: Literal["auto", "posix", "uring"] = "auto"

    #: The id, if no program has chosen it, and the process that has drawn it.
    _drawn: tuple[uuid.UUID, str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.id, _DrawnId):
            id = uuid.UUID(int=self.id.int)
            object.__setattr__(self, "id", id)
            object.__setattr__(self, "_drawn", (id, _process))

    def of_this_process(self) -> CommunicatorOptions:
        """The same options, with another id if another process has drawn it."""
        id, process = self._drawn or (None, _process)
        return replace(self, id=_DrawnId()) if id == self.id and process != _process else self


class ClientTlsSettings(TypedDict):
    """The argument ``tls`` of `ucall._core.QueueCore`, for a client."""

    name: str
    certificate: str | None
    key: str | None
    password: bytes | None
    authority: str | None


def check_workers(options: CommunicatorOptions) -> None:
    """Refuses another number of workers than 1, with ``ValueError``."""
    if options.workers != 1:
        raise ValueError(
            f"workers: expected 1, got {options.workers}: a communicator has one thread, which "
            "needs no interpreter lock and serves all its connections"
        )


def check_security(security: SecurityOptions, is_server: bool, takes_password: bool) -> None:
    """Refuses options of TLS that contradict each other, or have no effect.

    Raises:
        ValueError: The message names the option.
    """
    has_key, has_certificate = security.key is not None, security.certificate is not None
    if is_server and not (has_key and has_certificate):
        raise ValueError("security: a server needs a key and a certificate")
    if has_key and not has_certificate:
        raise ValueError("security: expected a key and a certificate, or neither")
    if has_certificate and not has_key and security.authority is not None:
        raise ValueError(
            "security: expected a key for the certificate; without one, a client trusts the "
            "certificate as it trusts an authority: expected one of them"
        )
    if is_server and security.name is not None:
        raise ValueError("security: name is for clients, which verify their server's")
    if security.password is not None and security.key is None:
        raise ValueError("security: expected a key for the password")
    if security.password is not None and not takes_password:
        raise ValueError("security: gRPC takes no password: its key must not be encrypted")


def trusted_file(security: SecurityOptions) -> str | None:
    """The file with the certificates that a client trusts; None for the system's and its own."""
    is_trust = security.key is None and security.certificate is not None
    return _path(security.certificate if is_trust else security.authority)


def tls_settings(
    security: SecurityOptions, is_server: bool, name: str
) -> TlsSettings | ClientTlsSettings:
    """The argument ``tls`` of `ucall._core.QueueCore`, of checked options.

    Args:
        name: The name that a client verifies unless the options have one.
    """
    if is_server:
        assert security.certificate is not None  # See `check_security`.
        tls = TLS(
            certfile=security.certificate,
            keyfile=security.key,
            keyfile_password=security.password,
            ca_certs=security.authority,
        )
        files = server_tls_settings(tls)
        return {**files, "tickets": None}
    password = security.password
    return {
        "name": security.name or name,
        "certificate": None if security.key is None else _absolute(security.certificate),
        "key": _absolute(security.key),
        "password": password.encode() if isinstance(password, str) else password,
        "authority": _absolute(trusted_file(security)),
    }


def _absolute(path: str | os.PathLike[str] | None) -> str | None:
    """The path after the process has changed its directory, too: files are read again."""
    return None if path is None else os.path.abspath(path)


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
