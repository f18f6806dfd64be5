"""The server of most benchmarks: `sum` in Python on a given engine.

    python bench/servers/sum.py --engine uring --port 0

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ssl-certfile", help="a certificate and its key, for TLS")
    return parser.parse_args()


def sum(a: int, b: int):
    return a + b


def main() -> None:
    chosen = options()
    # `ucall.uring` does not fall back to posix, so the figures have the right name.
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(
        port=chosen.port, ssl_certfile=chosen.ssl_certfile
    )
    server(sum)
    print(f"listening on {server.port}", flush=True)
    server.run()


main()
