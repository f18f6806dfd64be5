"""Servers of other projects: `python -m servers NAME [OPTIONS] PORT`.

Each is one process with one worker, in the fastest form that its guide shows. A function imports
what it needs, so that the memory of a server is its own. Where a framework does not parse and
write JSON-RPC by itself, `jsonrpc.answer` does.
"""

import asyncio
import sys
import time

HOST = "127.0.0.1"
JSON = "application/json"


def run_uvicorn(app, port: int, **how) -> None:
    """As users would: uvloop, httptools, no access log."""
    import uvicorn

    how = {"loop": "uvloop", "http": "httptools", "log_level": "error", **how}
    uvicorn.run(app, port=port, access_log=False, **how)


def fastapi(port: int, kind: str) -> None:
    """Models in, a model out: by a function that is `def` or `async def`."""
    from typing import Literal

    from fastapi import FastAPI
    from pydantic import BaseModel

    class Sum(BaseModel):
        a: int
        b: int

    class Request(BaseModel):
        jsonrpc: Literal["2.0"]
        method: Literal["sum"]
        params: Sum
        id: int | str | None

    class Reply(BaseModel):
        jsonrpc: Literal["2.0"] = "2.0"
        id: int | str | None
        result: int

    def call(request: Request) -> Reply:
        return Reply(id=request.id, result=request.params.a + request.params.b)

    async def call_async(request: Request) -> Reply:
        return Reply(id=request.id, result=request.params.a + request.params.b)

    app = FastAPI()
    app.post("/")(call if kind == "def" else call_async)
    run_uvicorn(app, port)


def fastapi_websocket(port: int) -> None:
    """One request a message."""
    from fastapi import FastAPI, WebSocket, WebSocketDisconnect
    from jsonrpc import answer

    app = FastAPI()

    @app.websocket("/")
    async def calls(websocket: WebSocket):
        await websocket.accept()
        try:
            while True:
                await websocket.send_text(answer(await websocket.receive_text()).decode())
        except WebSocketDisconnect:
            return

    # 1.5 times as fast as `websockets`, which is deprecated.
    run_uvicorn(app, port, ws="websockets-sansio", ws_per_message_deflate=False)


