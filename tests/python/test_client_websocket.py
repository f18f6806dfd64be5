"""The clients over WebSocket: calls of a real server, and frames of scripted ones."""

from __future__ import annotations

import itertools
import json
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from both_clients import NewClient
from certificates import Authority, Files, authority, files
from functions import sum
from scripted import Peer, http_reply, result, scripted
from serving import Serve
from websocket_peer import CLOSE, PING, PONG, accept, frame, read_call, read_frame, upgrade
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

import ucall
from harness import HOST, eventually
from ucall import _core
from ucall._client import link, reconnecting
from ucall.client import Client

__all__ = ["authority", "files"]

#: Far longer than any wait of these tests.
TIMEOUT_S = 30.0


def same(value: Any) -> Any:
    return value


Call = Callable[..., Any]


@pytest.fixture
def call(new_client: NewClient) -> Call:
    """The result of the method ``same``."""

    def call(uri: str, *args: Any, **options: Any) -> Any:
        with new_client(uri, **{"timeout": TIMEOUT_S, **options}) as client:
            return client.same(*args).json

    return call


def test_calls_of_each_kind(serve: Serve, new_client: NewClient) -> None:
    server = serve(sum, same)
    with new_client(f"ws://{HOST}:{server.port}/ws") as client:
        assert client.sum(2, 3).json == client.sum(a=2, b=3).json == 5
        assert client({"method": "sum", "params": [1, 1]}).json == 2
        assert client({"method": "sum", "params": [1, 1], "id": None}).json == 2
        with client.batch() as batch:
            three = batch.sum(1, 2)
            batch.notify("sum", 0, 0)
        assert three.json == 3
        client.notify("sum", 1, 1)
        with pytest.raises(ucall.RPCError, match="Method not found"):
            _ = client.absent().json
        for length in 0, 100, 1_000, 100_000:
            assert client.same("é" * length).json == "é" * length
        assert client.with_options(id="7f3a").sum(1, 1).id == "7f3a"
        assert list(client.stream.sum(1, 1)) == []
        # 30 days are more than poll takes.
        assert client.with_options(timeout=30 * 86_400).sum(1, 1).json == 2


def test_over_tls_and_a_unix_socket(
    serve_once: Serve, authority: Authority, files: Files, tmp_path: Path, call: Call
) -> None:
    secure = serve_once(same, ssl_certfile=files.certificate, ssl_keyfile=files.key)
    text = "é" * 300_000
    assert call(f"wss://localhost:{secure.port}", text, verify=authority.path) == text
    with pytest.raises(ucall.ConnectionError, match="certificate"):
        call(f"wss://localhost:{secure.port}", text)
    path = f"{tmp_path}/socket"
    serve_once(same, uds=path)
    assert call(f"ws+unix://{path}", text) == text


def test_headers_are_those_of_the_upgrade(
    serve_once: Serve, call: Call, new_client: NewClient
) -> None:
    server = serve_once(same, auth=ucall.auth.bearer({"s3cret": "ann"}))
    uri, headers = f"ws://{HOST}:{server.port}", {"Authorization": "Bearer s3cret"}
    assert call(uri, 1, headers=headers) == 1
    with pytest.raises(ucall.HTTPError) as raised:
        call(uri, 1)
    assert raised.value.status == 401
    with pytest.raises(ValueError, match="calls over WebSocket have none"):
        new_client(uri).with_options(headers=headers)
    with pytest.raises(ValueError, match="Sec-WebSocket-Key is set by the client"):
        new_client(uri, headers={"Sec-WebSocket-Key": "x"})


def test_the_upgrade_offers_jsonrpc_and_no_extensions(call: Call) -> None:
    heads = []

    def script(peer: Peer) -> None:
        upgrade(peer)
        heads.append(peer.head.lower())
        peer.send(frame(result(1, read_call(peer)["id"])))

    with scripted(script) as server:
        assert call(f"ws://{HOST}:{server.port}", 1) == 1
    [head] = heads
    assert b"\r\nsec-websocket-protocol: jsonrpc\r\n" in head
    assert b"sec-websocket-extensions" not in head


