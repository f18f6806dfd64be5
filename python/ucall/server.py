"""The server: functions in, calls answered, on whatever engine."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, overload

from ucall import _checks, _core, _exit, _process_role, _tls
from ucall._asyncio.lifespan import Lifespan, LifespanHooks
from ucall._asyncio.run import run_server

if TYPE_CHECKING:
    from ucall._core import Context
    from ucall._processes import Pool
    from ucall._registration import BatchRules
    from ucall.types.registry import TypeRegistry

__all__ = ["Server"]

Function = TypeVar("Function", bound=Callable[..., object])
T = TypeVar("T")
Auth = Callable[["Context"], object]
Hook = TypeVar("Hook", bound=Callable[[], object])


class Server:
    """Serves functions over JSON-RPC 2.0: HTTP/1.1 and raw TCP, told apart on one port.

    The object itself is the decorator::

        server = Server()

        @server
        def sum(a: int, b: int) -> int:
            return a + b

        server.run()

    Parameters are checked by their annotations: ``int``, ``float`` (takes ints too), ``bool``,
    ``str``, ``bytes``, ``bytearray`` and ``memoryview`` (base64), ``None``, ``list``, ``list[T]``,
    ``dict``, ``dict[str, T]``, ``T | None``, ``Any``; one without an annotation takes any value.
    So are arrays of NumPy and images of Pillow (base64), and with ``msgspec`` or ``pydantic``
    installed dataclasses, dates, unions and much more: see docs/types.md. What does not fit is
    answered with -32602 and never reaches the function. All of these may be returned.

    Plain functions run one after another on the thread that runs the server, async ones as tasks
    beside them; for threads, processes and batches see docs/concurrency.md. What else a function
    raises than `ucall.RPCError` is answered with -32603 and logged with its traceback.

    Args:
        host: Address or name to listen on. Bound to another address than loopback, anybody who
            can reach the machine can call.
        port: 0 picks a free one; see the attribute ``port``.
        uds: Path of a Unix socket to listen on instead. A file that nobody listens on any more is
            replaced; it is removed at the end. Over it `Context.peer` is a `ucall.Process`.
        uds_mode: Permissions of its file: who may write to it may call.
        debug: Errors carry the traceback in ``data``.
        allowed_hosts: Names by which browsers may address the server, besides localhost.
        allow_origins: Origins whose pages may call, such as ``"https://example.com"``.
        auth: Called with the `ucall.Context` of each request over HTTP, when its headers have come,
            and of each connection over raw TCP; returns who calls, for `Context.user`. `None`,
            `False` and `PermissionError` refuse with 401 or -32004. See docs/security.md.
        max_connections: Open at once, and always fewer than the process may have descriptors. Past
            it, the longest idle one is closed for a newcomer.
        max_head_bytes: Request line and headers. Past it, 431.
        max_headers: Headers of one request. Past it, 431.
        max_body_bytes: Body of a request, or a raw document. Past it, 413.
        max_chunk_overhead_bytes: Chunk extensions and trailers of one body. Past it, 400.
        max_nesting: Lists and dicts inside one another. Past it, -32700.
        max_batch_calls: Calls in one batch. Past it, -32600.
        max_reply_bytes: A reply, a whole batch's together. Past it, -32603.
        max_id_bytes: Text of an id. Past it, -32600.
        max_image_pixels: Width times height of an image that comes. Past it, -32602.
        max_held_image_pixels: The same of all images together that came and are still there: those
            of one call, of all calls under way, and what functions keep. Past it, -32003.
        max_pipeline: Requests of one connection that wait. Past it, reading pauses.
        max_output_bytes: Replies of one connection that wait to be sent, beyond the one in hand.
            Past it, reading pauses.
        max_held_bytes: Requests that are not whole, params of calls that are answered later and
            replies that wait, of all connections of a worker. Past it, reading pauses; what comes
            gets 503, or -32003 over raw TCP.
        max_discarded_bytes: What is read and thrown away behind the reply that ends a connection,
            so that what still comes does not take the reply along. Past it, closed.
        head_timeout_s: Seconds from a head's first byte to its last. Past it, 408.
        body_timeout_s: Seconds without a byte of a body; in all, a second more for each KiB. Past
            it, 408.
        idle_timeout_s: Seconds that a connection is kept without a request.
        send_timeout_s: Seconds without the peer taking any of a reply. Past it, closed.
        discard_timeout_s: Seconds for which that is thrown away. Past it, closed.
        threads: Runs every plain function in a thread, in at most so many.
        timeout_ms: Time for each call, from when it has come. Past it, -32001.
        lifespan: An async context manager, called with the server: entered before the first
            connection is accepted, left after the last.
        max_running_calls: Calls at once of async functions and those in threads, processes and
            batches. Past it, -32003.
        max_threads: Threads for functions that block. Past it, calls wait in line.
        drain_timeout_s: Seconds that calls under way may go on for when the server stops. Past it,
            -32002.
        ssl_certfile: The server's certificate and those that lead from it to its authority, in PEM.
            Then all connections are under TLS, HTTP and raw TCP alike. Of several files, the one
            that has the name which the client asks for is shown, and else the first. Files that
            change are read again.
        ssl_keyfile: The key, or one for each certificate; by default in the same file.
        ssl_keyfile_password: Of encrypted keys.
        ssl_ca_certs: Authorities that sign the certificates of clients, in PEM.
        ssl_client_auth: ``"none"``, ``"optional"`` or ``"required"``, as it is by default with
            ``ssl_ca_certs``. A function sees the certificate as ``ctx.tls.client_certificate``.
        handshake_timeout_s: Seconds for agreeing on TLS. Past it, closed.
        slow_call_s: A function that holds up all others for so many seconds is named in the log.

    Raises:
        OSError: The address cannot be listened on; ``errno.EADDRINUSE`` when the port is taken. Or
            a file cannot be read.
        ucall.EngineError: (``ucall.uring.Server``) io_uring cannot be used here.
        TypeError: An option is of another type, or ``auth`` is async.
        ValueError: A limit or a name makes no sense, or a file holds no certificate or key.
    """

    _ENGINE: ClassVar[str] = "auto"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8545,
        *,
        uds: str | os.PathLike[str] | None = None,
        uds_mode: int = 0o600,
        debug: bool = False,
        allowed_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
        auth: Auth | None = None,
        max_connections: int = 16_384,
        max_head_bytes: int = 16_384,
        max_headers: int = 100,
        max_body_bytes: int = 16_777_216,
        max_chunk_overhead_bytes: int = 16_384,
        max_nesting: int = 128,
        max_batch_calls: int = 1_000,
        max_reply_bytes: int = 67_108_864,
        max_id_bytes: int = 1_024,
        max_image_pixels: int = 67_108_864,
        max_held_image_pixels: int = 268_435_456,
        max_pipeline: int = 128,
        max_output_bytes: int = 1_048_576,
        max_held_bytes: int = 1_073_741_824,
        max_discarded_bytes: int = 262_144,
        head_timeout_s: float = 10.0,
        body_timeout_s: float = 30.0,
        idle_timeout_s: float = 75.0,
        send_timeout_s: float = 30.0,
        discard_timeout_s: float = 1.0,
        threads: int | None = None,
        timeout_ms: float | None = None,
        lifespan: Lifespan | None = None,
        max_running_calls: int = 10_000,
        max_threads: int = 128,
        drain_timeout_s: float = 10.0,
        slow_call_s: float = 0.1,
        ssl_certfile: _tls.Files = None,
        ssl_keyfile: _tls.Files = None,
        ssl_keyfile_password: str | bytes | None = None,
        ssl_ca_certs: str | os.PathLike[str] | None = None,
        ssl_client_auth: _tls.ClientAuth | None = None,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        given = locals()
        # Options that are limits have the names that the core has for them.
        limits: dict[str, float] = {name: given[name] for name in _core.Server.default_limits()}
        threads = _process_role.threads if threads is None else threads
        if threads is not None:
            limits["max_threads"] = threads
        self._core = _core.Server(
            self._ENGINE,
            host if uds is None else _process_role.unix_host(uds),
            _checks.port(port),
            uds_mode=uds_mode,
            bound=not _process_role.defers_bind(),
            debug=debug,
            allowed_hosts=_checks.listed("allowed_hosts", allowed_hosts),
            allow_origins=_checks.listed("allow_origins", allow_origins),
            auth=auth,
            challenge=None if auth is None else _checks.challenge(auth),
            timeout_ms=timeout_ms,
            limits=limits,
            tls=_tls.tls_settings(
                ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs, ssl_client_auth
            ),
        )
        self._uds_mode = uds_mode
        self._threads = threads is not None
        self._timeout_ms = timeout_ms
        self._lifespan = LifespanHooks(lifespan)
        self._functions: dict[str, Callable[..., object]] = {}
        self._image_pixels = (
            _checks.positive("max_image_pixels", max_image_pixels),
            _checks.positive("max_held_image_pixels", max_held_image_pixels),
        )
        self._types: TypeRegistry | None = None
        self._is_async = False
        self._pools: dict[int, Pool] = {}
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    @property
    def host(self) -> str:
        """The address that is listened on; ``unix:`` and its path for a Unix socket."""
        return self._core.host

    @property
    def port(self) -> int:
        """The port that is listened on; 0 for a Unix socket."""
        return self._core.port

    @property
    def engine(self) -> str:
        """``"uring"`` or ``"posix"``."""
        return self._core.engine

    @overload
    def __call__(self, function: Function, /) -> Function: ...

    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        timeout_ms: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def __call__(self, function: Any = None, **options: Any) -> Any:
        """Serves a function, and returns it as it was: ``@server`` or ``@server(name="a.b")``.

        The options are those of `add`.

        Raises:
            TypeError, ValueError: See `add`.
        """
        if function is None:
            return functools.partial(self.add, **options)
        return self.add(function, **options)

    @overload
    def batch(
        self,
        function: Function,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        threads: bool | None = None,
        timeout_ms: float | None = None,
    ) -> Function: ...

    @overload
    def batch(
        self,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        threads: bool | None = None,
        timeout_ms: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def batch(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        threads: bool | None = None,
        timeout_ms: float | None = None,
    ) -> Any:
        """Serves a function that takes many calls at once, as models like it::

            @server.batch(max_size=64)
            def embed(texts: list[str]) -> list[list[float]]:
                return model.encode(texts)

        Callers call it with one item for each parameter: ``embed("a text")``. Calls that came
        together are one batch; while one runs, the next is collected. The function returns a list
        of as many results, in order; an exception in the list fails that call alone. Parameters
        are lists, or NumPy's arrays: stacked along a new first axis, those of one shape together.
        One that is annotated ``list[ucall.Context]`` gets the contexts of the calls.

        Args:
            function: A plain or an async function.
            name: See `add`.
            max_size: Calls in one batch.
            max_wait_ms: How long the first call of a batch waits for others that come later.
            parallel: Batches that run at once, if the function is async or runs in threads.
            threads: See `add`.
            timeout_ms: See `add`.

        Raises:
            TypeError, ValueError: See `add`; or a parameter is neither a list nor an array.
        """
        from ucall._registration import BatchRules

        rules = BatchRules(max_size, max_wait_ms, parallel)

        def add(function: Function) -> Function:
            return self._add(function, name, threads, None, timeout_ms, rules)

        return add if function is None else add(function)

    def on_startup(self, hook: Hook) -> Hook:
        """Runs a function, plain or async, before the first connection is accepted."""
        self._lifespan.startup.append(hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Runs a function, plain or async, when the last call is done. The last added is first."""
        self._lifespan.shutdown.append(hook)
        return hook

    def add(
        self,
        function: Function,
        name: str | None = None,
        *,
        threads: bool | None = None,
        processes: int | None = None,
        timeout_ms: float | None = None,
    ) -> Function:
        """Serves a function, a method of an object, or anything else that can be called.

        May be called while the server runs. A function that is defined again (in a notebook, by a
        reload) replaces its earlier self.

        Args:
            function: What to call.
            name: The method's name for callers, ``function.__name__`` if not given. Dots are fine.
            threads: Runs it in a thread, because it blocks; as the server does if not given.
            processes: Runs it in a pool of so many processes, because it computes. It has to be
                at the top of a module, and what it takes and returns to be pickled.
            timeout_ms: Time for each call, from when it has come; as the server has it if not
                given. Past it, -32001: an async function is cancelled, a plain one not started,
                and a process of a pool that is still at it is killed.

        Returns:
            The function, as it was.

        Raises:
            TypeError: An annotation cannot be served, or the function is a generator, or cannot run
                as asked. The message names the function and the parameter.
            ImportError: An annotation needs a module that is not installed. The message says which.
            ValueError: Another function has that name, or JSON-RPC keeps it for itself (``rpc.…``).
        """
        return self._add(function, name, threads, processes, timeout_ms, None)

    def _add(
        self,
        function: Function,
        name: str | None,
        threads: bool | None,
        processes: int | None,
        timeout_ms: float | None,
        batch: BatchRules | None,
    ) -> Function:
        # They look at code, which takes a while to import.
        from ucall import _registration, _signature

        name = _signature.name_of(function) if name is None else name
        if not name:
            raise ValueError("name: expected a method's name, got ''")
        if name.startswith("rpc."):
            raise ValueError(f"{name!r} cannot be a method's name: JSON-RPC keeps it for itself")
        if processes is not None:
            _checks.positive("processes", processes)
        registration = _registration.register(
            function,
            name,
            self._known_types(),
            threads=threads,
            threads_by_default=self._threads,
            pool=self._pool_of(processes) if processes else None,
            timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
            batch=batch,
        )
        known = self._functions.setdefault(name, function)
        if known is not function and _origin(known) != _origin(function):
            raise ValueError(f"{name!r} is served already, by {known!r}")
        self._functions[name] = function
        self._is_async |= registration.mode == "task"
        self._core.insert(
            name,
            registration.function,
            registration.signature,
            self._known_types().encode,
            mode=registration.mode,
            timeout_ms=timeout_ms,
            batch=registration.batch,
        )
        return function

    def register_type(
        self, type: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]
    ) -> None:
        """Serves a type of your own, wherever an annotation names it, and in what is returned.

        To be called before the functions that take it are added.

        Args:
            type: The class. What derives from it is encoded likewise.
            encode: Turns an object into what may be returned: JSON's values, or others served.
            decode: Turns what came, one of JSON's values, into an object. When it raises ValueError
                or TypeError the caller is answered with -32602 and the exception's text.

        Raises:
            TypeError: It is no class, or one that is written as JSON already, such as one derived
                from ``int`` or ``dict``.
        """
        self._known_types().register(type, encode, decode)

    def run(
        self, max_cycles: int = -1, max_seconds: float = -1, *, workers: int | None = None
    ) -> None:
        """Serves on this thread until `stop`, Ctrl-C or SIGTERM, or for as long as told.

        On the main thread it takes over SIGINT and SIGTERM (a handler of the program's own for
        SIGTERM stays), and returns when one comes.

        Args:
            max_cycles: Turns of the server; in each it waits for something to happen and does all
                that did. Negative: no bound.
            max_seconds: Negative: no bound.
            workers: Serves from so many processes, which run this program once more, and starts
                them again when they die. What stands before this call runs in each of them.

        When a bound ends the run, connections stay open and the next run on the same thread goes
        on with them; `stop` closes them.

        Raises:
            RuntimeError: The server runs already.
            OSError: The port cannot be bound again after a stop.
        """
        if _process_role.is_importing():
            return
        if _process_role.is_worker():
            from ucall import _worker

            control = _worker.prepare(self)
            return self._run(max_cycles, max_seconds, control.ready)
        if workers is not None:
            return self._supervise(_checks.positive("workers", workers))
        self._run(max_cycles, max_seconds, None)

    def start(self) -> None:
        """Serves on a thread of its own; returns when connections are being accepted.

        The thread ends with `stop`, or with the program. Functions run on that thread.

        Raises:
            RuntimeError: The server runs already.
            OSError: The port cannot be bound again after a stop.
        """
        if _process_role.is_importing():
            return
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                raise RuntimeError("the server runs already")
            self._thread = self._start_thread()

    async def serve(self) -> None:
        """Serves within the event loop that runs, asyncio's or uvloop's, until `stop`.

        Functions run on the loop's thread. Cancelled, it drains before it ends; signals are left
        to the program.

        Raises:
            RuntimeError: The server runs already.
            OSError: The port cannot be bound again after a stop.
        """
        from ucall._asyncio import embedded

        self._idle.clear()
        try:
            await embedded.serve(self, self._core)
        finally:
            self._idle.set()

    def stop(self, *, at_once: bool = False) -> None:
        """Stops the server, from any thread; waits for the thread of `start` to end, unless it is
        called by a function of the server's own.

        Nothing is accepted any more; calls under way may end, as long as ``drain_timeout_s``
        allows, unless ``at_once``. Connections are closed. The server may be started again. Before
        a server has ever run, the stop is remembered: its first `run` returns at once.
        """
        self._core.stop(at_once)
        thread = self._thread
        is_own_thread = thread is threading.current_thread() or self._core.is_running_here
        if thread is not None and not is_own_thread:
            thread.join()

    def stats(self) -> dict[str, Any]:
        """What was done since the server was made; with ``workers``, by all of them together.

        Returns:
            ``calls`` (each of a batch counted), ``connections`` (open now), ``accepted``
            (connections ever), ``bytes_received``, ``bytes_sent``, ``turns``, ``system_calls``;
            ``batches``: by function, how often batches of each size ran in this process.
        """
        return self._core.stats()

    def __enter__(self) -> Self:
        """Starts in the background."""
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stops."""
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self._core.is_running else "not running"
        where = _process_role.url("http", self.host, self.port).removeprefix("http://")
        return f"<ucall.Server on {where}, {self.engine}, {state}>"

    def _known_types(self) -> TypeRegistry:
        """What is served besides JSON's types; imported with the first function."""
        if self._types is None:
            from ucall.types.registry import TypeRegistry

            self._types = TypeRegistry(*self._image_pixels)
        return self._types

    def _start_thread(self) -> threading.Thread:
        """A thread that serves already."""
        started = threading.Event()
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                self._run(-1, -1, started.set)
            except BaseException as failure:
                if started.is_set():
                    raise
                failures.append(failure)
            finally:
                started.set()

        # A daemon, because a program that ends joins the others before it runs exit functions.
        thread = threading.Thread(target=serve, name=f"ucall:{self.port}", daemon=True)
        thread.start()
        started.wait()
        if failures:
            raise failures[0]
        return thread

    def _run(
        self, max_cycles: int, max_seconds: float, on_start: Callable[[], object] | None
    ) -> None:
        self._idle.clear()
        _exit.running.add(self)
        try:
            run = functools.partial(run_server, self, on_start)
            self._core.run(max_cycles, max_seconds, run)
        finally:
            self._idle.set()

    def _supervise(self, workers: int) -> None:
        """Serves from so many processes."""
        from ucall import _supervisor

        supervisor = _supervisor.Supervisor(workers, _supervisor.command())
        core = self._core
        core.unbind()
        supervisor.bind(core.host, core.port, core.uds_mode, core.scheme)
        core.share_counters(supervisor.counters)
        status = supervisor.run()
        if status:
            raise SystemExit(status)

    def _pool_of(self, processes: int) -> Pool:
        """The pool of so many processes, shared by the functions that ask for it."""
        from ucall._processes import Pool

        return self._pools.setdefault(processes, Pool(processes))


def _origin(function: Callable[..., object]) -> tuple[object, ...]:
    """Where a function was defined: the same for its earlier and its later self."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<lambda>" in name:
        return (id(function),)
    return module, name, id(getattr(function, "__self__", None))
