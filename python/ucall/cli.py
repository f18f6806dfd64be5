"""The command ``ucall method name=value ...``: calls a method of a server."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ucall._cli.arguments import DEFAULT_URI, parse
from ucall._cli.output import check_output, emit, printable, write, write_item
from ucall._cli.params import Params
from ucall._cli.progress import ProgressObserver
from ucall._cli.values import UsageError
from ucall._client.address import Address
from ucall._openrpc import DescriptionError
from ucall.client import Client, Response
from ucall.errors import RPCError

if TYPE_CHECKING:
    from ucall.options import Compression

__all__ = ["main"]

ANSWERED = 0
RPC_ERROR = 1
USAGE = 2
NO_REPLY = 3
INTERRUPTED = 130

#: How the server names a param that takes base64 and got other JSON.
_NO_BASE64 = re.compile(r"params\.(\w+): expected (.+) in base64, got ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the call of a command line, by default of ``sys.argv``.

    Returns:
        The exit status: 0 answered, 1 the server replied with an error, 2 wrong usage or an output
        that cannot be written, 3 no connection or no reply in time, 130 interrupted by Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:  # It was closed before the start, as by >&-.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        match arguments[:1]:
            case ["__complete"]:
                from ucall._cli.completion import complete

                emit(complete(arguments[1:], _quiet_client).encode())
            case ["health"]:
                from ucall._cli import health

                return health.main(arguments[1:])
            case ["stub"]:
                from ucall._cli.stub import write_stub

                write_stub(arguments[1:], _quiet_client)
            case ["store"] if set(arguments[1:2]) & {"check", "dump", "load", "compact"}:
                from ucall.store import __main__ as store_tool

                return store_tool.main(arguments[1:])
            case _:
                return _run(parse(arguments))
        return ANSWERED
    except UsageError as error:
        return _report_error(USAGE, error)
    except RPCError as error:
        return _report_error(RPC_ERROR, _format_error(error))
    except BrokenPipeError:  # The reader of the output has closed it.
        return ANSWERED
    except DescriptionError as error:
        return _report_error(NO_REPLY, f"rpc.discover replied with {error}")
    except (builtins.ConnectionError, builtins.TimeoutError) as error:
        return _report_error(NO_REPLY, error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.completion:
        from ucall._cli import completion

        emit(completion.script(options.completion).encode())
        return ANSWERED
    if options.list or options.help:
        return _describe(options)
    check_output(options.format, options.output)
    if options.stream and (options.notify or options.output or options.format != "json"):
        raise UsageError("--stream: not with --notify, --output or another --format than json")
    params = None if options.typed else Params(options.kwargs, options.params)
    observer = ProgressObserver(options.verbose, sys.stderr.isatty())
    client = _client(options, observer)
    try:
        params = params or _typed_params(client, options)
        if options.stream:
            return _stream(client, options, params)
        response = _call(client, options, params)
    finally:
        observer.finish()
        client.close()
    if response is not None:
        if options.format == "raw":
            write(response, "raw", options.output)
        response.raise_for_status()
        if options.format != "raw":
            write(response, options.format, options.output)
    return ANSWERED


def _quiet_client(options: argparse.Namespace) -> Client:
    return _client(options, ProgressObserver(False, False))


def _describe(options: argparse.Namespace) -> int:
    """Prints the server's methods, or the help of one."""
    from ucall._cli import description

    with _client(options, ProgressObserver(options.verbose, False)) as client:
        document = description.ask(client)
    if options.list:
        text = description.method_list(document)
    else:
        method = description.find_method(document, options.method)
        text = description.help_text(document, method, _server_options(options))
    emit(text.encode())
    return ANSWERED


def _typed_params(client: Client, options: argparse.Namespace) -> Params:
    """The params in the types that the server describes."""
    from ucall._cli import description
    from ucall._cli.typed import TypedParams

    document = description.ask(client)
    method = description.find_method(document, options.method)
    return Params(options.kwargs, options.params, TypedParams(document, method))


def _server_options(options: argparse.Namespace) -> str:
    """The options of a command that calls the same server."""
    words = [] if options.uri == DEFAULT_URI else ["--uri", options.uri]
    if options.port is not None:
        words += ["--port", str(options.port)]
    words += ["--tcp"] * options.tcp + ["--udp"] * options.udp
    return "".join(f" {shlex.quote(word)}" for word in words)


