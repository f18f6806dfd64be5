"""The extension module, in Rust (crates/ucall-python)."""

import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Literal, Never, ParamSpec, Self, TypeVar, final, overload

from numpy import dtype
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

from ucall import Process
from ucall._core_shared import BatchProcesses as BatchProcesses
from ucall._core_shared import BrokerCalls as BrokerCalls
from ucall._core_shared import ProcessDescription as ProcessDescription
from ucall._core_shared import ProcessFunction as ProcessFunction
from ucall._core_shared import SharedCounters as SharedCounters
from ucall._core_shared import Store as Store
from ucall._core_shared import insert_store as insert_store
from ucall._core_shared import refuse_worker as refuse_worker
from ucall._core_shared import run_batches as run_batches
from ucall._functions.registration import BatchRules, Hooks
from ucall._server.tls import ClientTls, TlsSettings
from ucall.errors import RPCError
from ucall.queue.core.future import Future
from ucall.queue.core.options import ClientTlsSettings

_Encode = Callable[[Any], object]
_Future = TypeVar("_Future", bound=Awaitable[Any])
_P = ParamSpec("_P")
_Params = TypeVar("_Params")
_OnClose = TypeVar("_OnClose", bound=Callable[[], object])

__all__ = [
    "END",
    "FEATURES",
    "VERSION",
    "ArrayLike",
    "ArrayResults",
    "ArrayType",
    "BatchProcesses",
    "Block",
    "BodyReceiver",
    "BrokerCalls",
    "Call",
    "Certificate",
    "ClientConnection",
    "CodingSupport",
    "Connection",
    "Context",
    "DoneCallback",
    "EndType",
    "FrameRefused",
    "FrameSupport",
    "HttpRequest",
    "ItemSink",
    "Keys",
    "Lines",
    "ListeningSocket",
    "LoopDriver",
    "Message",
    "Notification",
    "PickleLoader",
    "ProcessFunction",
    "QueueCore",
    "QueueLink",
    "QueueLog",
    "QueueTunnel",
    "Receipt",
    "RelayStatus",
    "Reply",
    "ReplyLines",
    "ReplyReader",
    "Request",
    "RequestWriter",
    "Server",
    "SharedCounters",
    "SharedMemory",
    "Slot",
    "Slots",
    "Store",
    "TLSConnection",
    "Undecided",
    "Unwritable",
    "XdpProgram",
    "adopt",
    "bytes_view",
    "check_shared_memory",
    "client_frame",
    "count_loaded_model",
    "decode_array",
    "default_limits",
    "encode_array",
    "hand_over_xdp",
    "inference_readiness",
    "insert_inference",
    "insert_mount",
    "insert_relay",
    "insert_route",
    "insert_store",
    "json_text",
    "make_context",
    "metrics_text",
    "peek",
    "progress_text",
    "readiness",
    "receive_datagrams",
    "refuse_worker",
    "run_batches",
    "seed_batches",
    "send_datagrams",
    "set_binds",
    "set_error_finder",
    "set_listener",
    "set_listeners",
    "set_models",
    "set_native_hooks",
    "set_tools",
    "set_unknown_hooks",
    "system_certificates",
]

VERSION: Final[str]

#: The cargo features that are compiled in. Names of others raise ImportError.
FEATURES: Final[tuple[str, ...]]

@final
class RelayStatus:
    def problem(self) -> str | None: ...

