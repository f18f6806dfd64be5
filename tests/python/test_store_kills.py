"""Kills the processes of a store at random moments, and checks every answer that clients got.

`make test-store-kills` does this 200 times.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forking
import pytest
from applications import STORE
from linearizability import Call, State, unexplained
from test_workers import supervised

import ucall
from harness import Wire, program

ROUNDS = int(os.environ.get("UCALL_STORE_ROUNDS", "5"))
CLIENTS = 12
KEYS = ["count:0", "count:1", "text:0", "text:1", "pair"]
PAIR = ["pair:a", "pair:b"]

APP = """
import ucall
server = ucall.Server(port=0)
server.store("kv", {path!r})
"""


def whole(number: int) -> list[Any]:
    """A value that shows whether it is whole; some fill pages of their own."""
    text = random.Random(number).choice(["x", "yz"]) * (number % 7000)
    return [number, text, zlib.crc32(f"{number} {text}".encode())]


def number_of(key: str, value: Any) -> int:
    """The number that was written, unless the value is torn."""
    number: int = value if key.startswith("count:") else value[0]
    assert value == (number if key.startswith("count:") else whole(number)), f"{key} is torn"
    return number


def pair_of(entries: list[Any]) -> tuple[int, int] | None:
    """The number and the version of the pair, unless only half of a batch was written."""
    if not entries:
        return None
    assert [key for key, _, _ in entries] == PAIR
    [(_, a, first), (_, b, second)] = entries
    assert a == b and first + 1 == second, "half of a batch was written"
    return number_of("pair", a), second


class Client:
    """Makes random calls, and records them with their answers."""

    def __init__(self, number: int) -> None:
        self.keys = [*KEYS, f"text:of {number}"]
        self.chance = random.Random()
        self.numbers = iter(range(number, sys.maxsize, CLIENTS))
        self.versions: dict[str, int] = {}
        self.calls: dict[str, list[Call]] = defaultdict(list)

    def run(self, ports: list[int], is_over: threading.Event, answered: Callable[[], None]) -> None:
        while not is_over.is_set():
            try:
                with Wire(self.chance.choice(ports)) as wire:
                    while True:
                        self._call(wire)
                        answered()
            except (OSError, ValueError):
                # The process was killed, perhaps within an answer.
                continue

    def _call(self, wire: Wire) -> None:
        key = self.chance.choice(self.keys)
        methods = ["get", "put", "delete", "cas", "increment"]
        of_pair = self.chance.choice(["get", "put"])
        method = of_pair if key == "pair" else self.chance.choice(methods)
        if method == "increment" and not key.startswith("count:"):
            return
        number = next(self.numbers)
        params = {
            "put": (number,),
            "cas": (self.versions.get(key, 0), number),
            "increment": (number,),
        }.get(method, ())
        call = Call(method, params, time.monotonic())
        self.calls[key].append(call)
        answer = self._pair(wire, call) if key == "pair" else self._one(wire, key, call)
        call.ended = time.monotonic()
        call.answer = answer
        if method in ("get", "put", "cas") and answer is not None:
            self.versions[key] = answer[1] if method == "get" else answer

    def _one(self, wire: Wire, key: str, call: Call) -> Any:
        params: list[Any] = [key, *call.params]
        if call.method in ("put", "cas") and not key.startswith("count:"):
            params[-1] = whole(params[-1])
        result = wire.result(f"kv.{call.method}", params)
        if call.method == "get" and result is not None:
            return number_of(key, result["value"]), result["version"]
        return result

    def _pair(self, wire: Wire, call: Call) -> Any:
        if call.method == "get":
            page = wire.result("kv.scan", {"prefix": "pair:"})
            return pair_of([(one["key"], one["value"], one["version"]) for one in page["entries"]])
        value = whole(call.params[0])
        operations = [{"method": "put", "params": [key, value]} for key in PAIR]
        return wire.result("kv.batch", [operations])[1]


class Checker:
    """The states of all keys after the last kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: dict[str, State] = defaultdict(State)
        self.versions: set[int] = set()

    def check(self, clients: list[Client]) -> None:
        """Checks the calls since the last kill, and what the store has now."""
        command = [sys.executable, "-m", "ucall.store", "check", str(self.path)]
        checked = forking.run(command, text=True)
        assert checked.returncode == 0, checked.stderr
        store = ucall.store.open(self.path)
        for key in sorted({key for client in clients for key in client.calls}):
            calls = [call for client in clients for call in client.calls.pop(key, [])]
            found = self._read(store, key)
            now = time.monotonic()
            calls.append(Call("get", (), now, now, found))
            self._check_versions(calls)
            wrong = unexplained(calls, self.states[key])
            assert wrong == [], self._report(key, calls, wrong)
            last = max(self.versions, default=0)
            self.states[key] = State(*found) if found else State(None, last)
        store.close()

    @staticmethod
    def _read(store: ucall.store.Store, key: str) -> Any:
        if key == "pair":
            return pair_of([(key, *entry) for key, entry in store.scan("pair:")])
        entry = store.get(key)
        return entry and (number_of(key, entry.value), entry.version)

    def _check_versions(self, calls: list[Call]) -> None:
        """None is given twice, by any key."""
        writes = [call.answer for call in calls if call.method in ("put", "cas")]
        given = [answer for answer in writes if isinstance(answer, int)]
        assert len({*given}) == len(given) and self.versions.isdisjoint(given)
        self.versions.update(given)

    def _report(self, key: str, calls: list[Call], wrong: list[Call]) -> str:
        lines = [f"{key}: no order from {self.states[key]} explains one of {wrong}; all calls:"]
        return "\n".join([*lines, *map(str, sorted(calls, key=lambda call: call.began))])


