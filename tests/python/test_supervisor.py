"""The supervisor of workers, when they end in rare ways."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from test_workers import APP, supervised, supervising

from harness import eventually


def test_a_signal_without_a_name_ends_only_its_worker(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "1") as it:
        [pid] = it.wait_for(1)
        os.kill(pid, signal.SIGRTMIN + 1)
        it.wait_for(2)
        assert f"was killed by signal {signal.SIGRTMIN + 1}" in it.text()
        it.stop()


def test_no_connection_waits_for_a_worker_that_cannot_start(tmp_path: Path) -> None:
    source = "import os\nassert not os.path.exists('bad')\n" + APP
    with supervised(tmp_path, "--workers", "2", source=source) as it:
        [pid, _] = it.wait_for(2)
        (tmp_path / "bad").touch()
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: "get the connections of worker" in it.text()), it.text()
        assert [it.call("sum", [1, 2]) for _ in range(20)] == [3] * 20
        (tmp_path / "bad").unlink()
        successor = it.wait_for(3)[2]
        assert eventually(lambda: it.call("pid") == successor)
        it.stop()


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
