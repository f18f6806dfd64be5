"""Servers with a mounted application."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ucall
from ucall.options import arguments

__all__ = ["mounted", "sends"]


@contextmanager
def mounted(
    engine: str, app: Any, *functions: Callable[..., Any], path: str = "/", **options: Any
) -> Iterator[ucall.Server]:
    """A server that runs with an application, and functions beside it."""
    kind = importlib.import_module(f"ucall.{engine}").Server
    server: ucall.Server = kind(port=0, **arguments(options))
    for function in functions:
        server.add(function)
    server.mount(path, app)
    with server:
        yield server


def sends(*messages: dict[str, Any]) -> Any:
    """An application without a lifespan that sends these messages."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        for message in messages:
            await send(message)

    return app
