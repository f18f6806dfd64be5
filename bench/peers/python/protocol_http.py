"""The cheapest server in Python: an asyncio protocol on uvloop, httptools and msgspec.

The argument is the port.
"""

import asyncio
import sys

import httptools
import uvloop
from jsonrpc import answer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        reply = answer(b"".join(self.body))
        self.body.clear()
        self.transport.write(HEAD % (len(reply), reply))


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Protocol, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


uvloop.run(main())
