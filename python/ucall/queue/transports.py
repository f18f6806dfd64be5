"""The transports of a queue: TCP, Unix sockets, shared memory, MQTT and NATS brokers, and gRPC.

Each transport is a class that says where its communicators listen or connect. The classes of its
two sides derive from it: see `transport_modules.py`. JetStream is apart, in
`ucall.queue.jetstream`, because its queues have no links.
"""

from __future__ import annotations

import enum
import logging
import os
import stat
from typing import TYPE_CHECKING, Self

from ucall._core import check_shared_memory
from ucall.queue.core import Communicator, CommunicatorOptions, NetworkLocation

if TYPE_CHECKING:
    from ucall.queue.grpc_transport import Transport as GrpcTransport
    from ucall.queue.nats_transport import Transport as NatsTransport

__all__ = ["Grpc", "Mqtt", "Nats", "Protocol", "Purpose", "Shm", "Tcp", "Unix"]

log = logging.getLogger("ucall")

#: Bytes of the path of a Unix socket: macOS takes 103, Linux 107.
_SOCKET_PATH_MAX = 103


class Protocol(enum.StrEnum):
    """The transport of a queue."""

    TCP = "tcp"
    UNIX = "unix"
    SHM = "shm"
    MQTT = "mqtt"
    GRPC = "grpc"
    NATS = "nats"
    JETSTREAM = "jetstream"


class Purpose(enum.StrEnum):
    """The side of a queue that a communicator is on."""

    SERVER = "server"
    CLIENT = "client"


class Tcp(Communicator):
    """Listens on, or connects to, a host and a port. Port 0 picks a free one: see `address`."""


class Unix(Communicator):
    """Listens on, or connects to, a socket in the file system."""

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> str:
        return _socket_path(options.netloc)

    @classmethod
    def _verified_name(cls, options: CommunicatorOptions) -> str:
        return "localhost"


class Shm(Communicator):
    """Sends short messages over a Unix socket and long ones through shared memory.

    Where the system refuses shared memory, all messages go over the socket.
    """

    has_tls = False

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> tuple[str, str]:
        try:
            check_shared_memory()
        except OSError as error:
            log.warning("no shared memory (%s): all messages go over the Unix socket", error)
        return _socket_path(options.netloc), "shared"


class Mqtt(Communicator):
    """Exchanges messages with its peers through the MQTT broker at a host and a port."""

    has_broker = True

    @classmethod
    def _broker(cls, options: CommunicatorOptions) -> tuple[str, str | None, str | None]:
        return options.broker.topic, options.broker.user, options.broker.password

    @classmethod
    def _check(cls, options: CommunicatorOptions) -> None:
        super()._check(options)
        broker = options.broker
        if broker.urls is not None or broker.options or broker.replicas != 1:
            raise ValueError("broker: urls, options and replicas are for NATS")


class _External(Communicator):
    """A communicator whose links are carried by a transport in Python."""

    #: None until it has started, and if it could not.
    _transport: GrpcTransport | NatsTransport | None = None

    def __new__(cls, options: CommunicatorOptions | None = None) -> Self:
        made = super().__new__(cls, options)
        try:
            made._transport = made._start_transport()
        except BaseException:
            made._close(True)
            raise
        cls._add_running(made._transport.ended)
        return made

    def _start_transport(self) -> GrpcTransport | NatsTransport:
        raise NotImplementedError

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> None:
        return None

    def close(self, timeout: float | None = None, *, final: bool = False) -> None:
        """Closes the communicator: see `ucall.queue.Communicator.close`."""
        super().close(timeout, final=final)
        if self._transport is not None and not self._is_forked:
            self._transport.close()

    def __del__(self) -> None:
        super().__del__()
        if self._transport is not None and not self._is_forked and not self._transport.ended.done():
            self._transport.deliver(self)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that a server listens on; None for a client, and with a broker."""
        return None if self._transport is None else self._transport.address


class Grpc(_External):
    """Listens on, or connects to, a host and a port. Port 0 picks a free one: see `address`.

    Raises:
        ImportError: grpcio is not installed.
        RuntimeError: This is a forked child of a process that has used gRPC.
        ValueError: The port is not from 0 to 65535.
    """

    takes_password = False

    @classmethod
    def _check(cls, options: CommunicatorOptions) -> None:
        super()._check(options)
        port = options.netloc[1]
        if not 0 <= port <= 65_535:
            # grpcio takes the lowest 16 bits.
            raise ValueError(f"netloc: expected a port up to 65535, got {port}")

    def _start_transport(self) -> GrpcTransport:
        # grpcio is an optional dependency, and slow to import.
        try:
            from ucall.queue.grpc_transport import Transport
        except ModuleNotFoundError as error:
            raise ImportError("a queue over grpc needs grpcio: pip install grpcio") from error
        return Transport(self)


class Nats(_External):
    """Exchanges messages with its peers through a NATS server, or a cluster of them.

    Raises:
        ImportError: nats-py is not installed.
    """

    has_broker = True

    @classmethod
    def _check(cls, options: CommunicatorOptions) -> None:
        super()._check(options)
        # It imports asyncio.
        from ucall.queue.core.nats_options import check_nats

        check_nats(options)

    def _start_transport(self) -> NatsTransport:
        from ucall.queue.nats_transport import Transport

        return Transport(self)


def _socket_path(netloc: NetworkLocation) -> str:
    """The path of the Unix socket: ``host`` if it is a path, else one in this user's folder."""
    host, port = netloc
    if os.sep not in host:
        return os.path.join(_user_folder(), f"{host}-{port}.sock")
    # A client connects again after the process has changed its directory, too.
    path = os.path.abspath(host)
    return path if len(os.fsencode(path)) <= _SOCKET_PATH_MAX else host


def _user_folder() -> str:
    """A folder that no other user may enter.

    Raises:
        PermissionError: Another user owns the folder of that name, or may enter it.
    """
    from tempfile import gettempdir

    base = os.environ.get("XDG_RUNTIME_DIR") or gettempdir()
    folder = os.path.join(base, f"ucall-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder
