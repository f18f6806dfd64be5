"""New connections go to the workers that are ready, whatever happens to the others."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from test_workers import APP, Supervised, supervised

from harness import Wire, eventually, request

#: The seconds of the long test, which has workers die all the time.
SECONDS = float(os.environ.get("UCALL_WORKER_DEATHS_SECONDS", "0"))
#: Far less than it takes until a successor is ready, and long for a busy machine.
WAIT_MAX_S = 1.0

SLOW_START = """
@server.on_startup
def load_model() -> None:
    while os.path.exists("hold"):
        time.sleep(0.01)
    time.sleep(float(os.environ.get("START_S", "0")))
"""


@dataclass
class Call:
    """A call on a connection of its own."""

    began: float
    ended: float
    #: Why there is no reply.
    failure: OSError | None

    @property
    def took_s(self) -> float:
        return self.ended - self.began


class Load:
    """Clients that open a connection for each call."""

    def __init__(self, address: int | str, clients: int = 6) -> None:
        self._address = address
        self.calls: list[Call] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def more(self, calls: int = 100) -> None:
        """Waits until this many more calls have ended."""
        enough = len(self.calls) + calls
        assert eventually(lambda: len(self.calls) >= enough), self.calls[-10:]

    def _run(self) -> None:
        while not self._done.is_set():
            began, failure = time.monotonic(), None
            try:
                with Wire(self._address) as wire:
                    wire.send(request("sum", [1, 2]))
                    line = wire.line()
                if not line:
                    failure = ConnectionResetError("closed without a reply")
                elif json.loads(line).get("result") != 3:
                    failure = OSError(line)
            except OSError as raised:
                failure = raised
            self.calls.append(Call(began, time.monotonic(), failure))
            # The system needs some time for the ports of closed connections.
            time.sleep(0.01)

    def lost(self, *deaths: tuple[float, float], stopped_at: float) -> list[Call]:
        """The failures, but for calls that ran while a worker died, and those that were refused
        when the server stopped."""

        def is_excused(call: Call) -> bool:
            is_refused = isinstance(call.failure, ConnectionRefusedError | FileNotFoundError)
            return (is_refused and call.ended > stopped_at) or any(
                call.began < gone_at and call.ended > killed_at for killed_at, gone_at in deaths
            )

        return [call for call in self.calls if call.failure and not is_excused(call)]


def kill(pid: int) -> tuple[float, float]:
    """Kills a worker; returns when the signal was sent, and when its parent had reaped it."""
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    return killed_at, time.monotonic()


@pytest.fixture(params=["tcp", "unix"])
def socket_flags(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return ["--uds", str(tmp_path / "socket")] if request.param == "unix" else []


def address_of(it: Supervised, socket_flags: list[str]) -> int | str:
    return socket_flags[-1] if socket_flags else it.port


def test_no_connection_waits_for_a_successor_or_is_lost(
    tmp_path: Path, engine: str, socket_flags: list[str]
) -> None:
    flags = ["--workers", "3", "--engine", engine, *socket_flags]
    with supervised(tmp_path, *flags, source=APP + SLOW_START) as it:
        pids = it.wait_for(3)
        with Load(address_of(it, socket_flags)) as load:
            (tmp_path / "hold").touch()
            deaths = []
            for pid in pids[:2]:
                deaths.append(kill(pid))
                load.more()
            assert len(it.ready()) == 3
            (tmp_path / "hold").unlink()
            it.wait_for(5)
            it.process.send_signal(signal.SIGHUP)
            it.wait_for(8)
            load.more()
            stopped_at = time.monotonic()
            it.process.send_signal(signal.SIGTERM)
            assert it.process.wait(60) == 0
        assert load.lost(*deaths, stopped_at=stopped_at) == []
        assert max(call.took_s for call in load.calls if call.ended < stopped_at) < WAIT_MAX_S


def test_a_connection_is_served_that_a_dead_worker_was_woken_for(
    tmp_path: Path, engine: str
) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine, source=APP + SLOW_START) as it:
        stopped, _ = it.wait_for(2)
        (tmp_path / "hold").touch()
        os.kill(stopped, signal.SIGSTOP)
        status = Path(f"/proc/{stopped}/stat")
        assert eventually(lambda: status.read_text().rsplit(") ")[-1].startswith("T"))
        # The kernel wakes one process for each connection, in turn, on io_uring also one that does
        # not run.
        wires = []
        for _ in range(2):
            wires.append(Wire(it.port, 10))
            wires[-1].send(request("sum", [1, 2]))
            if not select.select([wires[-1].socket], [], [], 0.3)[0]:
                break
        kill(stopped)
        began = time.monotonic()
        for wire in wires:
            assert json.loads(wire.line())["result"] == 3
            wire.close()
        assert time.monotonic() - began < WAIT_MAX_S
        (tmp_path / "hold").unlink()
        it.stop()


def test_a_burst_of_connections_is_spread(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine) as it:
        it.wait_for(2)

        def is_spread() -> bool:
            wires = [Wire(it.port) for _ in range(20)]
            pids = [wire.result("pid") for wire in wires]
            for wire in wires:
                wire.close()
            return all(pids.count(pid) > 5 for pid in it.ready())

        assert eventually(is_spread)
        it.stop()


def test_a_worker_that_is_stopped_leaves_the_socket_to_others(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine) as it:
        [pid, _] = it.wait_for(2)
        with Load(it.port) as load:
            os.kill(pid, signal.SIGTERM)
            it.wait_for(3)
            load.more()
        assert [call for call in load.calls if call.failure] == []
        it.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_connections_are_refused_while_running_calls_finish(
    tmp_path: Path, engine: str, socket_flags: list[str], workers: str
) -> None:
    with supervised(tmp_path, "--workers", workers, "--engine", engine, *socket_flags) as it:
        it.wait_for(int(workers))
        address = address_of(it, socket_flags)
        with Wire(address) as running, Wire(address) as other:
            running.send(request("pause", [60]))
            assert other.result("sum", [1, 2]) == 3
            it.process.send_signal(signal.SIGTERM)

            def is_refused() -> bool:
                try:
                    Wire(address).close()
                except ConnectionRefusedError:
                    return True
                return False

            assert eventually(is_refused, 5)
            assert it.process.poll() is None
            it.process.kill()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """A search for garbage among all calls would stop the clients for 0.2 s."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(SECONDS == 0, reason="a long test: set UCALL_WORKER_DEATHS_SECONDS")
