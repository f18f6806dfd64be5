"""Worker processes under a supervisor: deaths, replacement and stop, under load."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from applications import PID

from harness import Wire, eventually, free_port, http, request

APP = f"""
{PID}
import asyncio, time
@server
def sum(a: int, b: int) -> int:
    return a + b
@server
async def pause(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()
@server
def stats() -> dict:
    return server.stats()
@server
def version() -> int:
    return 1
"""


class Supervised:
    """A supervisor in a process of its own, and its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        assert eventually(lambda: "listening on" in self.text()), self.text()
        found = re.findall(r"listening on https?://\S+?:(\d+)", self.text())[:1]
        #: 0 for a Unix socket.
        [self.port] = map(int, found or [0])

    def text(self) -> str:
        return self.log.read_text()

    def ready(self) -> list[int]:
        """The process ids of all workers that have become ready."""
        return [int(pid) for pid in re.findall(r"\(pid (\d+)\) is ready", self.text())]

    def wait_for(self, count: int) -> list[int]:
        assert eventually(lambda: len(self.ready()) >= count), self.text()
        return self.ready()

    def call(self, method: str, params: Any = None) -> Any:
        with Wire(self.port) as wire:
            return wire.result(method, params)

    def reaches(self, pids: Collection[int]) -> bool:
        """Whether connections reach each of these workers and no other: the kernel chooses which
        of them accepts one, so as many are made as it takes."""
        found: set[int] = set()
        return eventually(lambda: bool(found.add(self.call("pid"))) or found == set(pids))

    @contextmanager
    def wires(self, count: int) -> Iterator[dict[int, Wire]]:
        """A connection to each of this many workers, by its process id."""
        self.wait_for(count)
        with ExitStack() as stack:
            found: dict[int, Wire] = {}
            while len(found) < count:
                wire = stack.enter_context(Wire(self.port))
                found.setdefault(wire.result("pid"), wire)
            yield found

    def stop(self, within_s: float = 60) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(within_s) == 0, self.text()


@contextmanager
def supervised(folder: Path, *flags: str, source: str = APP) -> Iterator[Supervised]:
    (folder / "app.py").write_text(source)
    with supervising(folder, "-m", "ucall", "app:server", "--port", "0", *flags) as it:
        yield it


@contextmanager
def supervising(folder: Path, *arguments: str, **environment: str) -> Iterator[Supervised]:
    """Python with these arguments and variables, in a folder."""
    log = folder / "log"
    with log.open("w") as errors:
        process = forking.Python(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            text=True,
        )
    try:
        yield Supervised(process, log)
    finally:
        process.kill()
        process.wait()


class Load:
    """Clients that call repeatedly, each on a connection of its own, and record errors."""

    def __init__(self, port: int, clients: int = 4, over: str = "http") -> None:
        self.port = port
        self.over = over
        self.wrong: list[Any] = []
        self.served = [0] * clients
        self.pids: set[int] = set()
        self.broken: list[int] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[n]) for n in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        assert eventually(lambda: min(self.served) > 10), self.wrong
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def more(self, calls: int = 20) -> None:
        """Waits until each remaining client has made this many more calls."""
        before = list(self.served)
        enough = lambda: all(  # noqa: E731
            now >= then + calls or client in self.broken
            for client, (now, then) in enumerate(zip(self.served, before, strict=True))
        )
        assert eventually(enough), (self.wrong, self.served, before)

    def _run(self, client: int) -> None:
        while not self._done.is_set():
            try:
                self._call_on_one_connection(client)
            except Exception as failure:
                self.wrong.append(repr(failure))
                self.broken.append(client)
                return

    def _call_on_one_connection(self, client: int) -> None:
        with Wire(self.port) as wire:
            while not self._done.is_set():
                number = self.served[client]
                method, params = [("sum", [number, 1]), ("pause", [0.005])][number % 2]
                wire.send(http(request(method, params)))
                status, head, body = wire.reply()
                if status != 200:
                    raise ConnectionError(f"call {number} got no reply")
                result = json.loads(body)["result"]
                if method == "pause":
                    self.pids.add(result)
                elif result != number + 1:
                    self.wrong.append((number, result))
                self.served[client] += 1
                if b"connection: close" in head.lower():
                    return


def test_all_workers_serve_and_stop(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine) as it:
        pids = set(it.wait_for(2))
        assert it.reaches(pids) and it.process.pid not in pids
        it.stop()
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_killed_worker_is_replaced_and_named(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine) as it:
        pids = it.wait_for(2)
        # Enough that the kernel does not give all of them to one worker.
        with Load(it.port, clients=24) as load:
            load.more()
            victim = pids[0]
            os.kill(victim, signal.SIGKILL)
            left = it.wait_for(3)[1:]
            load.more()
        assert f"(pid {victim}) was killed by SIGKILL" in it.text()
        # Only clients of the killed worker have seen an error.
        assert len(load.broken) < 24
        assert all("no reply" in wrong or "Reset" in wrong for wrong in load.wrong), load.wrong
        assert it.reaches(left)
        it.stop()


