"""Servers of echoes: `echo` returns bytes, for `bench/echo.py`, and `echo_text` returns text.

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


def echo_text(text: str):
    return text


def main() -> None:
    server = importlib.import_module(f"ucall.{options().engine}").Server(port=0)
    server(echo)
    server(echo_text)
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
