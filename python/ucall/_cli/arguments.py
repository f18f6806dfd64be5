"""The arguments of the command line."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from ucall import __version__
from ucall._cli.output import emit
from ucall._cli.values import UsageError, is_param

__all__ = [
    "DEFAULT_URI",
    "FORMATS",
    "SHELLS",
    "Parser",
    "add_connection_options",
    "add_trust_options",
    "new_parser",
    "parse",
    "seconds",
]

DEFAULT_URI = "127.0.0.1"
SHELLS = ("bash", "zsh", "fish")
FORMATS = ("json", "raw", "bytes", "numpy", "image")

_USAGE = (
    "ucall [-h] [--uri URI] [--port PORT] [-f [FILE ...]] [-i [IMAGE ...]] "
    "[--positional [POSITIONAL ...]] method [kwargs ...]"
)

_EPILOG = """\
examples:
  ucall --list
  ucall sum --help
  ucall sum 2 3
  ucall sum a=2 b=3
  ucall vectorize description='Product description' -i image=./local/path.png -p 8545
  ucall auth id:str=256
  ucall store text=@- < notes.txt
  ucall store data:text=hello
  ucall store data=@photo.jpg
  ucall generate prompt=hello --stream
  ucall render size:json='[640, 480]' --format image -o picture.png

values:
  VALUE             a param by position
  name=VALUE        an int, a float, true, false, null, or JSON in [] or {};
                    any other value is text
  name:TYPE=VALUE   TYPE is int, float, bool, str, json, or text: text for
                    a param that takes bytes, sent in base64
  name=@FILE        the bytes of a file, sent in base64
  name=@-           standard input, as text or else as bytes

ucall stub module:server writes a typed client: ucall stub --help

exit status: 0 success, 1 the server replied with an error, 2 wrong usage,
3 no connection or no reply in time

ucall health URL asks a server whether it is healthy: ucall health --help
python -m ucall serves functions: python -m ucall --help"""


class Parser(argparse.ArgumentParser):
    """A parser with ``--version``, without abbreviations, and with errors in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.add_argument("-V", "--version", action="version", version=f"ucall {__version__}")

    def error(self, message: str) -> NoReturn:
        """Prints the error without the usage."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exits after the help was written; with 2 if it cannot be."""
        try:
            emit(b"")
        except BrokenPipeError:
            pass
        except UsageError as error:
            status, message = 2, f"{self.prog}: {error}\n"
        super().exit(status, message)


class _Param(argparse.Action):
    """Collects the params of several options in their order on the command line.

    The words after a file are files, too, unless they can only be params by name.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if not values:
            parser.error(f"argument {option_string}: expected at least one value")
        params: list[tuple[str, str]] = getattr(namespace, "params", None) or []
        takes_files = self.dest != "positional"
        for position, value in enumerate(map(str, values)):
            is_named = takes_files and is_param(value, is_first=position == 0)
            params = [*params, ("named" if is_named else self.dest, value)]
        namespace.params = params


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; `params` are pairs of ``"file"``, ``"image"``, ``"named"`` or ``"positional"``
    and a text."""
    parser = new_parser()
    options = parser.parse_intermixed_args(arguments)
    options.params = getattr(options, "params", None) or []
    if options.method is None:
        if options.help:
            parser.print_help()
            parser.exit()
        if not (options.list or options.completion):
            parser.error("the following arguments are required: method")
    elif options.list:
        parser.error("--list: expected no method; ucall METHOD --help describes one")
    return options


def new_parser() -> argparse.ArgumentParser:
    """The parser of all options. It leaves ``--help`` to its caller, as a method has help too."""
    parser = Parser(
        prog="ucall",
        add_help=False,
        usage=_USAGE,
        description="Calls a method of a JSON-RPC server, over HTTP, WebSocket or raw TCP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", nargs="?", help="the method's name")
    parser.add_argument(
        "kwargs", nargs="*", default=[], help="params: values by position, or name=value"
    )
    _add_help_options(parser)
    _add_param_options(parser)
    _add_server_options(parser)
    add_connection_options(parser)
    _add_output_options(parser)
    return parser


def _add_help_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-h",
        "--help",
        action="store_true",
        help="show this help; after a method: its params, as the server describes them",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the server's methods with their summaries"
    )
    parser.add_argument(
        "--completion",
        choices=SHELLS,
        help="print the script that completes commands in a shell",
    )


def _add_param_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--typed",
        action="store_true",
        help="send params in the types that the server describes, and check them before",
    )
    parser.add_argument(
        "-f",
        "--file",
        nargs="*",
        metavar="FILE",
        action=_Param,
        help="send a file's bytes, as name=path, or as a path for a positional param; "
        "a .npy file is an array",
    )
    parser.add_argument(
        "-i",
        "--image",
        nargs="*",
        metavar="IMAGE",
        action=_Param,
        help="send an image, as name=path, or as a path for a positional param",
    )
    parser.add_argument(
        "--positional",
        nargs="*",
        metavar="POSITIONAL",
        action=_Param,
        help="params by position, in their order among -f and -i",
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--uri", default=DEFAULT_URI, help="URI of the server (default: %(default)s)"
    )
    parser.add_argument(
        "-p", "--port", type=int, help="port of the server (default: that of the URI, or 8545)"
    )
    parser.add_argument("--tcp", action="store_true", help="use raw TCP rather than HTTP")
    parser.add_argument("-u", "--udp", action="store_true", help="use UDP rather than HTTP")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """The options of a client besides the address."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="time limit of the call (default: 60)",
    )
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="send an HTTP header; may be repeated",
    )
    parser.add_argument(
        "--compression",
        action="store_true",
        help="compress long params, and accept a compressed reply (HTTP)",
    )
    _add_tls_options(parser)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number <= threading.TIMEOUT_MAX:
        most = f"at most {threading.TIMEOUT_MAX:.0f}"
        raise argparse.ArgumentTypeError(f"expected seconds above 0, {most}, got {text!r}")
    return number


def add_trust_options(parser: argparse.ArgumentParser) -> None:
    """Which certificates of a server to accept. The names are those of cURL."""
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument(
        "-k", "--insecure", action="store_true", help="accept any certificate of the server (TLS)"
    )
    trust.add_argument(
        "--cacert", metavar="FILE", help="trust the authorities in a file, not the system's (TLS)"
    )


def _add_tls_options(parser: argparse.ArgumentParser) -> None:
    add_trust_options(parser)
    parser.add_argument(
        "--cert",
        metavar="FILE",
        help="certificate of the client, with its key unless --key is given (TLS)",
    )
    parser.add_argument("--key", metavar="FILE", help="private key of --cert (TLS)")


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="json",
        help="form of the result: json (default), raw (the reply as received), bytes, numpy, image",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result to a file")
    parser.add_argument(
        "--stream", action="store_true", help="print the items of a stream as they come"
    )
    parser.add_argument("--notify", action="store_true", help="call without a reply")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the bytes of the request and the reply"
    )
