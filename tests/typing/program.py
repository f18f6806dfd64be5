"""A program that serves, calls and queues, which `make lint-types` checks with mypy.

An unused `type: ignore` is an error, so errors that are expected here must remain errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_type

import ucall
from ucall import Context, RPCError, Server
from ucall import queue as nq
from ucall.aio import Client as AsyncClient
from ucall.client import Client, Response

server = Server(port=0, auth=ucall.auth.bearer({"s3cret": "alice"}), timeout_ms=500)


@dataclass
class User:
    name: str
    age: int = 0


@server
def greet(user: User) -> str:
    return f"Hello {user.name}"


@server(name="math.sum", threads=True)
def add(a: int, b: int) -> int:
    return a + b


@server
async def whoami(ctx: Context) -> str:
    if not ctx.user:
        raise RPCError(-1, "who?", {"user": None})
    return str(ctx.user)


@server.batch
def double(values: list[int]) -> list[int]:
    return [value * 2 for value in values]


@server.batch(max_size=8)
async def triple(values: list[int]) -> list[int]:
    return [value * 3 for value in values]


@server.on_startup
def begin() -> None: ...


async def send_mail(address: str, retries: int = 3) -> None: ...


@server
def register(ctx: Context) -> None:
    ctx.background(send_mail, "ada@example.com", retries=1)
    ctx.background(send_mail("ada@example.com"))
    ctx.background(print, "registered")
    ctx.background(send_mail, 5)  # type: ignore[call-overload]
    ctx.background("send_mail")  # type: ignore[call-overload]


@server.on_process_start
async def load(number: int) -> None: ...


@server.on_process_start
def connect() -> None: ...


@server.model
def weights(device: str | None) -> list[float]:
    return []


@server.model(in_processes=True)
async def vocabulary() -> dict[str, int]:
    return {}


server.register_type(complex, lambda it: [it.real, it.imag], lambda parts: complex(*parts))
server.registr_type  # type: ignore[attr-defined]  # noqa: B018
server.batch(double, max_sizes=8)  # type: ignore[call-overload]
ucall.urin  # type: ignore[attr-defined]  # noqa: B018
ucall.posix.Server(prot=8545)  # type: ignore[arg-type]


def types_of_decorated_functions() -> None:
    assert_type(greet(User("Ada")), str)
    assert_type(add(1, 2), int)
    assert_type(double([1]), list[int])
    assert_type(begin, Callable[[], None])
    assert_type(weights(), list[float])
    assert_type(vocabulary(), dict[str, int])
    assert_type(server.worker.index, int)
    assert_type(ucall.uring.Server().engine, str)


def calls() -> None:
    with Client("127.0.0.1", server.port) as client:
        response = client.greet(user={"name": "Ada"})
        assert_type(response, Response)
        assert_type(response.error, RPCError | None)
        assert_type(client.math.sum(2, 3).bytes, bytes)
        with client.batch() as batch:
            assert_type(batch.sum(1, 2), Response)
        try:
            assert_type(client.call("greet").json, Any)
        except (ucall.ConnectionError, ucall.TimeoutError):
            pass
        except RPCError as error:
            assert_type(error.code, int)
    ucall.client.Client(port="8545")  # type: ignore[arg-type]


async def awaited_calls() -> None:
    async with AsyncClient(port=server.port, headers={"Authorization": "Bearer s3cret"}) as client:
        assert_type(await client.whoami(), Response)
        assert_type(await triple([1]), list[int])
        async with client.batch() as batch:
            assert_type(batch.sum(1, 2), Response)


def queues() -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", 0))
    with ucall.queue.new(purpose=nq.Purpose.SERVER, options=options) as queue:
        future = queue.put("Hello")
        assert_type(future, nq.Future)
        assert_type(future.result(1), None)
        assert_type(queue.get(timeout=1), nq.Message)


async def awaited_queues() -> None:
    async with ucall.aio.queue.new(purpose=nq.Purpose.CLIENT) as queue:
        await queue.put("Hello")
        assert_type(await queue.get(timeout=5), nq.Message)
