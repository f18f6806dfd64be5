"""Message queues: `put` and `get` of objects, between a server and its clients.

    from ucall import queue as nq

    with nq.new(purpose=nq.Purpose.SERVER) as queue:      # server.py
        message = queue.get()
        queue.put("Hello, Client!")

    with nq.new(purpose=nq.Purpose.CLIENT) as queue:      # client.py
        queue.put("Hello, Server!")
        message = queue.get()

A client reconnects when a connection is lost, and both sides send again what was in flight: while
both processes live, each message arrives exactly once and in order. docs/queues.md lists all
guarantees.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, overload

from ucall.queue import jetstream
from ucall.queue.core import (
    BrokerOptions,
    Communicator,
    CommunicatorOptions,
    ConnectionEvent,
    ConnectionOptions,
    Future,
    Message,
    NetworkLocation,
    SecurityOptions,
    SerializationOptions,
)
from ucall.queue.errors import ConnectionError, FullError, RefusedError
from ucall.queue.jetstream.stored import StoredQueue
from ucall.queue.transport_modules import make_modules
from ucall.queue.transports import Protocol, Purpose
from ucall.queue.utils.allow import allow, allow_arrow, allow_pandas, allow_torch
from ucall.queue.utils.stream import BytesSerializer, PickleSerializer, Stream

if TYPE_CHECKING:
    from ucall.queue import transport_modules as grpc
    from ucall.queue import transport_modules as mqtt
    from ucall.queue import transport_modules as nats
    from ucall.queue import transport_modules as shm
    from ucall.queue import transport_modules as tcp
    from ucall.queue import transport_modules as unix

__all__ = [
    "BrokerOptions",
    "BytesSerializer",
    "Communicator",
    "CommunicatorOptions",
    "ConnectionError",
    "ConnectionEvent",
    "ConnectionOptions",
    "FullError",
    "Future",
    "Message",
    "NetworkLocation",
    "PickleSerializer",
    "Protocol",
    "Purpose",
    "RefusedError",
    "SecurityOptions",
    "SerializationOptions",
    "StoredQueue",
    "Stream",
    "allow",
    "allow_arrow",
    "allow_pandas",
    "allow_torch",
    "grpc",
    "jetstream",
    "mqtt",
    "nats",
    "new",
    "shm",
    "tcp",
    "unix",
]

globals().update(make_modules())


@overload
def new(  # type: ignore[overload-overlap]  # the last one has all other protocols
    protocol: Literal[Protocol.JETSTREAM],
    purpose: Literal[Purpose.SERVER],
    options: CommunicatorOptions | None = None,
) -> jetstream.server.Communicator: ...
@overload
def new(  # type: ignore[overload-overlap]
    protocol: Literal[Protocol.JETSTREAM],
    purpose: Literal[Purpose.CLIENT] = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> jetstream.client.Communicator: ...
@overload
def new(
    protocol: Protocol = Protocol.TCP,
    purpose: Purpose = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator: ...
def new(
    protocol: Protocol = Protocol.TCP,
    purpose: Purpose = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator | StoredQueue:
    """Makes a `ucall.queue.{protocol}.{purpose}.Communicator`.

    It never blocks: a client connects in the background, and may be started before its server.

    Raises:
        ImportError: The transport needs a package that is not installed.
        OSError: The server cannot listen at its location.
        ValueError: The protocol or the purpose is unknown, or an option is invalid.
    """
    module = import_module(f"ucall.queue.{Protocol(protocol)}.{Purpose(purpose)}")
    made: Communicator | StoredQueue = module.Communicator(options)
    return made
