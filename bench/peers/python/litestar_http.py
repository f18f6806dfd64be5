"""Litestar under uvicorn (uvloop, httptools), with msgspec, its own default.

The argument is the port.
"""

import sys
from typing import Literal

import jsonrpc
import msgspec
import under_uvicorn
from litestar import Litestar, post


class Request(msgspec.Struct):
    jsonrpc: Literal["2.0"]
    method: Literal["sum"]
    params: jsonrpc.Sum
    id: int | str | None


@post("/", status_code=200)
async def call(data: Request) -> jsonrpc.Reply:
    return jsonrpc.Reply("2.0", data.id, jsonrpc.sum(data.params))


app = Litestar([call], openapi_config=None, logging_config=None)
under_uvicorn.run(app, int(sys.argv[1]))
