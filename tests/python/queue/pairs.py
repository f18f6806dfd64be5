"""Servers of queues, and their clients."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from pathlib import Path
from typing import Any

from broker import BROKERS, Broker, SharedBroker
from certificates import Authority

from harness import HOST, free_port
from ucall import queue as nq

PROTOCOLS = ["tcp", "unix", "tcp+tls", "unix+tls", "shm", "mqtt", "grpc", "nats"]
STREAMS = ["tcp", "unix", "tcp+tls", "unix+tls"]


def free_location() -> nq.NetworkLocation:
    return nq.NetworkLocation(HOST, free_port())


def sockets() -> int:
    """The sockets of this process; a communicator also keeps other descriptors while it lives."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


class Pairs:
    """Makes servers and their clients."""

    def __init__(
        self, protocol: str, folder: Path, broker: SharedBroker, authority: Authority
    ) -> None:
        name, _, tls = protocol.partition("+")
        self.protocol = nq.Protocol(name)
        self.authority = authority if tls else None
        self._folder = folder
        self._broker = broker
        self.made: list[nq.Communicator] = []

    @property
    def broker(self) -> Broker:
        """The broker of the protocol, for all tests."""
        return self._broker(self.protocol)

    def _new(self, purpose: str, options: nq.CommunicatorOptions) -> nq.Communicator:
        made = nq.new(self.protocol, nq.Purpose(purpose), options)
        self.made.append(made)
        return made

    def options(self, **given: Any) -> nq.CommunicatorOptions:
        """Options, which may include connection options by name."""
        own = {field.name for field in dataclasses.fields(nq.CommunicatorOptions)}
        connection = {name: given.pop(name) for name in list(given) if name not in own}
        # Longer than a test waits: otherwise the end of a session by it would hide that it does not
        # end by what the test does.
        connection.setdefault("expire_s", 600.0)
        return nq.CommunicatorOptions(connection=nq.ConnectionOptions(**connection), **given)

    def server(self, **given: Any) -> nq.Communicator:
        if self.authority:
            files = self.authority.sign("localhost", "127.0.0.1")
            given.setdefault("security", nq.SecurityOptions(files.key, files.certificate))
        if self.protocol in BROKERS:
            given.setdefault("netloc", nq.NetworkLocation(port=self.broker.port))
            given.setdefault("broker", nq.BrokerOptions(topic=f"test/{uuid.uuid4()}"))
        elif self.protocol in ("tcp", "grpc"):
            given.setdefault("netloc", nq.NetworkLocation(port=0))
        else:
            path = str(self._folder / f"{len(self.made)}.sock")
            given.setdefault("netloc", nq.NetworkLocation(path, 0))
        return self._new("server", self.options(**given))

    def client(self, server: nq.Communicator, **given: Any) -> nq.Communicator:
        netloc = server.options.netloc
        if server.address is not None:
            netloc = nq.NetworkLocation(*server.address)
        given.setdefault("netloc", netloc)
        if self.authority:
            given.setdefault("security", nq.SecurityOptions(authority=self.authority.path))
        given.setdefault("broker", server.options.broker)
        return self._new("client", self.options(**given))
