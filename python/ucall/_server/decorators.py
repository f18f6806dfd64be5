"""The decorators of a server, which register functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ucall._server.function_decorators import FunctionDecorators
from ucall._server.tls import client_tls
from ucall.group import Group, Route, registrations

if TYPE_CHECKING:
    from ucall._functions.table import Functions
    from ucall._routes.health import ReadyChecks
    from ucall._server.lifespan import LifespanHooks
    from ucall.options import Path
    from ucall.store import Store

__all__ = ["Decorators"]

Function = TypeVar("Function", bound=Callable[..., object])
T = TypeVar("T")
Hook = TypeVar("Hook", bound=Callable[[], object])
ProcessHook = TypeVar("ProcessHook", bound=Callable[[], object] | Callable[[int], object])


class Decorators(FunctionDecorators):
    """The part of `ucall.Server` that registers what it serves."""

    title: str
    version: str
    _functions: Functions
    _lifespan: LifespanHooks
    _ready: ReadyChecks

    def _add_function(
        self, function: Callable[..., object], name: str | None, **options: Any
    ) -> None:
        self._functions.add(function, name, **options)

    def include(self, group: Group) -> None:
        """Registers the functions and routes of a `ucall.Group`, and of the groups in it.

        Raises:
            TypeError, ValueError: See `add` and `http`.
        """
        for member in registrations(group):
            if isinstance(member, Route):
                if member.needs_auth and not self._functions.methods.has_auth:
                    problem = "the route has auth=True: expected a server with auth"
                    raise TypeError(f"{member.path}: {problem}")
                self._functions.add_route(member.function, member.path, **member.options)
            else:
                self._add_function(member.function, member.name, **member.options)

    def http(
        self,
        path: str,
        *,
        methods: Iterable[str] = ("GET",),
        auth: bool = True,
        threads: bool | None = None,
        stream_body: bool = False,
        max_body_bytes: int | None = None,
    ) -> Callable[[Function], Function]:
        """Registers a function that answers HTTP requests other than calls::

            @server.http("/notes/{name}")
            def note(request: ucall.HttpRequest) -> dict[str, str]:
                return {"name": request.path_params["name"]}

        The function takes a `ucall.HttpRequest` and returns a `ucall.HttpResponse`, or its body:
        bytes, str, a generator of both, whose parts are sent as they come, or a value that is sent
        as JSON. It runs as served functions do: plain, async or in a thread. What it raises is
        answered as docs/http.md describes. Requests are subject to the server's limits, and to its
        rules for browsers.

        Args:
            path: Compared as it is sent. A segment ``{name}`` means any that is not empty, and
                ``/files/*`` all paths that begin with ``/files/``. An exact path comes first, then
                one with such segments, then the longest beginning.
            methods: Of GET, POST, PUT, PATCH and DELETE. A GET route answers HEAD, too.
            auth: Whether requests must pass the server's ``auth``.
            threads: Whether to run it in a thread, because it blocks; by default as the server.
            stream_body: Whether it runs before the body has arrived, which it receives by
                ``request.stream()``. It is async then, or runs in a thread.
            max_body_bytes: The longest body, in place of the server's ``max_body_bytes``.

        Raises:
            TypeError: It is no function, or the options exclude each other.
            ValueError: No request has this path or method, or another function answers it, or a
                path that another one means, too.
        """

        def add(function: Function) -> Function:
            self._functions.add_route(
                function,
                path,
                methods,
                auth=auth,
                threads=threads,
                stream_body=stream_body,
                max_body_bytes=max_body_bytes,
            )
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
        self._functions.pools.add_process_hook(hook)
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