@dataclass
class Served:
    """Processes that serve one store."""

    ports: list[int]
    pids: Callable[[], list[int]]


Serve = Callable[[Path], AbstractContextManager[Served]]


def kill(pids: list[int]) -> None:
    """Returns after the last one has died."""
    descriptors = []
    for pid in pids:
        try:
            descriptors.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for descriptor in descriptors:
        select.select([descriptor], [], [])
        os.close(descriptor)


def children(pid: int) -> list[int]:
    lists = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for listed in lists for child in listed.read_text().split()]


@contextmanager
def servers(path: Path) -> Iterator[Served]:
    """Three servers that share the store."""
    with ExitStack() as stack:
        processes = [stack.enter_context(program(STORE, str(path))) for _ in range(3)]
        ports = [int(process.stdout.readline()) for process in processes]
        pids = [process.pid for process in processes]
        yield Served(ports, lambda: pids)
        kill(pids)


@contextmanager
def workers(path: Path) -> Iterator[Served]:
    """A supervisor with three workers, which it replaces."""
    source = APP.format(path=str(path))
    with supervised(path.parent, "--workers", "3", source=source) as app:
        app.wait_for(3)
        supervisor = app.process.pid
        yield Served([app.port], lambda: children(supervisor) or [supervisor])
        # It must not replace workers while all of them are killed.
        os.kill(supervisor, signal.SIGSTOP)
        kill([*children(supervisor), supervisor])


def test_histories_stay_linearizable_when_processes_are_killed(tmp_path: Path) -> None:
    clients = [Client(number) for number in range(CLIENTS)]
    checker = Checker(tmp_path / "kv")
    calls = kills = 0
    for number in range(ROUNDS):
        kills += kill_under_load((servers, workers)[number % 2], checker.path, clients)
        calls += sum(len(of_key) for client in clients for of_key in client.calls.values())
        checker.check(clients)
    print(f"{ROUNDS} rounds, {kills} kills, {calls} calls")


def kill_under_load(serve: Serve, path: Path, clients: list[Client]) -> int:
    """Kills up to two processes, then all at once, while clients call; returns how often."""
    answers, is_over = threading.Semaphore(0), threading.Event()
    single_kills = random.randrange(3)
    with ThreadPoolExecutor(CLIENTS) as threads, serve(path) as served:
        running = [
            threads.submit(client.run, served.ports, is_over, answers.release) for client in clients
        ]
        try:
            for _ in range(single_kills):
                wait_a_while(answers)
                kill([random.choice(served.pids())])
            wait_a_while(answers)
        finally:
            is_over.set()
    for one in running:
        one.result()
    return single_kills + 1


def wait_a_while(answers: threading.Semaphore) -> None:
    """Waits for some answers, and then until any moment of a call."""
    for _ in range(random.randrange(1, 300)):
        assert answers.acquire(timeout=60), "the clients get no answers"
    time.sleep(random.uniform(0, 0.005))


def test_a_killed_writer_holds_up_no_other_process(tmp_path: Path) -> None:
    with servers(tmp_path / "kv") as served:
        wires = [Wire(port) for port in served.ports]
        for number, wire in enumerate(wires):
            assert wire.result("kv.increment", ["n"]) == number + 1
        kill(served.pids()[:1])
        for number, wire in enumerate(wires[1:]):
            assert wire.result("kv.increment", ["n"]) == number + 4
            wire.socket.close()


def test_the_checker_finds_what_a_store_has_lost_or_torn(tmp_path: Path) -> None:
    client, checker = Client(0), Checker(tmp_path / "kv")
    store = ucall.store.open(tmp_path / "kv")
    client.calls["text:0"] = [Call("put", (5,), 0, 1, store.put("text:0", whole(5)))]
    store.close()
    checker.check([client])
    client.calls["text:0"] = [Call("put", (6,), 2, 3, 2)]
    with pytest.raises(AssertionError, match="no order from"):
        checker.check([client])
    store.put(
        "text:0", json.loads(json.dumps(whole(701)).replace("x", "y", 1).replace("yz", "y", 1))
    )
    client.calls["text:0"] = [Call("put", (701,), 2, 3, 3)]
    with pytest.raises(AssertionError, match="text:0 is torn"):
        checker.check([client])
    store.put("pair:a", whole(1))
    store.put("text:0", 1)
    store.put("pair:b", whole(1))
    client.calls = defaultdict(list, {"pair": [Call("put", (1,), 2, 3, 4)]})
    with pytest.raises(AssertionError, match="half of a batch"):
        checker.check([client])
