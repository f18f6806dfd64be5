"""Hooks, and functions of all kinds, for the tests of `Server.middleware`."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import ucall

NewServer = Callable[..., ucall.Server]
Hook = Callable[[ucall.Context, ucall.Call], Any]

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="none")


@pytest.fixture
def new_server(engine: str) -> Iterator[NewServer]:
    """Makes servers, which a test starts."""
    servers: list[ucall.Server] = []

    def make(**options: Any) -> ucall.Server:
        server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(port=0, **options)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


def plain(ctx: ucall.Context, call: ucall.Call) -> Any:
    return call()


async def awaiting(ctx: ucall.Context, call: ucall.Call) -> Any:
    return await call()


def told(value: int) -> list[Any]:
    return [value, VARIABLE.get(), threading.current_thread().name.partition("-")[0]]


async def told_later(value: int) -> list[Any]:
    await asyncio.sleep(0)
    return told(value)


def items(count: int) -> Iterator[list[Any]]:
    for value in range(count):
        yield told(value)


async def items_later(count: int) -> AsyncIterator[list[Any]]:
    for value in range(count):
        yield await told_later(value)


def batch(values: list[int]) -> list[Any]:
    return [told(value) if value >= 0 else KeyError(value) for value in values]


async def batch_later(values: list[int]) -> list[Any]:
    return batch(values)


#: Functions by their kinds, with the options of `Server.add`.
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (told, {}),
    "threads": (told, {"threads": True}),
    "async": (told_later, {}),
    "generator": (items, {}),
    "thread generator": (items, {"threads": True}),
    "async generator": (items_later, {}),
}


def add(server: ucall.Server, kind: str) -> None:
    """Adds the function of a kind as ``f``."""
    function, options = KINDS[kind]
    server.add(function, "f", **options)
