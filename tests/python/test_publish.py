"""Messages that the server starts: to one client, to the subscribers of a topic, and sessions."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from contextlib import ExitStack, suppress
from typing import Any, Literal

import pytest
import trustme
from message_client import Client
from serving import Serve

import ucall
from harness import HOST, Wire, eventually, http, request


def subscribe(
    ctx: ucall.Context,
    topic: str,
    overflow: Literal["drop_oldest", "drop_newest", "close"] = "drop_oldest",
) -> bool:
    ctx.subscribe(topic, overflow)
    return True


def unsubscribe(ctx: ucall.Context, topic: str) -> bool:
    ctx.unsubscribe(topic)
    return True


Certified = tuple[dict[str, Any], ssl.SSLContext]


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """Options of a server with a certificate, and a client's context that trusts it."""
    authority, folder = trustme.CA(), tmp_path_factory.mktemp("certificate")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    certificate = authority.issue_cert(HOST).private_key_and_cert_chain_pem
    certificate.write_to_path(str(folder / "server.pem"))
    return {"ssl_certfile": folder / "server.pem"}, context


@pytest.fixture(params=["raw", "websocket"])
def over(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def _publisher(server: ucall.Server) -> None:
    @server
    def publish(topic: str, method: str, params: Any = None) -> bool:
        server.publish(topic, method, params)
        return True


def test_topics(serve: Serve, over: str) -> None:
    server = serve(subscribe, unsubscribe)
    with ExitStack() as stack:
        news, both, other = [stack.enter_context(Client(over, server.port)) for _ in range(3)]
        for client, topic in (news, "news"), (both, "news"), (both, "sport"), (other, "sport"):
            assert client.call("subscribe", topic)
        assert server.stats()["subscriptions"] == 4
        server.publish("news", "changed", {"é": [1, None]})
        server.publish("sport", "changed", [2])
        server.publish("nobody", "changed")
        server.publish("news", "bare")
        assert news.message() == ("changed", {"é": [1, None]})
        assert news.message() == ("bare", None)
        received = [both.message() for _ in range(3)]
        assert received == [("changed", {"é": [1, None]}), ("changed", [2]), ("bare", None)]
        assert other.message() == ("changed", [2])
        assert both.call("unsubscribe", "news")
        assert both.call("unsubscribe", "nobody")
        server.publish("news", "again")
        server.publish("sport", "again")
        assert (news.message(), both.message()) == (("again", None), ("again", None))
        assert server.stats()["subscriptions"] == 3
    assert eventually(lambda: server.stats()["subscriptions"] == 0)


def test_both_protocols_get_one_publication(serve: Serve) -> None:
    server = serve(subscribe)
    with Client("raw", server.port) as raw, Client("websocket", server.port) as websocket:
        assert raw.call("subscribe", "t") and websocket.call("subscribe", "t")
        for length in 0, 125, 126, 65_535, 65_536, 1_000_000:
            server.publish("t", "m", ["x" * length])
            assert raw.message() == websocket.message() == ("m", ["x" * length])


def test_publish_from_functions_of_every_kind(hosted: Serve, over: str) -> None:
    server = hosted(subscribe)
    _publisher(server)

    @server(threads=True)
    def publish_in_thread(number: int) -> bool:
        server.publish("t", "m", [number])
        return True

    @server
    async def publish_in_task(number: int) -> bool:
        await asyncio.sleep(0)
        server.publish("t", "m", [number])
        return True

    with Client(over, server.port) as subscriber, Client(over, server.port) as caller:
        assert subscriber.call("subscribe", "t")
        assert caller.call("publish", "t", "m", [1])
        assert subscriber.message() == ("m", [1])
        assert caller.call("publish_in_thread", 2)
        assert subscriber.message() == ("m", [2])
        assert caller.call("publish_in_task", 3)
        assert subscriber.message() == ("m", [3])
        server.publish("t", "m", [4])
        assert subscriber.message() == ("m", [4])


def test_many_threads_publish_in_their_order(serve: Serve, over: str) -> None:
    server = serve(subscribe)

    def publish(thread: int) -> None:
        for number in range(200):
            server.publish("t", "m", [thread, number])

    with Client(over, server.port) as client:
        assert client.call("subscribe", "t")
        threads = [threading.Thread(target=publish, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        received = [client.message()[1] for _ in range(800)]
        for thread in threads:
            thread.join()
    for thread_number in range(4):
        numbers = [number for thread, number in received if thread == thread_number]
        assert numbers == list(range(200))


def test_notify_precedes_the_reply_of_tasks_and_threads(serve: Serve, over: str) -> None:
    async def task(ctx: ucall.Context) -> str:
        ctx.notify("step", [1])
        await asyncio.sleep(0.001)
        ctx.notify("step", {"number": 2})
        return "done"

    async def without_waiting(ctx: ucall.Context) -> str:
        ctx.notify("step", [1])
        ctx.notify("step", {"number": 2})
        return "done"

    def thread(ctx: ucall.Context) -> str:
        ctx.notify("step", (1,))
        ctx.notify("step", {"number": 2})
        return "done"

    def plain(ctx: ucall.Context) -> str:
        ctx.notify("step")
        return "done"

    server = serve(task, without_waiting, plain)
    server.add(thread, threads=True)
    with Client(over, server.port) as client:
        for method in ("task", "without_waiting", "thread") * 20:
            client.send(method)
            assert client.message() == ("step", [1])
            assert client.message() == ("step", {"number": 2})
            assert client.next()["result"] == "done"
        assert client.call("plain") == "done"
        assert client.message() == ("step", None)


def test_http_has_no_channel(serve_once: Serve) -> None:
    raised: list[str] = []

    def attempt(ctx: ucall.Context) -> None:
        for use in (
            lambda: ctx.notify("m"),
            lambda: ctx.subscribe("t"),
            lambda: ctx.unsubscribe("t"),
        ):
            with pytest.raises(ucall.NoChannelError) as refused:
                use()
            raised.append(str(refused.value))
        assert isinstance(refused.value, RuntimeError)

    server = serve_once(attempt)
    with Wire(server.port) as wire:
        wire.send(http(request("attempt")))
        assert b'"result":null' in wire.reply()[2]
    reason = "messages of the server need a WebSocket or raw TCP: call over one of them"
    assert raised == [f"{reason} [-32600]"] * 3


def test_a_client_without_a_channel_learns_what_to_use(
    serve_once: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def build(ctx: ucall.Context) -> None:
        ctx.notify("step")

    server = serve_once(build)
    with Wire(server.port) as wire:
        wire.send(http(request("build")))
        error = json.loads(wire.reply()[2])["error"]
    assert error["code"] == -32600 and "WebSocket or raw TCP" in error["message"]
    assert "build raised" in caplog.text and "NoChannelError" in caplog.text


def test_wrong_arguments(serve_once: Serve) -> None:
    def attempt(ctx: ucall.Context) -> None:
        with pytest.raises(TypeError, match=r"params: expected a list, a tuple .*got int"):
            ctx.notify("m", 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"object cannot be written as JSON"):
            ctx.notify("m", [object()])
        with pytest.raises(ValueError, match=r"larger than a reply may be \(max_reply_bytes\)"):
            ctx.notify("m", ["x" * 2000])
        with pytest.raises(ValueError, match=r"overflow: expected 'drop_oldest'.*\"pause\""):
            ctx.subscribe("t", "pause")  # type: ignore[arg-type]

    server = serve_once(attempt, subscribe, max_reply_bytes=1000, max_topic_bytes=5)
    with Client("raw", server.port) as client:
        assert client.call("attempt") is None
    with pytest.raises(ValueError, match=r"topic: expected at most 5 bytes \(max_topic_bytes\)"):
        server.publish("longer", "m")
    with pytest.raises(TypeError, match="params: expected"):
        server.publish("t", "m", "text")


def test_limits(serve_once: Serve) -> None:
    server = serve_once(subscribe, unsubscribe, max_subscriptions=2, max_topic_bytes=5)
    with Client("raw", server.port) as client:
        assert client.call("subscribe", "12345")
        client.send("subscribe", "123456")
        error = client.next()["error"]
        assert (error["code"], error["data"]) == (
            -32602,
            "max_topic_bytes: expected a topic of at most 5 bytes",
        )
        assert client.call("subscribe", "2") and client.call("subscribe", "2")
        client.send("subscribe", "3")
        assert client.next()["error"] == {
            "code": -32003,
            "message": "Overloaded",
            "data": {"max_subscriptions": 2},
        }
        assert client.call("unsubscribe", "2") and client.call("subscribe", "3")


def test_subscriptions_hold_half_of_the_memory(serve_once: Serve) -> None:
    server = serve_once(subscribe, max_held_bytes=65_536, max_body_bytes=16_384)
    with Client("raw", server.port) as client:
        for number in range(1000):
            client.send("subscribe", f"{number:0200}")
            reply = client.next()
            if "error" in reply:
                break
    assert 10 < number < 1000
    # Its members tell a client of several servers that the function has begun.
    assert reply["error"] == {
        "code": -32003,
        "message": "Overloaded",
        "data": {"max_held_bytes": "subscriptions hold half of max_held_bytes already"},
    }


def test_a_function_may_catch_the_limit_on_subscriptions(serve_once: Serve) -> None:
    def follow(ctx: ucall.Context, topics: list[str]) -> list[str]:
        """Follows the last of these, as far as the limit allows."""
        refused = []
        for topic in topics:
            try:
                ctx.subscribe(topic)
            except ucall.RPCError as error:
                assert error.code == -32003
                refused.append(topic)
        return refused

    server = serve_once(follow)
    topics = [str(number) for number in range(1_025)]
    with Client("raw", server.port) as client:
        assert client.call("follow", topics) == ["1024"]
        server.publish("1023", "m")
        assert client.message() == ("m", None)


#: More than the buffers of two sockets have room for, if one is not read.
LONG = 8_000_000


def long_text() -> str:
    return "x" * LONG


def numbered(number: int, line_length: int) -> list[Any]:
    """Params of a message whose line has this length."""
    empty = json.dumps({"jsonrpc": "2.0", "method": "m", "params": [number, ""]}) + "\n"
    return [number, "x" * (line_length - len(empty.replace(" ", "")))]


def publish_to_busy(server: ucall.Server, client: Client, lines: list[list[Any]]) -> None:
    """Publishes to `t` while a client does not read the reply that it gets."""
    client.send("long_text")
    assert client.wire.socket.recv(1, socket.MSG_PEEK)
    with Client("raw", server.port) as other:
        assert other.call("subscribe", "end")
        for params in lines:
            server.publish("t", "m", params)
        server.publish("end", "end")
        assert other.message() == ("end", None)


@pytest.mark.parametrize(
    ("options", "line_length", "count"),
    [
        ({}, 100, 1_024),
        ({}, 65_536, 16),
        ({"max_waiting_messages": 3}, 100, 3),
        ({"max_waiting_message_bytes": 300}, 100, 3),
        ({"max_waiting_message_bytes": 301}, 100, 4),
    ],
)
@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "close"])
def test_limits_of_waiting_messages(
    serve: Serve, overflow: str, options: dict[str, int], line_length: int, count: int
) -> None:
    server = serve(subscribe, long_text, **options)
    for more in 0, 1:
        sent = [numbered(number, line_length) for number in range(count + more)]
        with Client("raw", server.port) as client:
            assert client.call("subscribe", "t", overflow)
            publish_to_busy(server, client, sent)
            if overflow == "close" and more:
                assert eventually(lambda: server.stats()["connections"] == 0)
                with suppress(ConnectionError):
                    assert b"\n" not in client.wire.rest()
                continue
            assert len(client.next()["result"]) == LONG
            expected = sent[more:] if overflow == "drop_oldest" else sent[:count]
            assert [client.message()[1] for _ in expected] == expected
            server.publish("t", "last")
            assert client.message() == ("last", None)
    assert server.stats()["dropped_messages"] == (overflow != "close")


def _receive_slowly(client: Client) -> list[int]:
    """The numbers of the messages up to the last."""
    numbers: list[int] = []
    while not numbers or numbers[-1] >= 0:
        _, [number, _] = client.message()
        numbers.append(number)
    return numbers


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_a_slow_reader_loses_messages_and_delays_no_other(
    serve: Serve, overflow: str, tls: bool, certified: Certified
) -> None:
    options, context = certified if tls else ({}, None)
    server = serve(subscribe, **options)
    padding = "x" * 10_000
    with Client("raw", server.port, context) as slow, Client("raw", server.port, context) as quick:
        assert slow.call("subscribe", "t", overflow)
        assert quick.call("subscribe", "t", "close")
        # Far more than the sockets' buffers take.
        for number in range(1_000):
            server.publish("t", "m", [number, padding])
            assert quick.message() == ("m", [number, padding])
        dropped = server.stats()["dropped_messages"]
        assert dropped > 0
        last = threading.Event()

        def end() -> None:
            while not last.wait(0.01):
                server.publish("t", "m", [-1, ""])

        ender = threading.Thread(target=end)
        ender.start()
        try:
            numbers = _receive_slowly(slow)[:-1]
        finally:
            last.set()
            ender.join()
        assert numbers == sorted(set(numbers))
        if overflow == "drop_oldest":
            assert numbers[0] == 0 and numbers[-1] == 999
        else:
            assert numbers[0] == 0 and numbers[-1] < 999


def test_a_slow_reader_may_be_closed(serve: Serve) -> None:
    server = serve(subscribe)
    with Client("raw", server.port) as slow, Client("websocket", server.port) as quick:
        assert slow.call("subscribe", "t", "close")
        assert quick.call("subscribe", "t")

        def is_closed() -> bool:
            server.publish("t", "m", ["x" * 100_000])
            quick.message()
            return bool(server.stats()["subscriptions"] == 1)

        assert eventually(is_closed)
        with suppress(ConnectionError):
            while slow.wire.line():
                pass


def test_tls(serve: Serve, over: str, certified: Certified) -> None:
    options, context = certified

    async def work(ctx: ucall.Context) -> str:
        ctx.notify("step", [1])
        return "done"

    server = serve(subscribe, work, **options)
    with (
        Client(over, server.port, context) as first,
        Client(over, server.port, context) as second,
    ):
        assert first.call("subscribe", "t") and second.call("subscribe", "t")
        for length in 0, 100, 20_000, 300_000:
            server.publish("t", "m", ["x" * length])
            server.publish("t", "m", [2])
            for client in first, second:
                assert client.message() == ("m", ["x" * length])
                assert client.message() == ("m", [2])
        second.send("work")
        received = [second.next(), second.next()]
        assert {"method", "result"} <= received[0].keys() | received[1].keys()


def test_sessions(serve: Serve, over: str, caplog: pytest.LogCaptureFixture) -> None:
    closed: list[Any] = []

    def login(ctx: ucall.Context, name: str) -> int:
        ctx.connection.data["name"] = name

        @ctx.connection.on_close
        def first() -> None:
            closed.append((name, threading.current_thread().name))
            raise ValueError("after it closed")

        ctx.connection.on_close(lambda: closed.append(ctx.connection.data["name"] + "!"))
        return ctx.connection.id

    def name(ctx: ucall.Context) -> Any:
        return ctx.connection.data.get("name")

    def same(ctx: ucall.Context) -> bool:
        return ctx.connection is ctx.connection

    async def name_later(ctx: ucall.Context) -> Any:
        await asyncio.sleep(0)
        return ctx.connection.data.get("name")

    server = serve(login, name, name_later, same)
    with Client(over, server.port) as ada, Client(over, server.port) as bob:
        assert ada.call("login", "ada") != bob.call("login", "bob")
        assert (ada.call("name"), bob.call("name_later")) == ("ada", "bob")
        assert ada.call("same")
        ada.close()
        assert eventually(lambda: len(closed) == 2), closed
        assert closed == [("ada", f"ucall:{server.port}"), "ada!"]
        assert "a function of on_close raised" in caplog.text
        assert "after it closed" in caplog.text
        assert bob.call("name") == "bob"
    assert eventually(lambda: len(closed) == 4)


def test_sessions_over_http_end_with_the_server(serve_once: Serve) -> None:
    closed: list[str] = []

    def visit(ctx: ucall.Context) -> int:
        if not ctx.connection.data:
            ctx.connection.on_close(lambda: closed.append("closed"))
        ctx.connection.data["visits"] = ctx.connection.data.get("visits", 0) + 1
        visits: int = ctx.connection.data["visits"]
        return visits

    server = serve_once(visit)
    with Wire(server.port) as wire:
        for visits in 1, 2, 3:
            wire.send(http(request("visit")))
            assert json.loads(wire.reply()[2])["result"] == visits
        server.stop()
    assert closed == ["closed"]


def test_a_session_outlives_its_connection_in_a_call(serve: Serve) -> None:
    closed: list[str] = []
    started, left = threading.Event(), threading.Event()
    seen: list[Any] = []

    def wait(ctx: ucall.Context) -> None:
        ctx.connection.data["name"] = "ada"
        started.set()
        left.wait()
        seen.append(ctx.connection.data["name"])
        # The connection is closed: it is called soon.
        ctx.connection.on_close(lambda: closed.append("late"))
        ctx.subscribe("t")
        ctx.notify("dropped")

    server = serve()
    server.add(wait, threads=True)
    with Client("raw", server.port) as client:
        client.send("wait")
        # A call that has not started would be cancelled.
        assert started.wait(60)
        # The connection is reset.
        client.wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert eventually(lambda: server.stats()["connections"] == 0)
    left.set()
    assert eventually(lambda: closed == ["late"])
    assert seen == ["ada"]
    assert eventually(lambda: server.stats()["subscriptions"] == 0)


def test_auth_may_use_the_session(serve_once: Serve) -> None:
    def auth(ctx: ucall.Context) -> str:
        with pytest.raises(ucall.NoChannelError):
            ctx.notify("m")
        ctx.connection.data["visits"] = 0
        return "ada"

    def visits(ctx: ucall.Context) -> Any:
        ctx.connection.data["visits"] += 1
        return ctx.connection.data["visits"]

    server = serve_once(visits, auth=auth)
    with Client("websocket", server.port) as client:
        assert [client.call("visits") for _ in range(3)] == [1, 2, 3]


def test_a_subscriber_is_not_idle(serve: Serve, over: str) -> None:
    server = serve(subscribe, unsubscribe, idle_timeout_s=0.05)
    with Client(over, server.port) as subscriber:
        assert subscriber.call("subscribe", "t")
        for _ in range(2):
            # Closed because it is idle, which the subscriber has been for longer.
            with Wire(server.port) as idle:
                assert idle.rest() == b""
        server.publish("t", "m", [1])
        assert subscriber.message() == ("m", [1])
        if over == "raw":
            assert subscriber.call("unsubscribe", "t")
            assert subscriber.wire.rest() == b""


def test_stop_with_subscribers(serve: Serve, over: str) -> None:
    server = serve(subscribe)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(over, server.port)) for _ in range(50)]
        for client in clients:
            assert client.call("subscribe", "t")
        server.publish("t", "last")
        for client in clients:
            assert client.message() == ("last", None)
        server.stop()
        assert server.stats()["subscriptions"] == 0
        server.publish("t", "nobody")
