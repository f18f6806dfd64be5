"""The server of `bench/async.py`: a function that sleeps, and `sum`.

    python bench/servers/sleeper.py --engine uring --kind async --port 0

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import asyncio
import importlib
import time


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--kind", choices=["async", "threads"], required=True)
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args()


async def sleep_async():
    await asyncio.sleep(0.1)


def sleep_blocking():
    time.sleep(0.1)


def sum(a: int, b: int):
    return a + b


async def sum_async(a: int, b: int):
    return a + b


def main() -> None:
    chosen = options()
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(port=chosen.port)
    if chosen.kind == "async":
        server.add(sleep_async, name="sleep")
        server.add(sum_async)
    else:
        server.add(sleep_blocking, name="sleep", threads=True)
    server.add(sum)
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