def test_threads_share_one_connection(serve: Serve) -> None:
    server = serve(same, threads=True)
    with Client(f"ws://{HOST}:{server.port}") as client:

        def calls(number: int) -> bool:
            return all(client.same([number, at]).json == [number, at] for at in range(50))

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(calls, range(16)))
        connection = client._pool.channel()._connection
        assert connection is not None and not connection._router._inboxes


def test_an_item_that_was_not_requested_ends_no_call(call: Call) -> None:
    def script(peer: Peer) -> None:
        upgrade(peer)
        id = read_call(peer)["id"]
        item = {"jsonrpc": "2.0", "method": "$/progress", "params": {"token": id, "value": 1}}
        peer.send(frame(json.dumps(item).encode()) + frame(b"received?", PING))
        assert read_frame(peer) == (PONG, b"received?")
        peer.send(frame(result("later", id)))

    with scripted(script) as server:
        assert call(f"ws://{HOST}:{server.port}", 1) == "later"


def test_replies_may_come_in_any_order_with_pings_between(call: Call) -> None:
    def script(peer: Peer) -> None:
        upgrade(peer)
        id = read_call(peer)["id"]
        text = result("é", id)
        peer.send(frame(b"1", PING) + frame(text[:9], first=0))
        peer.send(frame(b"2", PING), frame(text[9:], 0))
        pongs.append(read_frame(peer))
        while pongs[-1] != (PONG, b"2"):
            pongs.append(read_frame(peer))
        read_call(peer)

    pongs: list[tuple[int, bytes]] = []
    with scripted(script) as server:
        assert call(f"ws://{HOST}:{server.port}", 1) == "é"


def test_everything_may_come_in_single_bytes(call: Call) -> None:
    def script(peer: Peer) -> None:
        for byte in accept(peer):
            peer.send(bytes([byte]))
        id = read_call(peer)["id"]
        for byte in frame(result("x" * 200, id)):
            peer.send(bytes([byte]))
        read_call(peer)

    with scripted(script) as server:
        assert call(f"ws://{HOST}:{server.port}", 1) == "x" * 200


CLOSED = frame(struct.pack(">H", 1001) + b"drains", CLOSE)
BAD_FRAMES = {
    "a mask": (frame(b"{}", mask=0x80), "expected a frame without a mask"),
    "reserved bits": (frame(b"{}", first=0xC0), "expected no reserved bits"),
    "an opcode": (frame(b"{}", 3), "expected an opcode of RFC 6455"),
    "a long control frame": (frame(b"x" * 126, PING), "at most 125 bytes"),
    "a continuation": (frame(b"{}", 0), "expected the first frame of a message"),
    "many fragments": (frame(b"", first=0) + frame(b"", 0, first=0) * 1024, "at most 1024 frames"),
    "a large frame": (b"\x81\x7f" + struct.pack(">Q", 1 << 62), "larger than max_reply_bytes"),
    "a large message": (frame(b" " * 3000, first=0) + frame(b" " * 3000, 0), "max_reply_bytes"),
    "no JSON": (frame(b"no JSON"), 'is not JSON-RPC: "no JSON"'),
    "no reply": (frame(b'{"a":1}'), "is not JSON-RPC"),
    "a request": (frame(b'{"method":"a","id":1}'), "is not JSON-RPC"),
    "an end": (b"", "the server closed the connection instead of replying"),
    "half a frame": (frame(b"{}")[:3], "the server closed the connection within its reply"),
    "a Close frame": (CLOSED, "the server closed the WebSocket: 1001 drains"),
    "no code": (frame(b"", CLOSE), "the server closed the WebSocket without a code"),
}


