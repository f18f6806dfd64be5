"""Mounting applications of ASGI on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucall._asgi.mount import Application
    from ucall._functions.table import Functions
    from ucall._server.lifespan import LifespanHooks

__all__ = ["Mounting"]


class Mounting:
    """The part of `ucall.Server` that mounts applications."""

    _functions: Functions
    _lifespan: LifespanHooks

    def mount(self, path: str, app: Application) -> None:
        """Has an ASGI application, of FastAPI or Starlette for example, answer what nothing else
        does::

            server.mount("/", app)

        Calls, functions at their paths, routes and the server's own pages come first. Each request
        runs as a task of the server's event loop. The application's lifespan begins before the
        first connection and ends after the last, among the hooks of the server. It authenticates
        its requests and has its own rules for browsers: ``auth`` and ``allow_origins`` are for
        calls and routes.

        Args:
            path: ``/``, or the beginning of the application's paths, such as ``/app``, which it
                gets as ``root_path``. The longest that fits a request comes first.
            app: ``await app(scope, receive, send)``.

        Raises:
            RuntimeError: The server runs.
            TypeError: The application cannot be called.
            ValueError: No request has this path, or there is another application.
        """
        self._functions.add_mount(app, path, self._lifespan)
