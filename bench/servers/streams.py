"""The server of `bench/streams.py`: streams of short texts, and a topic with subscribers.

    python bench/servers/streams.py --engine uring

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import asyncio
import importlib

import ucall

TEXT = "x" * 64


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    return parser.parse_args()


async def tokens(count: int):
    for _ in range(count):
        yield "token"
        await asyncio.sleep(0)


def sync_tokens(count: int):
    for _ in range(count):
        yield "token"


def subscribe(ctx: ucall.Context):
    ctx.subscribe("news")


def main() -> None:
    # The load does not answer pings.
    server = importlib.import_module(f"ucall.{options().engine}").Server(
        port=0, timeouts=ucall.Timeouts(ping_interval_s=3600)
    )

    def publish():
        server.publish("news", "news", {"text": TEXT})

    for function in (tokens, sync_tokens, subscribe, publish):
        server(function)
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
