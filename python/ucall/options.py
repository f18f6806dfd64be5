"""The options of `ucall.Server` that belong together, as values that do not change.

A class lists the names, the types and the defaults of its options once: the variables ``UCALL_…``,
the file of a gateway and the core read them from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self, TypeAlias, dataclass_transform

from ucall._server import checked

__all__ = ["TLS", "UDP", "Broker", "Compression", "Limits", "Observability", "Timeouts"]

Path: TypeAlias = "str | os.PathLike[str]"


# Not `dataclasses`: importing it takes a third as long as all of ucall.
@dataclass_transform(kw_only_default=True, frozen_default=True)
class Options:
    """Keyword arguments, each with its value."""

    _defaults: ClassVar[Mapping[str, Any]]
    #: The names of options in ``UCALL_…`` variables, if they differ from those of their fields.
    _variables: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        cls._defaults = {name: vars(cls)[name] for name in cls.names() if name in vars(cls)}

    def __init__(self, **given: Any) -> None:
        name = type(self).__name__
        for unknown in given.keys() - set(self.names()):
            raise _unknown(name, unknown, self.names())
        vars(self).update(dict(self._defaults) | given)
        for missing in self.required() - given.keys():
            raise TypeError(f"{name}: expected {missing}")
        self._check()

    def _check(self) -> None:
        """Raises the errors of the constructor for values that contradict each other."""

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in cls.__annotations__ if name[0] != "_"]

    @classmethod
    def required(cls) -> set[str]:
        """The options without a default."""
        return set(cls.names()) - cls._defaults.keys()

    @classmethod
    def variable(cls, name: str) -> str:
        """The name of an option outside its class, such as in variables."""
        return cls._variables.get(name, name)

    @classmethod
    def variables(cls) -> list[str]:
        return [cls.variable(name) for name in cls.names()]

    def replace(self, **given: Any) -> Self:
        """A copy with other values of some options."""
        return type(self)(**(vars(self) | given))

    __replace__ = replace

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot change: use replace({name}=…)")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.names()}
        given = {name: it for name, it in values.items() if it != self._defaults.get(name)}
        hidden = {name for name in given if "password" in name}
        shown = (f"{name}={'…' if name in hidden else repr(it)}" for name, it in given.items())
        return f"{type(self).__name__}({', '.join(shown)})"


class Limits(Options):
    """What a client may use: ``Server(limits=Limits(max_body_bytes=1_048_576))``.

    Args:
        max_connections: Open connections. Past it, a new one replaces a quiet one, idle ones first.
        max_connections_per_peer: The same of one address, or of 64 bits of IPv6. Past it, closed.
        max_head_bytes: Request line and headers. Past it, 431.
        max_headers: Headers of one request. Past it, 431.
        max_body_bytes: Body of a request, a raw document, or a WebSocket message. Past it, 413.
        max_body_ratio: Length of a compressed body when it is decoded, from 64 KiB on, over its
            length. Past it, 413.
        max_frame_bytes: Payload of a WebSocket frame. Past it, code 1009.
        max_message_frames: Frames of a WebSocket message. Past it, code 1009.
        max_unanswered_pings: Pings to a silent WebSocket client. Past it, code 1008.
        max_chunk_overhead_bytes: Chunk extensions and trailers of one body. Past it, 400.
        max_nesting: Nested lists and dicts, at most 1,024. Past it, -32700.
        max_batch_calls: Calls in one batch. Past it, -32600.
        max_parts: Binary parts of one document. Past it, -32600.
        max_reply_bytes: A reply, of a batch as a whole. Past it, -32603.
        max_id_bytes: Text of an id. Past it, -32600.
        max_meta_bytes: Text of a request's ``_meta``. Past it, -32600.
        max_stream_bytes: Items of streams that wait for a slow client. Past it, the generator
            pauses, or what its ``overflow`` says.
        max_image_pixels: Width times height of a received image. Past it, -32602.
        max_held_image_pixels: The same of all received images that still exist. Past it, -32003.
        max_pipeline: Waiting requests of one connection. Past it, reading pauses.
        max_connection_calls: Calls and streams of one connection that run. Past it, others wait.
        max_output_bytes: Waiting replies of one connection. Past it, reading pauses.
        max_held_bytes: Incomplete requests, params of deferred calls and waiting replies of a
            worker. Past it, reading pauses; new requests get 503, or -32003.
        max_discarded_bytes: Input that is dropped after the last reply. Past it, closed.
        max_shared_bytes: Memory that one connection shares, in each direction. Past it, arrays go
            through the socket.
        max_subscriptions: Topics that one connection subscribes to. Past it, -32003.
        max_topic_bytes: Name of a topic. Past it, -32602.
        max_waiting_messages: Messages that wait for a slow client. Past it, its topic with the most
            of them loses one, or what its ``overflow`` says.
        max_waiting_message_bytes: The same in bytes. One message more may wait, however long.
        max_running_calls: Concurrent calls of async functions and in threads, processes and
            batches. Past it, -32003. The last eighth is for connections with few calls.
        max_threads: Threads for blocking functions. Past it, calls wait.
        max_calls_per_s: Calls a second of one user, or without a user of one address (64 bits of
            IPv6), to all workers together. Past it, -32003.
        max_burst_calls: How many of them may come at once; by default those of a second.
    """

    max_connections: int = 16_384
    max_connections_per_peer: int | None = None
    max_head_bytes: int = 16_384
    max_headers: int = 100
    max_body_bytes: int = 16_777_216
    max_body_ratio: int = 100
    max_frame_bytes: int = 16_777_216
    max_message_frames: int = 1_024
    max_unanswered_pings: int = 2
    max_chunk_overhead_bytes: int = 16_384
    max_nesting: int = 128
    max_batch_calls: int = 1_000
    max_parts: int = 1_024
    max_reply_bytes: int = 67_108_864
    max_id_bytes: int = 1_024
    max_meta_bytes: int = 4_096
    max_stream_bytes: int = 65_536
    max_image_pixels: int = 67_108_864
    max_held_image_pixels: int = 268_435_456
    max_pipeline: int = 128
    max_connection_calls: int = 128
    max_output_bytes: int = 1_048_576
    max_held_bytes: int = 1_073_741_824
    max_discarded_bytes: int = 262_144
    max_shared_bytes: int = 268_435_456
    max_subscriptions: int = 1_024
    max_topic_bytes: int = 256
    max_waiting_messages: int = 1_024
    max_waiting_message_bytes: int = 1_048_576
    max_running_calls: int = 10_000
    max_threads: int = 128
    max_calls_per_s: float | None = None
    max_burst_calls: int | None = None

    def _check(self) -> None:
        if self.max_calls_per_s is None and self.max_burst_calls is not None:
            raise ValueError("max_burst_calls: has no effect without max_calls_per_s")


class Timeouts(Options):
    """How long the server waits, in seconds: ``Server(timeouts=Timeouts(idle_timeout_s=30))``.

    The time of a call is ``Server(timeout_ms=…)``.

    Args:
        head_timeout_s: Between a head's first and last byte. Past it, 408.
        body_timeout_s: Without a byte of a body; in all, 1 more per KiB. Past it, 408.
        idle_timeout_s: That a connection is kept without a request.
        ping_interval_s: Without a byte of a WebSocket client, after which it is pinged.
        send_timeout_s: In which a peer accepts no byte of a reply. Past it, closed.
        discard_timeout_s: In which input is dropped. Past it, closed.
        handshake_timeout_s: For the TLS handshake. Past it, closed.
        drain_timeout_s: That running calls get when the server stops. Past it, -32007.
        shutdown_delay_s: Between a stop and the closing of the listener, while calls are served and
            ``/readyz`` answers 503, so that load balancers send no more.
        ready_timeout_s: For all checks of `Server.ready` together. Past it, ``/readyz`` is 503.
        process_start_timeout_s: For the start of a process of ``processes=``, with its hooks and
            models. Past it, the process is killed, as if it could not start.
    """

    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    ping_interval_s: float = 20.0
    send_timeout_s: float = 30.0
    discard_timeout_s: float = 1.0
    handshake_timeout_s: float = 10.0
    drain_timeout_s: float = 10.0
    shutdown_delay_s: float = 0.0
    ready_timeout_s: float = 1.0
    process_start_timeout_s: float = 600.0


class TLS(Options):
    """TLS for all connections, HTTP and raw TCP: ``Server(tls=TLS(certfile="server.pem"))``.

    Files are read again when they change.

    Args:
        certfile: Certificate chains in PEM, one file each. A client gets the certificate for the
            name that it asks for, else the first.
        keyfile: The private key, or one for each chain; by default in the chain's file.
        keyfile_password: The password of encrypted keys.
        ca_certs: Authorities that sign the clients' certificates, in PEM.
        client_auth: ``"none"``, ``"optional"`` or ``"required"``, the default with ``ca_certs``.
            ``ctx.tls.client_certificate`` is the client's certificate.

    Raises:
        ValueError: They contradict each other.
    """

    certfile: Path | Iterable[Path]
    keyfile: Path | Iterable[Path] | None = None
    keyfile_password: str | bytes | None = None
    ca_certs: Path | None = None
    client_auth: Literal["none", "optional", "required"] | None = None

    _variables: ClassVar[Mapping[str, str]] = {
        "certfile": "ssl_certfile",
        "keyfile": "ssl_keyfile",
        "keyfile_password": "ssl_keyfile_password",
        "ca_certs": "ssl_ca_certs",
        "client_auth": "ssl_client_auth",
    }

    def _check(self) -> None:
        for name, files in (("certfile", self.certfile), ("keyfile", self.keyfile)):
            if files is not None and not isinstance(files, str | os.PathLike):
                vars(self)[name] = tuple(files)  # It may be an iterator.
        certificates, keys = self.certfiles, self.keyfiles
        if keys and len(keys) != len(certificates):
            raise ValueError(f"tls.keyfile: expected one for each of {len(certificates)} certfiles")
        if self.verifies_clients not in CLIENT_AUTH:
            expected = f"expected one of {', '.join(CLIENT_AUTH)}, got {self.client_auth!r}"
            raise ValueError(f"tls.client_auth: {expected}")
        if self.verifies_clients != "none" and self.ca_certs is None:
            raise ValueError("tls.ca_certs: needed to verify the certificates of clients")

    @property
    def certfiles(self) -> list[str]:
        return _paths("certfile", self.certfile)

    @property
    def keyfiles(self) -> list[str]:
        return [] if self.keyfile is None else _paths("keyfile", self.keyfile)

    @property
    def verifies_clients(self) -> str:
        """``client_auth``, or its default."""
        return self.client_auth or ("none" if self.ca_certs is None else "required")


CLIENT_AUTH = ("none", "optional", "required")


def _paths(name: str, files: Path | Iterable[Path]) -> list[str]:
    if isinstance(files, str | os.PathLike):
        return [os.fspath(files)]
    paths = [os.fspath(file) for file in files]
    if not paths:  # a glob without matches must not mean plaintext
        raise ValueError(f"tls.{name}: expected at least one file, got an empty list")
    return paths


class UDP(Options):
    """Answers calls in UDP datagrams, too: ``Server(udp=UDP())``. See docs/udp.md. Not with TLS.

    Args:
        port: Another port than that of TCP; 0 picks a free one: see `Server.udp_port`.
        auth: Lets ``auth`` serve datagrams from other machines, whose addresses may be forged.
        xdp: A network interface, such as ``"eth0"``, whose datagrams are received over AF_XDP: see
            docs/udp.md. Needs capabilities, and a queue for each worker process. Or ``unix:`` and
            the path of the socket of ``ucall-xdp-setup``, for a server without capabilities.
        xdp_busy_poll: Polls the queues while datagrams arrive, and delays other work by up to 1 ms.
        dedupe: Answers a datagram that is sent again by its reply, and runs its calls once.
        dedupe_s: Seconds that a reply is kept after the last copy of its request, at least 5.
        max_dedupe_bytes: Memory of a worker for such replies. Past it, -32003.
        max_datagram_bytes: A reply in a datagram. Past it, an error that says to use TCP.
        max_source_calls: Concurrent deferred calls of one address. Past it, its datagrams are
            dropped, and get -32006 without a cookie.
        max_source_calls_per_s: Calls a second of one address. Past it, the same. No limit by
            default, because many clients may share an address.

    Raises:
        TypeError, ValueError: An option is invalid.
    """

    port: int | None = None
    auth: bool = False
    xdp: str | None = None
    xdp_busy_poll: bool = False
    dedupe: bool = True
    dedupe_s: float = 10.0
    max_dedupe_bytes: int = 67_108_864
    max_datagram_bytes: int = 1_232
    max_source_calls: int = 64
    max_source_calls_per_s: int | None = None

    _variables: ClassVar[Mapping[str, str]] = {"port": "udp_port", "auth": "udp_auth"}

    def _check(self) -> None:
        if self.port is not None:
            checked.port(self.port, "udp.port")
        if self.xdp is None and self.xdp_busy_poll:
            raise ValueError("udp.xdp_busy_poll: has no effect without xdp")


class Observability(Options):
    """What the server tells of its work: ``Server(observability=Observability(metrics=True))``.

    See docs/observability.md.

    Args:
        metrics: Measures calls, and serves ``GET /metrics`` for Prometheus, which asks ``auth``.
        access_log: Writes a line for each call to the output: ``"text"`` or ``"json"``.
        access_log_sample: The share of calls that have a line, from 0 to 1.
        trace: Makes an OpenTelemetry span for each call. Needs opentelemetry-api.
        slow_call_s: Seconds after which a function that blocks all other calls is logged.
        log_format: Writes the log ``ucall`` to standard error as ``"text"`` or ``"json"``, unless
            the program configures the root logger. ``python -m ucall`` always does so.

    Raises:
        ValueError: They contradict each other.
    """

    metrics: bool = False
    access_log: Literal["text", "json"] | None = None
    access_log_sample: float = 1.0
    trace: bool = False
    slow_call_s: float = 0.1
    log_format: Literal["text", "json"] | None = None

    def _check(self) -> None:
        if self.log_format not in (None, "text", "json"):
            raise ValueError(f"log_format: expected 'text' or 'json', got {self.log_format!r}")
        if self.access_log is None and self.access_log_sample != 1.0:
            raise ValueError("access_log_sample: has no effect without access_log")

    @property
    def access_log_format(self) -> tuple[str, float] | None:
        """The access log, as the core takes it."""
        return None if self.access_log is None else (self.access_log, self.access_log_sample)


class Compression(Options):
    """Compresses replies in gzip or zstd, for clients that accept it: see docs/compression.md.

    ``Server(compression=Compression())``. Not for replies with a secret beside what a caller sent:
    their length then tells of the secret.

    Args:
        min_bytes: Length from which a reply is compressed. Streams are, whatever their length.
        max_bytes: Length up to which it is: a megabyte holds up other calls for some milliseconds.
    """

    min_bytes: int = 1_024
    max_bytes: int = 4_194_304

    _variables: ClassVar[Mapping[str, str]] = {
        "min_bytes": "compression_min_bytes",
        "max_bytes": "compression_max_bytes",
    }

    def limits(self) -> dict[str, float]:
        """The same, as the core takes them."""
        return {f"compression.{name}": value for name, value in vars(self).items()}


class Broker(Options):
    """Where a server registers, so that clients find and call it through NATS: see docs/scale.md.

    Args:
        url: ``"nats://a:4222,nats://b:4222"``. Needs nats-py.
        group: The name of the servers with these functions.
        advertise: ``host`` or ``host:port`` for direct calls; empty for none. By default that of
            the server.
        options: Options of nats-py's ``connect``, such as ``user_credentials``.
    """

    url: str
    group: str
    advertise: str | None = None
    options: Mapping[str, Any] | None = None


#: The classes of options, by the parameters of `ucall.Server`.
GROUPS: dict[str, type[Options]] = {
    "limits": Limits,
    "timeouts": Timeouts,
    "tls": TLS,
    "udp": UDP,
    "observability": Observability,
    "compression": Compression,
}
#: The parameter and the field of each option in a class, by its name in variables.
PLACES = {it.variable(name): (group, name) for group, it in GROUPS.items() for name in it.names()}


def variable(name: str) -> str:
    """The name in variables of what an error calls ``tls.keyfile``."""
    group, _, field = name.partition(".")
    return GROUPS[group].variable(field) if group in GROUPS else name


def arguments(
    options: Mapping[str, Any], others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The keyword arguments of a server with options by their names in variables, and others, which
    the options override.

    Raises:
        ValueError: One has no effect without another.
    """
    made = dict(others or {})
    by_group: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if name in PLACES:
            group, field = PLACES[name]
            by_group.setdefault(group, {})[field] = value
        elif name == "udp":
            made["udp"] = (made.get("udp") or UDP()) if value else None
        else:
            made[name] = value
    for group, fields in by_group.items():
        present = made.get(group)
        if present is None and group == "tls" and "certfile" not in fields:
            raise ValueError("ssl_certfile: expected a certificate for the other settings of TLS")
        if present is None and group == "udp" and "port" not in fields:
            raise ValueError(f"{UDP.variable(min(fields))}: has no effect without udp")
        made[group] = GROUPS[group](**fields) if present is None else present.replace(**fields)
    return made


def types_of(options: type[Options] | Callable[..., object]) -> dict[str, str]:
    """The types of options, as they are written, without ``None``."""
    written = {name: str(it) for name, it in options.__annotations__.items() if name != "return"}
    return {name: it.removesuffix(" | None") for name, it in written.items() if name[0] != "_"}


def moved(options: Mapping[str, object], constructor: Callable[..., object]) -> TypeError:
    """The error of keyword arguments that the constructor of `ucall.Server` does not know."""
    name = min(options)
    if name in PLACES:
        group, field = PLACES[name]
        return TypeError(f"{name} is now {group}={GROUPS[group].__name__}({field}=…)")
    return _unknown("Server", name, types_of(constructor))


def _unknown(owner: str, name: str, known: Iterable[str]) -> TypeError:
    import difflib  # here, because only an error needs it

    near = difflib.get_close_matches(name, known, 1, 0.5)
    return TypeError(
        f"{owner} has no option {name}" + (f"; did you mean {near[0]}?" if near else "")
    )
