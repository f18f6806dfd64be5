"""Carries a communicator's links over gRPC: each is one bidirectional stream of bytes.

There is no schema: a message of the stream is a piece of the link, as it is. HTTP/2 bounds what is
under way, and nothing more is read while the communicator has too much to take in. All carriers of
a process share one thread with an asyncio loop, because the library has one queue of completions
for all loops; nothing polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from ucall._core import system_certificates

if TYPE_CHECKING:
    from ucall._core import QueueLink
    from ucall.queue.core import Communicator, SecurityOptions

__all__ = ["Transport"]

METHOD = "/ucall.Queue/Link"
PIECE_BYTES_MAX = 1 << 20
# The library takes its times as C takes an int.
INT_MAX = (1 << 31) - 1
# What waits between the communicator and the library, each way.
IN_FLIGHT_BYTES = 2 * PIECE_BYTES_MAX
# Checks the server's certificate against this name rather than the target's.
TARGET_NAME = "grpc.ssl_target_name_override"
# How long what is left to say at the end may take.
LINGER_S = 1.0
OPTIONS = [
    ("grpc.max_receive_message_length", PIECE_BYTES_MAX + 1024),
    ("grpc.max_send_message_length", PIECE_BYTES_MAX + 1024),
    # One server a port, so that a second one is told.
    ("grpc.so_reuseport", 0),
]


class Transport:
    """The links of one communicator, and its channel or its server.

    Args:
        communicator: Opens the links, and says where we listen or connect to.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, communicator: Communicator) -> None:
        # Whoever lets go of the communicator ends it: nothing here may keep it.
        self._communicator = weakref.ref(communicator)
        self._options = communicator.options
        self.address: tuple[str, int] | None = None
        self._loop = _loop()
        self._ending = asyncio.Event()
        self._links: set[asyncio.Task[Any]] = set()
        self._linger_s = LINGER_S
        #: Somebody has spoken on the present link of a client: there may be something to answer.
        self._has_received = False
        if communicator.is_server:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
            self._run = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        else:
            self._run = asyncio.run_coroutine_threadsafe(self._connect(), self._loop)

    def close(self) -> None:
        """Ends, once all that links had to say is sent."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._run.result()

    def close_nowait(self) -> None:
        """Ends in time, once all that was put has arrived: nobody waits for it."""
        self._linger_s = self._options.connection.expire_s
        self._loop.call_soon_threadsafe(self._ending.set)

    async def _listen(self) -> None:
        # A connection without a link is no communicator's, or is one that can connect again.
        handshake_ms = min(max(1, round(self._options.connection.handshake_s * 1000)), INT_MAX)
        limits = [
            ("grpc.server_handshake_timeout_ms", handshake_ms),
            ("grpc.max_connection_idle_ms", handshake_ms),
        ]
        self._server = server = grpc.aio.server(options=[*OPTIONS, *limits])
        handler: Any = grpc.stream_stream_rpc_method_handler(self._accept)
        service, method = METHOD[1:].split("/")
        handlers = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers([handlers])
        host, port = self._options.netloc
        security = self._options.security
        where = _target(host, port)
        try:
            if security is None:
                port = server.add_insecure_port(where)
            else:
                port = server.add_secure_port(where, _server_credentials(security))
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {where}: {error}") from error
        self.address = (host, port)
        await server.start()

    async def _serve(self) -> None:
        await self._ending.wait()
        await self._wait_for_links()
        await self._server.stop(grace=LINGER_S)

    async def _accept(self, _requests: Any, context: Any) -> None:
        pem = context.auth_context().get("x509_pem_cert")
        certificate = ssl.PEM_cert_to_DER_cert(pem[0].decode()) if pem else None
        await self._run_link(False, context.read, context.write, certificate)

    async def _connect(self) -> None:
        where, security = _target(*self._options.netloc), self._options.security
        first_s, most_s = self._options.connection.reconnect
        # The library takes no less than a tenth of a second.
        options: list[tuple[str, Any]] = [
            *OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", max(100, round(first_s * 1000))),
            ("grpc.max_reconnect_backoff_ms", max(100, round(most_s * 1000))),
        ]
        if security is None:
            channel = grpc.aio.insecure_channel(where, options)
        else:
            options += [(TARGET_NAME, security.name)] if security.name else []
            channel = grpc.aio.secure_channel(where, _channel_credentials(security), options)
        delay_s = first_s
        async with channel:
            while not self._ending.is_set() and not self._is_finished():
                self._has_received = False
                call: Any = channel.stream_stream(METHOD)(wait_for_ready=True)
                external = asyncio.ensure_future(self._run_link(True, call.read, call.write))
                ending = asyncio.ensure_future(self._ending.wait())
                await asyncio.wait([external, ending], return_when=asyncio.FIRST_COMPLETED)
                if not external.done() and self._has_received:
                    await asyncio.wait([external], timeout=self._linger_s)
                ending.cancel()
                call.cancel()
                has_received = await external
                delay_s = first_s if has_received else min(delay_s * 2, most_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), delay_s)

    async def _run_link(
        self,
        dialed: bool,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[bytes], Awaitable[None]],
        certificate: bytes | None = None,
    ) -> bool:
        """Carries one link until either side ends it. Whether anything was heard."""
        communicator = self._communicator()
        if communicator is None:
            return False
        has_output, room = asyncio.Event(), asyncio.Event()

        def wake_all() -> None:
            has_output.set()
            room.set()

        def wake() -> None:
            self._loop.call_soon_threadsafe(wake_all)

        link = communicator._open_link(dialed, wake, IN_FLIGHT_BYTES, certificate)
        del communicator
        reader = asyncio.ensure_future(self._read(link, read, room))
        writer = asyncio.ensure_future(_write(link, write, has_output))
        self._links.add(writer)
        try:
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The library cancels us when the client is gone.
            link.handle_closed()
            self._links.discard(writer)
            reader.cancel()
            writer.cancel()
        has_received, _ = await asyncio.gather(reader, writer, return_exceptions=True)
        return has_received is True

    async def _read(
        self, link: QueueLink, read: Callable[[], Awaitable[Any]], room: asyncio.Event
    ) -> bool:
        """Hands in what comes, until the stream ends. Whether anything came."""
        has_received = False
        while (data := await read()) is not grpc.aio.EOF:
            has_received = self._has_received = True
            link.receive(data)
            room.clear()
            while link.is_full:
                await room.wait()
                room.clear()
        return has_received

    def _is_finished(self) -> bool:
        """Whether a client has no session any more, and needs no other link."""
        communicator = self._communicator()
        return communicator is None or communicator._is_closed

    async def _wait_for_links(self) -> None:
        if self._links:
            await asyncio.wait(self._links, timeout=self._linger_s)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all carriers, on a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ucall-grpc", daemon=True).start()
    return loop


async def _write(
    link: QueueLink, write: Callable[[bytes], Awaitable[None]], has_output: asyncio.Event
) -> None:
    """Sends what there is, as fast as HTTP/2 lets it through, until the link is over."""
    while not link.is_closed:
        data = link.next_frame(PIECE_BYTES_MAX)
        if data is None:
            await has_output.wait()
            has_output.clear()
        else:
            await write(data)


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _server_credentials(security: SecurityOptions) -> grpc.ServerCredentials:
    assert security.key is not None and security.certificate is not None  # it was checked
    pair = (Path(security.key).read_bytes(), Path(security.certificate).read_bytes())
    authority = _read_file(security.authority)
    return grpc.ssl_server_credentials([pair], authority, authority is not None)


def _channel_credentials(security: SecurityOptions) -> grpc.ChannelCredentials:
    authority = _read_file(security.authority)
    if authority is None:
        # The library has a list of its own, which is not what the system trusts.
        trusted = map(ssl.DER_cert_to_PEM_cert, system_certificates())
        authority = "".join(trusted).encode() or None
    pair = _read_file(security.key), _read_file(security.certificate)
    return grpc.ssl_channel_credentials(authority, *pair)


def _read_file(path: str | os.PathLike[str] | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
