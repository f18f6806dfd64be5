"""The part of a server's functions that answers HTTP requests other than calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ucall import _core
from ucall._functions.methods import ServedRoute
from ucall._server import checked

if TYPE_CHECKING:
    from ucall._asgi.mount import Application
    from ucall._functions.methods import Methods
    from ucall._functions.registration import Spans
    from ucall._server.lifespan import LifespanHooks

__all__ = ["RouteFunctions"]


class RouteFunctions:
    """Registers routes and applications with the core of a server."""

    methods: Methods
    is_async: bool
    _core: _core.Server
    _spans: Spans | None
    #: The paths of calls.
    _paths: Sequence[str]
    _threads: bool
    #: The methods of the program's routes at the paths of calls.
    _page_methods: dict[str, list[str]]
    #: Applications of ASGI by the beginning of their paths.
    _mounted: dict[str, Application]

    def add_route(
        self,
        function: Callable[..., object],
        path: str,
        methods: Iterable[str],
        *,
        auth: bool,
        threads: bool | None,
        stream_body: bool,
        max_body_bytes: int | None,
    ) -> None:
        """Registers a function for HTTP requests other than calls: see `ucall.Server.http`."""
        from ucall._functions.registration import register_route
        from ucall._functions.signatures import is_redefinition
        from ucall._routes import adapt

        path, methods = adapt.checked_path(path), adapt.checked_methods(methods)
        checked.flag("auth", auth)
        if path in self._paths and "POST" in methods:
            raise ValueError(f"POST {path} is for JSON-RPC: use another path")
        adapt.check_overlap(path, {known for _, known in self.methods.routes})
        encode = self.methods.types.encode
        respond, is_async = adapt.adapt(function, path, encode)
        mode = register_route(path, is_async, threads, self._threads, stream_body=stream_body)
        if max_body_bytes is not None:
            checked.positive("max_body_bytes", max_body_bytes)
        for method in methods:
            known = self.methods.routes.get((method, path))
            if known is not None and not is_redefinition(function, known.function):
                raise ValueError(f"{method} {path} is already answered by {known.function!r}")
        added = dict.fromkeys([(it, path) for it in methods], ServedRoute(function, auth))
        self.methods.routes = {**self.methods.routes, **added}
        if (page_methods := self._page_methods.get(path)) is not None:
            page_methods += [it for it in methods if it not in page_methods]
        self.is_async |= is_async
        _core.insert_route(
            self._core,
            path,
            methods,
            respond,
            encode,
            mode=mode,
            is_public=not auth,
            wants_peer=True,
            streams_body=stream_body,
            max_body_bytes=max_body_bytes,
        )

    def add_mount(self, app: Application, path: str, hooks: LifespanHooks) -> None:
        """Registers an application of ASGI: see `ucall.Server.mount`."""
        from ucall._asgi.lifespan import AppLifespan
        from ucall._asgi.mount import checked_prefix

        prefix = checked_prefix(path, app)
        if self._core.is_running:
            raise RuntimeError("mount: expected a server that does not run yet")
        if known := self._mounted.get(prefix):
            raise ValueError(f"path: {path!r} has an application already: {known!r}")
        self._mounted[prefix] = app
        lifespan = AppLifespan(app, path)
        hooks.startup.append(lifespan.startup)
        hooks.shutdown.append(lifespan.shutdown)
        self.is_async = True
        replaced = []
        if not prefix:
            if "GET" not in self._page_methods.get("/", ["GET"]):
                replaced.append("/")
            if not any("/openapi.json" in route for route in self.methods.routes):
                replaced.append("/openapi.json")
        traced = app if self._spans is None else self._spans.mounted(app, prefix)
        _core.insert_mount(self._core, prefix, traced, lifespan.state, replaced)
