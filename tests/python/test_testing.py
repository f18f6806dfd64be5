"""`ucall.testing`: clients that run a server in the process of a test, and contexts."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ucall
from harness import eventually, in_asyncio
from ucall.testing import AsyncTestClient, TestClient, context

TRANSPORTS: list[Any] = ["http", "ws", "tcp"]
MakeServer = Callable[..., ucall.Server]


@pytest.fixture
def make(engine: str) -> MakeServer:
    """Makes servers, on each engine in turn, whose port and files do not exist."""
    kind: type[ucall.Server] = importlib.import_module(f"ucall.{engine}").Server
    return kind


def sum(a: int, b: int) -> int:
    return a + b


def user(ctx: ucall.Context) -> Any:
    return ctx.user


def peer(ctx: ucall.Context) -> Any:
    return ctx.peer


def ones(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array + 1


def by_header(ctx: ucall.Context) -> str | None:
    return ctx.headers.get("x-user")


async def count(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        await asyncio.sleep(0)
        yield number


def server_of(make: MakeServer, *functions: Callable[..., Any], **options: Any) -> ucall.Server:
    server = make(**options)
    for function in functions:
        server.add(function)
    return server


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_streams_and_errors(make: MakeServer, transport: Any) -> None:
    server = server_of(make, sum, count, ones)
    with TestClient(server, transport=transport) as client:
        assert client.sum(2, 3).json == 5
        assert client.sum(2, "3").error.code == -32602
        assert client.absent().error.code == -32601
        assert list(client.stream.count(3)) == [0, 1, 2]
        with client.batch() as batch:
            three = batch.sum(1, 2)
        assert three.json == 3
        assert client.ones(np.zeros(1000)).numpy.sum() == 1000


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_asyncio
async def test_calls_streams_and_errors_in_asyncio(make: MakeServer, transport: Any) -> None:
    server = server_of(make, sum, count, ones)
    async with AsyncTestClient(server, transport=transport) as client:
        assert [it.json for it in await asyncio.gather(*(client.sum(i, 1) for i in range(9)))] == [
            *range(1, 10)
        ]
        assert (await client.sum(2, "3")).error.code == -32602
        assert [item async for item in client.stream.count(3)] == [0, 1, 2]
        assert (await client.ones(np.zeros(1000))).numpy.sum() == 1000


def test_functions_run_in_the_loop_of_the_test(make: MakeServer) -> None:
    async def run() -> None:
        loop, is_set = asyncio.get_running_loop(), asyncio.Event()

        async def wait() -> bool:
            await is_set.wait()
            return asyncio.get_running_loop() is loop

        async with AsyncTestClient(server_of(make, wait)) as client:
            waiting = asyncio.ensure_future(client.wait())
            await asyncio.sleep(0)
            is_set.set()
            assert (await waiting).json is True

    asyncio.run(run())


def test_uvloop(make: MakeServer) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        for transport in TRANSPORTS:
            server = server_of(make, sum, count)
            async with AsyncTestClient(server, transport=transport) as client:
                assert (await client.sum(2, 3)).json == 5
                assert [item async for item in client.stream.count(3)] == [0, 1, 2]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_nothing_listens_and_no_file_is_read(make: MakeServer) -> None:
    """While another program has the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tls = ucall.TLS(certfile="absent.pem")
        server = server_of(make, sum, port=taken.getsockname()[1], tls=tls)
        with TestClient(server) as client:
            assert client.sum(2, 3).json == 5
        asyncio.run(_sum_in_asyncio(server))
        with pytest.raises(FileNotFoundError):
            server.start()


async def _sum_in_asyncio(server: ucall.Server) -> None:
    async with AsyncTestClient(server) as client:
        assert (await client.sum(2, 3)).json == 5


def test_a_server_binds_its_address_after_tests(make: MakeServer) -> None:
    server = server_of(make, sum, port=0)
    with TestClient(server) as client:
        assert client.sum(1, 1).json == 2
        assert server.port is None
    with server, ucall.client.Client(port=server.port) as client:
        assert client.sum(2, 3).json == 5
    with TestClient(server) as client:
        assert client.sum(2, 2).json == 4


