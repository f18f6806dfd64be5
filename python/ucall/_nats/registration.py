"""Registers a server as a micro service of NATS (ADR-32), and answers calls that come through it.

A group of servers is one service, and each function one endpoint. Each worker takes calls over a
connection of its own; the first worker answers the rest. `nats.micro` of nats-py would not do: it
runs one call of a function at a time, does not count the calls of other workers, and drops the
messages that wait when it stops.

| event | action |
|---|---|
| the server serves | connects, and subscribes to the subjects of its functions |
| no broker accepts | logged once, and tried again until one does; the server serves meanwhile |
| a drain begins | is off the list before the server stops accepting; calls in flight go on |
| the server has ended | disconnects |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
import socket
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from ucall._client.address import Address
from ucall._nats.calls import QUEUE, BrokerCalls
from ucall._nats.connection import BrokerOptions, check_options, connect, start
from ucall._nats.publisher import Publisher
from ucall._nats.subjects import (
    check_group,
    endpoint_name,
    parse_brokers,
    subject_of,
)
from ucall._workers import process_role

if TYPE_CHECKING:
    from ucall import _core
    from ucall._functions.table import Functions

__all__ = ["Registration"]

log = logging.getLogger("ucall")

#: How long a drain waits for the broker to take the server off.
_DEREGISTER_S = 1.0
#: How long the end of the server waits for the broker.
_CLOSE_S = 2.0
_SEMANTIC_VERSION = re.compile(
    r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)


class Endpoint:
    """A function, as ADR-32 describes it."""

    def __init__(self, group: str, method: str, *, is_idempotent: bool) -> None:
        self.method = method
        self._identity = {
            "name": endpoint_name(method),
            "subject": subject_of(group, method),
            "queue_group": QUEUE,
        }
        self._metadata = {"method": method, "idempotent": str(is_idempotent).lower()}

    def info(self) -> dict[str, Any]:
        return {**self._identity, "metadata": self._metadata}

    def stats(self, counts: tuple[int, int, int, str], data: dict[str, Any]) -> dict[str, Any]:
        requests, errors, nanoseconds, last_error = counts
        return {
            **self._identity,
            "num_requests": requests,
            "num_errors": errors,
            "last_error": last_error,
            "processing_time": nanoseconds,
            "average_processing_time": nanoseconds // max(requests, 1),
            "data": data,
        }


class Described(Protocol):
    """What a registration says of a server."""

    title: str
    version: str
    description: str

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int | Any: ...

    def stats(self) -> dict[str, Any]: ...


class Registration:
    """A server's registration.

    Args:
        server: The server, as it is described.
        core: The server, as it takes calls.
        functions: Its functions.
        takes_calls: Whether it takes calls through the broker.
        broker: URLs of brokers, with commas between them.
        group: The name of the service.
        advertise: ``host`` or ``host:port`` for direct calls; empty for none; ``None`` for the
            address that the server listens on, or that it reaches the broker from.
        options: Options of nats-py.

    Raises:
        ImportError: nats-py is not installed.
        OSError: A file of credentials cannot be read.
        ValueError: An argument is invalid.
    """

    def __init__(
        self,
        server: Described,
        core: _core.Server,
        functions: Functions,
        takes_calls: bool,
        broker: str,
        group: str,
        advertise: str | None,
        options: BrokerOptions | None,
    ) -> None:
        self._server = server
        self._core = core
        self._functions = functions
        self._takes_calls = takes_calls
        self._brokers = parse_brokers(broker)
        self._group = check_group(group)
        #: Of several workers only the first registers; all of them get calls.
        self._registers = process_role.worker.index == 0
        self._options = check_options(options)
        self._publisher = Publisher(core, functions.methods.types.encode, group)
        #: What passes messages on, from `start` to `close`.
        self.publisher: Publisher | None = None
        self._advertise = advertise
        if advertise:
            Address(advertise)
        self._id = secrets.token_hex(11)
        self._started = datetime.now(UTC)
        #: A document and its hash.
        self._hashed: tuple[dict[str, Any], str] = {}, ""
        self._identity: dict[str, Any] = {}
        self._endpoints: list[Endpoint] = []
        self._subscriptions: list[Any] = []
        self._connection: Any = None
        self._calls: BrokerCalls | None = None
        self._registering: Future[None] | None = None

    def start(self) -> None:
        """Registers the server, which accepts connections, without waiting."""
        self.publisher = self._publisher
        if self._takes_calls:
            self._endpoints = self._make_endpoints()
            methods = [endpoint.method for endpoint in self._endpoints]
            self._calls = BrokerCalls(self._core, self._group, methods)
        self._identity = {
            "name": self._group,
            "id": self._id,
            "version": self._semantic_version(),
            "metadata": self._metadata(),
        }
        self._registering = start(self._register())
        self._registering.add_done_callback(_log_failure)

    def deregister(self) -> None:
        """Takes the server off the broker's list. It waits until no further call can arrive: the
        server's thread stops accepting after that."""
        self._wait(self._deregister(), _DEREGISTER_S)

    def close(self) -> None:
        """Disconnects, after the replies to the last calls."""
        self.publisher = None
        self._wait(self._close(), _CLOSE_S)

    def _wait(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        try:
            start(work).result(timeout_s)
        except Exception as failure:
            log.debug("the end was not reported to the broker: %r", failure)

    async def _register(self) -> None:
        name = f"ucall {self._group} {self._id}"
        connection = await connect(
            self._brokers,
            self._options,
            name,
            reports=self._registers,
            on_lost=self._calls.cancel_all if self._calls is not None else _do_nothing,
        )
        self._connection = connection
        if self._calls is not None:
            await self._calls.subscribe(connection, self._subscriptions)
        await self._publisher.register(connection, receives=self._registers)
        if not self._registers:
            return
        # A server that answers these has all of its functions.
        for verb in ("PING", "INFO", "STATS"):
            for name in ("", f".{self._group}", f".{self._group}.{self._id}"):
                found = await connection.subscribe(f"$SRV.{verb}{name}", cb=self._answer)
                self._subscriptions.append(found)
        await connection.flush()

    async def _deregister(self) -> None:
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.sleep(0)  # It ends before its subscriptions do.
        subscriptions, self._subscriptions = self._subscriptions, []
        if not subscriptions:
            return
        if not self._connection.is_connected:
            # They must not come back with the connection.
            work = (it.unsubscribe() for it in subscriptions)
            await asyncio.gather(*work, return_exceptions=True)
            return
        work = (it.drain() for it in reversed(subscriptions))
        await asyncio.gather(*work, return_exceptions=True)

    async def _close(self) -> None:
        await self._deregister()
        await self._publisher.close()
        if self._calls is not None:
            await self._calls.close()
        if self._connection is not None:
            if self._connection.is_connected:
                await self._connection.flush()
            await self._connection.close()

    async def _answer(self, message: Any) -> None:
        """Answers ``$SRV.PING``, ``$SRV.INFO`` and ``$SRV.STATS``."""
        if not message.reply:
            return
        verb = message.subject.split(".")[1]
        members: dict[str, Any] = {}
        if verb == "INFO":
            members["description"] = self._server.description
            members["endpoints"] = [endpoint.info() for endpoint in self._endpoints]
        elif verb == "STATS":
            data = self._data()
            members["started"] = self._started.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            counts = self._calls.counts() if self._calls is not None else []
            endpoints = zip(self._endpoints, counts, strict=True)
            members["endpoints"] = [
                endpoint.stats(counted, data) for endpoint, counted in endpoints
            ]
        kind = {"type": f"io.nats.micro.v1.{verb.lower()}_response"}
        reply = json.dumps({**kind, **self._identity, **members}).encode()
        await self._connection.publish(message.reply, reply)

    def _data(self) -> dict[str, Any]:
        """The server's load, and the hash of its description."""
        stats = self._server.stats()
        load = {name: stats[name] for name in ("calls", "connections", "subscriptions")}
        data: dict[str, Any] = {"load": load}
        discovery = self._functions.discovery
        if discovery is not None:
            data["openrpc_sha256"] = self._hash_of(discovery.document())
        return data

    def _hash_of(self, document: dict[str, Any]) -> str:
        """The SHA-256 of a document, which is the same object until the functions change."""
        hashed, text = self._hashed
        if hashed is not document:
            encoded = json.dumps(document, sort_keys=True).encode()
            text = hashlib.sha256(encoded).hexdigest()
            self._hashed = document, text
        return text

    def _make_endpoints(self) -> list[Endpoint]:
        functions = self._functions
        idempotent = {name: it.is_idempotent for name, it in functions.methods.served.items()}
        idempotent |= dict.fromkeys(functions.methods.natives, False)
        if functions.discovery is not None:
            idempotent["rpc.discover"] = True
        return [Endpoint(self._group, name, is_idempotent=it) for name, it in idempotent.items()]

    def _semantic_version(self) -> str:
        """The program's version, if it is one that ADR-32 allows."""
        version = self._server.version
        return version if _SEMANTIC_VERSION.fullmatch(version) else "0.0.0"

    def _metadata(self) -> dict[str, str]:
        """What does not change: the address for direct calls, and what it speaks."""
        is_secure = self._core.scheme == "https"
        metadata = {"title": self._server.title, "program_version": self._server.version}
        if address := self._direct_address():
            metadata["address"] = address
            metadata["transports"] = "https,wss,tcps" if is_secure else "http,ws,tcp"
        return metadata

    def _direct_address(self) -> str:
        host, port = self._server.host, self._server.port
        if self._advertise == "" or (
            self._advertise is None and host.startswith(process_role.UNIX)
        ):
            return ""
        if self._advertise is not None:
            return Address(self._advertise if port == 0 else _with_port(self._advertise, port)).name
        if host in ("0.0.0.0", "::"):
            host = _address_towards(self._brokers)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _do_nothing() -> None:
    """There are no calls to cancel."""


def _log_failure(registering: Future[None]) -> None:
    if not registering.cancelled() and (failure := registering.exception()) is not None:
        log.error("cannot register with NATS: %s", failure)


def _with_port(advertise: str, port: int) -> str:
    try:
        Address(advertise, port)
    except ValueError:  # It has another one.
        return advertise
    return Address(advertise, port).name


def _address_towards(brokers: list[str]) -> str:
    """The address of this machine in the network of its broker."""
    for broker in brokers:
        split = urlsplit(broker)
        with suppress(OSError):
            [(family, kind, *_, place), *_] = socket.getaddrinfo(
                split.hostname, split.port or 4222, type=socket.SOCK_DGRAM
            )
            with socket.socket(family, kind) as made:
                made.connect(place)  # Sends nothing.
                return str(made.getsockname()[0])
    return socket.gethostname()
