"""Two calls on one connection: python clients.py requests|httpx|aiohttp URL"""

import asyncio
import sys

name, url = sys.argv[1:]
CALL = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}


async def call_by_aiohttp() -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(url, json=CALL) as reply:
                await reply.read()


if name == "aiohttp":
    asyncio.run(call_by_aiohttp())
else:
    if name == "requests":
        from requests import Session as Client
    else:
        from httpx import Client
    with Client() as client:
        for _ in range(2):
            client.post(url, json=CALL)