@pytest.mark.parametrize("transport", ["http", "ws"])
def test_auth_gets_the_headers(make: MakeServer, transport: Any) -> None:
    server = server_of(make, user, auth=by_header)
    with TestClient(server, transport=transport, headers={"X-User": "ada"}) as client:
        assert client.user().json == "ada"
        if transport == "http":
            assert client.with_options(headers={"X-User": "bob"}).user().json == "bob"
    with TestClient(server) as client, pytest.raises(ucall.HTTPError, match="401"):
        client.user()


def test_the_peer_is_this_process_or_that_of_a_trusted_header(make: MakeServer) -> None:
    server = server_of(make, peer, trusted_proxies=["unix:"])
    with TestClient(server) as client:
        assert client.peer().json == [os.getpid(), os.getuid(), os.getgid()]
        behind = client.with_options(headers={"X-Forwarded-For": "203.0.113.7"})
        assert behind.peer().json == ["203.0.113.7", 0]


def test_hooks_and_lifespan_run_each_time(make: MakeServer) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(_: ucall.Server) -> AsyncIterator[None]:
        events.append("enter")
        yield
        events.append("exit")

    server = server_of(make, sum, lifespan=lifespan)
    server.on_startup(lambda: events.append("start"))
    server.on_shutdown(lambda: events.append("stop"))
    expected = ["enter", "start", "call", "stop", "exit"]
    for _ in range(2):
        with TestClient(server) as client:
            assert client.sum(2, 3).json == 5
            events.append("call")
        assert events == expected
        events.clear()

    async def run() -> None:
        async with AsyncTestClient(server) as client:
            assert (await client.sum(2, 3)).json == 5
            events.append("call")

    asyncio.run(run())
    assert events == expected


class _StartupError(Exception):
    pass


def test_the_test_raises_what_a_startup_hook_raises(make: MakeServer) -> None:
    server, fails = server_of(make, sum), [True, True]

    @server.on_startup
    def fail() -> None:
        if fails and fails.pop():
            raise _StartupError

    async def enter() -> None:
        async with AsyncTestClient(server):
            entered.append(True)

    entered: list[bool] = []
    with pytest.raises(_StartupError), TestClient(server):
        entered.append(True)
    with pytest.raises(_StartupError):
        asyncio.run(enter())
    assert entered == []
    with TestClient(server) as client:
        assert client.sum(2, 3).json == 5


def test_the_test_raises_what_a_shutdown_hook_raises(make: MakeServer) -> None:
    server = server_of(make, sum)

    @server.on_shutdown
    def fail() -> None:
        raise _StartupError

    with pytest.raises(_StartupError):
        asyncio.run(_sum_in_asyncio(server))


def test_a_client_that_was_not_entered_says_so(make: MakeServer) -> None:
    server = server_of(make, sum)
    with pytest.raises(ucall.ConnectionError, match="the server does not run"):
        TestClient(server).sum(2, 3)
    with TestClient(server) as client:
        assert client.sum(2, 3).json == 5
    with pytest.raises(ucall.ConnectionError, match="the server does not run"):
        client.sum(2, 3)

    async def run() -> None:
        with pytest.raises(ucall.ConnectionError, match="the server does not run"):
            await AsyncTestClient(server).sum(2, 3)

    asyncio.run(run())


def test_a_server_that_runs_is_refused(make: MakeServer) -> None:
    server = server_of(make, sum, port=0)
    with TestClient(server) as client:
        with pytest.raises(RuntimeError, match="runs already"), TestClient(server):
            pass
        with pytest.raises(RuntimeError, match="runs already"):
            asyncio.run(_sum_in_asyncio(server))
        assert client.sum(2, 3).json == 5
    with server, pytest.raises(RuntimeError, match="runs already"), TestClient(server):
        pass


def test_subscriptions(make: MakeServer) -> None:
    def join(ctx: ucall.Context) -> None:
        ctx.subscribe("news")

    server = server_of(make, join)
    with TestClient(server, transport="ws") as client, client.subscribe() as messages:
        client.join()
        server.publish("news", "headline", ["hello"])
        assert next(iter(messages)) == ("headline", ["hello"])


