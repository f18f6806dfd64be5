"""The command line: ``ucall method name=value ...``. Like cURL, for functions."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import sys
from collections.abc import Sequence

from ucall._cli.arguments import parse
from ucall._cli.output import printable, refuse_output, write
from ucall._cli.params import Params, UsageError
from ucall._cli.progress import Watch
from ucall._cli.trust import tls_arguments
from ucall.client import Client, Response
from ucall.errors import RPCError

__all__ = ["main"]

ANSWERED = 0
RPC_ERROR = 1
USAGE = 2
NO_REPLY = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes one call; ``sys.argv`` says which.

    Returns:
        The exit status: 0 answered, 1 the server replied with an error, 2 wrong usage, 3 no
        connection or no reply in time, 130 interrupted by Ctrl-C.
    """
    try:
        return _run(parse(arguments))
    except UsageError as error:
        return _complain(USAGE, error)
    except RPCError as error:
        return _complain(RPC_ERROR, _told(error))
    except BrokenPipeError:  # Who reads our output has heard enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ANSWERED
    except (builtins.ConnectionError, builtins.TimeoutError) as error:
        return _complain(NO_REPLY, error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    refuse_output(options.format, options.output)
    params = Params(options.kwargs, options.params)
    watch = Watch(options.verbose, sys.stderr.isatty())
    client = _client(options, watch)
    try:
        response = _call(client, options, params)
    finally:
        watch.finish()
        client.close()
    if response is not None:
        if options.format == "raw":
            write(response, "raw", options.output)
        response.raise_for_status()
        if options.format != "raw":
            write(response, options.format, options.output)
    return ANSWERED


def _client(options: argparse.Namespace, watch: Watch) -> Client:
    uri: str = options.uri
    if options.tcp:
        if "://" in uri and not uri.startswith(("tcp://", "tcps://")):
            raise UsageError(f"--tcp: {uri} speaks something else")
        uri = uri if "://" in uri else f"tcp://{uri}"
    try:
        return Client(
            uri,
            options.port,
            timeout=options.timeout,
            headers=_headers(options.header),
            _observer=watch,
            **tls_arguments(options, uri),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:  # Files that can be read, and hold something else.
        raise UsageError(f"--cacert, --cert or --key: {error}") from None


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


def _told(error: RPCError) -> str:
    """With its data, which is text as a rule, and otherwise JSON."""
    line = f"{error.message} [{error.code}]"
    if error.data is None:
        return line
    data = error.data if isinstance(error.data, str) else json.dumps(error.data, ensure_ascii=False)
    return f"{line}: {data}"


def _complain(status: int, error: Exception | str) -> int:
    """In one line, whatever the server put into it."""
    line = " ".join(str(error).split())
    print(f"ucall: {printable(line)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
