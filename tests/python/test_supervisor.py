"""The supervisor of workers, when they end in rare ways."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from test_workers import APP, supervised, supervising
from timing import Clock

from harness import eventually
from ucall._supervisor import Supervisor


def test_a_signal_without_a_name_ends_only_its_worker(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "1") as it:
        [pid] = it.wait_for(1)
        os.kill(pid, signal.SIGRTMIN + 1)
        it.wait_for(2)
        assert f"was killed by signal {signal.SIGRTMIN + 1}" in it.text()
        it.stop()


def test_the_pauses_before_restarts_double_up_to_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, "ucall._supervisor")
    supervisor = Supervisor(1, ["worker"])
    supervisor._was_ready, [slot] = True, supervisor._slots

    def pause_after(uptime_s: float) -> float:
        supervisor._schedule_restart(slot, uptime_s)
        assert slot.start_at is not None
        return slot.start_at - clock.now

    growing = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert [pause_after(4.9) for _ in growing] == pytest.approx(growing)
    # One that has lived for five seconds is restarted at once, and the next pause is short again.
    assert [pause_after(uptime_s) for uptime_s in (5, 4.9)] == pytest.approx([0, 0.1])
    for end in (*(end for pair in supervisor._pairs for end in pair), supervisor._selector):
        end.close()


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
