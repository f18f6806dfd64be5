"""The command ``ucall health``: asks a server whether it is alive or ready."""

from __future__ import annotations

import argparse
import builtins
import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from ucall._cli.arguments import Parser, add_trust_options, seconds
from ucall._cli.output import emit, printable
from ucall._client.address import Address
from ucall._client.sockets import Deadline, connect, encrypt
from ucall._client.tls import context_for
from ucall._routes.health import LIVE, READY

if TYPE_CHECKING:
    import socket

    from ucall._client.tls_socket import TlsSocket

__all__ = ["main"]

#: Bytes of a response, past which the rest is not read.
_RESPONSE_BYTES_MAX = 65_536


def main(arguments: Sequence[str]) -> int:
    """Prints the answer in one line; returns 0 if it is healthy, 1 if not, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        address = _address(options)
        is_healthy, line = _ask(address, options)
    except ValueError as error:
        return _report(2, error)
    except (builtins.ConnectionError, builtins.TimeoutError, OSError) as error:
        return _report(1, error)
    with suppress(BrokenPipeError):  # Probes may read the exit status alone.
        emit(f"{printable(line)}\n".encode())
    return 0 if is_healthy else 1


def _address(options: argparse.Namespace) -> Address:
    port: int | None = options.port
    if options.url is None and port is None:
        # That of the server in this container. Kubernetes may set it to what is no number.
        text = os.environ.get("UCALL_PORT", "")
        port = int(text) if text.isdecimal() else None
    return Address("127.0.0.1" if options.url is None else options.url, port)


def _report(status: int, error: Exception) -> int:
    print(f"ucall: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    return status


def _parser() -> Parser:
    parser = Parser(
        prog="ucall health",
        description="Asks a server for /healthz, or for /readyz with --ready. "
        "A function that is called health is called by: ucall -- health",
        epilog="exit status: 0 healthy, 1 not healthy or no answer, 2 wrong usage",
    )
    parser.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        help="host, host:port, http://…, https://…, tcp://… or unix:///path (default: 127.0.0.1)",
    )
    parser.add_argument("--ready", action="store_true", help="ask whether it takes calls")
    parser.add_argument(
        "-p",
        "--port",
        type=int,
        help="port, if the URL has none (default: 8545; without a URL UCALL_PORT, if it is set)",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=2.0, metavar="SECONDS", help="time limit (default: 2)"
    )
    add_trust_options(parser)
    return parser


def _ask(address: Address, options: argparse.Namespace) -> tuple[bool, str]:
    """Whether the server is healthy, and the line that it answers.

    Raises:
        OSError: There is no answer, or a file holds no certificate.
    """
    deadline = Deadline(options.timeout)
    context = context_for(address, False if options.insecure else options.cacert or True, None)
    plain = connect(address, deadline)
    connected: socket.socket | TlsSocket = plain
    if context is not None:
        connected = encrypt(plain, context, address, deadline)
    path = READY if options.ready else LIVE
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {address.host_header}\r\n"
        "User-Agent: ucall-health\r\nConnection: close\r\n\r\n"
    )
    with closing(connected):
        connected.settimeout(deadline.left())
        # So few bytes are sent as a whole.
        connected.send(memoryview(request.encode()))
        response = b""
        while len(response) < _RESPONSE_BYTES_MAX:
            connected.settimeout(deadline.left())
            received = connected.recv(_RESPONSE_BYTES_MAX)
            if not received:
                break
            response += received
    return _read(response)


def _read(response: bytes) -> tuple[bool, str]:
    head, _, body = response.partition(b"\r\n\r\n")
    status_line = head.partition(b"\r\n")[0].decode("latin-1")
    protocol, _, status = status_line.partition(" ")
    if not protocol.startswith("HTTP/1."):
        raise ConnectionError("the server closed the connection without an answer")
    lines = body.decode(errors="replace").splitlines()
    is_healthy = status.startswith("2")
    if not lines or b"\r\ncontent-type: text/html" in head.lower():
        return is_healthy, status
    return is_healthy, lines[0] if status[:3] in ("200", "503") else f"{status}: {lines[0]}"
