"""FastAPI under uvicorn (uvloop, httptools), as its guide shows it: models in, a model out.

python fastapi_http.py def|async PORT
"""

import sys
from typing import Literal

import under_uvicorn
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


app = FastAPI()

if sys.argv[1] == "def":

    @app.post("/")
    def call(request: Request) -> Reply:
        return Reply(id=request.id, result=request.params.a + request.params.b)

else:

    @app.post("/")
    async def call_async(request: Request) -> Reply:
        return Reply(id=request.id, result=request.params.a + request.params.b)


under_uvicorn.run(app, int(sys.argv[2]))
