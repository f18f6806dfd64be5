"""A server of a key-value store, for `bench/store.py`.

    python bench/servers/store.py --engine uring --path FOLDER

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--path", required=True)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(port=0)
    server.store("kv", chosen.path)
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
