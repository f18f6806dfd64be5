"""The program that is attacked: ``python -m fairness.app server ENGINE`` prints its port; with
``relay ENGINE PORT`` it relays all calls to an ``upstream``. It serves until its input ends."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator

import ucall

#: Few enough for an attacker to take all of them.
CONNECTIONS_MAX = 200
REPLY_BYTES_MAX = 1 << 20


def add_functions(server: ucall.Server) -> None:
    @server
    def ok() -> str:
        return "ok"

    @server
    async def later() -> str:
        await asyncio.sleep(0)
        return "later"

    @server
    async def slow(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @server
    def big(count: int) -> str:
        return "x" * count

    @server
    def note(text: str) -> None:
        pass

    @server
    def ticks() -> Iterator[int]:
        tick = 0
        while True:
            yield tick
            tick += 1

    @server
    async def idle() -> AsyncIterator[int]:
        await asyncio.sleep(1000)
        yield 1

    @server
    def follow(ctx: ucall.Context, topic: str) -> None:
        ctx.subscribe(topic)


def main(place: str, engine: str, upstream: str = "") -> None:
    kind = importlib.import_module(f"ucall.{engine}").Server
    if place == "relay":
        limits = ucall.Limits(max_connections=CONNECTIONS_MAX, max_reply_bytes=REPLY_BYTES_MAX)
        server = kind(port=0, limits=limits)
        server.relay("*", to=[f"tcp://127.0.0.1:{upstream}"])
    else:
        # A relay has a connection to its upstream for each stream.
        limits = None if place == "upstream" else ucall.Limits(max_connections=CONNECTIONS_MAX)
        server = kind(port=0, limits=limits)
        add_functions(server)
    with server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