@pytest.mark.parametrize(("bad", "message"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_bad_frames_are_errors(call: Call, bad: bytes, message: str) -> None:
    def script(peer: Peer) -> None:
        upgrade(peer)
        read_call(peer)
        peer.send(bad)

    with scripted(script) as server, pytest.raises(ucall.ConnectionError) as raised:
        call(f"ws://{HOST}:{server.port}", 1, max_reply_bytes=4096)
    assert message in str(raised.value)


WRONG_ACCEPT = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: abc\r\n\r\n"
BAD_UPGRADES = {
    "another proof": (WRONG_ACCEPT, "switches to another protocol"),
    "no upgrade": (http_reply(b"{}"), "HTTP without an upgrade to WebSocket"),
    "refused": (http_reply(b"who?", status="403 Forbidden"), "HTTP status 403 Forbidden: who?"),
    "refused until the end": (
        b"HTTP/1.1 403 Forbidden\r\n\r\nwho?",
        "HTTP status 403 Forbidden: who?",
    ),
    "no HTTP": (b"220 mail.example ESMTP\r\n", "HTTP with"),
    "an end": (b"", "closed the connection"),
}


@pytest.mark.parametrize(("reply", "message"), BAD_UPGRADES.values(), ids=BAD_UPGRADES)
def test_bad_upgrades_are_errors(call: Call, reply: bytes, message: str) -> None:
    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(reply)

    with scripted(script) as server, pytest.raises(ucall.ConnectionError) as raised:
        call(f"ws://{HOST}:{server.port}", 1)
    assert message in str(raised.value)


def test_extensions_are_refused(call: Call) -> None:
    def script(peer: Peer) -> None:
        head = accept(peer).removesuffix(b"\r\n")
        peer.send(head + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")

    with (
        scripted(script) as server,
        pytest.raises(ucall.ConnectionError, match="an extension of WebSocket"),
    ):
        call(f"ws://{HOST}:{server.port}", 1)


@pytest.mark.parametrize(
    "noise",
    [frame(b"", PING), frame(b"x", PONG), frame(b'{"jsonrpc":"2.0","method":"news"}')],
    ids=["pings", "pongs", "notifications"],
)
def test_a_peer_that_only_sends_noise_is_late(call: Call, noise: bytes) -> None:
    def script(peer: Peer) -> None:
        upgrade(peer)
        read_call(peer)
        while True:
            peer.send(noise)

    with (
        scripted(script) as server,
        pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.1 s"),
    ):
        call(f"ws://{HOST}:{server.port}", 1, timeout=0.1)


def test_an_upgrade_without_end_is_late(call: Call) -> None:
    with (
        scripted(lambda peer: peer.more() and peer.more() and None) as server,
        pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.3 s"),
    ):
        call(f"ws://{HOST}:{server.port}", 1, timeout=0.3)


def test_a_late_call_is_cancelled_and_its_reply_dropped(new_client: NewClient) -> None:
    calls: list[Any] = []

    def script(peer: Peer) -> None:
        upgrade(peer)
        for _ in range(3):
            calls.append(read_call(peer))
        peer.send(frame(result("late", calls[0]["id"])))
        peer.send(frame(result("in time", calls[2]["id"])))
        read_call(peer)

    with scripted(script) as server, new_client(f"ws://{HOST}:{server.port}") as client:
        with pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.2 s"):
            client.with_options(timeout=0.2).same(1)
        assert client.same(2).json == "in time"
        assert server.accepted == 1
    assert (calls[1]["method"], calls[1]["params"]) == ("$/cancelRequest", {"id": 1})


def test_an_idle_client_answers_pings(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient
) -> None:
    monkeypatch.setattr(link, "_POLL_S", 0.01)
    answered = threading.Event()

    def script(peer: Peer) -> None:
        upgrade(peer)
        peer.send(frame(result(1, read_call(peer)["id"])), frame(b"alive?", PING))
        if read_frame(peer) == (PONG, b"alive?"):
            answered.set()
        read_call(peer)

    with scripted(script) as server, new_client(f"ws://{HOST}:{server.port}") as client:
        assert client.same(1).json == 1
        assert answered.wait(TIMEOUT_S)


def test_a_closed_connection_is_opened_again(new_client: NewClient) -> None:
    def script(peer: Peer) -> None:
        upgrade(peer)
        peer.send(frame(result(1, read_call(peer)["id"])) + CLOSED)

    with scripted(script) as server, new_client(f"ws://{HOST}:{server.port}") as client:
        for number in 1, 2, 3:
            assert client.same(1).json == 1
            assert server.accepted == number
            assert eventually(lambda: server.ended == number)  # noqa: B023


def test_a_client_closes_with_a_frame(call: Call) -> None:
    closed: list[Any] = []
    ended = threading.Event()

    def script(peer: Peer) -> None:
        upgrade(peer)
        peer.send(frame(result(1, read_call(peer)["id"])))
        closed.append(read_frame(peer))
        ended.set()

    with scripted(script) as server:
        assert call(f"ws://{HOST}:{server.port}", 1) == 1
        assert ended.wait(TIMEOUT_S)
    assert closed == [(CLOSE, struct.pack(">H", 1000))]


def news(method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


def newspaper(count: int) -> Callable[[Peer], None]:
    """Sends that many notifications before each reply."""

    def script(peer: Peer) -> None:
        upgrade(peer)
        while True:
            id = read_call(peer)["id"]
            for number in range(count):
                peer.send(frame(news("news", [number])))
            peer.send(frame(result("sent", id)))

    return script


def test_notifications_of_a_subscription(new_client: NewClient) -> None:
    with scripted(newspaper(3)) as server, new_client(f"ws://{HOST}:{server.port}") as client:
        client.watch()
        with client.subscribe() as first, client.subscribe() as second:
            client.watch()
            for messages in first, second:
                assert [next(messages) for _ in range(3)] == [("news", [it]) for it in range(3)]
        assert next(first, None) is None, "it was closed"
    with pytest.raises(ValueError, match="HTTP has no messages that the server starts"):
        new_client("http://localhost").subscribe()


def test_a_subscription_that_is_not_read_loses_the_oldest(new_client: NewClient) -> None:
    with (
        scripted(newspaper(1500)) as server,
        new_client(f"ws://{HOST}:{server.port}") as client,
        client.subscribe() as messages,
    ):
        client.watch()
        assert [next(messages)[1][0] for _ in range(1024)] == list(range(476, 1500))
    large = "x" * 1000

    def script(peer: Peer) -> None:
        upgrade(peer)
        id = read_call(peer)["id"]
        for number in range(1000):
            peer.send(frame(news("news", [number, large])))
        peer.send(frame(result("sent", id)))
        read_call(peer)

    with (
        scripted(script) as server,
        new_client(f"ws://{HOST}:{server.port}", max_waiting_bytes=524_288) as client,
        client.subscribe() as messages,
    ):
        client.watch()
        assert 480 < next(messages)[1][0] < 525


def test_subscriptions_over_raw_tcp(new_client: NewClient) -> None:
    def script(peer: Peer) -> None:
        id = json.loads(peer.raw_request())["id"]
        peer.send(news("news", {"a": 1}) + b"\n" + result("sent", id) + b"\n")
        peer.raw_request()

    with scripted(script) as server:
        with new_client(f"tcp://{HOST}:{server.port}") as client:
            assert client.watch().json == "sent", "without a subscription"
        with new_client(f"tcp://{HOST}:{server.port}") as client, client.subscribe() as messages:
            assert client.watch().json == "sent"
            assert next(messages) == ("news", {"a": 1})


def leaving(peer: Peer) -> None:
    """Sends one notification to each call, and leaves."""
    upgrade(peer)
    peer.send(frame(result("sent", read_call(peer)["id"])), frame(news("news", None)))


def test_a_subscription_reconnects(new_client: NewClient) -> None:
    def refusing(peer: Peer) -> None:
        peer.http_request()

    with scripted(leaving, refusing, leaving) as server:
        with (
            new_client(f"ws://{HOST}:{server.port}", reconnect=True) as client,
            client.subscribe(lambda: client.watch()) as messages,
        ):
            assert [next(messages) for _ in range(2)] == [("news", None)] * 2
        assert server.accepted == 3


def test_without_reconnect_a_call_connects_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "backoff", lambda: itertools.repeat(0.0))

    def refuse(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(b"full", status="503 Service Unavailable"))

    with scripted(refuse) as server, pytest.raises(ucall.HTTPError):
        Client(f"ws://{HOST}:{server.port}", timeout=1).same(1)
    assert server.accepted == 1


def test_without_reconnect_a_subscription_ends_with_its_connection(new_client: NewClient) -> None:
    with (
        scripted(leaving) as server,
        new_client(f"ws://{HOST}:{server.port}") as client,
        client.subscribe(lambda: client.watch()) as messages,
    ):
        assert next(messages) == ("news", None)
        with pytest.raises(ucall.ConnectionError):
            next(messages)
    with pytest.raises(ValueError, match="reconnect: HTTP has no connection to keep"):
        new_client(reconnect=True)


def test_a_call_waits_for_a_server_that_starts_later(call: Call) -> None:
    def refusing(peer: Peer) -> None:
        peer.http_request()

    def script(peer: Peer) -> None:
        upgrade(peer)
        peer.send(frame(result(1, read_call(peer)["id"])))
        read_call(peer)

    with scripted(refusing, refusing, script) as server:
        uri = f"ws://{HOST}:{server.port}"
        assert call(uri, 1, reconnect=True) == 1
    with scripted(refusing) as server:
        uri = f"ws://{HOST}:{server.port}"
        with pytest.raises((ucall.ConnectionError, ucall.TimeoutError)):
            call(uri, 1, reconnect=True, timeout=0.5)


def test_a_server_of_the_package_websockets(new_client: NewClient) -> None:
    """With its pings, and permessage-deflate, which the client does not offer."""

    def serve_calls(socket: ServerConnection) -> None:
        for text in socket:
            socket.ping()
            received = json.loads(text)
            for number in range(3):
                params = {"token": received["_meta"]["progressToken"], "value": number}
                socket.send(news("$/progress", params).decode())
            socket.send(result("end", received["id"]).decode())

    with serve_websocket(serve_calls, HOST, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.socket.getsockname()[1]
        with new_client(f"ws://{HOST}:{port}") as client:
            stream = client.stream.generate()
            assert (list(stream), stream.result) == ([0, 1, 2], "end")
        server.shutdown()
        thread.join()


def test_the_reader_finds_messages_cut_at_every_byte() -> None:
    head = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: abc\r\n\r\n"
    text = head + frame(result(1)) + frame(b"p", PING) + frame(news("a", [2]))
    for cut in range(len(text) + 1):
        reader = _core.ReplyReader(http=False, reply_bytes_max=1000, accept=b"abc")
        reply, notification = reader.feed(text[:cut]) + reader.feed(text[cut:])
        assert isinstance(reply, _core.Reply) and reply.result() == 1
        assert isinstance(notification, _core.Notification)
        assert (notification.method, notification.params) == ("a", [2])
        assert (notification.token, notification.value) == (None, None)
        assert reader.take_ping() == b"p" and reader.take_ping() is None


@pytest.mark.parametrize("scheme", ["ws", "tcp"])
def test_the_reason_of_the_server_outlives_a_failed_send(
    serve: Serve, new_client: NewClient, scheme: str
) -> None:
    """The server closes a connection while the client still sends."""
    server = serve(same, max_body_bytes=1000)
    with new_client(f"{scheme}://{HOST}:{server.port}") as client:
        client.subscribe()  # After it, calls over raw TCP share a connection.
        with pytest.raises((ConnectionError, ucall.RPCError), match=r"expected a .* of at most"):
            _ = client.same("x" * (20 << 20)).json


def test_closing_a_client_ends_its_subscriptions(new_client: NewClient) -> None:
    def script(peer: Peer) -> None:
        upgrade(peer)
        read_call(peer)

    opened = threading.Event()
    with scripted(script) as server:
        client = new_client(f"ws://{HOST}:{server.port}", reconnect=True)
        messages = client.subscribe(opened.set)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, messages)
            assert opened.wait(TIMEOUT_S)
            client.close()
            assert rest.result() == []


def test_a_dropped_subscription_is_closed() -> None:
    client = Client("ws://localhost")
    client.subscribe()
    assert client._pool.channel().subscriptions == []
