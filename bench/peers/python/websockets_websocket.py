"""The package `websockets` on uvloop. `echo` returns each message, `sum` calls a function.

python websockets_websocket.py echo|sum PORT
"""

import sys

import uvloop
from jsonrpc import answer
from websockets.asyncio.server import ServerConnection, serve


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def sum(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(answer(message), text=True)


async def main() -> None:
    handler = {"echo": echo, "sum": sum}[sys.argv[1]]
    async with serve(handler, "127.0.0.1", int(sys.argv[2]), compression=None) as server:
        await server.serve_forever()


uvloop.run(main())
