"""``ucall store``, or ``python -m ucall.store``: checks, dumps, loads and compacts a store."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from ucall import store as stores

if TYPE_CHECKING:
    from ucall import _core

__all__ = ["main"]

#: The bytes of the lines that one transaction loads.
_PIECE_BYTES: Final = 1 << 20
#: A dump has values of any size that LMDB stores.
_VALUE_BYTES_MAX: Final = (1 << 32) - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of ``sys.argv``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="ucall store", description=__doc__)
    commands = {
        "check": "read every entry, and report damage",
        "dump": "write every entry to standard output, a line of JSON each",
        "load": "put the entries of standard input, as dump writes them",
        "compact": "rewrite the file without free pages; no other process may have it open",
    }
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, text in commands.items():
        command = subparsers.add_parser(name, help=text, description=text)
        command.add_argument("path", type=Path, help="the directory of the store")
    options = parser.parse_args(arguments)
    try:
        return _run(options.command, options.path)
    except (OSError, ValueError) as failure:
        print(f"{options.path}: {failure}", file=sys.stderr)
        return 1


def _run(command: str, path: Path) -> int:
    if command != "load" and not (path / "data.mdb").exists():
        raise OSError("there is no store")
    # A copy on a read-only volume can be checked and dumped, too.
    readonly = command in ("check", "dump")
    core = stores.open(path, max_value_bytes=_VALUE_BYTES_MAX, readonly=readonly)._core
    match command:
        case "check":
            return _check(core)
        case "dump":
            _dump(core)
        case "load":
            _load(core, sys.stdin.buffer)
        case _:
            before, after = core.compact()
            print(f"{before} bytes before, {after} after")
    return 0


def _dump(core: _core.Store) -> None:
    try:
        core.dump(sys.stdout.buffer.write)
        sys.stdout.buffer.flush()
    except OSError:
        # Otherwise the exit would write the rest again, and fail with a status of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _check(core: _core.Store) -> int:
    count, damaged = core.check()
    for key, reason in damaged:
        print(f"{key!r}: {reason}", file=sys.stderr)
    print(f"{count} entries")
    return 1 if damaged else 0


def _load(core: _core.Store, lines: IO[bytes]) -> None:
    number = 1
    while piece := lines.readlines(_PIECE_BYTES):
        core.load(b"".join(piece), number)
        number += len(piece)


if __name__ == "__main__":
    raise SystemExit(main())
