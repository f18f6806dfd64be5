"""The server of `make bench-udp`: `sum` in Python over UDP and TCP on one port.

    python bench/servers/udp.py --engine uring [--dedupe]

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib

import ucall


def sum(a: int, b: int) -> int:
    return a + b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--dedupe", action="store_true", help="keep replies, in up to 1 GiB")
    chosen = parser.parse_args()
    server = importlib.import_module(f"ucall.{chosen.engine}").Server(
        port=0, udp=ucall.UDP(dedupe=chosen.dedupe, max_dedupe_bytes=1 << 30)
    )
    server(sum)
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
