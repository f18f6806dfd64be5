"""Applications of FastAPI and Starlette, mounted, as a client over a socket sees them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import fastapi
import httpx
import pytest
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from functions import sum
from mounting import mounted
from pydantic import BaseModel
from routing import http_client
from serving import Serve
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from harness import HOST, Wire, eventually


class Item(BaseModel):
    name: str
    price: float = 1.0


_variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def user(x_user: Annotated[str | None, fastapi.Header()] = None) -> Iterator[str]:
    if x_user is None:
        raise fastapi.HTTPException(401, "who are you?")
    yield x_user


def application(files: Path | None = None) -> fastapi.FastAPI:
    """An application with what most have."""
    background: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"items": {"lamp": Item(name="lamp", price=20)}}

    app = fastapi.FastAPI(lifespan=lifespan)
    app.add_middleware(CORSMiddleware, allow_origins=["https://page.example"])
    app.add_middleware(GZipMiddleware, minimum_size=1000)

    @app.middleware("http")
    async def timed(request: fastapi.Request, call_next: Any) -> fastapi.Response:
        _variable.set("middleware")
        response: fastapi.Response = await call_next(request)
        response.headers["X-Seen"] = "1"
        return response

    @app.get("/items/{name}")
    async def item(name: str, request: fastapi.Request) -> Item:
        items: dict[str, Item] = request.state.items
        if name not in items:
            raise fastapi.HTTPException(404, f"no {name}")
        return items[name]

    @app.post("/items", status_code=201)
    def add(
        item: Item, request: fastapi.Request, who: Annotated[str, fastapi.Depends(user)]
    ) -> Any:
        request.state.items[item.name] = item
        return {"by": who, "thread": threading.current_thread().name, "variable": _variable.get()}

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for number in range(3):
                yield f"{number}\n".encode()
                await asyncio.sleep(0)

        return StreamingResponse(parts())

    @app.get("/slow-stream")
    def slow_stream() -> StreamingResponse:
        return StreamingResponse(iter([b"a" * 70_000] * 50))

    @app.get("/long")
    async def long() -> PlainTextResponse:
        return PlainTextResponse("long " * 1000)

    @app.get("/background")
    async def later(tasks: fastapi.BackgroundTasks) -> list[str]:
        tasks.add_task(background.append, "done")
        return background

    @app.get("/broken")
    async def broken() -> None:
        raise KeyError("broken")

    @app.get("/cookie")
    async def cookie(response: fastapi.Response) -> None:
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")

    if files is not None:
        app.mount("/files", StaticFiles(directory=files))

        @app.get("/file")
        async def file() -> FileResponse:
            return FileResponse(files / "a.txt")

    return app


def test_an_application_of_fastapi(engine: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text" * 50_000)
    with mounted(engine, application(tmp_path), sum) as server, http_client(server) as client:
        assert client.get("/items/lamp").json() == {"name": "lamp", "price": 20.0}
        reply = client.get("/items/sofa")
        assert (reply.status_code, reply.json()) == (404, {"detail": "no sofa"})
        assert reply.headers["x-seen"] == "1"
        assert client.post("/items", json={"name": "sofa"}).status_code == 401
        reply = client.post("/items", json={"name": "sofa"}, headers={"X-User": "ada"})
        assert (reply.status_code, reply.json()["by"]) == (201, "ada")
        assert "AnyIO worker" in reply.json()["thread"]
        assert reply.json()["variable"] == "middleware"
        assert client.post("/items", json={}, headers={"X-User": "ada"}).status_code == 422
        assert client.get("/items/sofa").json()["price"] == 1.0
        assert client.get("/stream").text == "0\n1\n2\n"
        assert len(client.get("/slow-stream").content) == 3_500_000
        reply = client.get("/long")
        assert (reply.headers["content-encoding"], len(reply.text)) == ("gzip", 5000)
        assert client.get("/background").json() == []
        assert eventually(lambda: "done" in client.get("/background").json())
        assert client.get("/cookie").headers.get_list("set-cookie")[0].startswith("a=1")
        assert len(client.get("/cookie").headers.get_list("set-cookie")) == 2
        assert client.get("/file").content == b"text" * 50_000
        reply = client.get("/files/a.txt", headers={"Range": "bytes=4-7"})
        assert (reply.status_code, reply.content) == (206, b"text")
        assert client.get("/openapi.json").json()["paths"].keys() >= {"/items", "/stream"}
        assert "swagger-ui" in client.get("/docs").text
        assert client.head("/items/lamp").status_code == 405
        # And a function beside it.
        assert client.post("/sum", json=[1, 2]).json() == 3


def test_its_rules_for_browsers(engine: str) -> None:
    with mounted(engine, application()) as server, http_client(server) as client:
        preflight = {"Origin": "https://page.example", "Access-Control-Request-Method": "GET"}
        reply = client.options("/items/lamp", headers=preflight)
        assert reply.headers["access-control-allow-origin"] == "https://page.example"
        reply = client.get("/items/lamp", headers={"Origin": "https://page.example"})
        assert reply.headers.get_list("access-control-allow-origin") == ["https://page.example"]


def test_an_exception_of_an_application(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    with mounted(engine, application()) as server, http_client(server) as client:
        reply = client.get("/broken")
        assert (reply.status_code, reply.text) == (500, "Internal Server Error")
    [record] = [it for it in caplog.records if it.levelname == "ERROR"]
    assert "KeyError: 'broken'" in (record.exc_text or "")


@pytest.mark.parametrize("loop", ["ours", "asyncio", "uvloop"])
def test_on_the_loop_of_a_program(engine: str, loop: str) -> None:
    if loop == "ours":
        with mounted(engine, application()) as server, http_client(server) as client:
            assert client.get("/items/lamp").status_code == 200
        return
    from functools import partial
    from importlib import import_module

    from serving import run_on_thread

    server = import_module(f"ucall.{engine}").Server(port=0)
    server.mount("/", application())

    def run() -> None:
        factory = pytest.importorskip(loop).new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(server.serve())

    thread = run_on_thread(server, partial(run))
    with http_client(server) as client:
        assert client.get("/items/lamp").status_code == 200
        assert client.post("/items", json={"name": "a"}, headers={"X-User": "a"}).status_code == 201
        assert client.get("/stream").text == "0\n1\n2\n"
        assert len(client.get("/slow-stream").content) == 3_500_000
    server.stop()
    thread.join()


def test_a_client_that_leaves_a_stream(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    ends: list[str] = []

    async def endless(request: Any) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"part" * 1000
            finally:
                ends.append("closed")

        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/endless", endless)])
    with mounted(engine, app) as server:
        with Wire(server.port) as wire:
            wire.send(f"GET /endless HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert wire.take(10_000)
            wire.reset()
        assert eventually(lambda: ends == ["closed"])
    assert [it for it in caplog.records if it.levelname == "ERROR"] == []


def test_middleware_that_passes_streams_on(engine: str) -> None:
    class Passes(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    async def echo(request: Any) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            async for part in request.stream():
                yield part

        return StreamingResponse(parts())

    inner = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
    app: Any = Starlette(routes=[Mount("/inner", inner)])
    for _ in range(3):
        app = Passes(app)
    with mounted(engine, app) as server, http_client(server) as client:
        assert client.post("/inner/echo", content=b"abc" * 10_000).content == b"abc" * 10_000


Suite = Callable[[httpx.Client], None]


def items_suite(client: httpx.Client) -> None:
    """What an application's own tests do, by the interface that `TestClient` and httpx share."""
    assert client.get("/items/lamp").json() == {"name": "lamp", "price": 20.0}
    assert client.get("/items/none").status_code == 404
    with client.stream("GET", "/stream") as stream:
        assert list(stream.iter_lines()) == ["0", "1", "2"]
    reply = client.post("/items", json={"name": "sofa"}, headers={"X-User": "ada"})
    assert (reply.status_code, reply.json()["by"]) == (201, "ada")
    assert client.get("/items/sofa").json() == {"name": "sofa", "price": 1.0}


def test_the_own_tests_of_an_application(serve_once: Serve) -> None:
    with TestClient(application()) as client:
        items_suite(client)
    with mounted("posix", application()) as server, http_client(server) as own:
        items_suite(own)