def fastapi_sleep(port: int) -> None:
    """Functions that sleep, async and plain: `POST /async` and `POST /def`."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/async")
    async def sleep_async():
        await asyncio.sleep(0.1)

    @app.post("/def")
    def sleep_blocking():
        time.sleep(0.1)

    run_uvicorn(app, port)


def litestar(port: int) -> None:
    """With msgspec, its own default."""
    from typing import Literal

    import msgspec
    from jsonrpc import Reply, Sum, sum
    from litestar import Litestar, post

    class Request(msgspec.Struct):
        jsonrpc: Literal["2.0"]
        method: Literal["sum"]
        params: Sum
        id: int | str | None

    @post("/", status_code=200)
    async def call(data: Request) -> Reply:
        return Reply("2.0", data.id, sum(data.params))

    run_uvicorn(Litestar([call], openapi_config=None, logging_config=None), port)


def blacksheep(port: int) -> None:
    from blacksheep import Application, Content, Request, Response, post
    from jsonrpc import answer

    app = Application()

    @post("/")
    async def call(request: Request):
        return Response(200, content=Content(b"application/json", answer(await request.read())))

    run_uvicorn(app, port)


def aiohttp(port: int) -> None:
    import uvloop
    from aiohttp import web
    from jsonrpc import answer

    async def call(request: web.Request) -> web.Response:
        return web.Response(body=answer(await request.read()), content_type=JSON)

    app = web.Application()
    app.router.add_post("/", call)
    loop = uvloop.new_event_loop()
    web.run_app(app, host=HOST, port=port, loop=loop, access_log=None, print=None)


def granian_sum():
    from jsonrpc import answer

    headers = [("content-type", JSON)]

    async def app(scope, protocol):
        protocol.response_bytes(200, headers, answer(await protocol()))

    return app


def asgi_app():
    """The application of the section `asgi`."""
    from asgi_app import app

    return app


def asgi(port: int, server: str) -> None:
    run_uvicorn(asgi_app(), port) if server == "uvicorn" else granian(port, "asgi_app", "asgi")


def granian(port: int, app: str = "granian_sum", interface: str = "rsgi") -> None:
    """By its own interface, RSGI, or by ASGI."""
    from granian import Granian
    from granian.constants import Interfaces, Loops

    Granian(
        f"servers:{app}",
        factory=True,
        port=port,
        interface=Interfaces(interface),
        loop=Loops.uvloop,
        websockets=False,
        log_enabled=False,
    ).serve()


def robyn(port: int) -> None:
    from jsonrpc import answer
    from robyn import Response, Robyn

    # It reads the command line.
    sys.argv[1:] = ["--processes", "1", "--workers", "1", "--log-level", "ERROR"]
    app = Robyn(__file__)
    headers = {"content-type": JSON}

    @app.post("/")
    def call(request):
        return Response(status_code=200, headers=headers, description=answer(request.body))

    app.start(host=HOST, port=port, _check_port=False)


def socketify(port: int) -> None:
    """Which is uWebSockets under CPython."""
    from jsonrpc import answer
    from socketify import App

    def call(response, request):
        def on_data(response, chunk, is_end):
            # A request of this size comes in one chunk.
            if is_end:
                response.write_header("Content-Type", JSON).end(answer(chunk))

        response.on_data(on_data)

    app = App()
    app.post("/", call)
    app.listen(port)
    app.run()


def protocol(port: int) -> None:
    """The cheapest server in Python: an asyncio protocol on uvloop, httptools and msgspec."""
    import httptools
    import uvloop
    from jsonrpc import answer

    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"

    class Protocol(asyncio.Protocol):
        def __init__(self) -> None:
            self.parser = httptools.HttpRequestParser(self)
            self.body: list[bytes] = []

        def connection_made(self, transport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_body(self, body: bytes) -> None:
            self.body.append(body)

        def on_message_complete(self) -> None:
            reply = answer(b"".join(self.body))
            self.body.clear()
            self.transport.write(head % (len(reply), reply))

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Protocol, HOST, port)
        await server.serve_forever()

    uvloop.run(main())


def grpc_threads(port: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    import sum_pb2
    import sum_pb2_grpc

    class Calls(sum_pb2_grpc.CallsServicer):
        def Sum(self, request, context):
            return sum_pb2.SumReply(result=request.a + request.b)

    server = grpc.server(ThreadPoolExecutor(max_workers=10))
    sum_pb2_grpc.add_CallsServicer_to_server(Calls(), server)
    server.add_insecure_port(f"{HOST}:{port}")
    server.start()
    server.wait_for_termination()


def grpc_asyncio(port: int) -> None:
    """Not on uvloop: gRPC has a loop of its own below, and with uvloop above it is slower."""
    import grpc.aio
    import sum_pb2
    import sum_pb2_grpc

    class Calls(sum_pb2_grpc.CallsServicer):
        async def Sum(self, request, context):
            return sum_pb2.SumReply(result=request.a + request.b)

    async def main() -> None:
        server = grpc.aio.server()
        sum_pb2_grpc.add_CallsServicer_to_server(Calls(), server)
        server.add_insecure_port(f"{HOST}:{port}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


def picows(port: int, task: str) -> None:
    """`echo` returns each message, `sum` calls a function."""
    import uvloop
    from jsonrpc import answer
    from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

    class Echo(WSListener):
        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            transport.send(frame.msg_type, frame.get_payload_as_memoryview())

    class Sum(WSListener):
        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            transport.send(WSMsgType.TEXT, answer(frame.get_payload_as_bytes()))

    async def main() -> None:
        listener = {"echo": Echo, "sum": Sum}[task]
        server = await ws_create_server(lambda _: listener(), HOST, port)
        await server.serve_forever()

    uvloop.run(main())


def websockets(port: int, task: str) -> None:
    """`echo` returns each message, `sum` calls a function."""
    import uvloop
    from jsonrpc import answer
    from websockets.asyncio.server import ServerConnection, serve

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async def sum(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(answer(message), text=True)

    async def main() -> None:
        handler = {"echo": echo, "sum": sum}[task]
        async with serve(handler, HOST, port, compression=None) as server:
            await server.serve_forever()

    uvloop.run(main())


def litserve(port: int) -> None:
    from litserve_http import serve

    serve(port)


def mcp_tool(port: int, kind: str) -> None:
    """A tool by FastMCP or the official SDK, without sessions, with replies in JSON."""
    import logging

    if kind == "fastmcp":
        from fastmcp import FastMCP as Server
    else:
        from mcp.server import MCPServer as Server

    server = Server("bench")

    @server.tool()
    def sum(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    # Otherwise a line is logged for each call.
    logging.disable(logging.INFO)
    make = server.http_app if kind == "fastmcp" else server.streamable_http_app
    run_uvicorn(make(json_response=True, stateless_http=True), port)


if __name__ == "__main__":
    name, *options, port = sys.argv[1:]
    globals()[name](int(port), *options)
