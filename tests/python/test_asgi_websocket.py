"""WebSockets of mounted applications."""

from __future__ import annotations

import asyncio
import socket as sockets
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import fastapi
import httpx
import pytest
from bodies import send_until_it_waits
from certificates import Authority, Files, authority, files
from functions import sum
from mounting import mounted
from websockets.asyncio.client import connect as connect_async
from websockets.sync.client import ClientConnection, connect

import ucall
from harness import HOST, Wire, eventually

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

UPGRADE = (
    f"GET /a HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()
ACCEPT = {"type": "websocket.accept"}

__all__ = ["authority", "files"]


def frame(text: bytes, opcode: int = 1) -> bytes:
    """A client's final frame of less than 126 bytes, whose mask changes nothing."""
    return bytes([0x80 | opcode, 0x80 | len(text)]) + bytes(4) + text


def opened(server: ucall.Server, path: str = "/socket", **options: Any) -> ClientConnection:
    options = {"ping_interval": None, **options}
    return connect(f"ws://{HOST}:{server.port}{path}", **options)


class Echo:
    """An application that echoes messages, and notes its scopes and how each socket has ended."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] == "websocket"
        self.scopes.append(scope)
        assert await receive() == {"type": "websocket.connect"}
        chosen = scope["subprotocols"][-1] if scope["subprotocols"] else None
        await send({**ACCEPT, "subprotocol": chosen, "headers": [(b"x-one", b"1")]})
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})
        self.ends.append(message)

    def has_ended(self, code: int, reason: str = "") -> bool:
        end = {"type": "websocket.disconnect", "code": code, "reason": reason}
        return eventually(lambda: self.ends == [end])


def test_the_scope_of_a_websocket(engine: str) -> None:
    app = Echo()
    with mounted(engine, app, path="/app") as server:
        offered: Any = ["a", "b"]
        with opened(server, "/app/so%20cket?q", subprotocols=offered) as socket:
            assert socket.subprotocol == "b"
            assert socket.response is not None
            assert socket.response.headers["x-one"] == "1"
        [scope] = app.scopes
        headers = dict(scope.pop("headers"))
        assert headers[b"upgrade"] == b"websocket"
        assert scope.pop("client")[0] == HOST
        assert scope == {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": "/app/so cket",
            "raw_path": b"/app/so%20cket",
            "query_string": b"q",
            "root_path": "/app",
            "subprotocols": ["a", "b"],
            "server": (HOST, server.port),
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }


MESSAGES = ["text é", b"bytes", "", b"", "a" * 125, "a" * 126, b"\0" * 65_536, "b" * 3_000_000]


def test_messages_of_both_kinds(engine: str) -> None:
    app = Echo()
    with mounted(engine, app) as server, opened(server, max_size=None) as socket:
        for message in MESSAGES:
            socket.send(message)
            assert socket.recv() == message
        socket.send(["of ", "frag", "ments"])
        assert socket.recv() == "of fragments"
        assert socket.ping(b"payload").wait(60)
        for message in MESSAGES[:5]:
            socket.send(message)
        assert [socket.recv() for _ in MESSAGES[:5]] == MESSAGES[:5]


async def _echo(url: str, context: ssl.SSLContext) -> None:
    # `websockets.sync` has two threads at one TLS, which `ssl` bears since 3.13.1 only.
    async with connect_async(url, ssl=context, max_size=None, ping_interval=None) as socket:
        for message in MESSAGES:
            await socket.send(message)
            assert await socket.recv() == message
        await (await socket.ping())


def test_a_websocket_under_tls(engine: str, files: Files, authority: Authority) -> None:
    app = Echo()
    tls = ucall.TLS(certfile=files.certificate, keyfile=files.key)
    with mounted(engine, app, tls=tls) as server:
        url = f"wss://localhost:{server.port}/socket"
        asyncio.run(_echo(url, authority.context()))
        assert app.scopes[0]["scheme"] == "wss"
        assert app.has_ended(1000)


def test_frames_that_come_before_the_reply(engine: str) -> None:
    accepts = threading.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await receive()
        while not accepts.is_set():
            await asyncio.sleep(0)
        await send(ACCEPT)
        for _ in range(2):
            message = await receive()
            await send({"type": "websocket.send", "text": message["text"]})

    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE + frame(b"one"))
        wire.send(frame(b"two"))
        accepts.set()
        assert b" 101 " in wire.take_to(b"\r\n\r\n")
        assert wire.take(10) == b"\x81\x03one\x81\x03two"


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        (lambda socket: socket.close(3001, "bye"), 3001, "bye"),
        (lambda socket: socket.close(), 1000, ""),
        (lambda socket: socket.socket.sendall(frame(b"", 8)), 1005, ""),
        (lambda socket: socket.socket.shutdown(sockets.SHUT_RDWR), 1006, ""),
    ],
)
def test_how_a_client_ends(engine: str, how: Any, code: int, reason: str) -> None:
    app = Echo()
    with mounted(engine, app) as server:
        how(opened(server))
        assert app.has_ended(code, reason)
        assert eventually(lambda: server.stats()["connections"] == 0)


class LateReceiver:
    """Accepts, and notes the messages and the code at their end once it may receive."""

    def __init__(self) -> None:
        self.may_receive, self.seen = threading.Event(), list[Any]()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await receive()
        await send(ACCEPT)
        while not self.may_receive.is_set():
            await asyncio.sleep(0.001)
        while (message := await receive())["type"] == "websocket.receive":
            self.seen.append(message.get("text") or message["bytes"])
        self.seen.append(message["code"])


def test_messages_before_a_close_arrive(engine: str) -> None:
    app = LateReceiver()
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        texts = [f"{number:0120}" for number in range(2000)]
        wire.send(b"".join(frame(text.encode()) for text in texts) + frame(b"\x0f\xa0", 8))
        app.may_receive.set()
        assert eventually(lambda: len(app.seen) == len(texts) + 1)
        assert app.seen == [*texts, 4000]


def test_the_close_of_a_client_passes_no_message(engine: str) -> None:
    """Also while the only call that its connection may have is this WebSocket."""
    app = LateReceiver()
    with mounted(engine, app, max_connection_calls=1) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        # More than waits for the application.
        wire.send(frame(b"x" * 100) * 1000 + frame(b"\x0f\xa0", 8))
        app.may_receive.set()
        assert eventually(lambda: app.seen == ["x" * 100] * 1000 + [4000])


def test_messages_before_a_close_count_as_held(engine: str) -> None:
    """Those for which there was no room, however short: each has objects of its own."""
    app = LateReceiver()
    with mounted(engine, app, path="/a", max_held_bytes=1_000_000) as server:
        url = f"http://{HOST}:{server.port}/readyz"
        with Wire(server.port) as wire:
            wire.send(UPGRADE)
            wire.take_to(b"\r\n\r\n")
            # 64 KiB wait in the connection.
            wire.send(frame(b"x") * 9_000)
            assert httpx.get(url).status_code == 200
            wire.send(frame(b"\x0f\xa0", 8))
            assert eventually(lambda: httpx.get(url).status_code == 503)
            app.may_receive.set()
            assert eventually(lambda: app.seen == ["x"] * 9_000 + [4000])
            assert eventually(lambda: httpx.get(url).status_code == 200)


def test_an_application_that_does_not_receive_makes_the_client_wait(engine: str) -> None:
    app = LateReceiver()
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        message = b"\x82\xff" + (1 << 16).to_bytes(8, "big") + bytes(4) + bytes(1 << 16)
        whole = message * 1024
        sent = send_until_it_waits(wire, whole)
        app.may_receive.set()
        wire.send(whole[sent:])
        assert eventually(lambda: app.seen == [bytes(1 << 16)] * 1024)


def test_control_frames_pass_messages_that_wait(engine: str) -> None:
    app, message = LateReceiver(), frame(b"x" * 100)
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        wire.send(message * 400 + frame(b"a", 9) + message * 400 + frame(b"b", 9))
        assert wire.take(6) == b"\x8a\x01a\x8a\x01b"
        wire.send(message + frame(b"\x0f\xa0", 8))
        assert wire.take(4) == b"\x88\x02\x0f\xa0"
        app.may_receive.set()
        assert eventually(lambda: app.seen == ["x" * 100] * 801 + [4000])


def test_an_application_that_never_receives(engine: str) -> None:
    options = {"ping_interval_s": 0.5, "max_unanswered_pings": 1}
    app, message = LateReceiver(), frame(b"x" * 100)
    with mounted(engine, app, **options) as server:
        # Its client is silent, and all of what it has sent was read.
        with Wire(server.port) as wire:
            wire.send(UPGRADE + message * 800)
            assert wire.take_to(b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")
            assert wire.take(2) == b"\x89\x00"
            assert wire.rest()[2:4] == (1008).to_bytes(2)
        # More waits than the connection holds.
        with Wire(server.port) as wire:
            wire.send(UPGRADE + message * 2_000)
            assert wire.take_to(b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")
            assert wire.take(2) == b"\x89\x00"
            assert wire.rest()[2:].startswith((1013).to_bytes(2) + b"the application receives")
        app.may_receive.set()
        assert eventually(lambda: 1013 in app.seen and 1008 in app.seen)


def test_a_slow_client_makes_send_wait(engine: str) -> None:
    sent, stop = 0, threading.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal sent
        assert scope["type"] != "lifespan"
        await receive()
        await send(ACCEPT)
        while not stop.is_set():
            await send({"type": "websocket.send", "bytes": bytes(64 << 10)})
            sent += 1

    with mounted(engine, app) as server, Wire(server.port, buffer_bytes=64 << 10) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        seen = [-1]

        def rests() -> bool:
            seen.append(sent)
            return seen[-1] == seen[-2] > 0

        assert eventually(lambda: all(rests() for _ in range(100)))
        assert sent < 512
        stop.set()


def test_pings_of_the_server(engine: str) -> None:
    app = Echo()
    options = {"ping_interval_s": 1, "max_unanswered_pings": 1}
    with mounted(engine, app, **options) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        assert wire.take(2) == b"\x89\x00"
        assert wire.take(2)[:1] == b"\x88"
        assert wire.take(2) == (1008).to_bytes(2, "big")
        wire.rest()
        assert eventually(lambda: [end["code"] for end in app.ends] == [1008])


def test_the_end_of_the_server(engine: str) -> None:
    app = Echo()
    with mounted(engine, app) as server:
        socket = opened(server)
        socket.send("text")
        assert socket.recv() == "text"
    code = socket.protocol.close_rcvd
    for _ in socket:
        pass
    code = socket.protocol.close_rcvd
    assert code is not None
    assert code.code == 1001
    assert app.has_ended(1001, "the server closes the connection")


def test_functions_keep_their_websocket(engine: str) -> None:
    app = Echo()
    with mounted(engine, app, sum) as server:
        for path in ["/", "/ws"]:
            with opened(server, path) as socket:
                socket.send('{"jsonrpc":"2.0","method":"sum","params":[1,2],"id":1}')
                assert socket.recv() == '{"jsonrpc":"2.0","id":1,"result":3}'
    assert app.scopes == []


def test_a_websocket_follows_requests_of_its_connection(engine: str) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await receive()
        if scope["type"] == "websocket":
            await send(ACCEPT)
            await send({"type": "websocket.send", "text": "open"})
            await receive()
            return
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"first"})

    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(f"GET /b HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() + UPGRADE)
        assert wire.reply()[2] == b"first"
        assert b" 101 " in wire.take_to(b"\r\n\r\n")
        assert wire.take(6) == b"\x81\x04open"


def test_pages_of_other_origins_are_the_applications(engine: str) -> None:
    app = Echo()
    with mounted(engine, app) as server, opened(server, origin="https://other.example") as socket:  # type: ignore[arg-type]
        socket.send("text")
        assert socket.recv() == "text"


def fastapi_rooms() -> fastapi.FastAPI:
    app = fastapi.FastAPI()
    members: set[fastapi.WebSocket] = set()

    @app.websocket("/rooms/{name}")
    async def room(socket: fastapi.WebSocket, name: str) -> None:
        await socket.accept()
        members.add(socket)
        await socket.send_json({"room": name})
        try:
            async for text in socket.iter_text():
                for member in members:
                    await member.send_text(text.upper())
        finally:
            members.discard(socket)

    @app.websocket("/private")
    async def private(socket: fastapi.WebSocket) -> None:
        raise fastapi.WebSocketException(code=1008)

    return app


def test_rooms_of_fastapi(engine: str) -> None:
    with mounted(engine, fastapi_rooms()) as server:
        with opened(server, "/rooms/one") as one, opened(server, "/rooms/one") as two:
            assert one.recv() == two.recv() == '{"room":"one"}'
            one.send("hello")
            assert one.recv() == two.recv() == "HELLO"
        with pytest.raises(Exception, match="403"):
            opened(server, "/private")
