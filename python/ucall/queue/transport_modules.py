"""Makes `ucall.queue.{protocol}.{purpose}`, and the class `Communicator` in it, from a table.

Python finds these modules by their paths in `sys.modules`, where `ucall.queue` puts them: the
import of a submodule imports that package first. Type checkers read no table. To them each
transport is this module, with the classes `client` and `server`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ucall.queue.transports import Grpc, Mqtt, Nats, Protocol, Purpose, Shm, Tcp, Unix

if TYPE_CHECKING:
    from ucall.queue import core

    class client:
        class Communicator(core.Communicator): ...

    class server:
        class Communicator(core.Communicator): ...


__all__ = ["make_modules"]

_TRANSPORTS = {
    Protocol.TCP: (Tcp, "TCP"),
    Protocol.UNIX: (Unix, "Unix sockets"),
    Protocol.SHM: (Shm, "shared memory"),
    Protocol.MQTT: (Mqtt, "an MQTT broker"),
    Protocol.GRPC: (Grpc, "gRPC"),
    Protocol.NATS: (Nats, "NATS"),
}


def make_modules() -> dict[str, ModuleType]:
    """The modules of all protocols but JetStream, by their names in `ucall.queue`."""
    made = {}
    for protocol, (transport, title) in _TRANSPORTS.items():
        sides = {}
        for purpose in Purpose:
            path = f"ucall.queue.{protocol}.{purpose}"
            members = {
                "__doc__": f"A {purpose} over {title}: see `ucall.queue.Communicator`.",
                "__module__": path,
                "is_server": purpose is Purpose.SERVER,
            }
            communicator = type("Communicator", (transport,), members)
            text = f"The {purpose} of a queue over {title}."
            sides[str(purpose)] = _module(path, text, Communicator=communicator)
        path = f"ucall.queue.{protocol}"
        made[str(protocol)] = _module(path, f"Queues over {title}.", **sides)
    return made


def _module(path: str, text: str, **members: Any) -> ModuleType:
    made = sys.modules[path] = ModuleType(path, text)
    made.__spec__ = ModuleSpec(path, None)
    vars(made).update(members, __all__=[*members])
    return made
