"""The relay of `bench/relay.py`: passes `sum` on to an upstream.

    python bench/servers/relay.py --engine uring --to tcp://127.0.0.1:8545

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--to", required=True)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(port=0)
    server.relay("sum", to=chosen.to)
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
