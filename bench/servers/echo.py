"""The server of `bench/echo.py`, which returns the bytes that it gets.

    python bench/servers/echo.py --engine uring

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    return parser.parse_args()


def echo(data: bytes):
    return data


def main() -> None:
    server = importlib.import_module(f"ucall.{options().engine}").Server(port=0)
    server(echo)
    print(f"listening on {server.port}", flush=True)
    server.run()


main()
