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

from ucall.queue import grpc, mqtt, shm, tcp, unix
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
from ucall.queue.transports import Protocol, Purpose
from ucall.queue.utils.allow import allow
from ucall.queue.utils.stream import BytesSerializer, PickleSerializer, Stream

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
    "Stream",
    "allow",
    "grpc",
    "mqtt",
    "new",
    "shm",
    "tcp",
    "unix",
]


def new(
    protocol: Protocol = Protocol.TCP,
    purpose: Purpose = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Makes a `ucall.queue.{protocol}.{purpose}.Communicator`.

    It never blocks: a client connects in the background, and may be started before its server.

    Raises:
        ImportError: The transport needs a package that is not installed.
        OSError: The server cannot listen at its location.
        ValueError: The protocol or the purpose is unknown, or an option is invalid.
    """
    module = import_module(f"ucall.queue.{Protocol(protocol)}.{Purpose(purpose)}")
    made: Communicator = module.Communicator(options)
    return made
