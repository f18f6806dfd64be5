"""The command ``ucall stub``: writes a typed client of a server."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ucall._cli import description
from ucall._cli.arguments import Parser, add_connection_options
from ucall._cli.output import emit
from ucall._cli.values import UsageError
from ucall._openrpc import DescriptionError, Document

if TYPE_CHECKING:
    from ucall.client import Client

__all__ = ["write_stub"]

_DESCRIPTION = """\
Writes a typed client of a server to standard output: Python for ucall.client and ucall.aio, or
with --typescript the types for ucall.js."""

_EPILOG = """\
examples:
  ucall stub module:server > stubs.py
  ucall stub http://localhost:8545 > stubs.py
  ucall stub module:server --typescript > stubs.d.ts
  ucall stub http://localhost:8545 --by-position > stubs.py"""


def write_stub(
    arguments: Sequence[str], new_client: Callable[[argparse.Namespace], Client]
) -> None:
    """Writes the typed client that a command line asks for.

    Raises:
        UsageError: There is no such server in the module, or its description is invalid.
        DescriptionError: The running server's is.
        ucall.RPCError, ucall.ConnectionError, ucall.TimeoutError: See `description.ask`.
    """
    options = _parser().parse_args(arguments)
    if "://" in options.server:
        text = _client_of(_running(options, new_client), options)
    else:
        try:
            text = _client_of(_imported(options.server), options)
        except DescriptionError as error:
            raise UsageError(f"{options.server}: {error}") from None
    emit(text.encode())


def _client_of(document: Document, options: argparse.Namespace) -> str:
    if options.by_position:
        document.methods = {
            name: dataclasses.replace(method, structure="by-position")
            if method.structure == "either"
            else method
            for name, method in document.methods.items()
        }
    if options.typescript:
        from ucall._stub.typescript import typescript_declarations

        return typescript_declarations(document)
    from ucall._stub.python import python_client

    return python_client(document)


def _running(
    options: argparse.Namespace, new_client: Callable[[argparse.Namespace], Client]
) -> Document:
    options.uri, options.port = options.server, None
    options.tcp = options.udp = False
    with new_client(options) as client:
        return description.ask(client)


def _imported(app: str) -> Document:
    """The description of a server in a module, whose own output must not be in the client's."""
    from ucall._command.application import StartupError, import_server

    try:
        with contextlib.redirect_stdout(sys.stderr):
            server = import_server(app)
    except StartupError as error:
        raise UsageError(str(error)) from None
    from ucall import schema

    return Document(schema.describe(server).openrpc())


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ucall stub",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "server", help="module:server, as for python -m ucall; or the URI of a running server"
    )
    parser.add_argument(
        "--typescript", action="store_true", help="write the types for ucall.js: a .d.ts file"
    )
    parser.add_argument(
        "--by-position",
        action="store_true",
        help="send params in arrays where the description allows both: for servers that take no "
        "params by name, and do not say so",
    )
    add_connection_options(parser)
    return parser
