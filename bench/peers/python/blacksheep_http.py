"""BlackSheep under uvicorn (uvloop, httptools). The argument is the port."""

import sys

import uvicorn
from blacksheep import Application, Content, Request, Response, post
from jsonrpc import answer

app = Application()


@post("/")
async def call(request: Request):
    return Response(200, content=Content(b"application/json", answer(await request.read())))


uvicorn.run(
    app,
    port=int(sys.argv[1]),
    loop="uvloop",
    http="httptools",
    log_level="error",
    access_log=False,
)