def test_a_killed_worker_does_not_affect_others(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2") as it:
        with it.wires(2) as wires:
            victim, other = wires
            os.kill(victim, signal.SIGKILL)
            assert [wires[other].result("pid") for _ in range(20)] == [other] * 20
        it.wait_for(3)
        it.stop()


@pytest.mark.slow
def test_a_rolling_restart_loses_nothing(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine) as it:
        first = set(it.wait_for(2))
        with Load(it.port, clients=6) as load:
            for generation in (2, 3):
                load.more()
                it.process.send_signal(signal.SIGHUP)
                it.wait_for(2 * generation)
                load.more()
        assert load.wrong == [] and load.broken == []
        assert eventually(lambda: not any(_is_alive(pid) for pid in first))
        it.stop()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_rolling_restart_loads_the_new_source(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "1") as it:
        it.wait_for(1)
        assert it.call("version") == 1
        (tmp_path / "app.py").write_text(APP.replace("return 1", "return 22"))
        it.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: it.call("version") == 22)
        (tmp_path / "app.py").write_text("this is no Python")
        it.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "no worker is replaced" in it.text())
        # The first worker may accept until it has drained.
        assert eventually(lambda: it.call("version") == 22)
        # No worker but the failed successor has ended when a later one is ready.
        (tmp_path / "app.py").write_text(APP.replace("return 1", "return 333"))
        it.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: it.call("version") == 333)
        assert re.findall("worker . .*(?:ended|killed).*", it.text()) == [
            "worker 1 ended with status 1; no worker is replaced"
        ]
        it.stop()


SLOW_TO_LOAD = """
VERSION = open("version").read()
print("has read version", VERSION, flush=True)
while os.path.exists("hold"):
    time.sleep(0.01)
@server
def loaded() -> str:
    return VERSION
"""


def test_a_source_that_changes_during_a_restart_is_loaded_by_all_workers(tmp_path: Path) -> None:
    version, hold = tmp_path / "version", tmp_path / "hold"
    version.write_text("1")
    with supervised(tmp_path, "--workers", "2", source=APP + SLOW_TO_LOAD) as it:
        it.wait_for(2)
        version.write_text("2")
        hold.touch()
        it.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "has read version 2" in it.text()), it.text()
        version.write_text("3")
        it.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: it.text().count("restarting the workers") == 2), it.text()
        hold.unlink()
        # The successor that was starting, and one more for each worker.
        it.wait_for(5)
        # A replaced worker may accept until it has drained.
        assert eventually(lambda: {it.call("loaded") for _ in range(40)} == {"3"})
        it.stop()


def test_running_calls_finish_at_sigterm(tmp_path: Path, engine: str) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine) as it:
        it.wait_for(2)
        wires = [Wire(it.port) for _ in range(6)]
        for wire in wires:
            wire.send(request("pause", [0.5]))
            assert wire.result("sum", [1, 2]) == 3
        it.process.send_signal(signal.SIGTERM)
        assert all("result" in json.loads(wire.line()) for wire in wires)
        assert it.process.wait(60) == 0
        for wire in wires:
            wire.socket.close()


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    # The drain would last longer than the test waits.
    source = APP.replace("(port=0)", "(port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000))")
    supervisor = supervised(tmp_path, "--workers", "1", source=source)
    with supervisor as it, Wire(it.port) as wire:
        [pid] = it.wait_for(1)
        wire.send(request("pause", [3000]))
        assert wire.result("sum", [1, 2]) == 3
        it.process.send_signal(signal.SIGINT)
        # Two signals at once would merge. The first has arrived when calls are rejected.
        assert eventually(lambda: wire.call("sum", [1, 2]).get("error", {}).get("code") == -32002)
        assert it.process.poll() is None
        it.process.send_signal(signal.SIGINT)
        it.process.wait(60)
        assert not _is_alive(pid)


def test_workers_exit_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2") as it:
        pids = it.wait_for(2)
        it.process.kill()
        it.process.wait()
        assert eventually(lambda: not any(_is_alive(pid) for pid in pids))


def test_a_worker_drains_when_its_supervisor_is_killed_before_it_has_read_all() -> None:
    """The worker's end of the socket is then reset, not closed."""
    program = """if True:
        import signal, socket, sys
        from ucall._workers.worker import Control
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("drained"))
        near, far = socket.socketpair()
        control = Control(near.detach())
        control.beat()
        far.close()
        control.drain_with_supervisor(lambda: None)
        signal.sigtimedwait([signal.SIGUSR1], 60)
    """
    ended = forking.run([sys.executable, "-c", program], timeout=90)
    assert (ended.returncode, ended.stderr) == (1, b"drained\n")


