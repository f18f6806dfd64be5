"""Applications and clients that do wrong with a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mounting import mounted
from test_asgi_websocket import ACCEPT, UPGRADE, Echo, Receive, Send, frame, opened
from websockets.exceptions import ConnectionClosed, InvalidStatus

from harness import Wire, eventually

TEXT = {"type": "websocket.send", "text": "hello"}
CLOSE = {"type": "websocket.close", "code": 4000, "reason": "done"}


def sends(*messages: dict[str, Any], waits: bool = False, error: Exception | None = None) -> Any:
    """An application that sends these messages, raises, and keeps what `send` raised."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] == "websocket"
        assert (await receive())["type"] == "websocket.connect"
        if waits:
            await asyncio.sleep(0)
        for message in messages:
            try:
                await send(message)
            except Exception as raised:
                app.raised.append(raised)
                raise
        if error is not None:
            raise error

    app.raised = []
    return app


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("messages", "error", "code", "reason"),
    [
        ([CLOSE], None, 4000, "done"),
        ([{"type": "websocket.close"}], None, 1000, ""),
        ([], None, 1000, ""),
        ([], KeyError("broken"), 1011, ""),
        ([ACCEPT], None, 1011, ""),
        ([{"type": "websocket.send"}], None, 1011, ""),
        ([{"type": "websocket.send", "text": b"bytes"}], None, 1011, ""),
        ([{**CLOSE, "code": 1006}], None, 1011, ""),
        ([{**CLOSE, "reason": "é" * 62}], None, 1011, ""),
    ],
)
def test_how_an_application_ends_an_open_websocket(
    engine: str,
    messages: list[dict[str, Any]],
    error: Exception | None,
    code: int,
    reason: str,
    waits: bool,
) -> None:
    app = sends(ACCEPT, TEXT, *messages, waits=waits, error=error)
    with mounted(engine, app) as server:
        with opened(server) as socket:
            assert socket.recv() == "hello"
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, reason)
        assert eventually(lambda: server.stats()["connections"] == 0)


DENIAL = [
    {"type": "websocket.http.response.start", "status": 401, "headers": [(b"x-why", b"key")]},
    {"type": "websocket.http.response.body", "body": b"who", "more_body": True},
    {"type": "websocket.http.response.body", "body": b"?"},
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("messages", "error", "status"),
    [
        ([{"type": "websocket.close"}], None, 403),
        (DENIAL, None, 401),
        ([], None, 500),
        ([], KeyError("broken"), 500),
        ([TEXT], None, 500),
        ([{**ACCEPT, "subprotocol": "a b"}], None, 500),
        ([{**ACCEPT, "headers": [(b"a", b"b\r\nc: d")]}], None, 500),
        (["websocket.accept"], None, 500),
    ],
)
def test_a_websocket_that_is_not_accepted(
    engine: str, messages: list[Any], error: Exception | None, status: int, waits: bool
) -> None:
    with mounted(engine, sends(*messages, waits=waits, error=error)) as server:
        with pytest.raises(InvalidStatus) as denied:
            opened(server)
        response = denied.value.response
        assert response.status_code == status
        assert response.headers["connection"] == "close"
        if status == 401:
            assert (response.body, response.headers["x-why"]) == (b"who?", "key")
        assert eventually(lambda: server.stats()["connections"] == 0)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([TEXT], "unexpected message websocket.send: the WebSocket is not accepted"),
        ([ACCEPT, ACCEPT], "unexpected message websocket.accept: the WebSocket is open"),
        ([ACCEPT, CLOSE, TEXT], "unexpected message websocket.send: the WebSocket is closed"),
        ([ACCEPT, CLOSE, CLOSE], "unexpected message websocket.close: the WebSocket is closed"),
        ([ACCEPT, DENIAL[0]], "unexpected message websocket.http.response.start: the WebSocket is"),
        ([CLOSE, ACCEPT], "expected a message websocket.http.response.start or"),
        ([*DENIAL, DENIAL[-1]], "unexpected message websocket.http.response.body: the response is"),
        ([ACCEPT, {"type": "http.response.start"}], "unexpected message http.response.start"),
        ([{}], "unexpected message without a type"),
    ],
)
def test_messages_out_of_order(engine: str, messages: list[dict[str, Any]], problem: str) -> None:
    app = sends(*messages)
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.rest()
    [raised] = app.raised
    assert isinstance(raised, RuntimeError)
    assert problem in str(raised)


