"""Granian by its own interface, RSGI, on uvloop. The argument is the port."""

import sys

from granian import Granian
from granian.constants import Interfaces, Loops
from jsonrpc import answer

HEADERS = [("content-type", "application/json")]


async def app(scope, protocol):
    protocol.response_bytes(200, HEADERS, answer(await protocol()))


if __name__ == "__main__":
    Granian(
        "granian_rsgi:app",
        port=int(sys.argv[1]),
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        websockets=False,
        log_enabled=False,
    ).serve()
