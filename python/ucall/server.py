"""The server: its options, and its life on an engine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self

from ucall import _core
from ucall._functions.methods import ReplyOptions
from ucall._functions.table import Functions
from ucall._routes.health import ReadyChecks
from ucall._server import checked, launch, serving_threads
from ucall._server.content import ContentDecorators
from ucall._server.decorators import Decorators
from ucall._server.hooks import HookDecorators
from ucall._server.lifespan import LifespanHooks
from ucall._server.models import ModelDecorators
from ucall._server.mounting import Mounting
from ucall._server.run import ServerParts, run_server
from ucall._server.tls import tls_settings
from ucall._workers import process_role
from ucall.options import TLS, UDP, Broker, Compression, Limits, Observability, Timeouts, moved

if TYPE_CHECKING:
    from ucall._core import Context
    from ucall._mcp.stdio import Stdio
    from ucall._nats.registration import Registration
    from ucall.schema.openrpc import Description

__all__ = ["Server", "check", "describe", "override", "serve_stdio"]

Auth = Callable[["Context"], object]
Lifespan = Callable[["Server"], AbstractAsyncContextManager[object]]


class Server(Decorators, HookDecorators, ContentDecorators, ModelDecorators, Mounting):
    """Serves functions over JSON-RPC 2.0: HTTP/1.1, WebSocket and raw TCP on one port.

    The object itself is the decorator::

        server = Server()

        @server
        def sum(a: int, b: int) -> int:
            return a + b

        server.run()

    Params are checked against the annotations: ``int``, ``float`` (which accepts ints), ``bool``,
    ``str``, ``bytes``, ``bytearray`` and ``memoryview`` (base64), ``None``, ``list``, ``list[T]``,
    ``dict``, ``dict[str, T]``, ``T | None``, ``Any``; a parameter without an annotation accepts any
    value. NumPy's arrays and Pillow's images (base64) work too, and with ``msgspec`` or
    ``pydantic`` dataclasses, dates, unions and more: see docs/types.md. Wrong params are answered
    with -32602 before the function runs. Functions may return values of all these types.

    Plain functions run one after another on the server's thread, and async functions as tasks on
    it; docs/concurrency.md describes threads, processes and batches. A generator is a stream: see
    docs/streams.md. An exception other than
    `ucall.RPCError` is answered with -32603 and logged with its traceback.

    Args:
        host: Address or name to listen on. Anyone who can reach an address other than loopback can
            call.
        port: 0 picks a free one when the server runs: see the attribute ``port``.
        uds: Path of a Unix socket to listen on instead. Replaces a file without a listener, and
            removes it when the server stops. `Context.peer` is then a `ucall.Process`.
        uds_mode: Permissions of the socket file: users with write permission can call.
        shared_memory: Whether clients of the same user, on a Unix socket, may share memory with the
            server for their arrays and bytes: see docs/shared-memory.md.
        trusted: Whether these clients are trusted not to write to an array that a function reads.
            Their arrays are not copied then.
        fd: Descriptor of a listening socket, which another program has bound, in place of ``host``
            and ``port``. It stays open. See docs/deploy.md.
        path: Of calls, such as ``"/api/rpc"``, or several paths: see docs/deploy.md#at-a-path.
        debug: Adds the traceback to an error's ``data``.
        allowed_hosts: Names, besides localhost, that browsers may address the server by.
        allow_origins: Origins whose pages may call, such as ``"https://example.com"``.
        trusted_proxies: Addresses and networks of proxies, such as ``"10.0.0.0/8"``, and
            ``"unix:"`` for those on a Unix socket. `Context.peer` is then the client that they name
            in ``Forwarded`` or ``X-Forwarded-For``: see docs/deploy.md.
        auth: Called with the `ucall.Context` of each HTTP request, upgrade to WebSocket and raw TCP
            connection. Returns the `Context.user`; `None`, `False` and `PermissionError` refuse
            with 401 or -32004. See docs/security.md.
        threads: Runs every plain function in one of this many threads.
        timeout_ms: Time for each call, from its receipt. Past it, -32001.
        lifespan: An async context manager, called with the server: entered before it accepts
            connections, exited after the last one is closed.
        limits: What a client may use: `ucall.Limits`.
        timeouts: How long the server waits: `ucall.Timeouts`.
        tls: Serves under TLS: `ucall.TLS`.
        udp: Answers calls in UDP datagrams, too, on the same port: `ucall.UDP`.
        observability: Metrics, access log and traces: `ucall.Observability`.
        compression: Compresses replies for clients that accept it: `ucall.Compression`.
        title: The name of the program, for its description.
        version: Of the program; 0.0.0 if it has none.
        description: What the program does.
        describe: Whether ``rpc.discover``, ``GET /openrpc.json`` and ``/openapi.json`` describe the
            functions: see docs/openrpc.md.
        mcp: Also serves the functions as tools, at ``/mcp``: see docs/mcp.md.

    To make a server binds nothing and reads no file, so that any program may import its module.

    Raises:
        ImportError: ``trace`` without ``opentelemetry-api``.
        ucall.EngineError: (``ucall.uring.Server``) io_uring is unavailable.
        TypeError: An option has a wrong type, or ``auth`` is async or takes no context.
        ValueError: An option is invalid.
    """

    _ENGINE: ClassVar[str] = "auto"

    @process_role.overridable
    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8545,
        *,
        uds: str | os.PathLike[str] | None = None,
        uds_mode: int = 0o600,
        shared_memory: bool = True,
        trusted: bool = False,
        fd: int | None = None,
        path: str | Iterable[str] = "/",
        debug: bool = False,
        allowed_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        auth: Auth | None = None,
        threads: int | None = None,
        timeout_ms: float | None = None,
        lifespan: Lifespan | None = None,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        tls: TLS | None = None,
        udp: UDP | None = None,
        observability: Observability | None = None,
        compression: Compression | None = None,
        title: str = "ucall",
        version: str = "0.0.0",
        description: str = "",
        describe: bool = True,
        mcp: bool = False,
        **others: Never,
    ) -> None:
        if others:
            raise moved(others, Server.__init__)
        checked.options(
            limits=(limits, Limits),
            timeouts=(timeouts, Timeouts),
            tls=(tls, TLS),
            udp=(udp, UDP),
            observability=(observability, Observability),
            compression=(compression, Compression),
        )
        limits, timeouts = limits or Limits(), timeouts or Timeouts()
        observability = observability or Observability()
        launch.write_log(observability.log_format)
        if observability.trace:
            from ucall._tracing.server import CallSpans
        given = (
            vars(limits) | vars(timeouts) | vars(observability) | ({} if udp is None else vars(udp))
        )
        core_limits: dict[str, float] = {} if compression is None else compression.limits()
        core_limits |= {name: given[name] for name in _core.default_limits().keys() & given.keys()}
        threads = process_role.threads if threads is None else threads
        if threads is not None:
            core_limits["max_threads"] = threads
        self._tls = None if tls is None else tls_settings(tls)
        peer_max = checked.limit("max_connections_per_peer", limits.max_connections_per_peer)
        rate_max = getattr(udp, "max_source_calls_per_s", None)
        rate_max = checked.limit("max_source_calls_per_s", rate_max)
        #: That of `ucall.auth.oauth`, whose module is not imported for others.
        oauth: Any = auth if hasattr(auth, "_protected_resource") else None
        self._core = _core.Server(
            self._ENGINE,
            process_role.listen_host(host, uds, fd),
            checked.port(port),
            uds_mode=checked.uds_mode(uds_mode),
            paths=(paths := checked.paths(path)),
            debug=debug,
            allowed_hosts=checked.listed("allowed_hosts", allowed_hosts),
            allow_origins=checked.listed("allow_origins", allow_origins),
            trusted_proxies=checked.listed("trusted_proxies", trusted_proxies),
            auth=auth,
            challenge=(challenge := None if auth is None else checked.challenge(auth)),
            resource=None if oauth is None else oauth._protected_resource,
            timeout_ms=timeout_ms,
            limits=core_limits,
            tls=self._tls,
            metrics=observability.metrics,
            access_log=observability.access_log_format,
            udp=None if udp is None else (udp.port, udp.auth),
            xdp=None if udp is None or udp.xdp is None else (udp.xdp, udp.xdp_busy_poll),
            dedupe=udp is None or udp.dedupe,
            source_rate_max=rate_max,
            peer_connections_max=peer_max,
            cookie_secret=process_role.tickets,
            shared_memory=shared_memory,
            trusted=trusted,
        )
        self._uds_mode = uds_mode
        self._without_port = "fd" if fd is not None else "uds" if uds is not None else None
        self._udp = udp
        self._drain_timeout_s = timeouts.drain_timeout_s
        self._lifespan = LifespanHooks(lifespan)
        self._reads_headers = oauth is not None or isinstance(auth, _core.Keys)
        if oauth is not None:
            self._lifespan.startup.append(oauth.startup)
            self._lifespan.shutdown.append(oauth.shutdown)
        self._ready = ReadyChecks(
            self._core, checked.seconds("ready_timeout_s", timeouts.ready_timeout_s)
        )
        self._functions = Functions(
            self._core,
            paths,
            (
                checked.positive("max_image_pixels", limits.max_image_pixels),
                checked.positive("max_held_image_pixels", limits.max_held_image_pixels),
            ),
            threads is not None,
            timeout_ms,
            CallSpans(self) if observability.trace else None,
            limits.max_body_bytes,
            challenge,
            ReplyOptions(debug, limits.max_reply_bytes),
            checked.seconds("process_start_timeout_s", timeouts.process_start_timeout_s),
        )
        self._lifespan.preparation += [self._functions.pools.start, self._functions.warm_up]
        self.title = checked.text("title", title)
        self.version = checked.text("version", version)
        self.description = checked.text("description", description)
        if describe:
            self._functions.describe(title, version, description)
        if mcp:
            max_threads = int(core_limits["max_threads"])
            self._functions.enable_mcp(title, version, description, auth is not None, max_threads)
        self._registered: Registration | None = None
        self._thread = serving_threads.ServingThread(self._core)

    @property
    def host(self) -> str:
        """The address that the server listens on, and before its first run the ``host`` that it
        was given; ``unix:`` and the path for a Unix socket."""
        return self._core.host

    @property
    def port(self) -> int | Any:
        """The port that the server listens on; None for a ``port`` of 0 before its first run, which
        picks one, and 0 for a Unix socket. It keeps its port when it stops."""
        return self._core.port

    @property
    def udp_port(self) -> int | None:
        """The port of UDP; None without ``udp``, and like `port` before the first run."""
        return self._core.udp_port

    @property
    def engine(self) -> str:
        """The engine: ``"uring"`` or ``"posix"``."""
        return self._core.engine

    @property
    def worker(self) -> process_role.WorkerPlace:
        """The worker that this process is: its ``index`` from 0, and the ``count`` of workers.

        Also while its module is imported, and in the processes that it has for ``processes=``.
        Without ``workers`` it is 0 of 1. A module that does not make the server finds both in the
        variables ``UCALL_WORKER_INDEX`` and ``UCALL_WORKER_COUNT``.
        """
        return process_role.worker

    @property
    def device(self) -> str | None:
        """The device of this process: of those that `batch` was given as ``devices``.

        None in the server's own process. Modules find it in the variable ``UCALL_DEVICE`` as well.
        """
        return process_role.device

    def run(
        self,
        max_cycles: int = -1,
        max_seconds: float = -1,
        *,
        workers: int | None = None,
        broker: Broker | None = None,
    ) -> None:
        """Binds the address, and serves on this thread until `stop`, Ctrl-C, SIGTERM or a bound.

        On the main thread it handles SIGINT and SIGTERM, and returns after one of them. It leaves a
        SIGTERM handler of the program in place. At the top level of a module it serves only if that
        is the program itself: where another program imports the module, such as pytest,
        ``python -m ucall`` or a child of `multiprocessing`, it returns at once.

        Args:
            max_cycles: Turns of the server, each of which handles events. Negative: no bound.
            max_seconds: Negative: no bound.
            workers: Serves from this many processes, without bounds, and restarts them when they
                die. Each one runs this program again, up to this call, and ends at its next run.
            broker: Registers the server with NATS, through which clients find and call it:
                `ucall.Broker`.

        After a bound, connections stay open for the next run on this thread, or until `stop`.

        Raises:
            ImportError: ``broker`` without nats-py.
            OSError: The address is unavailable (``errno.EADDRINUSE``), or a file of TLS cannot be
                read.
            RuntimeError: The server is running, or this thread runs an event loop.
            SystemExit: No worker was ever ready, or a worker runs a server again.
            ValueError: An argument is invalid, a bound is given with ``workers``, or a file of TLS
                holds no certificate or key.
        """
        if launch.is_left_to_program("run"):
            return
        launch.check_no_running_loop()
        if workers is not None or process_role.is_worker():
            checked.unbounded(max_cycles, max_seconds)
        registration = self._registration(broker)
        on_drain = registration.deregister if registration else None
        if process_role.is_host():
            from ucall._workers import pool_host

            pool_host.run(self._functions)
        if process_role.is_worker():
            from ucall._workers import worker

            control = worker.prepare(self._core, self._udp, on_drain)
            self._functions.pools.connect = control.connect_host
            return self._run(max_cycles, max_seconds, registration, control.ready)
        if workers is not None:
            from ucall._workers.supervisor import supervise

            return supervise(self._core, self._udp, checked.positive("workers", workers))
        launch.bind(self._core)
        on_start = launch.report_to_service_manager(self._core, on_drain)
        self._run(max_cycles, max_seconds, registration, on_start)

    def start(
        self,
        *,
        port: int | None = None,
        broker: Broker | None = None,
    ) -> None:
        """Binds the address, and serves on a new thread until `stop` or the end of the program.

        It returns when the server accepts connections. Functions run on that thread. In an
        interactive session, such as a notebook, it stops the server that an earlier run of the cell
        has started on the same port.

        Args:
            port: From now on in place of the server's own; 0 picks a free one, for tests. Not with
                ``fd`` or ``uds``.
            broker: As for `run`.

        Raises:
            RuntimeError: The server is running, or a bounded run on this thread is not stopped.
            OSError: The address is unavailable, or a file of TLS cannot be read.
            ValueError: An argument is invalid, or a file of TLS holds no certificate or key.
        """
        if launch.is_left_to_program("start"):
            return
        serving_threads.check_not_suspended(self._core)
        registration = self._registration(broker)
        with self._thread.starting:
            if self._thread.is_alive:
                raise RuntimeError("the server runs already")
            self._set_on_drain(registration)
            if port is not None:
                if self._without_port:
                    raise ValueError(f"port: expected none with {self._without_port}")
                self._core.configure(port=checked.port(port))
            launch.bind_on_thread(self._core)
            run = functools.partial(self._run, -1, -1, registration)
            self._thread.start(run, f"ucall:{self.port}")

    async def serve(
        self,
        *,
        broker: Broker | None = None,
    ) -> None:
        """Serves within the running event loop, asyncio's or uvloop's, until `stop`.

        Functions run on the loop's thread. A cancelled server drains first. The program handles
        signals. See `run` for the arguments.

        Raises:
            RuntimeError: The server is running, or a bounded run on this thread is not stopped.
            OSError: The address is unavailable, or a file of TLS cannot be read.
            ValueError: An argument is invalid, or a file of TLS holds no certificate or key.
        """
        if launch.is_left_to_program("serve"):
            return
        from ucall._server import embedded

        serving_threads.check_not_suspended(self._core)
        registration = self._registration(broker)
        self._set_on_drain(registration)
        on_start = functools.partial(self._register, registration) if registration else None
        self._thread.idle.clear()
        try:
            await embedded.serve(self._parts(), self._core, on_start)
        finally:
            if registration is not None:
                registration.close()
            self._core.flush_access_log()
            self._thread.idle.set()

    def stop(self, *, at_once: bool = False) -> None:
        """Stops the server, from any thread. It may be started again.

        After ``shutdown_delay_s`` the server stops accepting, lets running calls finish within
        ``drain_timeout_s``, and closes all connections; ``at_once`` skips the waits. `stop` then
        joins the thread of `start`, unless a served function has called it. If the server has never
        run, its first `run` or `serve` returns at once. After a bounded run on this thread, it ends
        that run.
        """
        self._core.stop(at_once)
        if self._core.is_suspended_here:
            return self._run(-1, -1, None, None)
        self._thread.join()

    def publish(self, topic: str, method: str, params: Any = None) -> None:
        """Sends a notification to all clients that have subscribed to a topic.

        A client subscribes by a function that calls `Context.subscribe`. `publish` may be called
        from any thread, and from any worker process: it reaches the clients of all of them, and
        with a ``broker`` those of all servers of the group. It never waits. Messages are dropped
        for a client that reads too slowly, as its subscription says, for a worker that does not
        take them, and for other servers while 8 MiB wait for the broker;
        ``stats()["dropped_messages"]`` counts them.

        Args:
            topic: The topic's name.
            method: The method of the notification.
            params: A list, tuple or dict of values that a served function may return; ``None``
                omits it.

        Raises:
            TypeError: ``params`` is of another type.
            ValueError: ``params`` cannot be written as JSON, or is larger than ``max_reply_bytes``;
                or the topic is longer than ``max_topic_bytes``.
        """
        self._core.publish(topic, method, params, self._functions.methods.types.encode)
        if self._registered is not None and self._registered.publisher is not None:
            self._registered.publisher.publish(topic, method, params)

    def stats(self) -> dict[str, Any]:
        """Counters since the server was made; with ``workers``, of all workers together.

        Returns:
            ``calls`` (of batches too), ``connections`` (open now), ``accepted`` (connections in
            total), ``bytes_received``, ``bytes_sent``, ``turns``, ``system_calls``,
            ``subscriptions`` (now), ``dropped_messages`` (see `publish`), ``dropped_log_lines`` (of
            the access log); ``datagrams``: ``received``, ``sent``, ``invalid`` (no valid request,
            not answered), ``repeated`` (sent again), ``refused`` (past a limit, or without a
            cookie), ``dropped`` (by the kernel); ``batches``: by function and size, the number of
            batches in this process.
        """
        stats = self._core.stats()
        if self._registered is not None and self._registered.publisher is not None:
            stats["dropped_messages"] += self._registered.publisher.dropped
        return stats

    def metrics(self) -> str:
        """What ``GET /metrics`` answers with, as Prometheus text, for a page that has more, too.

        Raises:
            RuntimeError: The server has no metrics: ``Observability(metrics=True)``.
        """
        text = _core.metrics_text(self._core)
        if text is None:
            raise RuntimeError("the server has no metrics: Observability(metrics=True)")
        return text

    def __enter__(self) -> Self:
        """Calls `start`."""
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Calls `stop`."""
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self._core.is_running else "not running"
        where = process_role.url("http", self.host, self.port).removeprefix("http://")
        return f"<ucall.Server on {where}, {self.engine}, {state}>"

    def _run(
        self,
        max_cycles: int,
        max_seconds: float,
        registration: Registration | None,
        on_start: Callable[[], object] | None,
    ) -> None:
        self._thread.idle.clear()
        serving_threads.running.add(self._thread)
        callbacks: list[Callable[[], object]] = []
        if registration is not None:
            callbacks.append(functools.partial(self._register, registration))
        callbacks += [on_start] if on_start else []
        try:
            run = functools.partial(run_server, self._parts(), launch.in_turn(*callbacks))
            self._core.run(max_cycles, max_seconds, run)
        finally:
            if registration is not None:
                registration.close()
            self._core.unbind()  # If it was bound, and could not begin.
            self._core.flush_access_log()
            self._thread.idle.set()

    def _register(self, registration: Registration) -> None:
        self._registered = registration
        registration.start()

    def _parts(self) -> ServerParts:
        self._functions.prepare()
        return ServerParts(self._functions, self._lifespan, self)

    def _set_on_drain(self, registration: Registration | None) -> None:
        self._core.set_callbacks(registration.deregister if registration else None, None, None)

    def _registration(self, broker: Broker | None) -> Registration | None:
        """The registration with a broker."""
        if broker is None:
            return None
        checked.options(broker=(broker, Broker))
        from ucall._nats.registration import Registration

        # Calls through a broker have no certificate.
        takes_calls = self._tls is None or self._tls["client_auth"] != "required"
        place = broker.url, broker.group, broker.advertise, broker.options
        return Registration(self, self._core, self._functions, takes_calls, *place)


