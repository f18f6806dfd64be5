"""Reports to a service manager over a real datagram socket, as systemd's."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from test_workers import Supervised, supervising

from harness import Wire, eventually
from ucall._workers import systemd

APP = """
import os, signal, sys, time, ucall
server = ucall.Server(port=0)

@server
def environment():
    variables = ("NOTIFY", "WATCHDOG", "UCALL_")
    found = [name for name in os.environ if name.startswith(variables)]
    return [name for name in found if not name.startswith("UCALL_WORKER_")]

@server
def pid():
    return os.getpid()

@server
def block():
    time.sleep(3000)

if sys.argv[1:] == ["run"]:
    server.run()
"""


class Manager:
    """The socket of a service manager, and the messages that have come."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(60)

    def next(self) -> str:
        """The next message that is no sign of life."""
        while (message := self.socket.recv(4096).decode()) == "WATCHDOG=1":
            pass
        return message

    def beat(self) -> None:
        """Waits for a sign of life that is sent from now on."""
        self.discard()
        while self.socket.recv(4096) != b"WATCHDOG=1":
            pass

    def discard(self) -> None:
        """Drops the messages that have come."""
        self.socket.setblocking(False)
        with suppress(BlockingIOError):
            while self.socket.recv(4096):
                pass
        self.socket.settimeout(60)

    def is_silent(self) -> bool:
        """Whether no sign of life comes for several intervals."""
        self.discard()
        self.socket.settimeout(1)
        try:
            self.socket.recv(4096)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(60)
        return False


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux's")
    address = f"@ucall-{os.getpid()}-{id(request)}"
    manager = Manager(address if request.param == "abstract" else str(tmp_path / "notify"))
    yield manager
    manager.socket.close()


@contextmanager
def managed(
    folder: Path, manager: Manager, *command: str, watchdog_s: float | None = None
) -> Iterator[Supervised]:
    (folder / "app.py").write_text(APP)
    environment = {"NOTIFY_SOCKET": manager.address}
    if watchdog_s is not None:
        environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
    with supervising(folder, *command, **environment) as it:
        yield it


def _port(message: str) -> int:
    found = re.search(r"serving on http://127.0.0.1:(\d+)", message)
    assert found, message
    return int(found[1])


@pytest.mark.parametrize("command", [["-m", "ucall", "app:server"], ["app.py", "run"]])
def test_a_server_reports_its_life(tmp_path: Path, manager: Manager, command: list[str]) -> None:
    with managed(tmp_path, manager, *command, watchdog_s=0.2) as it:
        ready = manager.next()
        assert ready.startswith("READY=1\nSTATUS=")
        with Wire(_port(ready)) as wire:
            assert wire.result("environment") == []
        for _ in range(3):
            manager.beat()
        it.process.send_signal(signal.SIGTERM)
        assert manager.next() == "STOPPING=1\nSTATUS=draining"
        assert it.process.wait(60) == 0


def test_the_watchdog_is_fed_only_while_the_server_takes_turns(
    tmp_path: Path, manager: Manager
) -> None:
    with managed(tmp_path, manager, "-m", "ucall", "app:server", watchdog_s=0.2) as it:
        with Wire(_port(manager.next())) as wire:
            manager.beat()
            wire.send(b'{"jsonrpc":"2.0","method":"block"}')
            assert eventually(manager.is_silent)
        assert it.process.poll() is None


def test_signs_of_life_are_sent_at_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = systemd.Notifier("@nobody", 2.0)
    sent = []
    for now in (10.0, 10.9, 11.0, 11.5, 12.0):
        monkeypatch.setattr(notifier, "beat", lambda now=now: sent.append(now))
        notifier.beat_for([now], now)
    assert sent == [10.0, 11.0, 12.0]


@pytest.mark.parametrize(
    ("microseconds", "process", "interval_s"),
    [
        (None, None, None),
        ("2000000", None, 1.0),
        ("2000000", "own", 1.0),
        ("2000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
    ],
)
def test_signs_of_life_are_sent_if_the_manager_expects_them(
    monkeypatch: pytest.MonkeyPatch,
    microseconds: str | None,
    process: str | None,
    interval_s: float | None,
) -> None:
    monkeypatch.setattr(systemd, "_notifier", None)
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody")
    monkeypatch.setenv("WATCHDOG_USEC", microseconds or "")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if process == "own" else process or "")
    notifier, sent = systemd.notifier(), []
    assert notifier is not None and notifier.beat_interval_s == interval_s
    assert not [it for it in os.environ if it.startswith(("NOTIFY", "WATCHDOG"))]
    monkeypatch.setattr(notifier, "beat", lambda: sent.append(1))
    notifier.beat_for([5.0], 5.0)
    assert sent == ([1] if interval_s else [])
    assert notifier.next_beat() == (5.0 + interval_s if interval_s else None)


def test_a_supervisor_reports_for_its_workers(tmp_path: Path, manager: Manager) -> None:
    command = ["-m", "ucall", "app:server", "--workers", "2"]
    with managed(tmp_path, manager, *command, watchdog_s=1) as it:
        ready = manager.next()
        assert ready.startswith("READY=1\nSTATUS=") and ready.endswith(", workers: 2")
        assert it.text().count("is ready") == 2
        assert it.call("environment") == []
        manager.beat()
        it.process.send_signal(signal.SIGHUP)
        reloading = manager.next()
        assert re.match(r"RELOADING=1\nMONOTONIC_USEC=\d+\n", reloading)
        assert manager.next().startswith("READY=1\n")
        assert it.text().count("is ready") == 4
        manager.beat()
        it.process.send_signal(signal.SIGTERM)
        assert manager.next() == "STOPPING=1\nSTATUS=draining"
        assert it.process.wait(60) == 0


@pytest.mark.parametrize("sent", [signal.SIGSTOP, None])
def test_a_worker_that_hangs_stops_the_watchdog(
    tmp_path: Path, manager: Manager, sent: signal.Signals | None
) -> None:
    command = ["-m", "ucall", "app:server", "--workers", "2"]
    with managed(tmp_path, manager, *command, watchdog_s=0.4) as it:
        with Wire(_port(manager.next())) as wire:
            manager.beat()
            pid = wire.result("pid")
            if sent is None:
                wire.send(b'{"jsonrpc":"2.0","method":"block"}')
            else:
                os.kill(pid, sent)
            assert eventually(manager.is_silent)
            # The supervisor replaces a dead worker, and the watchdog is fed again.
            os.kill(pid, signal.SIGKILL)
            manager.beat()
        assert it.process.poll() is None


def test_a_manager_that_is_gone_is_logged(tmp_path: Path, manager: Manager) -> None:
    manager.socket.close()
    with managed(tmp_path, manager, "-m", "ucall", "app:server") as it:
        assert eventually(lambda: "cannot notify the service manager: " in it.text())