def test_tasks_of_an_application_that_raises_at_once_hear_of_the_end(engine: str) -> None:
    received: list[str] = []
    tasks = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def read() -> None:
            while received[-1:] != ["websocket.disconnect"]:
                received.append((await receive())["type"])

        assert scope["type"] == "websocket"
        tasks.append(asyncio.create_task(read()))
        raise ValueError

    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        assert wire.reply()[0] == 500
        assert eventually(lambda: received == ["websocket.connect", "websocket.disconnect"])


def test_a_websocket_that_is_never_accepted(engine: str) -> None:
    cancelled = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await receive()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with mounted(engine, app, timeout_ms=100) as server:
        with pytest.raises(InvalidStatus) as denied:
            opened(server)
        assert denied.value.response.status_code == 504
        assert eventually(lambda: bool(cancelled))


def test_an_open_websocket_has_no_deadline(engine: str) -> None:
    app = Echo()
    with mounted(engine, app, timeout_ms=100) as server, opened(server) as socket:
        for _ in range(4):
            socket.send("text")
            assert socket.recv() == "text"
            assert not app.ends
            # Longer than the deadline, together.
            socket.ping().wait(0.05)
            with pytest.raises(TimeoutError):
                socket.recv(timeout=0.05)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_client_that_vanishes(engine: str, is_accepted: bool) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await receive()
        if is_accepted:
            await send(ACCEPT)
        seen.append("begun")
        seen.append((await receive())["code"])
        seen.append((await receive())["code"])
        try:
            await send(TEXT if is_accepted else ACCEPT)
        except OSError:
            seen.append("OSError")
            raise

    with mounted(engine, app) as server:
        for end in [Wire.reset, Wire.end]:
            seen.clear()
            with Wire(server.port) as wire:
                wire.send(UPGRADE)
                assert eventually(lambda: seen == ["begun"])
                end(wire)
                assert eventually(lambda: seen == ["begun", 1006, 1006, "OSError"])
            assert eventually(lambda: server.stats()["connections"] == 0)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\x01a", 1002),
        (b"\xc1\x80\0\0\0\0", 1002),
        (frame(b"\xff"), 1007),
        (b"\x82\xfe\x03\xe9\0\0\0\0" + bytes(1001), 1009),
        (b"\x02\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 5, 1009),
        (frame(b"\x03", 8), 1002),
    ],
)
def test_frames_that_violate_the_protocol_or_a_limit(engine: str, sent: bytes, code: int) -> None:
    app = Echo()
    options = {"max_body_bytes": 1000, "max_message_frames": 5}
    with mounted(engine, app, **options) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        wire.send(sent)
        head = wire.take(4)
        assert (head[0], int.from_bytes(head[2:], "big")) == (0x88, code)
        assert eventually(lambda: [end["code"] for end in app.ends] == [code])


def test_the_longest_message(engine: str) -> None:
    app = Echo()
    with mounted(engine, app, max_body_bytes=1000) as server, opened(server) as socket:
        socket.send(bytes(1000))
        assert socket.recv() == bytes(1000)


def test_a_message_that_is_late(engine: str) -> None:
    app = Echo()
    with mounted(engine, app, body_timeout_s=1) as server, Wire(server.port) as wire:
        wire.send(UPGRADE)
        wire.take_to(b"\r\n\r\n")
        wire.send(b"\x81\x85\0\0\0\0a")
        head = wire.take(4)
        assert (head[0], int.from_bytes(head[2:], "big")) == (0x88, 1008)
        assert eventually(lambda: [end["code"] for end in app.ends] == [1008])


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (b"Version: 13", b"Version: 12", 426),
        (b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Key: a", 400),
        (b"Connection: Upgrade", b"Connection: Upgrade\r\nContent-Length: 1", 400),
    ],
)
def test_a_handshake_that_is_refused(engine: str, before: bytes, after: bytes, status: int) -> None:
    app = Echo()
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(UPGRADE.replace(before, after))
        assert wire.reply()[0] == status
    assert app.scopes == []


def test_a_quiet_websocket_holds_up_no_drain(engine: str) -> None:
    app = Echo()
    with mounted(engine, app, drain_timeout_s=600) as server:
        socket = opened(server)
        socket.send("text")
        assert socket.recv() == "text"
    assert [end["code"] for end in app.ends] == [1001]


def test_a_task_that_goes_on_holds_up_no_end_of_the_server(engine: str) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await receive()
        await send(ACCEPT)
        while True:
            await asyncio.sleep(3600)

    with mounted(engine, app, drain_timeout_s=1) as server:
        opened(server)
