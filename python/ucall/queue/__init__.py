"""Message queues: `put` and `get` of any object, between a server and its clients.

    from ucall import queue as nq

    with nq.new(purpose=nq.Purpose.SERVER) as queue:      # server.py
        message = queue.get()
        queue.put("Hello, Client!")

    with nq.new(purpose=nq.Purpose.CLIENT) as queue:      # client.py
        queue.put("Hello, Server!")
        message = queue.get()

A lost connection is made again, and what was under way is sent again: while both processes live,
each message arrives exactly once and in order. What else is promised is in docs/queues.md.
"""

from __future__ import annotations

import enum
import importlib

from ucall.queue.core import (
    BrokerOptions,
    Communicator,
    CommunicatorOptions,
    ConnectionOptions,
    Future,
    Message,
    NetworkLocation,
    SecurityOptions,
    SerializationOptions,
)
from ucall.queue.errors import ConnectionError, FullError
from ucall.queue.utils.allow import allow
from ucall.queue.utils.stream import BytesSerializer, PickleSerializer, Stream

__all__ = [
    "BrokerOptions",
    "BytesSerializer",
    "Communicator",
    "CommunicatorOptions",
    "ConnectionError",
    "ConnectionOptions",
    "FullError",
    "Future",
    "Message",
    "NetworkLocation",
    "PickleSerializer",
    "Protocol",
    "Purpose",
    "SecurityOptions",
    "SerializationOptions",
    "Stream",
    "allow",
    "new",
]


class Protocol(enum.StrEnum):
    """What carries the messages."""

    TCP = "tcp"
    UNIX = "unix"
    SHM = "shm"
    MQTT = "mqtt"
    GRPC = "grpc"


class Purpose(enum.StrEnum):
    """Which side a communicator is."""

    SERVER = "server"
    CLIENT = "client"


def new(
    protocol: Protocol = Protocol.TCP,
    purpose: Purpose = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Makes a communicator: that of `ucall.queue.{protocol}.{purpose}`.

    Never waits: a client connects in the background, however late its server comes.

    Raises:
        ValueError: There is no such protocol or purpose, or an option makes no sense.
        OSError: A server cannot listen there.
    """
    name = f"{__name__}.{Protocol(protocol)}.{Purpose(purpose)}"
    module = importlib.import_module(name)
    made: Communicator = module.Communicator(options)
    return made
