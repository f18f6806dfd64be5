"""The server of most benchmarks: `sum` in Python on a given engine.

    python bench/servers/sum.py --engine uring --port 0

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib
import threading

import ucall

#: Objects that a garbage collection visits.
LIVE = 300_000


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ssl-certfile", help="a certificate and its key, for TLS")
    parser.add_argument(
        "--beside",
        choices=["thread", "garbage"],
        help="a thread that computes; or reference cycles in each call, beside many live objects",
    )
    return parser.parse_args()


def sum(a: int, b: int):
    return a + b


def sum_with_garbage(a: int, b: int):
    cycle = []
    cycle.append(cycle)
    return a + b


def compute() -> None:
    while True:
        pass


def main() -> None:
    chosen = options()
    live = [[] for _ in range(LIVE)] if chosen.beside == "garbage" else None
    if chosen.beside == "thread":
        threading.Thread(target=compute, daemon=True).start()
    # `ucall.uring` does not fall back to posix, so the figures have the right name.
    tls = ucall.TLS(certfile=chosen.ssl_certfile) if chosen.ssl_certfile else None
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(port=chosen.port, tls=tls)
    server(sum if live is None else sum_with_garbage, name="sum")
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
