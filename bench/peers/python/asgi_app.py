"""The FastAPI application that the section `asgi` serves in several ways."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

#: Of the response that comes in parts.
CHUNKS, CHUNK = 100, b"piece" + b"." * 95


class Item(BaseModel):
    name: str
    price: float
    tags: list[str] = []


app = FastAPI()


@app.get("/items/{number}")
async def item(number: int) -> dict[str, int | str]:
    return {"number": number, "name": "lamp"}


@app.post("/items")
async def add(item: Item) -> Item:
    return item


@app.post("/bytes")
async def count(request: Request) -> int:
    return sum([len(part) async for part in request.stream()])


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(CHUNKS):
        yield CHUNK
        await asyncio.sleep(0)


@app.get("/stream")
async def stream() -> StreamingResponse:
    return StreamingResponse(chunks(), media_type="application/octet-stream")
