"""Connects and authenticates with a NATS broker, for the core, which serves what follows.

A plain TCP connection becomes the core's own. One under TLS or WebSocket stays with nats-py's
transports, and its bytes are passed between them and the core by a pair of sockets.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import logging
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from ucall.errors import ConnectionError

__all__ = ["Stream", "open_stream", "read_until_pong"]

log = logging.getLogger("ucall")

_CHUNK_BYTES = 65_536
#: What a broker may send before the answer to the first PING.
_ANSWER_BYTES_MAX = 1_048_576
_CONNECT_TIMEOUT_S = 2
_PORT = 4222


class _TlsRequired(Exception):
    """The broker requires TLS of a plain connection."""


class Transport(Protocol):
    """The part of nats-py's transports that is used here."""

    async def read(self, buffer_size: int) -> bytes: ...
    def write(self, payload: bytes) -> Any: ...
    async def drain(self) -> Any: ...
    def close(self) -> Any: ...


class _PlainTransport:
    """A TCP connection, with the methods of nats-py's transports."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self._pending = b""

    async def connect(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        failure: OSError = OSError(f"no address of {host}")
        for family, kind, protocol, _, place in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            made = socket.socket(family, kind, protocol)
            made.setblocking(False)
            try:
                await loop.sock_connect(made, place)
            except BaseException as error:
                made.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
            else:
                self.socket = made
                return
        raise failure

    async def read(self, buffer_size: int) -> bytes:
        assert self.socket is not None
        return await asyncio.get_running_loop().sock_recv(self.socket, buffer_size)

    def write(self, payload: bytes) -> None:
        self._pending += payload

    async def drain(self) -> None:
        assert self.socket is not None
        payload, self._pending = self._pending, b""
        await asyncio.get_running_loop().sock_sendall(self.socket, payload)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


@dataclass(slots=True)
class Stream:
    """An authenticated connection to a broker."""

    transport: Any
    #: The broker's limit on the bytes of a message.
    max_payload: int
    #: The other nodes of its cluster.
    urls: list[str]

    def detach(self) -> int:
        """The descriptor of a socket for the rest of the connection, for the caller to own."""
        if isinstance(self.transport, _PlainTransport):
            assert self.transport.socket is not None
            return self.transport.socket.detach()
        near, far = socket.socketpair()
        near.setblocking(False)
        relay = asyncio.get_running_loop().create_task(_relay(near, self.transport))
        _relays.add(relay)
        relay.add_done_callback(_relays.discard)
        return far.detach()

    def close(self) -> None:
        """Closes a connection that was not detached."""
        self.transport.close()


#: asyncio keeps no reference to its tasks.
_relays: set[asyncio.Task[None]] = set()


async def _relay(near: socket.socket, transport: Transport) -> None:
    """Passes bytes on in both directions, until one end closes."""
    tasks = [
        asyncio.ensure_future(_send_all(near, transport)),
        asyncio.ensure_future(_receive_all(transport, near)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        near.close()
        transport.close()


async def _send_all(near: socket.socket, transport: Transport) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await loop.sock_recv(near, _CHUNK_BYTES):
            transport.write(data)
            await transport.drain()


async def _receive_all(transport: Transport, near: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await transport.read(_CHUNK_BYTES):
            await loop.sock_sendall(near, data)


async def open_stream(url: str, options: dict[str, Any], name: str) -> Stream:
    """Connects to a broker.

    Args:
        url: ``nats://``, ``tls://``, ``ws://`` or ``wss://``.
        options: Options of nats-py's ``connect``.
        name: The name of the connection, for the broker's lists.

    Raises:
        OSError, TimeoutError: There is no connection.
        ucall.ConnectionError: The broker refuses it.
    """
    timeout_s = options.get("connect_timeout", _CONNECT_TIMEOUT_S)
    split = urlsplit(url)
    is_plain = split.scheme == "nats" and "tls" not in options
    async with asyncio.timeout(timeout_s):
        if is_plain and not options.get("tls_handshake_first"):
            with suppress(_TlsRequired):
                plain = _PlainTransport()
                await plain.connect(split.hostname or "", split.port or _PORT)
                return await _authenticated(plain, split, options, name, timeout_s)
        transport = await _connect(split, options, timeout_s)
        return await _authenticated(transport, split, options, name, timeout_s)


async def _authenticated(transport: Any, *arguments: Any) -> Stream:
    try:
        return await _authenticate(transport, *arguments)
    except BaseException:
        transport.close()
        raise


async def _connect(url: SplitResult, options: dict[str, Any], timeout_s: float) -> Any:
    """Connects by a transport of nats-py."""
    transports = importlib.import_module("nats.aio.transport")
    if url.scheme in ("ws", "wss"):
        made = transports.WebSocketTransport()
        if url.scheme == "wss":
            await made.connect_tls(url.geturl(), _tls_of(options), _CHUNK_BYTES, timeout_s)
        else:
            await made.connect(url, _CHUNK_BYTES, timeout_s)
        return made
    made = transports.TcpTransport()
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    place = url._replace(netloc=f"{host}:{url.port or _PORT}")
    await made.connect(place, _CHUNK_BYTES, timeout_s)
    return made


def _tls_of(options: dict[str, Any]) -> ssl.SSLContext:
    given = options.get("tls")
    return given if isinstance(given, ssl.SSLContext) else ssl.create_default_context()


async def _authenticate(
    transport: Any, url: SplitResult, options: dict[str, Any], name: str, timeout_s: float
) -> Stream:
    hostname = options.get("tls_hostname") or url.hostname

    async def encrypt() -> None:
        if isinstance(transport, _PlainTransport):
            raise _TlsRequired
        await transport.connect_tls(hostname, _tls_of(options), _CHUNK_BYTES, timeout_s)

    is_web = url.scheme in ("ws", "wss")
    if options.get("tls_handshake_first") and not is_web:
        await encrypt()
    line = await _read_line(transport)
    if not line.startswith(b"INFO "):
        raise ConnectionError("expected INFO of a NATS broker")
    info = json.loads(line[5:])
    wants_tls = info.get("tls_required") or url.scheme == "tls"
    if wants_tls and not is_web and not options.get("tls_handshake_first"):
        await encrypt()
    fields = {
        "verbose": False,
        "pedantic": False,
        "lang": "python3",
        "version": "1",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "name": name,
        **(_credentials(info, url, options) if info.get("auth_required") else {}),
    }
    transport.write(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
    await transport.drain()
    await read_until_pong(transport)
    urls = [f"{url.scheme}://{it}" for it in info.get("connect_urls", ()) if not is_web]
    return Stream(transport, int(info["max_payload"]), urls)


async def _read_line(transport: Transport) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        chunk = await transport.read(_CHUNK_BYTES)
        data += chunk
        if not chunk or len(data) > _ANSWER_BYTES_MAX:
            raise ConnectionError("the broker has ended the connection")
    return data


async def read_until_pong(transport: Transport) -> bytes:
    """What the broker sends up to the answer to a PING, and what has come with that. Subjects that
    are not permitted are logged.

    Raises:
        ucall.ConnectionError: The broker sends an error, or ends the connection.
    """
    data, position = b"", 0
    while True:
        end = data.find(b"\r\n", position)
        if end < 0:
            chunk = await transport.read(_CHUNK_BYTES)
            data += chunk
            if not chunk or len(data) > _ANSWER_BYTES_MAX:
                raise ConnectionError("the broker has ended the connection")
            continue
        line = data[position:end]
        if line == b"PONG":
            return data
        if line.startswith(b"-ERR") and b"Permissions Violation" in line:
            log.warning("NATS: %s", line[4:].decode(errors="replace").strip())
        elif line.startswith(b"-ERR"):
            raise ConnectionError(f"nats: {line[4:].decode(errors='replace').strip()}")
        # Of a message, the payload follows.
        is_message = line.startswith((b"MSG ", b"HMSG "))
        position = end + 2 + (int(line.split()[-1]) + 2 if is_message else 0)


def _credentials(info: dict[str, Any], url: SplitResult, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of CONNECT, as nats-py has them."""

    def value(name: str) -> Any:
        given = options.get(name)
        return given() if callable(given) else given

    token = value("token")
    fields = {} if token is None else {"auth_token": token}
    if "nonce" in info and (signed := _signed(info["nonce"], options)) is not None:
        return {**fields, **signed}
    user, password = value("user"), value("password")
    if user is not None and password is not None:
        return {"user": user, "pass": password}
    if token is None and url.username is not None:
        if url.password is None:
            return {"auth_token": url.username}
        return {"user": url.username, "pass": url.password}
    return fields


def _signed(nonce: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """The broker's nonce, signed by a key of NATS; ``None`` without one."""
    fields: dict[str, Any] = {}
    given = options.get("user_credentials")
    if given is not None:
        files = (given, given) if isinstance(given, str | os.PathLike) else tuple(given)
        jwt, seed = (Path(file).read_text() for file in files)
        fields["jwt"] = _between(jwt, "NATS USER JWT")
        seed = _between(seed, "USER NKEY SEED")
    elif "nkeys_seed_str" in options:
        seed = options["nkeys_seed_str"].strip()
    elif "nkeys_seed" in options:
        seed = Path(options["nkeys_seed"]).read_text().strip()
    else:
        return None
    pair = importlib.import_module("nkeys").from_seed(bytearray(seed.encode()))
    if given is None:
        fields["nkey"] = pair.public_key.decode()
    fields["sig"] = base64.b64encode(pair.sign(nonce.encode())).decode()
    pair.wipe()
    return fields


def _between(text: str, title: str) -> str:
    """The line after the begin of a section; the text itself if it has no sections."""
    lines = iter(text.splitlines())
    for line in lines:
        if f"BEGIN {title}" in line:
            return next(lines, "").strip()
    return text.strip()
