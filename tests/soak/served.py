"""The server under soak, with functions of every kind, in a process of its own.

    python -m soak.served ENGINE [CERTIFICATE KEY]

Prints its port, then runs until its input ends or it is told to stop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Any

import ucall
import ucall.posix
import ucall.uring
from ucall.options import arguments

KINDS: dict[str, type[ucall.Server]] = {"posix": ucall.posix.Server, "uring": ucall.uring.Server}


def add_functions(server: ucall.Server) -> None:
    @server
    def sum(a: int, b: int) -> int:
        return a + b

    @server
    def echo(data: bytes) -> bytes:
        return data

    @server
    def text(length: int) -> str:
        return "x" * length

    @server
    def connections() -> int:
        return server.stats()["connections"]

    @server
    def fail() -> None:
        raise ValueError("on purpose")

    @server
    async def sleep(milliseconds: float) -> float:
        await asyncio.sleep(milliseconds / 1000)
        return milliseconds

    @server(threads=True)
    def block(milliseconds: float) -> float:
        time.sleep(milliseconds / 1000)
        return milliseconds

    @server.batch
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]


def main() -> None:
    engine, *files = sys.argv[1:]
    # Short, so that each limit expires many times.
    options: dict[str, Any] = {"head_timeout_s": 5, "body_timeout_s": 5, "idle_timeout_s": 5}
    options |= {"send_timeout_s": 5}
    if files:
        options |= {"ssl_certfile": files[0], "ssl_keyfile": files[1]}
    logging.getLogger("ucall").setLevel(logging.CRITICAL)
    server = KINDS[engine](port=0, **arguments(options))
    add_functions(server)

    def stop_at_the_end() -> None:
        sys.stdin.read()
        server.stop()

    threading.Thread(target=stop_at_the_end, daemon=True).start()
    server.on_startup(lambda: print(server.port, flush=True))
    server.run()


if __name__ == "__main__":
    main()
