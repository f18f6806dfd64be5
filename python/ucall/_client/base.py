"""The base of both clients: makes requests, and responses of replies. It does no I/O."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ucall._client.address import Address, Addresses
from ucall._client.blocking import result_of
from ucall._client.frames import writer_after
from ucall._client.inbox import check_waiting_bytes
from ucall._client.names import described_methods, names_below
from ucall._client.options import TIMEOUT_S, UNCHANGED, BalancedOptions, Options, Unchanged
from ucall._client.response import Reading, Response
from ucall._client.sockets import Deadline, late_error, left_to_send
from ucall._client.streams import ChannelSource, HttpSource, Source
from ucall._client.tls import context_for
from ucall._core import FrameRefused, Reply, Request, RequestWriter, Undecided
from ucall.errors import ConnectionError, RPCError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ucall._nats.group import Group
    from ucall._tracing.client import ClientSpan, ClientSpans
    from ucall.options import Compression

__all__ = [
    "IMAGE_PIXELS_MAX",
    "NO_CHANNEL_OVER_HTTP",
    "NO_STREAMS_OVER_UDP",
    "REPLY_BYTES_MAX",
    "SUBSCRIPTIONS_REFUSED",
    "TIMEOUT_S",
    "ClientBase",
    "call_of",
    "check_channel_options",
    "context_for",
    "group_of",
    "target_of",
    "tcp_options",
]

REPLY_BYTES_MAX = 67_108_864
IMAGE_PIXELS_MAX = 67_108_864


NO_STREAMS_OVER_UDP = (
    "UDP has no streams and no messages that the server starts: use tcp:// or ws://"
)
NO_CHANNEL_OVER_HTTP = "HTTP has no messages that the server starts: use ws:// or tcp://"
SUBSCRIPTIONS_REFUSED = "a client with several addresses has no subscriptions: use one for each"


def target_of(
    uri: str | Sequence[str],
    port: int | None,
    server_hostname: str | None,
    compression: Compression | None,
) -> Address | Addresses:
    """The server of a client, or its servers."""
    target: Address | Addresses
    if Addresses.is_several(uri):
        target = Addresses(uri, port, server_hostname)
    elif server_hostname is not None:
        raise ValueError("server_hostname: is for addresses with nats://")
    else:
        assert isinstance(uri, str)
        target = Address(uri, port)
    if compression is not None:
        from ucall._client.codings import compress

        compress(target, compression)
    return target


def group_of(
    target: Address | Addresses, options: Mapping[str, Any] | None, reply_bytes_max: int
) -> Group | None:
    """The servers that are found by NATS; ``None`` without a broker.

    Raises:
        ImportError: nats-py is not installed.
        OSError: A file of credentials cannot be read.
        ValueError: An option is invalid.
    """
    if isinstance(target, Address) or not target.group:
        if options is not None:
            raise ValueError("broker_options: are for addresses with nats://")
        return None
    from ucall._nats.connection import check_options
    from ucall._nats.group import Group

    return Group(target, check_options(options), reply_bytes_max)


def check_channel_options(
    target: Address | Addresses,
    waiting_bytes_max: int,
    *,
    reconnect: bool,
    hedge: bool,
    tcp_fallback: bool,
) -> None:
    """Raises ``ValueError`` for options that do not fit the address."""
    check_waiting_bytes(waiting_bytes_max)
    if tcp_fallback and not (isinstance(target, Address) and target.is_udp):
        raise ValueError("tcp_fallback: expected an address with udp://")
    if isinstance(target, Addresses):
        if reconnect:
            raise ValueError("reconnect: a client with several addresses always does")
        return
    if hedge:
        raise ValueError("hedge: is for a client with several addresses")
    if reconnect and target.is_udp:
        raise ValueError("reconnect: UDP has no connection; use ws:// or tcp://")
    if reconnect and target.is_http:
        raise ValueError("reconnect: HTTP has no connection to keep; use ws:// or tcp://")


def share_memory(target: Address | Addresses, shared_memory: bool, trusted: bool) -> None:
    """Has a client share memory with its server.

    Raises:
        TypeError, ValueError: The options do not fit the address.
    """
    from ucall._client.shared_memory import share

    if isinstance(target, Addresses):
        raise ValueError("shared_memory: is for a client with one address")
    share(target, shared_memory, trusted)


def tcp_options(options: Options) -> Options:
    """The options of calls over UDP for raw TCP."""
    return Options(
        Address(f"tcp://{options.address.name}"), options.timeout, {}, priority=options.priority
    )


#: Of the local names of a constructor, those that are no arguments.
_IMPLICIT = {"self", "__class__"}
#: The attributes of a client that a pickled one makes anew.
_ATTRIBUTES = frozenset(
    ["_arguments", "_description", "_ids", "_options", "_pool", "_reading", "_spans", "_target"]
)
#: A longer description is not read for the names in it.
_DESCRIPTION_BYTES_MAX = 1 << 20


class ClientBase:
    """A client without its connections."""

    _pool: Any
    _stream_of: ClassVar[Callable[..., Any]]
    #: What `rpc` has got of the server.
    _description: Response | None = None

    def __init__(
        self,
        target: Address | Addresses,
        timeout: float | None,
        headers: Mapping[str, str] | None,
        max_image_pixels: int,
        trace: bool,
        arguments: dict[str, Any],
    ) -> None:
        #: Those of the constructor of `Client`, by name.
        self._arguments = {name: arguments[name] for name in arguments if name not in _IMPLICIT}
        self._target = target
        address = target if isinstance(target, Address) else target.first
        self._spans: ClientSpans | None = None
        if trace:
            from ucall._tracing.client import ClientSpans

            self._spans = ClientSpans(address)
        kind = Options if isinstance(target, Address) else BalancedOptions
        self._options: Options = kind(address, timeout, headers or {})
        frames = address.frames if isinstance(target, Address) else None
        self._reading = Reading(max_image_pixels, frames.want if frames else _want_nothing)
        # A server takes a datagram with the same id and params for a copy.
        self._ids = itertools.count(secrets.randbelow(1 << 48) if address.is_udp else 1)

    def with_options(
        self,
        *,
        timeout: float | Unchanged | None = UNCHANGED,
        headers: Mapping[str, str] | Unchanged = UNCHANGED,
        id: int | str | Unchanged | None = UNCHANGED,
        priority: int | Unchanged | None = UNCHANGED,
        idempotent: bool | Unchanged = UNCHANGED,
        key: str | int | Unchanged | None = UNCHANGED,
    ) -> Self:
        """Returns a client with other options that shares this one's connections.

        ``client.with_options(timeout=2).sum(2, 3)`` sets them for one call.

        Args:
            timeout: Seconds that a call may take; ``None`` for no limit.
            headers: Added to this client's headers; a header of the same name is replaced.
            id: The id of every call; ``None`` to number them.
            priority: From -8 to 7: calls of a higher one wait less for a batch of the server, see
                docs/batches.md#which-calls-are-first. ``None`` for 0.
            idempotent: Whether the calls may run twice, so that they are sent again after a
                failure. For clients with several addresses.
            key: Calls with the same key go to the same address while it is up; ``None`` for any.
                For clients with several addresses.

        Raises:
            TypeError, ValueError: An option is invalid; the message names it.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._options = self._options.changed(timeout, headers, id, idempotent, key, priority)
        other._pool = self._pool.for_options(other._options)
        return other

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Client of {self._target}>"

    def __dir__(self) -> Iterable[str]:
        """With the server's methods, if ``rpc.discover()`` of this client has described them."""
        return [*object.__dir__(self), *names_below("", self._known_methods)]

    @property
    def _known_methods(self) -> list[str]:
        names = ["rpc.discover"]
        described = self._description
        if described is not None and len(described.text) <= _DESCRIPTION_BYTES_MAX:
            with suppress(RPCError, ValueError):
                names += described_methods(described.json)
        return names

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickles the address and the options, `with_options` included, without connections."""
        options, arguments = self._options, self._arguments
        if not isinstance(arguments["verify"], bool | str | os.PathLike):
            raise TypeError("verify: an ssl.SSLContext cannot be pickled; give the path of a file")
        arguments = {**arguments, "timeout": options.timeout, "headers": options.headers}
        added = {name: value for name, value in self.__dict__.items() if name not in _ATTRIBUTES}
        return _restore, (type(self), arguments, options.changes, added)

    def _new_id(self) -> int | str:
        return next(self._ids) if self._options.id is None else self._options.id

    def _new_response(self, reply: Reply | None) -> Response:
        return Response(reply, self._reading)

    def _stream(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        id, source = self._new_id(), self._source
        if self._spans is None:
            made = source(method, args, kwargs, id, None)
        else:
            from ucall._tracing.client import TracedSource

            span = self._spans.start(method, id)
            with span.until_failure():
                made = TracedSource(source(method, args, kwargs, id, span.context), span)
        return self._stream_of(made, self._options.timeout, self._reading)

    def _source(
        self,
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        id: int | str,
        trace: tuple[str, str | None] | None,
    ) -> Source:
        def begin(pool: Any, options: Options) -> Source:
            is_http = options.address.is_http

            def write(writer: RequestWriter) -> Request:
                return writer.call(method, args, kwargs, id, not is_http, trace)

            if not is_http:
                return ChannelSource(pool.channel(), write(options.stream_writer()), id)
            return HttpSource(pool, options, write, id)

        if isinstance(self._target, Address) and not self._target.is_udp:
            return begin(self._pool, self._options)
        source: Source = self._pool.source(begin)
        return source

    async def _exchange_object(self, request: dict[str, Any]) -> Response:
        """Sends a request object, with ``jsonrpc`` and ``id`` unless it has them."""
        request, id, traced = self._request_of(request)
        with traced as span:
            reply = await self._exchange(lambda writer: writer.document(request, id), (id,))
            if span is not None:
                span.take(reply)
            return self._new_response(reply)

    async def _exchange_traced(
        self,
        spans: ClientSpans,
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        id: int | str | None,
    ) -> Reply:
        with spans.start(method, id) as span:
            write = call_of(method, args, kwargs, id, span.context)
            reply = await self._exchange(write, () if id is None else (id,))
            span.take(reply)
            return reply

    async def _exchange(
        self, write: Callable[[RequestWriter], Request], ids: tuple[object, ...]
    ) -> Reply:
        """Writes and sends a request, as calls do themselves as long as nothing fails."""
        options = self._options
        try:
            request = write(options.writer)
            reply: Reply = await result_of(self._pool.exchange(request, ids, options.timeout))
            return reply
        except (Undecided, ConnectionError) as error:
            return await self._exchange_again(error, write, ids)

    async def _exchange_again(
        self,
        error: Undecided | ConnectionError,
        write: Callable[[RequestWriter], Request],
        ids: tuple[object, ...],
    ) -> Reply:
        """Sends a request after its server was asked whether it takes frames, or without a coding,
        if that is why an attempt has failed, and otherwise raises the error of that."""
        options = self._options
        if options.is_provisional:  # The pool has asked each server itself.
            raise error from None
        deadline = Deadline(options.timeout)
        try:
            if options.address.refuses_coding(error):
                return await self._send(write(options.writer.plain()), ids, deadline)
            writer = await writer_after(error, self._pool, options, deadline)
            try:
                return await self._send(write(writer), ids, deadline)
            except FrameRefused as refused:
                writer = await writer_after(refused, self._pool, options, deadline)
                return await self._send(write(writer), ids, deadline)
        except TimeoutError as late:
            raise late_error(late, options.timeout) from None

    async def _send(self, request: Request, ids: tuple[object, ...], deadline: Deadline) -> Reply:
        left = left_to_send(deadline)
        reply: Reply = await result_of(self._pool.exchange(request, ids, left))
        return reply

    def _request_of(
        self, request: dict[str, Any]
    ) -> tuple[dict[str, Any], object, AbstractContextManager[ClientSpan | None]]:
        """The whole request that an object describes, its id and its span."""
        if not isinstance(request, dict):
            raise TypeError(f"expected a request as a dict, got {type(request).__name__}")
        request = {"jsonrpc": "2.0", **request}
        if "id" not in request:
            request["id"] = self._new_id()
        span: ClientSpan | None = None
        if self._spans is not None:
            span, request = self._spans.add_to(request)
        return request, request["id"], nullcontext() if span is None else span


def call_of(
    method: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    id: int | str | None,
    trace: tuple[str, str | None] | None = None,
) -> Callable[[RequestWriter], Request]:
    """Writes a call by a writer that is known later. (A closure within a method would cost each of
    its calls.)"""
    return lambda writer: writer.call(method, args, kwargs, id, trace=trace)


def _want_nothing() -> None:
    """No call is a frame."""


def _restore(
    kind: type[ClientBase],
    arguments: dict[str, Any],
    changes: dict[str, Any],
    added: dict[str, Any],
) -> ClientBase:
    """A client that was pickled. The constructor of a derived class is not called, since its
    arguments are not known; the attributes that it has set are."""
    made = object.__new__(kind)
    made.__dict__.update(added)
    [ours] = (it for it in kind.__mro__ if ClientBase in it.__bases__)
    construct: Callable[..., None] = ours.__init__  # type: ignore[misc]
    construct(made, **arguments)
    return made.with_options(**changes)