def override(
    server: Server,
    *,
    engine: str | None,
    host: str | None,
    port: int | None,
    tls: TLS | None,
    observability: Observability | None,
) -> None:
    """Gives a server that has not run the options of a command line in place of its own; ``None``
    leaves one as it is.

    Raises:
        ValueError: An option is invalid.
    """
    settings = None if tls is None else tls_settings(tls)
    server._core.configure(
        engine=engine,
        host=host,
        port=port,
        uds_mode=server._uds_mode,
        tls=settings,
        access_log=None if observability is None else observability.access_log_format,
    )
    server._tls = settings or server._tls


def check(server: Server, broker: Broker | None = None) -> None:
    """Reads the files of TLS, and checks the options of a broker, as a run would.

    Raises:
        ImportError: ``broker`` without nats-py.
        OSError: A file cannot be read.
        ValueError: A file holds no certificate or key, or an option is invalid.
    """
    server._registration(broker)
    server._core.load_tls()


def serve_stdio(server: Server, stdio: Stdio) -> int:
    """Serves on standard input and output, without binding an address. Returns the exit status.

    Raises:
        StartupError: ``auth`` reads headers, which there are none of.
    """
    if server._reads_headers:
        raise process_role.StartupError(
            "auth: keys and tokens come in headers, which standard input has not; "
            "serve a server without auth, or with a function of the context"
        )
    launch.announce(f"serving on standard input and output, engine: {server.engine}")
    run = functools.partial(server._run, -1, -1, None)
    return stdio.serve(server._core, run, server._drain_timeout_s)


def describe(server: Server) -> Description:
    """Describes the functions of a server."""
    from ucall.schema.description import describe_functions

    methods = server._functions.methods
    return describe_functions(methods, server.title, server.version, server.description)
