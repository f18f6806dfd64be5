"""``ucall store``, or ``python -m ucall.store``: checks, dumps, loads and compacts a store."""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ucall import store as stores

__all__ = ["main"]

_BATCH = 500


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
    if command == "compact":
        return _compact(path)
    store = stores.open(path)
    match command:
        case "check":
            return _check(store)
        case "dump":
            for key, entry in store.scan():
                print(json.dumps(_line(key, entry), ensure_ascii=False))
        case _:
            _load(store, sys.stdin)
    return 0


def _check(store: stores.Store) -> int:
    count, damaged = 0, 0
    for key, (_, is_json, stored) in stores.scan_stored(store._core):
        try:
            count, _ = count + 1, is_json and json.loads(stored)
        except ValueError as error:
            damaged += 1
            print(f"{key!r}: {error}", file=sys.stderr)
    print(f"{count} entries")
    return 1 if damaged else 0


def _line(key: str | bytes, entry: stores.Entry) -> dict[str, object]:
    name = {"bytes": _encode(key)} if isinstance(key, bytes) else key
    if isinstance(entry.value, bytes):
        return {"key": name, "bytes": _encode(entry.value)}
    return {"key": name, "value": entry.value}


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _load(store: stores.Store, lines: IO[str]) -> None:
    batch: list[stores.Operation] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            coded = "bytes" in entry
            value = base64.b64decode(entry["bytes"]) if coded else entry["value"]
            key = entry["key"]
            if isinstance(key, dict):
                key = base64.b64decode(key["bytes"])
            batch.append(("put", key, value))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: expected an entry of dump: {error!r}") from None
        if len(batch) == _BATCH:
            store.batch(batch)
            batch.clear()
    store.batch(batch)


def _compact(path: Path) -> int:
    before, copied = path / "data.mdb", path / "data.mdb.compact"
    copied.unlink(missing_ok=True)
    with _lock(path) as lock:
        changed = before.stat()
        store = stores.open(path)
        try:
            store._core.compact(copied)
            store.close()
            lock()
            if before.stat().st_mtime_ns != changed.st_mtime_ns:
                raise OSError("another process has written to it; try again")
            os.replace(copied, before)
        finally:
            copied.unlink(missing_ok=True)
        (path / "lock.mdb").unlink()
    print(f"{changed.st_size} bytes before, {before.stat().st_size} after")
    return 0


@contextmanager
def _lock(path: Path) -> Iterator[Callable[[], None]]:
    """Holds the lock of the only process that has the store open. Opening the store shares it."""
    with open(path / "lock.mdb", "a+b") as file:

        def lock() -> None:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError:
                raise OSError("another process has it open") from None

        lock()
        yield lock


if __name__ == "__main__":
    raise SystemExit(main())