def _client(options: argparse.Namespace, observer: ProgressObserver) -> Client:
    uri: str = options.uri
    if options.tcp:
        if "://" in uri and not uri.startswith(("tcp://", "tcps://")):
            raise UsageError(f"--tcp: {uri} is not for raw TCP")
        uri = uri if "://" in uri else f"tcp://{uri}"
    if options.udp:
        if options.tcp or ("://" in uri and not uri.startswith("udp://")):
            raise UsageError(f"--udp: not with --tcp or {uri}")
        uri = uri if "://" in uri else f"udp://{uri}"
    try:
        return Client(
            uri,
            options.port,
            timeout=options.timeout,
            headers=_headers(options.header),
            compression=_compression(options),
            _observer=observer,
            **_tls_arguments(options, uri),
        )
    except (ImportError, ValueError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:  # A file holds no certificate or key.
        raise UsageError(f"--cacert, --cert or --key: {error}") from None


def _tls_arguments(options: argparse.Namespace, uri: str) -> dict[str, Any]:
    """The arguments ``verify`` and ``cert`` of the client; none without options of TLS.

    Raises:
        UsageError: The URI is not for TLS, a file cannot be read, or a key has no certificate.
        ValueError: The URI is invalid.
    """
    given = {
        "--cacert": options.cacert,
        "--cert": options.cert,
        "--key": options.key,
        "--insecure": options.insecure or None,
    }
    used = [option for option, value in given.items() if value is not None]
    if not used:
        return {}
    if not Address(uri, options.port).is_secure:
        raise UsageError(f"{used[0]}: expected a URI with https:// or tcps://")
    if options.key is not None and options.cert is None:
        raise UsageError("--key: expected --cert too")
    for option in ("--cacert", "--cert", "--key"):
        if given[option] is not None:
            _check_readable(option, given[option])
    verify = False if options.insecure else options.cacert or True
    cert = options.cert if options.key is None else (options.cert, options.key)
    return {"verify": verify, "cert": cert}


def _compression(options: argparse.Namespace) -> Compression | None:
    if not options.compression:
        return None
    from ucall.options import Compression

    return Compression()


def _check_readable(option: str, path: str) -> None:
    """The exceptions of OpenSSL name no file."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None


def _headers(lines: Sequence[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, found, value = line.partition(":")
        if not found:
            raise UsageError(f"-H: expected 'Name: value', got {line!r}")
        headers[name.strip()] = value.strip()
    return headers


def _call(client: Client, options: argparse.Namespace, params: Params) -> Response | None:
    try:
        if options.notify:
            client.notify(options.method, *params.positional, **params.named)
            return None
        return client.call(options.method, *params.positional, **params.named)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


def _stream(client: Client, options: argparse.Namespace, params: Params) -> int:
    try:
        stream = client.stream.call(options.method, *params.positional, **params.named)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    for item in stream:
        write_item(item)
    if stream.result is not None:
        write(stream.response, "json", None)
    return ANSWERED


def _format_error(error: RPCError) -> str:
    """The error with its data, as JSON unless it is text, of which each line is kept."""
    line = f"{' '.join(error.message.split())} [{error.code}]"
    if error.data is None:
        return line
    data = error.data if isinstance(error.data, str) else json.dumps(error.data, ensure_ascii=False)
    hinted = [f"{it}{_base64_hint(it)}" for it in data.split("\n")]
    return f"{line}: {hinted[0]}" if len(hinted) == 1 else "\n".join((line, *hinted))


def _base64_hint(data: str) -> str:
    """How to write a param in base64, if the server expected one."""
    found = _NO_BASE64.match(data)
    if found is None:
        return ""
    name, expected = found.groups()
    text = f"{name}:text=TEXT or " if expected == "bytes" else ""
    return f"; use {text}{name}=@FILE"


def _report_error(status: int, error: Exception | str) -> int:
    """Prints an error, in one line unless it is a text with several; returns the exit status."""
    lines = error.split("\n") if isinstance(error, str) else [str(error)]
    shown = "\n  ".join(printable(" ".join(line.split())) for line in lines)
    print(f"ucall: {shown}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
