"""Several servers as processes that are killed, drained and restarted, and callers of them all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forking

import ucall
from harness import HOST, eventually, free_port
from ucall import aio
from ucall.client import Client

#: Each server appends what it begins to its own file.
SOURCE = """
import asyncio, json, os, sys, ucall.posix
log = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
# The kernel closes the sockets of a killed process with an io_uring only some time after its end.
server = ucall.posix.Server(
    port=int(sys.argv[1]), **ucall.options.arguments(json.loads(sys.argv[3]))
)

@server
async def once(number: int):
    os.write(log, b"%d\\n" % number)
    await asyncio.sleep(0.001)
    return number + 1

@server(idempotent=True)
def often(number: int):
    os.write(log, b"%d\\n" % number)
    return number + 1

@server.on_startup
def ready():
    # Its port is open.
    print("ready", flush=True)

broker = json.loads(sys.argv[4])
server.run(broker=ucall.Broker(**broker) if broker else None)
"""


class Servers:
    """Servers on ports of their own, which they keep when they are restarted.

    Args:
        broker: The arguments of `ucall.Broker`.
    """

    def __init__(
        self, folder: Path, count: int, options: dict[str, Any], broker: dict[str, Any]
    ) -> None:
        self._broker = broker
        self.ports = [free_port() for _ in range(count)]
        self._options = options
        self._folder = folder
        self._processes = [self._start(port) for port in self.ports]
        for number in range(count):
            self.wait_ready(number)

    def uris(self, scheme: str) -> list[str]:
        return [f"{scheme}{HOST}:{port}" for port in self.ports]

    def pid(self, number: int) -> int:
        return self._processes[number].pid

    def signal(self, number: int, sent: signal.Signals) -> None:
        self._processes[number].send_signal(sent)

    def kill(self, number: int) -> tuple[float, float]:
        """Kills a server; returns from when to when it was ending."""
        began = time.monotonic()
        self._processes[number].kill()
        self._processes[number].communicate()
        # Until a thread of the client has read the end of a connection, others send calls on it.
        return began, time.monotonic() + 0.5

    def restart(self, number: int) -> None:
        """Starts a server again after it has ended, and waits until it serves."""
        self._processes[number].communicate(timeout=60)
        self._processes[number] = self._start(self.ports[number])
        self.wait_ready(number)

    def wait_ready(self, number: int) -> None:
        stdout = self._processes[number].stdout
        assert stdout is not None and stdout.readline() == "ready\n"

    def begun(self) -> Counter[int]:
        """How often each call was begun."""
        logs = self._folder.glob("*.log")
        return Counter(int(line) for log in logs for line in log.read_text().split())

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, port: int) -> subprocess.Popen[str]:
        log = self._folder / f"{port}.log"
        arguments = [str(port), str(log), json.dumps(self._options), json.dumps(self._broker)]
        command = [sys.executable, "-u", "-c", SOURCE, *arguments]
        return forking.Python(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def servers(
    folder: Path, count: int, broker: dict[str, Any] | None = None, **options: Any
) -> Iterator[Servers]:
    started = Servers(folder, count, options, broker or {})
    try:
        yield started
    finally:
        started.kill_all()


@dataclass
class Failure:
    """A call that has raised."""

    number: int
    method: str
    error: BaseException
    began: float
    ended: float


@dataclass
class Load:
    """Calls one after another by several callers, until it is stopped."""

    callers: int
    idempotent: bool = False
    succeeded: list[int] = field(default_factory=list)
    #: When each call that succeeded began, and the seconds that it took.
    latencies: list[tuple[float, float]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)
    _has_ended: bool = False

    def stop(self) -> None:
        self._has_ended = True

    def goes_on(self, calls: int = 200) -> bool:
        """Whether calls succeed that began from now on."""
        before = len(self.succeeded)
        return eventually(lambda: len(self.succeeded) > before + calls)

    def goes_on_until(self, moment: float) -> bool:
        """Whether calls succeed until then, by ``time.monotonic``."""
        while (left := moment - time.monotonic()) > 0 and not self._has_ended:
            time.sleep(min(left, 0.1))
        return self.goes_on()

    def check(self, begun: Counter[int]) -> None:
        """No reply was wrong, and no call was begun twice that may not."""
        assert self.wrong == []
        known = [*self.succeeded, *(failure.number for failure in self.failures)]
        repeated = [number for number in known if begun[number] > 1]
        assert [number for number in repeated if self.method_of(number) == "once"] == []

    def check_failures(self, ended: list[tuple[float, float]]) -> None:
        """Only calls have failed that may not be repeated, and were in flight when a server ended,
        from one moment to another."""
        for failure in self.failures:
            assert failure.method == "once", failure
            assert isinstance(failure.error, ucall.ConnectionError), failure
            assert failure.error.may_have_run, failure
            is_of = (began <= failure.ended and failure.began <= end for began, end in ended)
            assert any(is_of), failure

    def method_of(self, number: int) -> str:
        return "once" if number // self.callers % 2 else "often"

    def _numbers(self, caller: int) -> Iterator[tuple[int, str]]:
        number = caller
        while not self._has_ended:
            number += self.callers
            yield number, self.method_of(number)

    def _note(self, number: int, result: object, began: float) -> None:
        if result == number + 1:
            self.succeeded.append(number)
            self.latencies.append((began, time.monotonic() - began))
        else:
            self.wrong.append((number, result))

    def _fail(self, number: int, method: str, error: BaseException, began: float) -> None:
        self.failures.append(Failure(number, method, error, began, time.monotonic()))

    def call_in_turn(self, client: Client, caller: int) -> None:
        for number, method in self._numbers(caller):
            began = time.monotonic()
            try:
                self._note(number, client.call(method, number).json, began)
            except Exception as error:
                self._fail(number, method, error, began)

    async def await_in_turn(self, client: aio.Client, caller: int) -> None:
        for number, method in self._numbers(caller):
            began = time.monotonic()
            try:
                self._note(number, (await client.call(method, number)).json, began)
            except Exception as error:
                self._fail(number, method, error, began)


@contextmanager
def load(
    uris: str | list[str], kind: str, callers: int = 8, idempotent: bool = False, **options: Any
) -> Iterator[Load]:
    """Calls servers during the block, by a client of threads or of asyncio; with `idempotent` all
    calls may be repeated."""
    made = Load(callers, idempotent)
    run: Callable[..., None] = _run_threads if kind == "threads" else _run_tasks
    thread = threading.Thread(target=run, args=(made, uris, options))
    thread.start()
    try:
        assert made.goes_on()
        yield made
    finally:
        made.stop()
        thread.join(60)
    assert not thread.is_alive()


def _run_threads(made: Load, uris: str | list[str], options: dict[str, Any]) -> None:
    with Client(uris, **options) as base:
        client = base.with_options(idempotent=True) if made.idempotent else base
        threads = [
            threading.Thread(target=made.call_in_turn, args=(client, caller))
            for caller in range(made.callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _run_tasks(made: Load, uris: str | list[str], options: dict[str, Any]) -> None:
    async def main() -> None:
        async with aio.Client(uris, **options) as base:
            client = base.with_options(idempotent=True) if made.idempotent else base
            tasks = [made.await_in_turn(client, it) for it in range(made.callers)]
            await asyncio.gather(*tasks)

    asyncio.run(main())


#: The length of the tests with many servers; longer ones by `make test-many-servers`.
SECONDS = float(os.environ.get("UCALL_MANY_SERVERS_SECONDS", "0"))


def rounds(least: int) -> Iterator[int]:
    """Numbers from 0: that many, and more until the time is over."""
    began, number = time.monotonic(), 0
    while number < least or time.monotonic() - began < SECONDS:
        yield number
        number += 1
