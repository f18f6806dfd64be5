"""Requests to mounted applications in the access log and in the metrics."""

from __future__ import annotations

import json
import signal
from typing import Any

import httpx
import pytest
from mounting import mounted
from test_asgi_websocket import Echo, Receive, Send, opened
from test_metrics import calls, samples
from websockets.sync.client import connect

from harness import HOST, eventually, listening_port, program

APPLICATION = """
import asyncio, sys
import ucall

async def app(scope, receive, send):
    assert scope["type"] != "lifespan"
    name = scope["path"].rpartition("/")[2]
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": "12345678"})
        return
    if name == "raises":
        raise KeyError("broken")
    if name == "never":
        await receive()
        await receive()
        return
    if name == "later":
        await asyncio.sleep(0)
    status = int(name) if name.isdigit() else 200
    await send({"type": "http.response.start", "status": status})
    if name == "parts":
        await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
    if name == "cut":
        await send({"type": "http.response.body", "body": bytes(1_000), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.body", "body": b"body"})

server = ucall.Server(port=0, observability=ucall.Observability(access_log=sys.argv[1]))
server.mount("/app", app)

@server
def last():
    pass

server.run()
"""


def logged(form: str, *requests: Any) -> list[str]:
    """The lines of some requests."""
    with program(APPLICATION, form) as process:
        port = listening_port(process)
        with httpx.Client(base_url=f"http://{HOST}:{port}") as client:
            for request in requests:
                request(client)
        process.send_signal(signal.SIGTERM)
        lines: list[str] = process.stdout.read().splitlines()
    return lines


def test_each_request_has_a_line() -> None:
    lines = logged(
        "json",
        lambda client: client.get("/app/items?secret=1"),
        lambda client: client.get("/app/404"),
        lambda client: client.get("/app/later"),
        lambda client: client.get("/app/parts"),
        lambda client: client.get("/app/raises"),
        lambda client: client.post("/app/a%20b", content=b"four"),
    )
    found = [json.loads(line) for line in lines]
    keys = ("method", "code", "bytes_in", "bytes_out")
    assert [tuple(line[key] for key in keys) for line in found] == [
        ("GET /app/items", 200, 0, 4),
        ("GET /app/404", 404, 0, 4),
        ("GET /app/later", 200, 0, 4),
        ("GET /app/parts", 200, 0, 100_004),
        ("GET /app/raises", 500, 0, found[4]["bytes_out"]),
        ("POST /app/a%20b", 200, 4, 4),
    ]
    assert all(line["transport"] == "http" and "id" not in line for line in found)
    assert all(line["duration_ms"] >= 0 and line["peer"].startswith(HOST) for line in found)


def test_a_line_for_people() -> None:
    [line] = logged("text", lambda client: client.get("/app/items"))
    assert ' http "GET /app/items" id=- 200 ' in line
    assert line.endswith(" in=0 out=4")


def test_a_client_that_leaves_and_a_websocket_have_lines() -> None:
    def leave(client: httpx.Client) -> None:
        with pytest.raises(httpx.TimeoutException):
            client.get("/app/never", timeout=0.2)

    def talk(client: httpx.Client) -> None:
        with opened_at(str(client.base_url)) as socket:
            socket.send("text")
            socket.recv()

    def cut(client: httpx.Client) -> None:
        with client.stream("GET", "/app/cut") as response:
            assert len(next(response.iter_raw(1_000))) == 1_000

    lines = [json.loads(line) for line in logged("json", leave, cut, talk)]
    # A frame with its head.
    assert sorted((line["method"], line["code"], line["bytes_out"]) for line in lines) == [
        ("GET /app/cut", -32800, 1_000),
        ("GET /app/never", -32800, 0),
        ("GET /app/socket", 101, 10),
    ]


def opened_at(url: str) -> Any:
    return connect(f"{url.replace('http', 'ws')}/app/socket", ping_interval=None)


def test_requests_are_among_the_metrics(engine: str) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        name = scope["path"].rpartition("/")[2]
        if name == "raises":
            raise KeyError("broken")
        await send({"type": "http.response.start", "status": int(name)})
        part = {"type": "http.response.body", "body": bytes(1 << 17), "more_body": True}
        if name == "201":
            await send(part)
        await send({**part, "more_body": False})

    with mounted(engine, app, path="/app", metrics=True) as server:
        with httpx.Client(base_url=f"http://{HOST}:{server.port}/app") as client:
            for name in ["200", "201", "404", "404", "raises"]:
                client.get(f"/{name}")
        found = samples(server.port)
    assert calls(found, "/app/*") == 2
    assert calls(found, "/app/*", "404") == 2
    assert calls(found, "/app/*", "500") == 1


def test_a_response_that_its_client_cuts_is_among_the_metrics(engine: str) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    with mounted(engine, app, metrics=True) as server:
        with httpx.stream("GET", f"http://{HOST}:{server.port}") as response:
            assert next(response.iter_raw()) == b"part"
        assert eventually(lambda: calls(samples(server.port), "/*", "-32800") == 1)


def test_a_websocket_is_among_the_metrics_at_its_end(engine: str) -> None:
    with mounted(engine, Echo(), metrics=True) as server:
        with opened(server) as socket:
            socket.send("text")
            socket.recv()
            assert calls(samples(server.port), "/*") == 0
        assert eventually(lambda: calls(samples(server.port), "/*") == 1)


def test_a_denied_websocket_counts_by_its_status(engine: str) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.close"})

    with mounted(engine, app, metrics=True) as server:
        with pytest.raises(Exception, match="403"):
            opened(server)
        assert calls(samples(server.port), "/*", "403") == 1
