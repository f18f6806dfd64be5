"""Two calls on one connection."""

import asyncio
import sys

import aiohttp

CALL = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}


async def main() -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(sys.argv[1], json=CALL) as reply:
                await reply.read()


asyncio.run(main())
