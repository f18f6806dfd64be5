"""Servers of other projects with a model: `python -m model_servers SERVER NAME DEVICE PORT`.

A request is an item as base64 in JSON, and so is the reply. Each is tuned as its documentation says
for one device: one process has the model, batches have up to `MAX_SIZE` items, and wait for more no
longer than `WAIT_MS`.
"""

import asyncio
import base64
import contextlib
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

from bench.harness.models import MAX_SIZE

HOST = "127.0.0.1"
WAIT_MS = 2


def fastapi(name: str, device: str, port: int, wait_ms: int) -> None:
    """With a batcher by hand: while a batch runs in the one thread, the next one is collected."""
    from fastapi import FastAPI
    from pydantic import BaseModel
    from servers import run_uvicorn

    from bench.harness import models

    class Item(BaseModel):
        item: str

    thread, run = ThreadPoolExecutor(1), models.load(name, device)
    waiting: list[tuple[bytes, asyncio.Future]] = []
    arrived = asyncio.Event()

    async def batches() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await arrived.wait()
            calls = waiting[:MAX_SIZE]
            del waiting[:MAX_SIZE]
            if not waiting:
                arrived.clear()
            contents = [content for content, _ in calls]
            results = await loop.run_in_executor(thread, models.of_bytes, name, run, contents)
            for (_, reply), result in zip(calls, results, strict=True):
                if not reply.cancelled():
                    reply.set_result(result)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        running = asyncio.create_task(batches())
        yield
        running.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/predict")
    async def predict(item: Item) -> Item:
        reply = asyncio.get_running_loop().create_future()
        waiting.append((base64.b64decode(item.item), reply))
        arrived.set()
        return Item(item=base64.b64encode(await reply).decode())

    run_uvicorn(app, port, timeout_keep_alive=3600)


if __name__ == "__main__":
    server, name, device, port = sys.argv[1:]
    # The processes of others import the module that has the model.
    serve = fastapi if server == "fastapi" else importlib.import_module(f"{server}_model").serve
    serve(name, device, int(port), WAIT_MS)
