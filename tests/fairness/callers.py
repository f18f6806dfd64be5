"""The ordinary callers, and the processes that they need."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairness.attackers import ATTACKS

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CALLERS = 31
_TIMEOUT_S = 30.0
_FOLDER = Path(__file__).parents[1]


@dataclass
class Outcome:
    """The seconds of each call that was answered, and why others were not."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of calls that were answered."""
        return len(self.seconds) / max(1, len(self.seconds) + len(self.failures))

    @property
    def p99_s(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]


def measure(port: int, calls: int | None, seconds: float = 0.0) -> Outcome:
    """Lets the callers make so many calls each, or call for so many seconds."""
    outcome = Outcome()

    async def run() -> None:
        ends = time.monotonic() + seconds
        callers = (_caller(port, calls, ends, outcome) for _ in range(CALLERS))
        await asyncio.gather(*callers)

    asyncio.run(run())
    return outcome


async def _caller(port: int, calls: int | None, ends: float, outcome: Outcome) -> None:
    connection: Connection | None = None
    number = 0
    while number < calls if calls is not None else time.monotonic() < ends:
        number += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                connection, reply = await _call(port, number, connection)
        except (OSError, EOFError, ValueError) as error:
            outcome.failures.append(repr(error))
            connection = None
            continue
        if "result" in reply:
            outcome.seconds.append(time.monotonic() - began)
        else:
            outcome.failures.append(json.dumps(reply))
    if connection is not None:
        connection[1].close()


async def _call(
    port: int, number: int, connection: Connection | None
) -> tuple[Connection, dict[str, object]]:
    """A call over HTTP. As all clients do, it connects again if the server has closed an idle
    connection."""
    method = "later" if number % 2 else "ok"
    body = json.dumps({"jsonrpc": "2.0", "method": method, "id": number})
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    for is_kept in (True, False) if connection else (False,):
        try:
            if not is_kept or connection is None:
                connection = await asyncio.open_connection("127.0.0.1", port)
            reader, writer = connection
            writer.write((head + body).encode())
            found = await reader.readuntil(b"\r\n\r\n")
            length = int(found.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            return connection, json.loads(await reader.readexactly(length))
        except (ConnectionError, asyncio.IncompleteReadError):
            if not is_kept:
                raise
    raise AssertionError


@contextlib.contextmanager
def program(module: str, *arguments: object) -> Iterator[str]:
    """Runs a module of this package. Returns the first line that it prints."""
    command = [sys.executable, "-m", f"fairness.{module}", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=_FOLDER, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            # A server would wait for the calls of the attackers.
            process.kill()


@contextlib.contextmanager
def served(place: str, engine: str) -> Iterator[int]:
    """The port of a server, or of a relay before one."""
    if place == "server":
        with program("app", "server", engine) as port:
            yield int(port)
        return
    with (
        program("app", "upstream", engine) as upstream,
        program("app", "relay", engine, upstream) as port,
    ):
        yield int(port)


@contextlib.contextmanager
def attacked(place: str, port: int) -> Iterator[None]:
    """One attacker of each kind during the block."""
    names = [attack.__name__ for attack in ATTACKS[place]]
    with program("attackers", port, *names) as line:
        assert line == "begun"
        yield
