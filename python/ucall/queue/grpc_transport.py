"""Carries a communicator's links over gRPC: each link is one bidirectional stream.

There is no schema: a message of the stream is a piece of the link's bytes. HTTP/2 flow control
bounds the bytes in flight, and reading pauses while the communicator's receive buffer is full. All
transports of a process share one thread with an asyncio loop, because grpcio has one completion
queue for all loops.
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
from ucall.queue.core.options import trusted_file

if TYPE_CHECKING:
    from ucall._core import QueueLink
    from ucall.queue.core import Communicator, SecurityOptions

__all__ = ["Transport"]

METHOD = "/ucall.Queue/Link"
PIECE_BYTES_MAX = 1 << 20
# grpcio takes milliseconds as a C int.
INT_MAX = (1 << 31) - 1
# Bytes between the communicator and grpcio, in each direction.
IN_FLIGHT_BYTES = 2 * PIECE_BYTES_MAX
# The option for a name to verify that differs from the target's.
TARGET_NAME = "grpc.ssl_target_name_override"
# Seconds for the links to send their last frames.
LINGER_S = 1.0
OPTIONS = [
    ("grpc.max_receive_message_length", PIECE_BYTES_MAX + 1024),
    ("grpc.max_send_message_length", PIECE_BYTES_MAX + 1024),
    # Without it a second server on the port would start, and get half of the clients.
    ("grpc.so_reuseport", 0),
]


class Transport:
    """The links of one communicator, over its gRPC channel or server.

    Args:
        communicator: Opens the links; its options have the address.

    Raises:
        OSError: The server cannot listen on the address, or a file of TLS cannot be read.
        RuntimeError: This is a forked child of a process that has used gRPC.
    """

    def __init__(self, communicator: Communicator) -> None:
        process, self._loop = _loop()
        if process != os.getpid():
            raise RuntimeError(
                "grpcio does not work in a forked child whose parent has used it: fork before the"
                " parent makes its first queue over gRPC"
            )
        # The communicator closes when the program drops it: the transport must not keep it alive.
        self._communicator = weakref.ref(communicator)
        self._options = communicator.options
        self.address: tuple[str, int] | None = None
        self._ending = asyncio.Event()
        self._links: set[asyncio.Task[Any]] = set()
        #: Whether the client's current link has received bytes, so that a reply may be pending.
        self._has_received = False
        if communicator.is_server:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
            self.ended = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        else:
            security = self._options.security
            credentials = None if security is None else _channel_credentials(security)
            self.ended = asyncio.run_coroutine_threadsafe(self._connect(credentials), self._loop)

    def close(self) -> None:
        """Closes the links after their last frames are sent, and waits for that."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self.ended.result()

    def deliver(self, communicator: Communicator) -> None:
        """Keeps a communicator that the program has dropped until all messages are delivered, and
        closes the links then. Does not wait for that."""
        # The garbage collector clears weak references to what it finds in a cycle.
        self._communicator = weakref.ref(communicator)
        asyncio.run_coroutine_threadsafe(self._deliver(communicator), self._loop)

    async def _deliver(self, communicator: Communicator) -> None:
        await asyncio.wrap_future(communicator._ended)
        self._ending.set()

    async def _listen(self) -> None:
        # Closes connections that open no link within the time of a handshake.
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

    async def _connect(self, credentials: grpc.ChannelCredentials | None) -> None:
        where, security = _target(*self._options.netloc), self._options.security
        first_s, most_s = self._options.connection.reconnect
        # grpcio accepts no shorter delay than 100 ms.
        options: list[tuple[str, Any]] = [
            *OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", max(100, round(first_s * 1000))),
            ("grpc.max_reconnect_backoff_ms", max(100, round(most_s * 1000))),
        ]
        if credentials is None:
            channel = grpc.aio.insecure_channel(where, options)
        else:
            assert security is not None  # the credentials are made of it
            options += [(TARGET_NAME, security.name)] if security.name else []
            channel = grpc.aio.secure_channel(where, credentials, options)
        delay_s = first_s
        async with channel:
            while not self._ending.is_set() and not self._is_finished():
                self._has_received = False
                call: Any = channel.stream_stream(METHOD)(wait_for_ready=True)
                link = asyncio.ensure_future(self._run_link(True, call.read, call.write))
                ending = asyncio.ensure_future(self._ending.wait())
                await asyncio.wait([link, ending], return_when=asyncio.FIRST_COMPLETED)
                if not link.done() and self._has_received:
                    await asyncio.wait([link], timeout=LINGER_S)
                ending.cancel()
                call.cancel()
                has_received = await link
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
        """Carries one link until either side closes it; returns whether it received bytes."""
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
            # grpcio cancels this task when the client disconnects.
            link.handle_closed()
            self._links.discard(writer)
            reader.cancel()
            writer.cancel()
        has_received, _ = await asyncio.gather(reader, writer, return_exceptions=True)
        return has_received is True

    async def _read(
        self, link: QueueLink, read: Callable[[], Awaitable[Any]], room: asyncio.Event
    ) -> bool:
        """Passes received bytes to the link until the stream ends; returns whether any came."""
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
        """Whether a client's session has ended, so that it must not connect again."""
        communicator = self._communicator()
        # It is None while the communicator is collected, until `deliver`.
        return communicator is not None and communicator._is_closed

    async def _wait_for_links(self) -> None:
        if self._links:
            await asyncio.wait(self._links, timeout=LINGER_S)


@functools.cache
def _loop() -> tuple[int, asyncio.AbstractEventLoop]:
    """The process that uses gRPC, and the event loop of all transports, on its own thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ucall-grpc", daemon=True).start()
    return os.getpid(), loop


async def _write(
    link: QueueLink, write: Callable[[bytes], Awaitable[None]], has_output: asyncio.Event
) -> None:
    """Sends the link's frames, as fast as HTTP/2 flow control allows, until it is closed."""
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
    assert security.key is not None and security.certificate is not None  # `check_security`
    pair = (Path(security.key).read_bytes(), Path(security.certificate).read_bytes())
    authority = _read_file(security.authority)
    return grpc.ssl_server_credentials([pair], authority, authority is not None)


def _channel_credentials(security: SecurityOptions) -> grpc.ChannelCredentials:
    trusted = _read_file(trusted_file(security))
    key = _read_file(security.key)
    chain = None if key is None else _read_file(security.certificate)
    if trusted is None:
        # Without authorities grpcio would use its own list rather than the system's.
        system = "".join(map(ssl.DER_cert_to_PEM_cert, system_certificates())).encode()
        # A client trusts its own certificate, but not the authorities in its chain. It comes first,
        # because grpcio tries only the first of the certificates with the same subject.
        own, end, _ = (chain or b"").partition(b"-----END CERTIFICATE-----")
        trusted = own + end + b"\n" + system
    return grpc.ssl_channel_credentials(trusted, key, chain)


def _read_file(path: str | os.PathLike[str] | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
