"""The server for large payloads, which returns the bytes or the array that it gets.

    python bench/servers/payload.py --engine uring

Prints `listening on PORT` once the socket is bound. SIGTERM ends it.
"""

import argparse
import importlib

from numpy import uint8
from numpy.typing import NDArray

import ucall

BYTES_MAX = 64 << 20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    return parser.parse_args()


def echo_bytes(data: bytes):
    return data


def echo_array(data: NDArray[uint8]):
    return data


def main() -> None:
    module = importlib.import_module(f"ucall.{options().engine}")
    server = module.Server(
        port=0, limits=ucall.Limits(max_body_bytes=BYTES_MAX, max_reply_bytes=BYTES_MAX)
    )
    server.add(echo_bytes, name="bytes")
    server.add(echo_array, name="array")
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    server.run()


main()
