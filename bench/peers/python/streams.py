"""A stream of short texts as server-sent events, by an async generator.

python streams.py fastapi|granian|litestar PORT
"""

import asyncio
import sys

EVENT = 'data: {"token":"token"}\n\n'
CONTENT_TYPE = "text/event-stream"


async def tokens(count: int):
    for _ in range(count):
        yield EVENT
        await asyncio.sleep(0)


def run_uvicorn(app) -> None:
    import under_uvicorn

    under_uvicorn.run(app, int(sys.argv[2]))


def fastapi() -> None:
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    app = FastAPI()

    @app.post("/")
    async def stream(count: int) -> StreamingResponse:
        return StreamingResponse(tokens(count), media_type=CONTENT_TYPE)

    run_uvicorn(app)


def litestar() -> None:
    from litestar import Litestar, post
    from litestar.response import Stream

    @post("/", status_code=200)
    async def stream(count: int) -> Stream:
        return Stream(tokens(count), media_type=CONTENT_TYPE)

    run_uvicorn(Litestar([stream], openapi_config=None, logging_config=None))


async def granian_app(scope, protocol):
    count = int(scope.query_string.partition("count=")[2])
    stream = protocol.response_stream(200, [("content-type", CONTENT_TYPE)])
    async for event in tokens(count):
        await stream.send_str(event)


def granian() -> None:
    from granian import Granian
    from granian.constants import Interfaces, Loops

    Granian(
        "streams:granian_app",
        port=int(sys.argv[2]),
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        websockets=False,
        log_enabled=False,
    ).serve()


if __name__ == "__main__":
    {"fastapi": fastapi, "granian": granian, "litestar": litestar}[sys.argv[1]]()
