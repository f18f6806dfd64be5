"""The supervisor of workers, whose processes and time are those of a test."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_workers import Made, Notifier, Process
from timing import Clock

from harness import eventually
from ucall._workers import process_role
from ucall._workers import supervisor as module

TERM, KILL, HUP, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT

Make = Callable[..., Made]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Made] = []
    clock = Clock(monkeypatch, "ucall._workers.supervisor")
    popen = lambda *arguments, **options: made[-1].start(*arguments, **options)  # noqa: E731
    fake = SimpleNamespace(Popen=popen, DEVNULL=-3, PIPE=-1)
    monkeypatch.setattr(module, "subprocess", fake)

    def make(**options: Any) -> Made:
        made.append(Made(clock, **options))
        made[-1].turn()
        return made[-1]

    yield make
    for it in made:
        it.close()


def test_workers_are_started_with_what_they_inherit(make: Make) -> None:
    it = make(stdin=lambda: 7)
    assert [process.command for process in it.processes] == [["worker", "x"]] * 2
    for number, process in enumerate(it.processes, start=1):
        environment, passed = process.options["env"], process.options["pass_fds"]
        assert environment[process_role.INDEX] == str(number - 1)
        assert environment[process_role.COUNT] == "2"
        assert environment.items() >= os.environ.items()
        receiver, *senders = map(int, environment[process_role.SOCKETS].split())
        # Two for each worker: its own, and its successor's.
        assert len(senders) == 4 and passed[1:] == [receiver, *senders]
        assert passed[0] == int(environment[process_role.WORKER])
        assert (process.options["stdin"], process.options["process_group"]) == (7, 0)
        assert process_role.HEARTBEAT not in environment
    one, other = (it.options["env"] for it in it.processes)
    assert one[process_role.TICKETS] == other[process_role.TICKETS]
    assert len(bytes.fromhex(one[process_role.TICKETS])) == 32
    assert one[process_role.SOCKETS].split()[0] != other[process_role.SOCKETS].split()[0]
    with socket.socket(fileno=it.supervisor.copy_senders()[1]) as to_other:
        to_other.send(b"hello")
    receiver = socket.socket(fileno=os.dup(int(other[process_role.SOCKETS].split()[0])))
    with receiver:
        assert receiver.recv(10) == b"hello"


def test_a_worker_gets_the_socket_and_its_page(make: Make) -> None:
    it = make()
    pages, opened = [], []
    for process in it.processes:
        it.send(process, "listen http 0 384 127.0")
        it.send(process, ".0.1\nbeat\n")
        answer, descriptors, _, _ = socket.recv_fds(process.control, 1000, 4)
        pages.append(answer.decode())
        assert len(descriptors) == 2
        for descriptor in descriptors:
            os.close(descriptor)
        opened.append(len(os.listdir("/dev/fd")))
    assert opened[0] == opened[1], "what was sent is closed"
    first = it.supervisor.counters.page_indices[0]
    assert pages == [f"{first} 0", f"{first + 1} 0"]
    assert it.supervisor._url.startswith("http://127.0.0.1:")
    # Before it is ready, nobody watches its heart.
    assert all(slot.worker and slot.worker.last_beat is None for slot in it.slots)


def test_a_path_of_a_socket_may_have_spaces(make: Make, tmp_path: Path) -> None:
    it = make()
    it.send(it.processes[0], f"listen http 0 384 {process_role.UNIX}{tmp_path}/a b\n")
    assert (tmp_path / "a b").is_socket()


def test_a_worker_learns_why_an_address_is_unavailable(make: Make) -> None:
    it = make()
    it.send(it.processes[0], "listen http 0 384 192.0.2.1\n")
    answer, descriptors, _, _ = socket.recv_fds(it.processes[0].control, 1000, 4)
    assert "192.0.2.1" in answer.decode() and not descriptors
    it.send(it.processes[0], f"xdp {process_role.UNIX}/path 1 host\n")
    answer, descriptors, _, _ = socket.recv_fds(it.processes[0].control, 1000, 4)
    assert b"expected an interface" in answer and not descriptors


def test_an_inherited_socket_is_served_in_place_of_a_host(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(host: str, port: int, uds_mode: int) -> Any:
        return SimpleNamespace(host=host, port=port, close=lambda: None)

    monkeypatch.setattr(module._core, "ListeningSocket", listen)
    for inherited, host, bound in (
        (None, "127.0.0.1", "127.0.0.1"),
        ("fd:3", "127.0.0.1", "fd:3"),
        ("fd:3", "fd:7", "fd:7"),
    ):
        it = make()
        it.supervisor._inherited = inherited
        it.supervisor.bind(host, 1, 384, "http")
        assert it.supervisor._listener is not None and it.supervisor._listener.host == bound


def test_a_worker_without_a_page_receives_no_messages(make: Make) -> None:
    """All pages of the counters are in use."""
    it = make(workers=1)
    it.supervisor._pages.clear()
    it.turn(HUP)
    it.ready(0)
    it.turn(HUP)
    assert it.processes[1].options["env"][process_role.SOCKETS].startswith("-1 ")
    it.end(1)
    assert it.supervisor._pages == []


def test_each_worker_gets_the_queue_of_its_number(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[object, ...]] = []

    def program(*arguments: object) -> Any:
        made.append(arguments)
        return SimpleNamespace(is_native=True, fileno=reader.fileno)

    monkeypatch.setattr(module._core, "XdpProgram", program)
    it = make()
    with socket.socket() as reader:
        for number, process in enumerate(it.processes):
            it.send(process, "xdp eth0 8545 10.0.0.1\n")
            answer, [descriptor], _, _ = socket.recv_fds(process.control, 1000, 4)
            assert answer.decode() == f"1 {number} 2"
            os.close(descriptor)
    assert made == [("eth0", "10.0.0.1", 8545, 2)]


def test_a_worker_that_has_died_gets_no_answer(make: Make) -> None:
    it = make()
    it.processes[0].control.sendall(b"listen http 0 384 127.0.0.1\n")
    it.processes[0].control.close()
    it.turn()
    assert it.supervisor._listener is not None
    it.turn()
    # What it has not read makes its end a reset.
    assert it.slots[1].worker is not None
    it.slots[1].worker.control.send(b"x")
    it.processes[1].control.close()
    it.turn()
    it.supervisor._was_ready = True
    it.end(0)
    assert it.serving() == [None, 1]


def test_a_worker_that_dies_is_named_and_restarted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    it = make()
    it.ready(0, 1)
    it.end(0, -KILL)
    assert it.serving() == [None, 1] and len(it.processes) == 2
    it.turn(after_s=0.09)
    assert len(it.processes) == 2 and it.timeouts[-1] == pytest.approx(0.01)
    it.turn(after_s=0.02)
    assert it.serving() == [2, 1] and it.timeouts[-1] is None
    for status, text in (
        (-(signal.SIGRTMIN + 1), "was killed by signal 35"),
        (3, "ended with status 3"),
        (0, "ended with status 0"),
        (-HUP, "was killed by SIGHUP"),
    ):
        it.end(it.serving()[0] or 0, status)
        assert text in caplog.text
        it.turn(after_s=10)
    assert "worker 1 (pid 1000) was killed by SIGKILL" in caplog.text
    # The pages of dead workers are used again, the first one first.
    workers = [slot.worker for slot in it.slots]
    assert [worker and worker.page for worker in workers] == it.supervisor.counters.page_indices[:2]


def test_those_that_wait_are_woken_until_the_kernel_has_freed_what_died(make: Make) -> None:
    it = make()
    it.ready(0, 1)
    woken: list[float] = []
    listener = SimpleNamespace(wake_all=lambda: woken.append(it.clock.now), close=lambda: None)
    it.supervisor._listener = listener  # type: ignore[assignment]
    died_at = it.clock.now
    it.end(0)
    it.slots[0].start_at = None
    for _ in range(20):
        it.turn(after_s=it.supervisor._select_timeout(it.clock.now) or 0.0)
    pauses = [at - died_at for at in woken]
    assert pauses == pytest.approx([0.001 * (2**number - 1) for number in range(14)])
    it.end(1)
    assert woken[14:] == [it.clock.now] and it.supervisor._wakeups.next_at is not None


def test_the_pauses_before_restarts_double_up_to_ten_seconds(make: Make) -> None:
    it = make(workers=1)
    it.supervisor._was_ready, [slot] = True, it.slots

    def pause_after(uptime_s: float) -> float:
        it.supervisor._schedule_restart(slot, uptime_s)
        assert slot.start_at is not None
        return slot.start_at - it.clock.now

    growing = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert [pause_after(4.9) for _ in growing] == pytest.approx(growing)
    # One that has lived for five seconds is restarted at once, and the next pause is short again.
    assert [pause_after(uptime_s) for uptime_s in (5, 4.9)] == pytest.approx([0, 0.1])


def test_a_worker_that_has_lived_long_is_restarted_at_once(make: Make) -> None:
    it = make(workers=1)
    it.ready(0)
    assert it.slots[0].worker is not None
    it.slots[0].worker.started_at = it.clock.now
    it.clock.pass_by(5)
    it.end(0)
    it.turn()
    assert it.serving() == [1]


def test_a_worker_that_cannot_be_started_is_retried(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    it = make(workers=1)
    it.ready(0)
    it.fails = OSError("no memory")
    it.end(0)
    for after_s in (0.11, 0.21):
        it.turn(after_s=after_s)
        assert it.serving() == [None]
    assert caplog.text.count("worker 1 cannot be started: no memory") == 2
    it.fails = None
    it.turn(after_s=0.39)
    assert it.serving() == [None]
    it.turn(after_s=0.02)
    assert it.serving() == [1]
    it.ready(1)
    it.fails = OSError("no descriptors")
    it.turn(HUP)
    assert "the successor of worker 1 cannot be started: no descriptors; no" in caplog.text
    assert it.serving() == [1] and it.successors() == [None]
    it.fails = None
    it.turn(HUP)
    assert it.successors() == [2]


def test_workers_are_replaced_one_after_another(make: Make) -> None:
    it = make()
    it.ready(0, 1)
    it.turn(HUP)
    assert (it.serving(), it.successors()) == ([0, 1], [2, None])
    assert not it.processes[0].signals
    it.ready(2)
    assert (it.serving(), it.successors()) == ([2, 1], [None, 3])
    assert it.processes[0].signals == [HUP] and not it.processes[1].signals
    it.ready(3)
    assert (it.serving(), it.successors()) == ([2, 3], [None, None])
    # Those that retire are no failures.
    it.end(0, 0)
    it.end(1, 0)
    it.turn(after_s=20)
    assert it.serving() == [2, 3] and len(it.processes) == 4
    assert len(it.supervisor._all_workers()) == 2


def test_a_successor_that_dies_ends_the_replacement(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    it = make()
    it.ready(0, 1)
    it.turn(HUP)
    it.end(2, 1)
    assert "the successor of worker 1 ended with status 1; no worker is replaced" in caplog.text
    it.turn(after_s=20)
    assert (it.serving(), it.successors()) == ([0, 1], [None, None])
    assert not it.processes[0].signals
    it.turn(HUP)
    assert it.successors() == [3, None]


def test_a_change_during_a_replacement_replaces_all_again(make: Make) -> None:
    it = make()
    it.ready(0, 1)
    it.turn(HUP)
    it.turn(HUP)
    assert it.successors() == [2, None]
    for number, serving in ((2, [2, 1]), (3, [3, 1]), (4, [3, 4])):
        it.ready(number)
        assert it.serving() == serving
    assert it.successors() == [None, None] and len(it.processes) == 5


def test_a_successor_replaces_a_dead_worker(make: Make) -> None:
    it = make()
    it.ready(0, 1)
    it.turn(HUP)
    it.end(0)
    assert it.slots[0].start_at is not None
    it.ready(2)
    assert it.serving() == [2, 1] and it.slots[0].start_at is None
    # The other one has died meanwhile: its next one is new enough, and is started at once.
    it.ready(3)
    it.end(3)
    it.turn(HUP)
    it.ready(4)
    it.turn()
    assert it.serving() == [4, 5] and it.successors() == [None, None]


def test_workers_are_replaced_only_if_the_program_allows_it(make: Make) -> None:
    it = make(may_replace=lambda: False)
    it.ready(0, 1)
    it.turn(HUP)
    assert it.successors() == [None, None]


def test_workers_that_are_never_ready_end_the_supervisor(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    it = make()
    it.end(0, 1)
    assert "no worker was ever ready: stopping" in caplog.text
    assert it.processes[1].signals == [TERM] and not it.supervisor._is_finished()
    it.end(1, 1)
    assert it.supervisor._is_finished() and it.supervisor._status == 1
    it.turn(after_s=20)
    assert len(it.processes) == 2


def test_a_stop_drains_all_workers(make: Make) -> None:
    it = make()
    it.ready(0, 1)
    it.turn(HUP)
    it.ready(2)
    it.turn(TERM)
    for process in it.processes:
        assert process.control.recv(100) == process_role.ALL_STOP
        assert process.signals[-1] == TERM and process.signals.count(TERM) == 1
    assert not it.supervisor._is_finished()
    # None is started or replaced from now on.
    for number, process in enumerate(it.processes):
        it.turn(HUP)
        it.end(number, 0)
        assert process.signals.count(KILL) == 0
    assert it.supervisor._is_finished() and it.supervisor._status == 0
    assert len(it.processes) == 4 and it.timeouts[-1] is None


def test_a_worker_that_reads_nothing_holds_up_no_stop(make: Make) -> None:
    it = make(workers=1)
    assert it.slots[0].worker is not None
    with suppress(BlockingIOError):
        while it.slots[0].worker.control.send(bytes(4096)):
            pass
    it.turn(TERM)
    assert it.processes[0].signals == [TERM]


@pytest.mark.parametrize(
    ("signals", "sent"),
    [
        ([INT], [TERM]),
        ([INT, INT], [TERM, KILL]),
        ([TERM, INT], [TERM, KILL]),
        ([TERM, TERM], [TERM, TERM]),
        ([INT, TERM], [TERM, TERM]),
    ],
)
def test_a_second_ctrl_c_kills(make: Make, signals: list[int], sent: list[int]) -> None:
    it = make(workers=1)
    it.ready(0)
    it.turn(*signals)
    assert it.processes[0].signals == sent
    it.end(0)
    it.turn(after_s=20)
    assert len(it.processes) == 1


def test_a_stop_before_any_worker_is_ready_refuses_what_waits(make: Make) -> None:
    for is_ready in (False, True):
        it = make(workers=1)
        it.send(it.processes[0], "listen http 0 384 127.0.0.1\n")
        listener = it.supervisor._listener
        assert listener is not None
        with socket.create_connection((listener.host, listener.port)) as waiting:
            if is_ready:
                it.ready(0)
            it.turn(TERM)
            waiting.setblocking(False)
            if is_ready:
                with pytest.raises(BlockingIOError):
                    waiting.recv(1)
            else:
                assert eventually(lambda: ended(waiting))


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_service_manager_hears_of_the_workers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = Notifier()
    monkeypatch.setattr(module.systemd, "notifier", lambda: notifier)
    it = make()
    assert it.processes[0].options["env"][process_role.HEARTBEAT] == "0.5"
    it.send(it.processes[0], "listen http 0 384 127.0.0.1\n")
    it.ready(0)
    assert notifier.heard == []
    it.ready(1)
    assert notifier.heard == [f"serving on {it.supervisor._url}, workers: 2"]
    started = it.clock.now
    it.clock.pass_by(3)
    it.send(it.processes[1], "beat\n")
    assert notifier.beats == ([started, started + 3], started + 3)
    notifier.due = it.clock.now + 7
    it.turn()
    assert it.timeouts[-1] == 7
    notifier.due = it.clock.now - 7
    it.turn()
    assert it.timeouts[-1] == 0
    it.turn(HUP)
    assert notifier.heard[1:] == ["reloading"]
    # What fails is over, too.
    it.end(2, 1)
    assert notifier.heard[2:] == notifier.heard[:1]
    for _ in range(2):
        it.turn(TERM)
        assert notifier.heard[3:] == ["stopping"]
    del notifier.beats
    it.turn()
    assert not hasattr(notifier, "beats")


def test_a_service_manager_hears_of_no_restart_before_the_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = Notifier()
    monkeypatch.setattr(module.systemd, "notifier", lambda: notifier)
    it = make()
    it.ready(0)
    it.turn(HUP)
    assert notifier.heard == []


def test_children_of_the_program_are_left_to_it(make: Make) -> None:
    it = make()
    with subprocess.Popen(["sh", "-c", "exit 3"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        it.turn()
        assert child.wait() == 3


def test_a_watcher_of_sources_restarts_the_workers(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ucall")
    it = make(reload=["watch"])
    reader, writer = os.pipe()
    with open(reader, "rb") as stdout, open(writer, "wb", 0) as changes:
        start = it.start

        def watched(command: list[str], **options: Any) -> Process:
            process = start(command, **options)
            process.stdout = stdout
            return process

        it.start = watched  # type: ignore[method-assign]
        watcher: Any = it.supervisor._watch()
        it.start = start  # type: ignore[method-assign]
        assert watcher.command == ["watch"] and watcher.options["process_group"] == 0
        # Workers that fail wait for a change.
        it.end(0, 1)
        assert "waiting for a source to change" in caplog.text
        it.turn(after_s=20)
        assert it.serving() == [None, 1] and not it.supervisor._is_stopping
        changes.write(b"app.py\n")
        it.turn()
        it.turn()
        # The other one gets a successor at the same time.
        assert (it.serving(), it.successors()) == ([4, 1], [None, 3])
        watcher.returncode = -KILL
        changes.close()
        it.turn()
        text = "the watcher of sources was killed by SIGKILL: source changes no longer restart"
        assert text in caplog.text
        it.turn()
        assert caplog.text.count(text) == 1


def test_the_end_of_a_supervisor_kills_what_is_left(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = make(workers=1)
    it.ready(0)
    before = signal.getsignal(HUP)

    def fail() -> None:
        os.kill(os.getpid(), HUP)
        assert it.supervisor._signals == [HUP]
        raise RuntimeError("a fault")

    monkeypatch.setattr(it.supervisor, "_turn", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        it.supervisor.run()
    assert it.processes[0].signals == [KILL]
    assert signal.getsignal(HUP) is before and signal.set_wakeup_fd(-1) == -1
    assert all(end.fileno() < 0 for pair in it.supervisor._pairs for end in pair)


def test_sockets_for_messages_leave_descriptors_for_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, count in ((12, 3), (4000, 4), (module.resource.RLIM_INFINITY, 4)):
        monkeypatch.setattr(module.resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        it = make()
        assert len(it.supervisor._pairs) == count
        sockets = [int(i) for i in it.processes[1].options["env"][process_role.SOCKETS].split()]
        assert len(sockets) == count + 1 and min(sockets) >= 0
    it = make(workers=3)
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (8, 8))
    it = make(workers=3)
    assert it.processes[2].options["env"][process_role.SOCKETS].startswith("-1 ")
    assert -1 not in it.processes[2].options["pass_fds"]


def test_the_command_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ucall", "app:server"])
    assert module.command() == [sys.executable, "-m", "ucall", "app:server"]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(RuntimeError, match="must be a file or a module"):
        module.command()
    monkeypatch.delattr(sys, "ps1")
    monkeypatch.setattr(sys, "orig_argv", ["python"])
    with pytest.raises(RuntimeError, match="must be a file or a module"):
        module.command()


def test_process_1_reaps_what_is_neither_a_worker_nor_the_watcher(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = make(workers=1)
    watcher: Any = Process(2000, [], {})
    it.supervisor._watcher = watcher
    ended: list[int] = []
    reaped: list[int] = []

    def wait_for_any(kind: int, _: int, flags: int) -> Any:
        assert (kind, flags) == (os.P_ALL, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return SimpleNamespace(si_pid=ended[0]) if ended else None

    def reap(pid: int, options: int) -> None:
        assert (pid, options) == (ended.pop(0), 0)
        reaped.append(pid)

    monkeypatch.setattr(os, "waitid", wait_for_any)
    monkeypatch.setattr(os, "waitpid", reap)
    ended[:] = [3000]
    it.turn()
    assert reaped == [], "it is not process 1"
    monkeypatch.setattr(os, "getpid", lambda: 1)
    for found in ([3000, 3001], [3002, it.processes[0].pid, 3003], [watcher.pid, 3004]):
        ended[:] = found
        it.turn()
    it.supervisor._watcher = None
    ended[:] = [3005]
    it.turn()
    assert reaped == [3000, 3001, 3002, 3005]
    it.turn()