def test_a_call_is_cancelled(make: MakeServer) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def sleep() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with TestClient(server_of(make, sleep), timeout=600) as client:
        with pytest.raises(ucall.TimeoutError):
            client.with_options(timeout=0.05).sleep()
        assert begun.wait(60) and cancelled.wait(60)


def test_background_functions_end_before_the_client_is_left(make: MakeServer) -> None:
    done = threading.Event()

    def later(ctx: ucall.Context) -> None:
        ctx.background(done.set)

    with TestClient(server_of(make, later)) as client:
        client.later()
    assert done.is_set()


def test_a_shutdown_delay_is_not_waited_for(make: MakeServer) -> None:
    server = server_of(make, sum, timeouts=ucall.Timeouts(shutdown_delay_s=600))
    with TestClient(server) as client:
        assert client.sum(2, 3).json == 5
    asyncio.run(_sum_in_asyncio(server))


def test_exceptions_are_logged(make: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise _StartupError("why")

    with TestClient(server_of(make, fail)) as client, caplog.at_level(logging.ERROR, "ucall"):
        assert client.fail().error.code == -32603
    assert "_StartupError: why" in caplog.text


def test_nothing_is_left_open(make: MakeServer) -> None:
    server = server_of(make, sum, count)

    def run(transport: Any) -> None:
        with TestClient(server, transport=transport) as client:
            assert client.sum(2, 3).json == 5
            assert next(iter(client.stream.count(9))) == 0

    for transport in TRANSPORTS:
        run(transport)
    files, threads = len(os.listdir("/dev/fd")), threading.active_count()
    for transport in TRANSPORTS * 3:
        run(transport)
    assert eventually(lambda: len(os.listdir("/dev/fd")) <= files)
    assert eventually(lambda: threading.active_count() <= threads)


def test_options_are_checked(make: MakeServer) -> None:
    server = make()
    with pytest.raises(TypeError, match=r"expected a ucall\.Server, got str"):
        TestClient("app")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="transport: expected 'http', 'ws' or 'tcp', got 'udp'"):
        TestClient(server, transport="udp")  # type: ignore[arg-type]
    for client in (TestClient(server), AsyncTestClient(server)):
        assert repr(client).startswith(f"<ucall.testing.{type(client).__name__} of <ucall.Server")
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(client)


def test_pytest_does_not_collect_the_client() -> None:
    assert TestClient.__test__ is False


def test_the_module_is_imported_on_demand() -> None:
    source = "import sys, ucall; before = 'ucall.testing' in sys.modules; ucall.testing.TestClient"
    done = subprocess.run([sys.executable, "-c", f"{source}; assert not before"], timeout=60)
    assert done.returncode == 0


def test_a_context_has_what_it_was_given() -> None:
    made = context(user="ada", headers={"X-Tea": "green", "Cookie": "a=1"}, peer=("::1", 9))
    assert (made.user, made.peer, made.transport) == ("ada", ("::1", 9), "http")
    assert made.headers == {"x-tea": "green", "cookie": "a=1"}
    process = ucall.Process(1, 2, 3)
    assert context(peer=process).peer == process
    empty = context()
    assert (empty.user, empty.peer, empty.headers) == (None, None, {})
    assert not empty.cancelled and empty.time_left is None and not empty.is_notification


def test_a_context_belongs_to_no_call() -> None:
    made = context()
    made.progress(1, 2)
    made.background(print, "never")

    async def never() -> None:
        raise AssertionError

    made.background(never())
    with pytest.raises(ucall.NoChannelError):
        made.notify("tick")


@pytest.mark.parametrize(
    "arguments",
    [
        {"peer": ("nowhere", 1)},
        {"peer": ("::1", 65536)},
        {"peer": "::1"},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "b\r\nx: y"}},
        {"headers": {"a": 1}},
    ],
)
def test_arguments_of_contexts_are_checked(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        context(**arguments)
