"""The decorators of a server, which register functions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ucall._server.tls import client_tls

if TYPE_CHECKING:
    from ucall._functions.table import Functions
    from ucall._routes.health import ReadyChecks
    from ucall._server.lifespan import LifespanHooks
    from ucall.options import Path
    from ucall.store import Store

__all__ = ["Decorators"]

Function = TypeVar("Function", bound=Callable[..., object])
T = TypeVar("T")
Overflow = Literal["pause", "drop_oldest", "drop_newest", "close"]
Hook = TypeVar("Hook", bound=Callable[[], object])
ProcessHook = TypeVar("ProcessHook", bound=Callable[[], object] | Callable[[int], object])


class Decorators:
    """The part of `ucall.Server` that registers functions."""

    title: str
    version: str
    _functions: Functions
    _lifespan: LifespanHooks
    _ready: ReadyChecks

    @overload
    def __call__(self, function: Function, /) -> Function: ...

    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        max_waiting: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        scopes: Iterable[str] = (),
    ) -> Callable[[Function], Function]: ...

    def __call__(self, function: Any = None, **options: Any) -> Any:
        """Registers a function as `add` does: ``@server`` or ``@server(name="a.b")``."""
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
        processes: int | None = None,
        devices: Sequence[str] | None = None,
        max_waiting: int | None = None,
        weight: Callable[..., int] | None = None,
        max_weight: int | None = None,
        warm_up: Sequence[object] | None = None,
        slots: int | None = None,
        threads: bool | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        scopes: Iterable[str] = (),
    ) -> Function: ...

    @overload
    def batch(
        self,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        processes: int | None = None,
        devices: Sequence[str] | None = None,
        max_waiting: int | None = None,
        weight: Callable[..., int] | None = None,
        max_weight: int | None = None,
        warm_up: Sequence[object] | None = None,
        slots: int | None = None,
        threads: bool | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        scopes: Iterable[str] = (),
    ) -> Callable[[Function], Function]: ...

    def batch(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        processes: int | None = None,
        devices: Sequence[str] | None = None,
        max_waiting: int | None = None,
        weight: Callable[..., int] | None = None,
        max_weight: int | None = None,
        warm_up: Sequence[object] | None = None,
        slots: int | None = None,
        threads: bool | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        scopes: Iterable[str] = (),
    ) -> Any:
        """Registers a function that takes many calls at once, such as a model's inference::

            @server.batch(max_size=64)
            def embed(texts: list[str]) -> list[list[float]]:
                return model.encode(texts)

        Callers call it with one item per parameter: ``embed("a text")``. Calls that arrive together
        form a batch; while one runs, the next is collected. The function returns a list of results
        in the order of the calls; an exception in the list fails that call alone. A parameter is a
        list, or a NumPy array, which is stacked along a new first axis from items of one shape, or
        of any other type: then it is one value, and calls with other values run on their own. A
        parameter ``list[ucall.Context]`` gets the contexts of the calls.

        Args:
            function: A plain or an async function; or a generator, whose items are lists with an
                item, or `ucall.END`, for each call.
            name, threads, timeout_ms, stream, overflow, idempotent, mcp, scopes: See `add`.
            max_size: Calls in one batch.
            max_wait_ms: How long the first call of a batch waits for later ones.
            weight: What a call weighs, such as its tokens: a function of the call's params, by
                position. More calls than one batch takes are put together by close weights.
            max_weight: The sum of the weights in one batch. A heavier call gets -32602.
            max_waiting: Calls that wait for a batch; further ones get -32003.
            parallel: Concurrent batches, if the function is async, a generator or runs in threads;
                with ``processes`` those that each process has at once, of which it runs one.
            processes: Runs batches in this many processes, one for each device by default. The
                function must be defined at the top of a module. The processes start with the
                server, which listens when all are ready; one that dies is replaced.
            devices: Names of devices, such as ``["cuda:0", "cuda:1"]``, which the processes take in
                turn: see `device`.
            warm_up: A value for each parameter, such as ``("a text",)``. Batches of 1, 2, 4 and so
                on up to ``max_size`` run with it before ``/readyz`` turns green, where those of
                callers will, after the startup hooks and models; the log has their times. If one
                fails, the server does not start.
            slots: Has a generator take calls between its steps, up to so many at once, in place of
                batches: it has one parameter, `ucall.Slots`, and yields `ucall.SlotItems`. See
                docs/streams.md#calls-that-come-and-go.

        Raises:
            TypeError, ValueError: See `add`. TypeError also if no parameter is a list or an array.
        """
        from ucall._functions.registration import BatchRules, StreamRules

        options: dict[str, Any] = {
            "threads": threads,
            "timeout_ms": timeout_ms,
            "batch": BatchRules(
                max_size,
                max_wait_ms,
                parallel,
                weight,
                max_weight,
                warm_up,
                slots,
                processes,
                devices,
            ),
            "max_waiting": max_waiting,
            "stream": StreamRules(stream, overflow),
            "idempotent": idempotent,
            "tool": mcp,
            "scopes": scopes,
        }

        def add(function: Function) -> Function:
            self._functions.add(function, name, **options)
            return function

        return add if function is None else add(function)

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, bool] | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        scopes: Iterable[str] = (),
    ) -> Callable[[Function], Function]: ...

    def tool(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, bool] | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        scopes: Iterable[str] = (),
    ) -> Any:
        """Registers a function as `add` does, with more for ``Server(mcp=True)`` to tell models::

            @server.tool(title="Weather", annotations={"readOnlyHint": True})
            def weather(city: str) -> Report: ...

        Args:
            function: A plain or an async function, or a generator.
            name, threads, processes, timeout_ms, stream, overflow, idempotent, scopes: See `add`.
            title: The name that people see.
            annotations: ``readOnlyHint``, ``destructiveHint`` and ``openWorldHint``, as the
                specification describes them; ``idempotent=True`` gives ``idempotentHint``.
            headers: Params that clients also send as headers for proxies to route by:
                ``{"region": "Region"}`` for ``Mcp-Param-Region``. Each is a str, an int or a bool.
            media_type: What the bytes are that the function returns, such as ``"audio/wav"``.
            input_schema: The JSON Schema (2020-12) of the params, in place of that of the
                annotations, by which params are checked all the same.

        Raises:
            TypeError, ValueError: See `add`. Also for an option that does not fit the function.
        """
        from ucall._functions.registration import StreamRules
        from ucall._functions.tool_rules import ToolRules

        options: dict[str, Any] = {
            "threads": threads,
            "processes": processes,
            "timeout_ms": timeout_ms,
            "stream": StreamRules(stream, overflow),
            "idempotent": idempotent,
            "tool": ToolRules(title, annotations or {}, headers or {}, media_type, input_schema),
            "scopes": scopes,
        }

        def add(function: Function) -> Function:
            self._functions.add(function, name, **options)
            return function

        return add if function is None else add(function)

    def http(
        self,
        path: str,
        *,
        methods: Iterable[str] = ("GET",),
        auth: bool = True,
        threads: bool | None = None,
    ) -> Callable[[Function], Function]:
        """Registers a function that answers HTTP requests other than calls::

            @server.http("/health", auth=False)
            def health(request: ucall.HttpRequest) -> str:
                return "ok"

        The function takes a `ucall.HttpRequest` and returns a `ucall.HttpResponse`, or its body:
        bytes, str, or a generator of both, whose parts are sent as they come. It runs as served
        functions do: plain, async or in a thread. What it raises is answered as docs/http.md
        describes. Requests are subject to the server's limits, and to its rules for browsers.

        Args:
            path: Compared as it is sent. ``/files/*`` means all paths that begin with ``/files/``;
                an exact path and a longer beginning come first.
            methods: Of GET, POST, PUT, PATCH and DELETE. A GET route answers HEAD, too.
            auth: Whether requests must pass the server's ``auth``.
            threads: Whether to run it in a thread, because it blocks; by default as the server.

        Raises:
            TypeError: It is no function, or the options exclude each other.
            ValueError: No request has this path or method, or another function answers it.
        """

        def add(function: Function) -> Function:
            self._functions.add_route(function, path, methods, auth=auth, threads=threads)
            return function

        return add

    def on_startup(self, hook: Hook) -> Hook:
        """Registers a function, plain or async, to run before the first connection is accepted."""
        self._lifespan.startup.append(hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Registers a function, plain or async, to run after the last call: in reverse order."""
        self._lifespan.shutdown.append(hook)
        return hook

    def on_process_start(self, hook: ProcessHook) -> ProcessHook:
        """Registers a function to run in each process of ``processes=N``, before its first call::

            @server.on_process_start
            def load(number: int) -> None:
                global model
                model = Model(device=number)

        Startup hooks do not run there. A hook with a parameter gets the number of the process in
        its pool, from 0 to N - 1; the successor of a process that has died has the same. Hooks must
        be defined at the top of a module, and run in the order they were added; an async one has an
        event loop of its own. If one raises, the call that its process was started for fails, and
        the log has the reason. The next call starts another process.

        Raises:
            TypeError: It is no function, or takes more than the number.
        """
        self._functions.add_process_hook(hook)
        return hook

    def inference(self, methods: str | Iterable[str] | None = None) -> None:
        """Serves functions as models of the Open Inference Protocol, version 2, at ``/v2``.

        A model's inputs are the params of its function: arrays, numbers, bools, str, bytes and
        lists of them. Its outputs are what the function returns, or the parts of a dict, a tuple
        or a class with fields. docs/inference.md describes both.

        Args:
            methods: The names of functions, which may be added later. By default all functions
                that can be models, now and later; the logger ``ucall`` names the others at level
                DEBUG.

        Raises:
            TypeError: A function that is named cannot be a model; at the start of the server, if
                that does not run yet.
            ValueError: There is no function of a name; likewise.
        """
        self._functions.serve_models(methods, self.title, self.version, self._ready)

    def ready(self, check: Hook) -> Hook:
        """Registers a check of ``GET /readyz``, plain or async::

            @server.ready
            async def database() -> bool:
                return await pool.fetchval("select true")

        The server is ready unless a check raises, returns a false value other than None, or does
        not end within ``ready_timeout_s``. Plain checks run in threads of their own.

        Raises:
            TypeError: It is no function.
        """
        from ucall._functions import signatures

        self._ready.add(check)
        self._functions.is_async |= signatures.is_async(check)
        return check

    def add(
        self,
        function: Function,
        name: str | None = None,
        *,
        threads: bool | None = None,
        processes: int | None = None,
        max_waiting: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        scopes: Iterable[str] = (),
    ) -> Function:
        """Registers a function or another callable, and returns it. The server may be running.

        A new definition of a function replaces the old one.

        Args:
            name: The method's name; ``function.__name__`` by default. It may contain dots.
            threads: Whether to run it in a thread, because it blocks; by default as the server.
            processes: Runs it in a pool of this many processes, because it computes. It must be
                defined at the top of a module; arguments and results are pickled.
            max_waiting: Calls of it that wait for a thread or a process; further ones get -32003,
                whose data says when to retry. The largest number is that of all running calls.
            timeout_ms: Time for each call, from its receipt; by default the server's. Past it,
                -32001: an async function is cancelled, a plain one that waits is not started, and a
                pool's process that runs it is killed.
            stream: ``"only"`` refuses calls of a generator that do not take its items one by one;
                they get a list otherwise. See docs/streams.md.
            overflow: What happens when a client reads a generator's items too slowly:
                ``"pause"`` (the default), ``"drop_oldest"``, ``"drop_newest"`` or ``"close"``.
            idempotent: Whether a call may run twice. Clients with several servers learn it by
                ``rpc.discover``, and send such calls again after a failure (docs/scale.md). Over
                UDP, copies of a call then run again, and replies need no memory (docs/udp.md).
            mcp: Whether it is a tool of a server with ``mcp`` (docs/mcp.md): see `tool`.
            scopes: What the caller's token must allow: each one is in the set ``scopes`` of
                `Context.user`. Otherwise -32004, whose data names those that are missing. See
                docs/security.md.

        Raises:
            TypeError: An annotation is not supported, or the options exclude each other. The
                message names the function and the parameter.
            ImportError: An annotation needs a module that is not installed; the message names it.
            ValueError: The name belongs to another function, or to JSON-RPC (``rpc.…``), or is
                none for a tool; or scopes are given without ``auth``.
        """
        from ucall._functions.registration import StreamRules

        self._functions.add(
            function,
            name,
            threads=threads,
            processes=processes,
            max_waiting=max_waiting,
            timeout_ms=timeout_ms,
            stream=StreamRules(stream, overflow),
            idempotent=idempotent,
            tool=mcp,
            scopes=scopes,
        )
        return function

    def store(self, name: str, path: str | os.PathLike[str] | Store) -> Store:
        """Serves a key-value store as ``name.get`` and so on, without Python: see docs/store.md.

        Args:
            name: The beginning of the methods' names.
            path: The directory, or a store that `ucall.store.open` has returned, as this does.
        """
        return self._functions.add_store(name, path)

    def relay(
        self,
        methods: str | Iterable[str],
        *,
        to: str | Iterable[str],
        headers: Mapping[str, str] | None = None,
        meta: bool = False,
        ssl_ca_certs: Path | None = None,
        ssl_certfile: Path | None = None,
        ssl_keyfile: Path | None = None,
        ssl_keyfile_password: str | bytes | None = None,
        timeout_ms: float = 30_000,
        max_outstanding: int = 1024,
        max_connection_outstanding: int | None = None,
        max_request_bytes: int = 16_777_216,
        max_failures: int = 5,
        health_check: str | None = None,
        health_interval_ms: float = 5_000,
        health_timeout_ms: float = 1_000,
        health_failures: int = 3,
        health_successes: int = 2,
        idempotent: str | Iterable[str] = (),
        hash_param: str | None = None,
        rename: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Passes calls on to other servers, without Python: see docs/relay.md.

        Args:
            methods: The methods, such as ``"math.sum"``, or ``"math.*"`` for all that begin so.
                Functions of the same names come first.
            to: The servers: ``"tcp://host:port"``, ``"unix:///path"`` or
                ``"http://host:port/path"``; with TLS ``"tls://…"`` or ``"https://…"``. Hosts are
                resolved while the server runs, again and again, and get calls at all addresses.
            headers: Headers of each HTTP request, such as credentials.
            meta: The servers over HTTP are ucall servers, and get ``_meta``, as all others do.
            ssl_ca_certs: The authorities of the servers' certificates; by default the system's.
            ssl_certfile: The certificate for servers that request one, with its chain.
            ssl_keyfile: Its private key, unless that is in ``ssl_certfile``.
            ssl_keyfile_password: The password of the private key.
            timeout_ms: After so long a caller gets error -32001.
            max_outstanding: Calls in flight to one server, for each worker.
            max_connection_outstanding: Those of one connection of a caller; by default an eighth,
                and at least 16.
            max_request_bytes: The longest call that the servers read, with what the relay adds: the
                ``max_body_bytes`` of a ucall server.
            max_failures: Failures in a row after which a server gets no calls for a while.
            health_check: What each worker asks each server beside calls: a path that is read over
                HTTP, such as ``"/readyz"``, or a method, such as ``"rpc.discover"``. An unhealthy
                server gets no calls while there is another.
            health_interval_ms: Time from the beginning of one check to the next.
            health_timeout_ms: Time for the answer, which must be a status 2xx or a result.
            health_failures: Failed checks in a row after which a server is unhealthy.
            health_successes: Good checks in a row after which it is healthy again.
            idempotent: The methods that may run twice: they are repeated if a server fails.
            hash_param: The param, by name, whose value picks the server. Otherwise a server with
                few calls in flight gets the call.
            rename: The servers' names of methods by those of callers, such as
                ``{"sum": "add", "math.*": "*"}``.
            params: Params, by name, that are added to each call.

        Raises:
            ValueError: An option has a wrong value, or a method belongs to a function.
            OSError: A file cannot be read.
        """
        status = self._functions.add_relay(
            methods,
            to,
            headers=headers,
            meta=meta,
            tls=client_tls(ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_keyfile_password),
            timeout_ms=timeout_ms,
            max_outstanding=max_outstanding,
            max_connection_outstanding=max_connection_outstanding,
            max_request_bytes=max_request_bytes,
            max_failures=max_failures,
            health_check=health_check,
            health={
                "health_interval_ms": health_interval_ms,
                "health_timeout_ms": health_timeout_ms,
                "health_failures": health_failures,
                "health_successes": health_successes,
            },
            idempotent=idempotent,
            hash_param=hash_param,
            rename=rename,
            params=params,
        )
        self._ready.add_problem(status.problem)

    def register_type(
        self, type: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]
    ) -> None:
        """Adds a type for annotations and results. Call it before adding functions that use it.

        Args:
            type: The class. Objects of derived classes are encoded in the same way.
            encode: Turns an object into a value of JSON, or of another supported type.
            decode: Turns a value of JSON into an object. If it raises ValueError or TypeError, the
                call is answered with -32602 and the exception's text.

        Raises:
            TypeError: It is not a class, or derives from a class that JSON has, such as ``int``.
        """
        self._functions.methods.types.register(type, encode, decode)
