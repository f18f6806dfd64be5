"""The functions of one server: their names, the types they use and how they run."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ucall import _core
from ucall._functions.methods import Methods, NativeMethod, ReplyOptions, Served
from ucall._functions.pools import Pools
from ucall._functions.routes import RouteFunctions
from ucall._routes import browser_client, explorer
from ucall._routes.discovery import Discovery
from ucall._server import checked

if TYPE_CHECKING:
    from ucall._asgi.mount import Application
    from ucall._functions.registration import (
        BatchRules,
        Hook,
        Registration,
        Spans,
        StreamRules,
    )
    from ucall._functions.tool_rules import ToolRules
    from ucall._functions.warm_up import WarmUp
    from ucall._inference import Models
    from ucall._mcp import Registry, Tools
    from ucall._mcp.content import Content
    from ucall._routes.health import ReadyChecks
    from ucall._server.function_decorators import Auth
    from ucall._server.tls import ClientTls
    from ucall.errors import RPCError
    from ucall.store import Store

__all__ = ["Functions"]


class _Added(NamedTuple):
    """A function as it was added, before hooks and spans are put around it."""

    registration: Registration
    #: Its own hooks, within those of the server.
    middleware: tuple[Hook, ...]
    encode: Callable[[Any], object]
    #: Further arguments of `_core.Server.insert`.
    options: dict[str, Any]


class Functions(RouteFunctions):
    """Registers functions with the core of a server."""

    def __init__(
        self,
        core: _core.Server,
        paths: Sequence[str],
        image_pixels: tuple[int, int],
        threads: bool,
        timeout_ms: float | None,
        spans: Spans | None,
        max_body_bytes: int,
        challenge: str | None,
        replies: ReplyOptions,
        process_start_timeout_s: float,
    ) -> None:
        self._core = core
        self._paths = paths
        self._max_body_bytes = max_body_bytes
        self._spans = spans
        self._threads = threads
        self._timeout_ms = timeout_ms
        self.methods = Methods(image_pixels, challenge, self._bases[0])
        self._added: dict[str, _Added] = {}
        #: The hooks of the server, from the outside in.
        self._hooks: tuple[Hook, ...] = ()
        #: Those of them that run around native procedures, too.
        self._native_hooks: tuple[Hook, ...] = ()
        #: The names of methods that other servers answer; some end in ``*``.
        self._relayed: set[str] = set()
        self.pools = Pools(core, replies, process_start_timeout_s, spans)
        #: The batches that run before the server listens, by their functions' names.
        self._warm_ups: dict[str, WarmUp] = {}
        self._page_methods = {path: [] for path in paths}
        #: Applications of ASGI by the beginning of their paths.
        self._mounted: dict[str, Application] = {}
        #: Their description; ``None`` if the server does not describe itself.
        self.discovery: Discovery | None = None
        #: The methods of MCP; ``None`` if the server does not speak it.
        self.mcp: Registry | None = None
        self._tools: Tools | None = None
        self._content: Content | None = None
        #: The models of the Open Inference Protocol; ``None`` if the server does not speak it.
        self._models: Models | None = None
        #: Whether any function needs an event loop.
        self.is_async = False
        browser_client.register(core, self._bases)

    @property
    def _bases(self) -> list[str]:
        """What the paths below those of calls begin with."""
        return [path.removesuffix("/") for path in self._paths]

    def describe(self, title: str, version: str, description: str) -> None:
        """Has the server describe its functions to those who ask."""
        self.discovery = Discovery(self.methods, title, version, description)
        self.discovery.register(self._core, self._bases)
        for path in self._paths:
            explorer.register(self._core, path, self._page_methods[path])

    def enable_mcp(
        self, title: str, version: str, instructions: str, is_private: bool, max_threads: int
    ) -> None:
        """Has the server speak MCP, with its functions as tools."""
        from ucall import _mcp

        texts = title, version, instructions
        self.mcp = _mcp.Registry(self._core, self.methods, *texts, is_private, max_threads)
        self._tools = _mcp.enable(self.mcp)

    def content(self, decorator: str) -> Content:
        """What MCP has beside tools, made when a decorator first adds to it."""
        if self.mcp is None:
            raise RuntimeError(f"@server.{decorator} is for MCP: Server(mcp=True)")
        if self._content is None:
            from ucall._mcp.calls import Host
            from ucall._mcp.content import Content

            self._content = Content(Host(self.mcp, self._threads, self._need_loop))
        return self._content

    def serve_models(
        self, methods: str | Iterable[str] | None, title: str, version: str, ready: ReadyChecks
    ) -> None:
        """Has the server speak the Open Inference Protocol: see `ucall.Server.inference`."""
        names = None if methods is None else checked.methods("methods", methods)
        if self._models is not None:
            return self._models.choose(names)
        from ucall._inference import Models

        models = Models(self._core, self.methods, title, version)
        models.choose(names)
        _core.insert_inference(self._core, ready.respond_to_inference)
        self._models = models

    def _need_loop(self) -> None:
        self.is_async = True

    def prepare(self) -> None:
        """Ends what waits for all functions to be added, before the server starts."""
        if self._tools is not None:
            self._tools.publish()
        if self._models is not None:
            self._models.publish()

    def add(
        self,
        function: Callable[..., object],
        name: str | None,
        *,
        threads: bool | None = None,
        processes: int | None = None,
        max_waiting: int | None = None,
        timeout_ms: float | None = None,
        batch: BatchRules | None = None,
        stream: StreamRules,
        idempotent: bool = False,
        tool: ToolRules | bool = True,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
        middleware: Iterable[Hook] = (),
    ) -> None:
        """Registers a function: see `ucall.Server.add` and `ucall.Server.batch`. ``middleware`` are
        hooks around this function alone, the first one outermost."""
        # Imported late: together they take two thirds as long as all of ucall.
        from ucall._functions import results, signatures
        from ucall._functions.registration import described_run, register

        name = signatures.name_of(function) if name is None else name
        if not name:
            raise ValueError("name: expected a method's name, got ''")
        if name.startswith("rpc."):
            raise ValueError(f"{name!r} cannot be a method's name: JSON-RPC reserves rpc.")
        own_auth = checked.own_auth(name, auth)
        required = checked.scopes(scopes)
        if required and (auth is False or not (self.methods.has_auth or own_auth)):
            raise ValueError(
                f"{name}: scopes: expected a server with auth, or auth=…, whose users have scopes"
            )
        batch_pool = None if batch is None else self.pools.of_batches(name, batch)
        registration = register(
            function,
            name,
            self.methods.types,
            threads=threads,
            threads_by_default=self._threads,
            pool=None if processes is None else self.pools.of_calls(processes),
            timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
            max_waiting=max_waiting,
            batch=batch,
            batch_pool=batch_pool,
            stream=stream,
            spans=self._spans,
        )
        known = self.methods.served.get(name)
        if known is None or not signatures.is_redefinition(function, known.function):
            self._check_unused([name])
        warm_up = None
        if batch is not None and batch.warm_up is not None and batch_pool is None:
            from ucall._functions.warm_up import WarmUp

            in_thread = registration.mode in ("thread", "thread_generator")
            warm_up = WarmUp(name, function, registration.hints, batch, in_thread)
        held = frozenset(required)
        takes_batches = batch is not None and not batch.rows and registration.described is None
        shown = registration.described or function
        runs = described_run(registration.mode, processes, batch)
        challenge: str | Literal[False] | None = False if auth is False else None
        if own_auth is not None:
            challenge = own_auth[1]
        served = Served(
            shown, registration.hints, takes_batches, idempotent, tool, challenge, held, runs
        )
        if self._tools is not None:
            if tool is not False and stream.stream == "only":
                problem = "a tool has one result, and this is a stream alone: mcp=False"
                raise TypeError(f"{name}: stream: {problem}")
            self._tools.check(name, served)
        options = {
            "timeout_ms": timeout_ms,
            "max_waiting": max_waiting,
            "is_idempotent": idempotent,
            "is_public": auth is False,
            "auth": own_auth,
            "scopes": required,
        }
        encode = results.encoder_of(
            self.methods.types.encode, function, registration.hints, takes_batches=takes_batches
        )
        added = _Added(registration, self._checked_hooks(middleware), encode, options)
        complete = self._complete(name, added, self._hooks)
        if batch_pool is not None:
            self.pools.keep(batch_pool)
        self.methods.served = {**self.methods.served, name: served}
        self._warm_ups.pop(name, None)
        if warm_up is not None:
            self._warm_ups[name] = warm_up
        self._added[name] = added
        self._insert(name, added, complete)
        self.pools.replace(name, batch_pool)
        if self._tools is not None:
            self._tools.change()
        if self._models is not None:
            self._models.change()

    def add_hook(self, hook: Hook, *, native: bool) -> None:
        """Puts a hook around all functions, within the earlier ones: see
        `ucall.Server.middleware`."""
        if self._core.is_running:
            raise RuntimeError("middleware: the server runs already: add hooks before it starts")
        hooks = (*self._hooks, *self._checked_hooks([hook]))
        added = self._added.items()
        complete = {name: self._complete(name, it, hooks) for name, it in added}
        unknown = self._complete("unknown methods", self._without_function("inline"), hooks)
        if native:
            self._add_native_hook(hook)
        self._hooks = hooks
        for name, it in added:
            self._insert(name, it, complete[name])
        self.is_async |= unknown.runs_as == "task"
        _core.set_unknown_hooks(self._core, self.methods.types.encode, unknown.hooks)

    def _add_native_hook(self, hook: Hook) -> None:
        hooks = (*self._native_hooks, hook)
        natives = self._complete("native procedures", self._without_function("native"), hooks)
        self._native_hooks = hooks
        self.is_async = True
        _core.set_native_hooks(self._core, self.methods.types.encode, natives.hooks)

    def _without_function(self, mode: str) -> _Added:
        """What hooks are around where there is no function."""
        from ucall._functions.registration import Registration

        registration = Registration(_absent, [], mode, None, None, {})
        return _Added(registration, (), self.methods.types.encode, {})

    def add_exception_handler(
        self, kind: type[Exception], handler: Callable[[Any], RPCError]
    ) -> None:
        """Makes errors of exceptions: see `ucall.Server.on_exception`."""
        if self._core.is_running:
            raise RuntimeError("on_exception: the server runs already: register it before")
        if self.pools.exceptions is None:
            from ucall._functions.exceptions import ExceptionHandlers

            self.pools.exceptions = ExceptionHandlers()
            _core.set_error_finder(self._core, self.pools.exceptions.find)
            if self._spans is not None:
                self._spans.find_error = self.pools.exceptions.find
        self.pools.exceptions.add(kind, handler)

    def _checked_hooks(self, hooks: Iterable[Hook]) -> tuple[Hook, ...]:
        if not hooks:
            return ()
        from ucall._functions.hooks import checked as checked_hook

        return tuple(map(checked_hook, hooks))

    def _complete(self, name: str, added: _Added, hooks: Sequence[Hook]) -> Registration:
        """A function with all that is around it: rounds of MCP, hooks, and a span."""
        registration, spans = added.registration, self._spans
        around = (*hooks, *added.middleware)
        if spans is not None and not around:
            registration = spans.wrap(registration)
        if self.mcp is not None:
            registration = self.mcp.with_rounds(registration)
        if around:
            from ucall._functions import hooks as call_hooks

            registration = call_hooks.around(registration, around, name)
            if spans is not None:
                registration = spans.wrap(registration)
        return registration

    def _insert(self, name: str, added: _Added, registration: Registration) -> None:
        self.is_async |= registration.runs_as in ("task", "async_generator")
        self._core.insert(
            name,
            registration.function,
            registration.signature,
            added.encode,
            mode=registration.mode,
            batch=registration.batch,
            stream=registration.stream,
            hooks=registration.hooks,
            **added.options,
        )

    def add_store(self, name: str, path: str | os.PathLike[str] | Store) -> Store:
        """Registers the procedures of a store: see `ucall.Server.store`."""
        from ucall import store as stores

        if not name or name.startswith("rpc."):
            raise ValueError(f"name: expected the name of a store, got {name!r}")
        methods = [*self.methods.served, *self.methods.natives, *self._relayed]
        self._check_unused(
            method for method in methods if method.startswith(f"{name}.") and method[-1] != "*"
        )
        store = path if isinstance(path, stores.Store) else stores.open(path)
        inserted = _core.insert_store(self._core, name, store._core)
        self.methods.natives = {
            **self.methods.natives,
            **{texts[0]: NativeMethod(*texts) for texts in inserted},
        }
        return store

    def add_relay(
        self,
        methods: str | Iterable[str],
        to: str | Iterable[str],
        *,
        headers: Mapping[str, str] | None,
        meta: bool,
        tls: ClientTls,
        timeout_ms: float,
        max_outstanding: int,
        max_connection_outstanding: int | None,
        max_request_bytes: int,
        max_failures: int,
        health_check: str | None,
        health: Mapping[str, float],
        idempotent: str | Iterable[str],
        hash_param: str | None,
        rename: Mapping[str, str] | None,
        params: Mapping[str, Any] | None,
    ) -> _core.RelayStatus:
        """Registers methods that other servers answer: see `ucall.Server.relay`."""
        names = checked.methods("methods", methods)
        upstreams = [to] if isinstance(to, str) else list(to)
        if not names or not upstreams:
            missing = "to" if names else "methods"
            raise ValueError(f"{missing}: expected at least one")
        self._check_unused(names)
        is_encrypted = any(name.startswith(("tls:", "https:")) for name in upstreams)
        if not is_encrypted and (tls["authority"] or tls["certificate"]):
            option = "ssl_ca_certs" if tls["authority"] else "ssl_certfile"
            raise ValueError(f"{option}: expected an upstream with TLS")
        for name, value in health.items():
            if not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value}")
        status = _core.insert_relay(
            self._core,
            names,
            upstreams,
            headers=list((headers or {}).items()),
            meta=meta,
            tls=tls,
            timeout_ms=timeout_ms,
            max_outstanding=checked.positive("max_outstanding", max_outstanding),
            max_connection_outstanding=None
            if max_connection_outstanding is None
            else checked.positive("max_connection_outstanding", max_connection_outstanding),
            max_request_bytes=checked.positive("max_request_bytes", max_request_bytes),
            max_failures=checked.positive("max_failures", max_failures),
            health=None if health_check is None else (health_check, health),
            idempotent=checked.methods("idempotent", idempotent),
            hash_param=hash_param,
            rename=list((rename or {}).items()),
            params=checked.json_object("params", params or {}),
        )
        self._relayed.update(names)
        if self._max_body_bytes > max_request_bytes:
            import logging  # here, because importing it takes a fifth as long as all of ucall

            logging.getLogger("ucall").warning(
                "relay: max_body_bytes (%d) is above max_request_bytes (%d): longer calls of %s "
                "get an error",
                self._max_body_bytes,
                max_request_bytes,
                ", ".join(names),
            )
        return status

    def _check_unused(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.methods.served:
                owner = repr(self.methods.served[name].function)
            elif name in self.methods.natives:
                owner = "a store's method"
            elif name in self._relayed:
                owner = "a relayed method"
            else:
                continue
            raise ValueError(f"{name!r} is already the name of {owner}")

    def warm_up(self) -> Awaitable[None] | None:
        """Runs the batches of `ucall.Server.batch` with ``warm_up``, once in a process."""
        if not self._warm_ups:
            return None
        from ucall._functions.warm_up import run_all

        return run_all(self._core, self._warm_ups.values())


def _absent() -> None:
    """Stands for a function that there is not."""
