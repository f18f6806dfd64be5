"""BlackSheep under uvicorn (uvloop, httptools). The argument is the port."""

import sys

import under_uvicorn
from blacksheep import Application, Content, Request, Response, post
from jsonrpc import answer

app = Application()


@post("/")
async def call(request: Request):
    return Response(200, content=Content(b"application/json", answer(await request.read())))


under_uvicorn.run(app, int(sys.argv[1]))
