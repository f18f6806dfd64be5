"""Messages that the server starts."""

import contextlib
import json
import socket

import load
import pytest

import harness
from harness import Client, serving
from wire import Wire

PUBLISH = harness.PROGRAMS / "publish.c"
LINE = b'{"jsonrpc":"2.0","method":"m","params":[1000]}\n'


@pytest.fixture
def publish(built, engine):
    with serving([built(PUBLISH), engine]) as server:
        yield server


def message(client: Client) -> object:
    received = client.message()
    assert (received["method"], received["jsonrpc"]) == ("m", "2.0")
    return received.get("params")


def test_publish_reaches_the_clients_of_all_threads(publish):
    with contextlib.ExitStack() as stack:
        # Enough that each thread has some.
        clients = [stack.enter_context(Client(publish.port)) for _ in range(24)]
        for client in clients:
            assert client.call("subscribe", {"topic": "t"})
        caller = stack.enter_context(Client(publish.port))
        for params in [[1, "é"], {"a": [None]}]:
            assert caller.call("publish", {"topic": "t", "params": json.dumps(params, indent=1)})
            assert [message(client) for client in clients] == [params] * 24
        assert caller.call("publish", {"topic": "t"})
        assert [message(client) for client in clients] == [None] * 24
        assert clients[0].call("unsubscribe", {"topic": "t"})
        assert caller.call("publish", {"topic": "t", "params": "[2]"})
        assert [message(client) for client in clients[1:]] == [[2]] * 23
        assert clients[0].call("refused") is False


def test_notify(publish):
    with Client(publish.port) as client, Client(publish.port) as other:
        assert client.call("notify")
        assert message(client) == {"a": [1]}
        client.submit("keep")
        # The call is deferred when this one, sent after it, returns.
        assert client.call("refused") is False
        assert other.call("finish") is True
        assert message(client) == [2]
        assert client.message()["result"] is True
        assert other.call("publish", {"topic": "kept", "params": "[3]"})
        assert message(client) == [3]


def test_limits(built, engine):
    with serving([built(PUBLISH), engine, 2, 5]) as server, Client(server.port) as client:
        topics = ["12345", "123456", "a", "a", "b"]
        subscribed = [client.call("subscribe", {"topic": topic}) for topic in topics]
        assert subscribed == [True, False, True, True, False]
        assert client.call("publish", {"topic": "123456"}) is False
        assert client.call("subscribe", {"topic": "a", "overflow": 3}) is False


@pytest.mark.parametrize(("messages", "length"), [(3, 0), (0, 3 * len(LINE))])
@pytest.mark.parametrize("overflow", [0, 1, 2], ids=["drop oldest", "drop newest", "close"])
def test_limits_of_waiting_messages(built, engine, messages, length, overflow):
    with serving([built(PUBLISH), engine, 0, 0, messages, length]) as server:
        for count in 3, 4:
            sent = [[1000 + number] for number in range(count)]
            with Client(server.port) as client, contextlib.ExitStack() as stack:
                assert client.call("subscribe", {"topic": "t", "overflow": overflow})
                client.submit("text", {"length": 16_000_000})
                assert client.socket.recv(1, socket.MSG_PEEK)
                # Enough that the thread of the client has some.
                others = [stack.enter_context(Client(server.port)) for _ in range(24)]
                for other in others:
                    assert other.call("subscribe", {"topic": "end"})
                for params in sent:
                    assert others[0].call("publish", {"topic": "t", "params": json.dumps(params)})
                caller = stack.enter_context(Client(server.port))
                assert caller.call("publish", {"topic": "end", "params": "[]"})
                assert [message(other) for other in others] == [[]] * 24
                if overflow == 2 and count == 4:
                    with contextlib.suppress(ConnectionError):
                        assert not client.take_to(b"\n").endswith(b"\n")
                    continue
                assert len(client.message()["result"]) == 16_000_000
                expected = sent[-3:] if overflow == 0 else sent[:3]
                assert [message(client) for _ in expected] == expected
                assert caller.call("publish", {"topic": "t", "params": "[]"})
                assert message(client) == []


def test_http_has_no_messages(publish):
    with Wire(publish.port) as wire:
        for method in "notify", "subscribe":
            wire.send(load.request(method, {"topic": "t"}, "1", http=True))
            assert json.loads(wire.reply()[2])["result"] is False