def test_workers_that_die_at_startup_end_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import nothing_of_that_name")
    command = [sys.executable, "-m", "ucall", "app:server", "--workers", "2", "--port", "0"]
    done = forking.run(command, cwd=tmp_path, text=True)
    assert done.returncode == 1
    assert "nothing_of_that_name" in done.stderr and "ready: stopping" in done.stderr


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2") as it:
        it.wait_for(2)
        other = tmp_path / "other"
        other.mkdir()
        (other / "app.py").write_text(APP)
        command = [sys.executable, "-m", "ucall", "app:server", "--port", str(it.port)]
        for flags in ([], ["--workers", "1"]):
            done = forking.run([*command, *flags], cwd=other, text=True)
            assert done.returncode == 1 and str(it.port) in done.stderr
        it.stop()


SCRIPT = f"""
{PID}
import logging
logging.basicConfig(level="INFO")
server.run(workers=2)
print("returned", flush=True)
"""


def test_from_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with supervising(tmp_path, "script.py") as it:
        pids = set(it.wait_for(2))
        assert {it.call("pid") for _ in range(100)} == pids
        it.stop()
        assert it.text().count("returned") == 3
        assert it.text().count("listening on") == 1


def test_a_script_that_serves_again_has_new_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + "server.run(workers=2)\nprint('served twice')\n")
    with supervising(tmp_path, "script.py") as it:
        it.wait_for(2)
        it.process.send_signal(signal.SIGTERM)
        pids = set(it.wait_for(4)[2:])
        assert {it.call("pid") for _ in range(100)} == pids
        it.stop()
        # The workers end at their second run.
        assert it.text().count("returned") == 5 and it.text().count("served twice") == 1


def test_reload(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    with supervised(tmp_path, "--reload") as it:
        it.wait_for(1)
        # The watcher misses changes before it has started.
        for wait_s in (1, 2, 4, 8, 16, 32):
            (tmp_path / "app.py").write_text(APP.replace("return 1", f"return {wait_s + 300}"))
            if eventually(lambda: it.call("version") > 300, wait_s):
                break
        else:
            raise AssertionError(it.text())
        it.stop()
        assert it.text().count("listening on") == 1


def test_stats_sum_all_workers(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "3") as server:
        first = server.wait_for(3)
        pids: list[int] = []
        assert eventually(lambda: bool(pids.append(server.call("pid"))) or len(set(pids)) > 1)
        made = len(pids)

        def are_all_counted() -> bool:
            nonlocal made
            made += 1
            told = server.call("stats")
            # The call itself is counted at the end of its turn.
            return bool(told["calls"] == made - 1 and told["accepted"] >= made)

        assert eventually(are_all_counted)
        os.kill(first[0], signal.SIGKILL)
        server.wait_for(4)
        assert eventually(are_all_counted)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(7)
        assert eventually(are_all_counted)
        assert eventually(lambda: server.call("stats")["connections"] == 1)
        server.stop()


def test_the_supervisor_reports_the_stats_of_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, threading, time, ucall\n"
        # One write each: the workers write to the same pipe.
        "def write(*words):\n"
        "    os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"
        f"server = ucall.Server(port={(port := free_port())})\n"
        "@server\n"
        "def sum(a: int, b: int) -> int:\n"
        "    return a + b\n"
        "def count():\n"
        "    while server.stats()['calls'] < 10:\n"
        "        time.sleep(0.01)\n"
        "    write('counted', os.getpid(), server.stats()['calls'])\n"
        "threading.Thread(target=count, daemon=True).start()\n"
        "server.run(workers=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        for number in range(10):
            assert eventually(lambda: answers(port)), number
        lines = (line.split() for line in process.stdout)
        counted = (words for words in lines if words[:2] == ["counted", str(process.pid)])
        assert int(next(counted)[2]) >= 10
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        with Wire(port) as wire:
            return bool(wire.result("sum", [1, 2]) == 3)
    except OSError:
        return False


# What process 1 of a container is to the processes in it.
PROCESS_1 = """if True:
    import ctypes, os, sys
    PR_SET_CHILD_SUBREAPER = 36
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    os.getpid = lambda: 1
    sys.argv[1:] = ["app:server", "--port", "0", "--workers", "1"]
    import ucall.__main__
    sys.exit(ucall.__main__.main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
def test_process_1_of_a_container_reaps_the_children_of_dead_workers(tmp_path: Path) -> None:
    leaving = """
import subprocess
@server
def leave_a_child() -> int:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE).pid
"""
    (tmp_path / "app.py").write_text(APP + leaving)
    with supervising(tmp_path, "-c", PROCESS_1) as it:
        [pid] = it.wait_for(1)
        child = it.call("leave_a_child")
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not Path(f"/proc/{child}").exists())
        assert "was killed by SIGKILL" in it.text()
        it.wait_for(2)
        it.stop()
