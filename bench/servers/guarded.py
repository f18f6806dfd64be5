"""The server of `bench/slow_peers.py`: `sum`, long replies, and the number of connections.

    python bench/servers/guarded.py --engine uring --timeout-s 10

Prints `listening on PORT`. All its time limits are `--timeout-s`; its other limits are the
defaults.
"""

import argparse
import importlib


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    times = ("head_timeout_s", "body_timeout_s", "idle_timeout_s", "send_timeout_s")
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(
        port=0, **dict.fromkeys(times, chosen.timeout_s)
    )

    @server
    def sum(a: int, b: int):
        return a + b

    @server
    def text(length: int) -> str:
        return "x" * length

    @server
    def connections() -> int:
        return server.stats()["connections"]

    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
