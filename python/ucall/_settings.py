"""The settings of ``python -m ucall``: flags, then ``UCALL_…`` variables, then defaults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ucall._cli.arguments import Parser
from ucall._tls import CLIENT_AUTH, ClientAuth

__all__ = ["LOG_LEVELS", "Settings"]

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")


@dataclass(frozen=True)
class Settings:
    """How to serve. ``None`` keeps the server's own option."""

    app: str
    host: str | None
    port: int | None
    workers: int | None
    engine: str | None
    threads: int | None
    reload: bool
    log_level: str
    uds: str | None = None
    access_log: str | None = None
    access_log_sample: float | None = None
    ssl_certfile: list[str] | None = None
    ssl_keyfile: list[str] | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None
    ssl_client_auth: ClientAuth | None = None

    @classmethod
    def read(cls, arguments: Sequence[str] | None = None) -> Settings:
        """Reads the command line; exits with status 2 if it is invalid."""
        parser = _parser()
        return cls(**vars(parser.parse_args(arguments)))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m ucall",
        description="Serves the functions of a module. Options override the server's, except "
        "--threads.",
        epilog="Each flag has a variable UCALL_… in the environment, such as UCALL_PORT. "
        "The command ucall calls functions: ucall --help",
    )
    parser.add_argument("app", metavar="module:server", help="the module, and the server in it")
    _add(parser, "--host", help="address to listen on; 0.0.0.0 for all addresses")
    _add(parser, "--port", type=_port, help="port to listen on; 0 picks a free one")
    _add(parser, "--uds", metavar="PATH", help="Unix socket to listen on instead")
    _add(parser, "--workers", type=_count, metavar="N", help="processes, restarted when they die")
    _add(parser, "--engine", choices=("auto", "uring", "posix"), help="auto: uring where allowed")
    _add(parser, "--threads", type=_count, metavar="N", help="run plain functions in N threads")
    levels = f"lowest level to log: {', '.join(LOG_LEVELS)} (default: info)"
    _add(
        parser,
        "--log-level",
        default="info",
        type=str.lower,
        choices=LOG_LEVELS,
        metavar="LEVEL",
        help=levels,
    )
    _add(parser, "--access-log", choices=("text", "json"), help="write a line for each call")
    _add(
        parser,
        "--access-log-sample",
        type=_share,
        metavar="SHARE",
        help="share of calls with a line, from 0 to 1",
    )
    _add(parser, "--ssl-certfile", nargs="+", metavar="FILE", help="certificates, for TLS")
    _add(parser, "--ssl-keyfile", nargs="+", metavar="FILE", help="their private keys")
    _add(parser, "--ssl-keyfile-password", metavar="PASSWORD", help="password of encrypted keys")
    _add(parser, "--ssl-ca-certs", metavar="FILE", help="authorities of clients' certificates")
    _add(
        parser, "--ssl-client-auth", choices=CLIENT_AUTH, help="whether clients need a certificate"
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        default=_is_yes(os.environ.get("UCALL_RELOAD", "")),
        help="restart when a source below this folder changes (needs ucall[reload])",
    )
    return parser


def _add(parser: Parser, flag: str, default: Any = None, **options: Any) -> None:
    variable = "UCALL_" + flag.strip("-").replace("-", "_").upper()
    text = os.environ.get(variable)
    parsed = _parse_variable(parser, variable, text, options) if text else default
    parser.add_argument(flag, default=parsed, **options)


def _parse_variable(parser: Parser, variable: str, text: str, options: dict[str, Any]) -> Any:
    """The value of a variable, converted and checked as argparse does for a flag."""
    if options.get("nargs"):
        return text.split(os.pathsep)
    try:
        value = options.get("type", str)(text)
    except argparse.ArgumentTypeError as error:
        parser.error(f"{variable}: {error}")
    choices = options.get("choices", (value,))
    if value not in choices:
        parser.error(f"{variable}: expected one of {', '.join(choices)}, got {text!r}")
    return value


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def _port(text: str) -> int:
    port = _number(text)
    if not 0 <= port < 65_536:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {port}")
    return port


def _count(text: str) -> int:
    count = _number(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {count}")
    return count


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, got {text!r}")
    return share


def _is_yes(text: str) -> bool:
    return text.lower() in ("1", "true", "yes", "on")