@final
class Server:
    def __new__(
        cls,
        engine: str,
        host: str,
        port: int,
        *,
        uds_mode: int,
        paths: Sequence[str],
        debug: bool,
        allowed_hosts: Sequence[str],
        allow_origins: Sequence[str],
        trusted_proxies: Sequence[str],
        auth: Callable[[Context], object] | None,
        challenge: str | None,
        resource: tuple[str | None, list[str], list[str]] | None,
        timeout_ms: float | None,
        limits: dict[str, float],
        tls: TlsSettings | None,
        metrics: bool,
        access_log: tuple[str, float] | None,
        udp: tuple[int | None, bool] | None,
        xdp: tuple[str, bool] | None,
        dedupe: bool,
        source_rate_max: int | None,
        peer_connections_max: int | None,
        cookie_secret: bytes | None,
        shared_memory: bool,
        trusted: bool,
    ) -> Server: ...
    def configure(
        self,
        *,
        engine: str | None = None,
        host: str | None = None,
        port: int | None = None,
        uds_mode: int | None = None,
        socket: tuple[int, bool] | None = None,
        tls: TlsSettings | None = None,
        access_log: tuple[str, float] | None = None,
    ) -> None: ...
    def load_tls(self) -> None: ...
    def bind(self) -> bool: ...
    def unbind(self) -> ListeningSocket | None: ...
    @property
    def uds_mode(self) -> int: ...
    @property
    def port(self) -> int | None: ...
    @property
    def udp_port(self) -> int | None: ...
    @property
    def host(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def scheme(self) -> str: ...
    @property
    def is_running(self) -> bool: ...
    def insert(
        self,
        name: str,
        function: Callable[..., object],
        signature: Sequence[object] | None,
        encode: _Encode,
        *,
        mode: str,
        timeout_ms: float | None,
        max_waiting: int | None,
        batch: BatchRules | None,
        stream: tuple[bool, str] | None,
        is_idempotent: bool,
        is_public: bool,
        auth: tuple[Callable[[Context], object], str] | None,
        scopes: Sequence[str],
        hooks: Hooks | None,
    ) -> None: ...
    def insert_mcp_method(
        self,
        name: str,
        function: Callable[..., object],
        signature: Sequence[object] | None,
        encode: _Encode,
        *,
        mode: str,
    ) -> None: ...
    def insert_health_checks(self, check: Callable[[], object]) -> None: ...
    def set_callbacks(self, on_drain: object, beat: object, interval_s: float | None) -> None: ...
    def run(
        self, max_cycles: int, max_seconds: float, run_server: Callable[[LoopDriver], object]
    ) -> None: ...
    def start_embedded(self) -> LoopDriver | None: ...
    def close_embedded(self, driver: LoopDriver) -> None: ...
    @property
    def is_running_here(self) -> bool: ...
    @property
    def is_suspended_here(self) -> bool: ...
    def drain(self, serving: bool) -> None: ...
    def stop_with_all(self) -> None: ...
    def stop(self, at_once: bool) -> None: ...
    @property
    def is_stop_requested(self) -> bool: ...
    def forget_stop(self) -> None: ...
    def share_counters(self, counters: SharedCounters, index: int | None = None) -> None: ...
    def share_sockets(
        self, receiver: int | None, senders: Sequence[int], index: int | None
    ) -> None: ...
    def share_xdp(self, descriptor: int, is_native: bool, worker: int, workers: int) -> None: ...
    def publish(self, topic: str, method: str, params: object, encode: _Encode) -> None: ...
    def flush_access_log(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

@final
class DoneCallback:
    def __call__(self, future: object, /) -> None: ...

@final
class EndType:
    """The type of `ucall.END`."""

END: Final[EndType]

@final
class Slots(Generic[_Params]):
    """The calls of a generator that takes others between its steps: see `ucall.Server.batch`.

    They change only when the generator is resumed after a ``yield``.
    """

    @property
    def size(self) -> int:
        """The number of slots."""
    @property
    def joined(self) -> list[Slot[_Params]]:
        """The slots of calls that have come since the last step."""
    @property
    def left(self) -> list[Slot[_Params]]:
        """The slots of calls that have ended since the last step, for whatever reason."""
    @property
    def active(self) -> list[Slot[_Params]]:
        """The slots of calls that take an item in this step; at least one. Those whose callers read
        too slowly are missing."""
    @classmethod
    def __class_getitem__(cls, key: Any) -> Any: ...

@final
class Slot(Generic[_Params]):
    """The slot of one call."""

    @property
    def index(self) -> int:
        """Its number, from 0 on. No other call has it at the same time."""
    @property
    def params(self) -> _Params:
        """The params of the call."""
    @property
    def context(self) -> Context:
        """The context of the call."""
    @classmethod
    def __class_getitem__(cls, key: Any) -> Any: ...

@final
class ItemSink:
    def put(self, item: object, /) -> bool: ...
    def begin_step(self) -> bool: ...
    def room(self) -> Awaitable[None]: ...
    def begin_slice(self) -> None: ...

@final
class LoopDriver:
    def listen(self) -> None: ...
    @property
    def is_new(self) -> bool: ...
    @property
    def event_loop(self) -> Any: ...
    def run(self) -> None: ...
    @property
    def has_ended(self) -> bool: ...
    @property
    def is_stopped(self) -> bool: ...
    def attach(self, event_loop: object, descriptor: int) -> None: ...
    def attach_embedded(self, event_loop: object, wake: Callable[[], object]) -> int: ...
    def detach(self) -> None: ...
    def turn(self, timeout: float | None) -> bool: ...
    def end_wait(self) -> None: ...
    def turn_embedded(self) -> float | None: ...

def progress_text(done: float, total: float | None = None, message: str | None = None) -> bytes: ...
def set_listener(
    server: Server, listener: Callable[[str | None, bytes | None], object]
) -> None: ...
def set_listeners(server: Server, count: int) -> None: ...

@final
class Lines:
    def __new__(cls, server: Server) -> Lines: ...
    def receive(self, bytes: bytes) -> tuple[bytes, bytes]: ...

@final
class ReplyLines:
    def __new__(cls) -> ReplyLines: ...
    def adapt(self, bytes: bytes) -> bytes: ...

def set_binds(server: Server, binds: bool) -> None: ...
def adopt(
    server: Server, descriptor: int, peer: tuple[str, int] | Process | None = None
) -> None: ...
def make_context(
    user: object, headers: bytes, peer: tuple[str, int] | Process | None
) -> Context: ...
def hand_over_xdp(interface: str, descriptor: int) -> None: ...
def insert_relay(
    server: Server,
    methods: Sequence[str],
    to: Sequence[str],
    *,
    headers: Sequence[tuple[str, str]],
    meta: bool,
    tls: ClientTls,
    timeout_ms: float,
    max_outstanding: int,
    max_connection_outstanding: int | None,
    max_request_bytes: int,
    max_failures: int,
    health: tuple[str, Mapping[str, float]] | None,
    idempotent: Sequence[str],
    hash_param: str | None,
    rename: Sequence[tuple[str, str]],
    params: str,
) -> RelayStatus: ...

@final
class XdpProgram:
    def __new__(cls, interface: str, host: str, port: int, workers: int) -> XdpProgram: ...
    def fileno(self) -> int: ...
    @property
    def is_native(self) -> bool: ...

@final
class ListeningSocket:
    def __new__(cls, host: str, port: int, uds_mode: int) -> ListeningSocket: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def is_inherited(self) -> bool: ...
    def descriptor(self) -> int: ...
    def wake_all(self) -> None: ...
    def shut_down(self) -> None: ...
    def close(self) -> None: ...

@final
class HttpRequest:
    """One HTTP request, as the function of a route gets it."""

    @property
    def method(self) -> str:
        """The method, in capitals; HEAD for a request that a GET route answers without its body."""
    @property
    def path(self) -> str:
        """The path as it was sent, with its percent-encoding."""
    @property
    def path_params(self) -> dict[str, str]:
        """The params of the route's path, such as ``name`` of ``/notes/{name}``, without
        percent-encoding. They may contain ``/`` and be ``..``.
        """
    @property
    def query(self) -> str:
        """The text after the ``?``, with its percent-encoding; empty without one."""
    @property
    def headers(self) -> dict[str, str]:
        """The headers by their names in lower case. Repeated headers are joined by ", ",
        those of Cookie by "; ".
        """
    @property
    def header_list(self) -> list[tuple[str, str]]:
        """The headers in their order, each with its name in lower case and its value."""
    @property
    def body(self) -> bytes:
        """The body; empty without one. Raises RuntimeError of a route with ``stream_body=True``."""
    def stream(self) -> Any:
        """The body in parts of bytes, while it arrives if the route has ``stream_body=True``: an
        async iterator in an async function, else a plain one. It raises CancelledError when the
        client leaves, the deadline passes or the body is invalid.
        """
    def form(
        self,
        *,
        max_parts: int = 100,
        max_header_bytes: int = 4_096,
        max_text_bytes: int = 1_048_576,
        max_file_bytes: int | None = None,
        spool_bytes: int = 65_536,
    ) -> Any:
        """The form in the body: a mapping of its texts by their names, with its files in ``files``.
        To be awaited in an async function. Raises `RPCError` (-32602) for an invalid one.
        """
    @property
    def _form(self) -> Any: ...
    def _keep_form(self, form: object) -> None: ...
    def _hold(self, bytes: int) -> None: ...
    @property
    def peer(self) -> tuple[str, int] | Process | None:
        """The client's address and port, or its `ucall.Process`: see `Context.peer`."""
    @property
    def user(self) -> Any:
        """The user that the server's ``auth`` returned; None without ``auth``."""

@final
class BodyReceiver:
    """Receives the body of a route's request, for `ucall._routes.streaming`."""

    def take(self) -> bytes | None: ...
    def wait(self) -> bytes: ...
    def complete_later(self, future: _Future) -> _Future: ...
    def forget(self, future: _Future) -> None: ...

@final
class Keys:
    """Identifies callers by a key in a header. `bearer` and `api_key` of `ucall.auth` make it."""

    def __new__(
        cls, users: list[tuple[str, Any]], header: str, scheme: str | None, challenge: str
    ) -> Keys: ...
    @property
    def challenge(self) -> str:
        """The value of ``WWW-Authenticate`` for requests without a known key."""
    def __call__(self, ctx: Context) -> Any:
        """The user of the key in the header; `None` for an unknown key."""

@final
class Call:
    """A call, as a hook around it sees it: see `ucall.Server.middleware`."""

    @property
    def method(self) -> str:
        """The name that the function was called by."""
    @property
    def params(self) -> dict[str, Any] | list[Any] | None:
        """The params as sent, which the function need not take; None without any."""
    # The parameter is for stubtest alone, which finds `*args` where there are none.
    def __call__(self, _: Never = ..., /) -> Any:
        """Checks and converts the params, runs the function, and returns its result; for a stream,
        the iterator of its items. In an async hook it is to be awaited.

        Raises:
            RPCError: The params are wrong (-32602), or the caller lacks a scope (-32004).
            RuntimeError: The hook has called it before.
        """
    def _proceed(self) -> Any: ...
    def _begin(
        self, future: object, work: Callable[[], object] | None = None, is_step: bool = False
    ) -> None: ...
    def _take(self, future: object) -> None: ...
    def _cancel(self) -> None: ...

@final
class Context:
    """One call, as its function sees it: a parameter annotated ``ucall.Context`` gets it."""

    @property
    def method(self) -> str:
        """The name that the function was called by; empty for ``auth``, which runs before
        it is known.
        """
    @property
    def id(self) -> str | int | float | None:
        """The client's id of the call: str, int, float or None."""
    @property
    def _mcp(self) -> tuple[dict[str, Any], str] | None: ...
    @property
    def is_notification(self) -> bool:
        """Whether the call is a notification, which gets no reply."""
    @property
    def peer(self) -> tuple[str, int] | Process | None:
        """The client's address and port; over a Unix socket a `ucall.Process` with the pid, uid and
        gid of the process that connected. With ``trusted_proxies`` the client of a proxy, with port
        0 if the proxy does not name it. None where the system or the proxy does not report it.
        """
    @property
    def transport(self) -> Literal["http", "websocket", "tcp", "udp", "nats"]:
        """What the call has come by: ``"http"``, ``"websocket"``, ``"tcp"`` (the raw protocol, also
        over a Unix socket), ``"udp"`` or ``"nats"``. No request can claim another one.
        """
    @property
    def broker(self) -> Literal["nats"] | None:
        """The kind of the broker that the caller is connected to, ``"nats"``; None if the caller is
        connected to this server.
        """
    @property
    def user(self) -> Any:
        """The user that the server's ``auth`` returned; None without ``auth``."""
    @property
    def headers(self) -> dict[str, str]:
        """The headers of the HTTP request by their names in lower case; empty over raw TCP and for
        messages of a WebSocket. Repeated headers are joined by ", ", those of Cookie by "; ".
        """
    @property
    def traceparent(self) -> str | None:
        """The caller's ``traceparent`` (W3C Trace Context) as sent, in the request's ``_meta`` or
        else in the header; None without.
        """
    @property
    def tracestate(self) -> str | None:
        """The ``tracestate`` beside the ``traceparent``; None without."""
    @property
    def tls(self) -> TLSConnection | None:
        """The TLS of the connection; None without TLS."""
    @property
    def deadline(self) -> float | None:
        """The deadline on the clock of `time.monotonic()`; None without one."""
    @property
    def time_left(self) -> float | None:
        """The seconds until the deadline, at least 0; None without one."""
    @property
    def cancelled(self) -> bool:
        """Whether the reply is no longer needed: the client disconnected, the deadline passed, or
        the server ends. Long work should read it now and then.
        """
    @property
    def connection(self) -> Connection:
        """The client's connection, which has the data of its session."""
    @overload
    def background(
        self, function: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Runs ``function(*args, **kwargs)``, or a coroutine, after the reply to the call. An async
        function runs as a task, a plain one in a thread (``max_threads``). It counts as a running
        call, and a drain waits for it. What it raises is logged. It does not run if the call fails
        or is cancelled. Raises TypeError for another object, and RuntimeError after the reply.
        """
    @overload
    def background(self, function: Coroutine[Any, Any, object], /) -> None: ...
    def notify(
        self,
        method: str,
        params: list[Any] | tuple[Any, ...] | dict[str, Any] | None = None,
    ) -> None:
        """Sends the client a notification: a call of ``method`` without a reply. From an async
        function or a thread it precedes the reply. Messages that wait for a slow client are
        dropped, the oldest first, above ``max_waiting_messages`` and ``max_waiting_message_bytes``.
        Raises `ucall.NoChannelError` over HTTP.
        """
    def subscribe(
        self,
        topic: str,
        overflow: Literal["drop_oldest", "drop_newest", "close"] = "drop_oldest",
    ) -> None:
        """Subscribes the client's connection to what `Server.publish` sends to ``topic``, until
        `unsubscribe` or its end. If more messages wait for a slow client than
        ``max_waiting_messages`` and ``max_waiting_message_bytes`` allow, ``overflow`` drops the
        oldest, drops the new one (``"drop_newest"``), or closes the connection (``"close"``).
        Raises `ucall.NoChannelError` over HTTP, and `ucall.RPCError` above ``max_subscriptions``
        (-32003) and ``max_topic_bytes`` (-32602).
        """
    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription of the client's connection to ``topic``, if it has one."""
    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress to a caller that asks for it: ``done`` of ``total``, and a message. From
        an async function, a thread or a process the report leaves at once, from a plain function
        with its reply. Does nothing if the caller does not ask, and after the reply. Of reports
        that wait for a slow client, the oldest are dropped. Raises TypeError for what is no number,
        ValueError for one that is not finite, and RuntimeError in a generator, which yields items.
        """
    @property
    def _takes_progress(self) -> bool: ...
    def _report(self, text: bytes) -> None: ...
    def _mcp_send(self, text: bytes) -> bool: ...

@final
class Connection:
    """The connection of a client: ``ctx.connection``."""

    @property
    def id(self) -> int:
        """A number that no other connection of this process has or had while the server runs."""
    @property
    def data(self) -> dict[str, Any]:
        """The session's own data, for the functions of the program."""
    def on_close(self, callback: _OnClose, /) -> _OnClose:
        """Registers a function to be called, without arguments, after the connection has closed;
        soon if it is closed already. Runs on the server's thread, so it must not block. Returns the
        function. What it raises is logged.
        """

@final
class TLSConnection:
    """The TLS of a connection: ``ctx.tls``."""

    @property
    def version(self) -> str:
        """``"TLSv1.2"`` or ``"TLSv1.3"``."""
    @property
    def cipher(self) -> str:
        """The cipher suite, such as ``"TLS_AES_256_GCM_SHA384"``."""
    @property
    def is_resumed(self) -> bool:
        """Whether the client resumed an earlier session."""
    @property
    def client_certificate(self) -> Certificate | None:
        """The client's verified certificate; None if it sent none."""

@final
class Certificate:
    """A client's certificate: ``ctx.tls.client_certificate``."""

    @property
    def der(self) -> bytes:
        """The certificate in DER."""
    @property
    def subject(self) -> str:
        """The subject, as in ``"CN=alice,O=Acme"`` (RFC 4514); empty if it has none."""
    @property
    def common_name(self) -> str | None:
        """The common name of the subject; None without one."""
    @property
    def names(self) -> tuple[str, ...]:
        """The names, addresses and URIs that it is issued for."""

@final
class Request:
    @property
    def is_notification(self) -> bool: ...
    @property
    def is_compressed(self) -> bool: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def pieces(self) -> list[memoryview]: ...
    def write_to(self, transport: object) -> None: ...
    def websocket_frame(self, key: bytes) -> bytes: ...
    @property
    def document(self) -> bytes: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class RequestWriter:
    def __new__(
        cls,
        head: bytes | None,
        default: Callable[[Any], object],
        timeout_ms: int | None = None,
        frames: FrameSupport | None = None,
        provisional: bool = False,
        priority: int | None = None,
        coding: CodingSupport | None = None,
    ) -> RequestWriter: ...
    def without_frames(self) -> RequestWriter: ...
    def plain(self) -> RequestWriter: ...
    def call(
        self,
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object] | None,
        id: object,
        wants_items: bool = False,
        trace: tuple[str, str | None] | None = None,
    ) -> Request: ...
    def document(self, document: dict[str, Any], id: object) -> Request: ...
    def batch(self, calls: Sequence[dict[str, Any]], answered: bool) -> Request: ...
    def frame(self, method: str, id: object) -> Request: ...
    def rewrite(self, request: Request) -> Request: ...

@final
class CodingSupport:
    def __new__(cls, min_bytes: int, max_bytes: int) -> CodingSupport: ...
    def anew(self) -> CodingSupport: ...
    def refuse(self, status: int) -> bool: ...

@final
class FrameSupport:
    def __new__(cls) -> FrameSupport: ...
    @property
    def state(self) -> Literal["unknown", "wanted", "asking", "yes", "no"]: ...
    def want(self) -> None: ...
    def ask(self) -> bool: ...
    def record(self, takes_frames: bool | None) -> None: ...
    def doubt(self) -> None: ...

@final
class SharedMemory:
    @staticmethod
    def ask(descriptor: int) -> None: ...
    @staticmethod
    def answered(descriptor: int, *, trusted: bool) -> SharedMemory | None: ...
    def place(self, request: Request) -> Request: ...
    def empty(self, shape: Sequence[int], dtype: dtype[Any]) -> NDArray[Any] | None: ...

class Undecided(Exception): ...
class FrameRefused(Undecided): ...

@final
class Reply:
    @staticmethod
    def nothing() -> Reply: ...
    @property
    def status(self) -> int: ...
    @property
    def text(self) -> bytes: ...
    @property
    def is_empty(self) -> bool: ...
    @property
    def is_error(self) -> bool: ...
    @property
    def is_deadline_error(self) -> bool: ...
    @property
    def is_result(self) -> bool: ...
    @property
    def is_batch(self) -> bool: ...
    @property
    def id(self) -> Any: ...
    def data(self) -> Any: ...
    def result(self) -> Any: ...
    @property
    def is_frame(self) -> bool: ...
    @property
    def has_result_part(self) -> bool: ...
    def result_part(self) -> memoryview | None: ...
    def result_array(self) -> Any: ...
    def result_bytes(self) -> bytes: ...
    def error(self) -> Any: ...
    def split(self) -> list[Reply]: ...
    def check_answers(self, request: Request) -> None: ...

@final
class Notification:
    @property
    def method(self) -> str: ...
    @property
    def params(self) -> Any: ...
    @property
    def token(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    def __len__(self) -> int: ...

@final
class ReplyReader:
    def __new__(
        cls,
        *,
        http: bool,
        reply_bytes_max: int,
        events: bool = False,
        accept: bytes | None = None,
        codings: bool = False,
    ) -> ReplyReader: ...
    def share(self, memory: SharedMemory) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview) -> list[Reply | Notification]: ...
    def end(self) -> Reply | Notification | None: ...
    def take_ping(self) -> bytes | None: ...
    @property
    def is_upgraded(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def is_reusable(self) -> bool: ...

@final
class ClientConnection:
    def __new__(
        cls,
        descriptor: int,
        *,
        http: bool,
        reply_bytes_max: int,
        idle_max_s: float,
        memory: SharedMemory | None = None,
        codings: bool = False,
    ) -> ClientConnection: ...
    def exchange(self, request: Request, timeout: float | None) -> Reply | None: ...
    @property
    def memory(self) -> SharedMemory | None: ...
    @property
    def is_reusable(self) -> bool: ...
    def close(self) -> None: ...

def client_frame(
    kind: Literal["pong", "close"], payload: bytes | memoryview, key: bytes
) -> bytes: ...
def peek(descriptor: int) -> Literal["quiet", "bytes", "closed"]: ...
def receive_datagrams(descriptor: int, count_max: int, timeout_s: float) -> list[bytes]: ...
def send_datagrams(descriptor: int, datagrams: list[bytes]) -> int: ...

@final
class ArrayLike:
    def __new__(cls, object: object) -> ArrayLike: ...
    @staticmethod
    def accepts(object: object) -> bool: ...
    @staticmethod
    def are_registered() -> None: ...

@final
class ArrayResults:
    def __new__(cls, encode: _Encode) -> ArrayResults: ...
    def __call__(self, object: object) -> object: ...

@final
class ArrayType:
    def __new__(cls, dimensions: int | None = None, wanted: list[Any] = ...) -> ArrayType: ...
    @property
    def type_name(self) -> str: ...
    @property
    def dtypes(self) -> list[str]: ...
    @property
    def dimensions(self) -> int | None: ...
    def decode(self, value: object) -> NDArray[Any]: ...

def decode_array(data: Buffer) -> NDArray[Any]: ...
def encode_array(array: NDArray[Any]) -> bytes: ...

class Unwritable(TypeError): ...

def bytes_view(object: Buffer) -> memoryview: ...
def check_shared_memory() -> None: ...
def system_certificates() -> list[bytes]: ...

@final
class PickleLoader:
    def __new__(
        cls,
        find: Callable[[str, str], Any],
        persistent_load: Callable[[Any], Any] | None,
        max_depth: int,
        max_expansion: int,
        max_collisions: int,
    ) -> Self: ...
    def __call__(self, data: Buffer, buffers: list[Any]) -> Any: ...
    def nests_too_deep(self, chunks: list[Any]) -> bool: ...

@final
class Block:
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@disjoint_base
class Message:
    """A received object and its sender."""

    __match_args__: tuple[str, ...]
    def __new__(cls, peer: uuid.UUID, data: Any, redelivered: bool = False) -> Self: ...
    @property
    def peer(self) -> uuid.UUID:
        """The id of the sender."""
    @property
    def data(self) -> Any:
        """The object."""
    @property
    def redelivered(self) -> bool:
        """Whether an earlier process with this id may have received it already."""
    def ack(self) -> None:
        """Acknowledges a message that was put with ``ack="explicit"``. Never waits.

        Acknowledge messages in any order, on any thread. A second call does nothing. A message with
        another ``ack`` was acknowledged before `get` returned it, so this does nothing.

        Raises:
            ConnectionError: The session with its ``peer`` is over, or this side has closed. The
                message is not acknowledged, and comes again if the peer still has it.
        """
    def __iter__(self) -> Iterator[Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @classmethod
    def __class_getitem__(cls, key: Any) -> Any: ...

@disjoint_base
class Receipt:
    """A future that compares its number with the last acknowledged one; it keeps no state."""

    def __new__(cls) -> Self: ...
    def done(self) -> bool:
        """Whether the message was delivered, failed or was cancelled."""
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
    def result(self, timeout: float | None = None) -> None:
        """Waits until the message is acknowledged, at the point that ``ack`` chooses.

        Raises:
            ConnectionError: A peer, or this side, has closed for good.
            ucall.queue.FullError: It was dropped from a full queue.
            concurrent.futures.CancelledError: It was cancelled.
            TimeoutError: It has not, within ``timeout`` seconds.
        """
    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Like `result`, but returns the exception."""
    def _cancel(self) -> bool: ...

@final
class QueueLink:
    def receive(self, data: Buffer) -> None: ...
    @property
    def is_full(self) -> bool: ...
    def next_frame(self, size: int = 65_536) -> bytes | None: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    def handle_closed(self) -> None: ...

@final
class QueueTunnel:
    def __new__(cls, link: QueueLink, is_dialed: bool) -> Self: ...
    def handle_message(
        self, data: Buffer
    ) -> Literal["piece", "credit", "closed", "lost", "ignored"]: ...
    def next_message(self, piece_bytes_max: int, links: int) -> bytes | None: ...
    @property
    def has_received(self) -> bool: ...

@final
class QueueLog:
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, str]: ...

@disjoint_base
class QueueCore:
    """A communicator's thread, its outbox and its inbox."""

    def __new__(
        cls,
        id: uuid.UUID,
        is_server: bool,
        location: tuple[str, int | str] | str | None,
        options: dict[str, Any],
        engine: str,
        codec: tuple[
            type,
            Callable[[Any], tuple[list[Any], list[Any]]],
            Callable[[Any, list[Any]], Any],
            Callable[[Any], Any] | None,
            list[str] | None,
        ],
        tls: TlsSettings | ClientTlsSettings | None = None,
        broker: tuple[str, str | None, str | None] | None = None,
    ) -> Self: ...
    def put(self, data: Any, *peers: uuid.UUID, copy: bool = False) -> Future:
        """Enqueues an object for these peers, or for all. Waits only with ``full="block"``.

        Arrays and buffers of up to 64 KiB are copied. Do not change longer ones until the future is
        done: they are sent from where they are.

        Args:
            copy: Copies longer ones, too.

        Raises:
            ucall.queue.FullError: The queue is full.
            ucall.queue.RefusedError: A peer does not allow a class or a function in it.
            ValueError: It is longer than ``message_size``.
        """
    def _put_nowait(self, data: Any, *peers: uuid.UUID, copy: bool = False) -> Future: ...
    def get(self, *peers: uuid.UUID, timeout: float | None = None) -> Message:
        """Waits for the next message, of these peers if there are any.

        An exception of ``load`` has the sender as its ``peer``, and the message, without its data,
        as its ``queue_message``. The next call returns the next message.

        Raises:
            ucall.queue.RefusedError: The message contains an object that is not allowed.
            ConnectionError: None will come any more: this side has closed, or the server has.
            TimeoutError: None came within ``timeout`` seconds.
        """
    def peers(self) -> list[uuid.UUID]:
        """The ids of the current peers."""
    @property
    def state(self) -> Literal["connecting", "listening", "connected", "closing", "closed"]:
        """``"connected"`` if this side has a connection with a peer. Without one, a client is
        ``"connecting"`` and a server ``"listening"``. After `close` it is ``"closing"``, until
        all messages are acknowledged. It is ``"closed"`` once no further message can arrive.
        """
    @property
    def address(self) -> tuple[str, int] | None:
        """The host and port that a TCP server listens on."""
    def _announce(self, names: list[str] | None) -> None: ...
    def _log_lines(self) -> QueueLog: ...
    def _close(self, at_once: bool, is_final: bool = False) -> None: ...
    def _wait_closed(self, timeout: float | None = None) -> bool: ...
    def _mark_forked(self) -> None: ...
    @property
    def _is_forked(self) -> bool: ...
    @property
    def _is_closed(self) -> bool: ...
    def _open_link(
        self,
        dialed: bool,
        wake: Callable[[], object],
        in_flight_size: int = ...,
        certificate: bytes | None = None,
    ) -> QueueLink: ...
    def _set_wake_pipe(self, pipe: int) -> None: ...
    def _arm_wake(self) -> None: ...
    def _watch(self, receipt: Receipt) -> None: ...
    def _next_changes(
        self, timeout: float | None = None
    ) -> tuple[list[Receipt], list[tuple[str, uuid.UUID | None, str | None]]]: ...

def count_loaded_model(server: Server, model: str, has_ended: bool) -> None: ...
def seed_batches(server: Server, name: str, times: Sequence[tuple[int, float]]) -> None: ...
def metrics_text(server: Server) -> str | None: ...
def set_tools(
    server: Server, tools: Sequence[tuple[str, str, str, str | None, Sequence[tuple[str, str]]]]
) -> None: ...
def insert_inference(server: Server, check: Callable[[], object]) -> None: ...
def set_native_hooks(server: Server, encode: _Encode, hooks: Hooks | None) -> None: ...
def set_unknown_hooks(server: Server, encode: _Encode, hooks: Hooks | None) -> None: ...
def set_error_finder(server: Server, find: Callable[[BaseException], RPCError | None]) -> None: ...
def insert_route(
    server: Server,
    path: str,
    methods: Sequence[str],
    function: Callable[[HttpRequest], object],
    encode: _Encode,
    *,
    mode: str,
    is_public: bool,
    wants_peer: bool,
    streams_body: bool = False,
    max_body_bytes: int | None = None,
) -> None: ...
def json_text(value: object, encode: _Encode) -> bytes: ...
def insert_mount(
    server: Server,
    path: str,
    app: Callable[..., object],
    lifespan_state: dict[str, Any],
    replaced: Sequence[str],
) -> None: ...
def set_models(
    server: Server,
    metadata: str,
    models: Sequence[
        tuple[str, list[tuple[str, str]], list[tuple[str, str | None]], bool, str, str]
    ],
) -> None: ...
def readiness(problem: str | None) -> bytes: ...
def default_limits() -> dict[str, float]: ...
def inference_readiness(problem: str | None) -> bytes: ...
