"""aiohttp on uvloop. The argument is the port."""

import sys

import uvloop
from aiohttp import web
from jsonrpc import answer


async def call(request: web.Request) -> web.Response:
    return web.Response(body=answer(await request.read()), content_type="application/json")


app = web.Application()
app.router.add_post("/", call)
web.run_app(
    app,
    host="127.0.0.1",
    port=int(sys.argv[1]),
    loop=uvloop.new_event_loop(),
    access_log=None,
    print=None,
)
