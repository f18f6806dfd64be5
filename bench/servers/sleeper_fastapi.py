"""FastAPI with a function that sleeps, async and plain: `POST /async` and `POST /def`.

.bench/fastapi/bin/python bench/servers/sleeper_fastapi.py PORT
"""

import asyncio
import sys
import time

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.post("/async")
async def sleep_async():
    await asyncio.sleep(0.1)


@app.post("/def")
def sleep_blocking():
    time.sleep(0.1)


uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