@pytest.mark.usefixtures("no_collection")
def test_workers_die_all_the_time(
    tmp_path: Path, engine: str, socket_flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("START_S", "3")
    flags = ["--workers", "3", "--engine", engine, *socket_flags]
    with supervised(tmp_path, *flags, source=APP + SLOW_START) as it:
        it.wait_for(3)
        deaths: list[tuple[float, float]] = []
        killed: set[int] = set()
        with Load(address_of(it, socket_flags)) as load:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                ready = [pid for pid in it.ready() if pid not in killed]
                # One has to stay that can serve.
                if len(ready) > 1:
                    killed.add(ready[0])
                    deaths.append(kill(ready[0]))
                time.sleep(1)
            count = len(it.ready()) + 3 - len([pid for pid in it.ready() if pid not in killed])
            it.wait_for(count)
            it.process.send_signal(signal.SIGHUP)
            it.wait_for(count + 3)
            load.more()
            stopped_at = time.monotonic()
            it.process.send_signal(signal.SIGTERM)
            assert it.process.wait(60) == 0
        _report(load, len(deaths), stopped_at)
        assert load.lost(*deaths, stopped_at=stopped_at) == []
        assert max(call.took_s for call in load.calls if call.ended < stopped_at) < WAIT_MAX_S


def _report(load: Load, deaths: int, stopped_at: float) -> None:
    served = [call for call in load.calls if call.ended < stopped_at]
    took = sorted(call.took_s * 1000 for call in served if not call.failure)
    broken = sum(1 for call in served if call.failure)
    ranks = {name: took[int(share * (len(took) - 1))] for name, share in _RANKS.items()}
    text = ", ".join(f"{name} {value:.1f}" for name, value in ranks.items())
    print(f"{deaths} deaths, {len(took)} calls, {broken} broken by deaths; ms: {text}")


_RANKS = {"median": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}
