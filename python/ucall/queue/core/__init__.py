"""The parts that all transports share: the options, the communicator and its futures."""

from __future__ import annotations

from ucall._core import Message
from ucall.queue.core.communicator import Communicator
from ucall.queue.core.events import ConnectionEvent
from ucall.queue.core.future import Future
from ucall.queue.core.options import (
    BrokerOptions,
    CommunicatorOptions,
    ConnectionOptions,
    NetworkLocation,
    SecurityOptions,
    SerializationOptions,
)

__all__ = [
    "BrokerOptions",
    "Communicator",
    "CommunicatorOptions",
    "ConnectionEvent",
    "ConnectionOptions",
    "Future",
    "Message",
    "NetworkLocation",
    "SecurityOptions",
    "SerializationOptions",
]
