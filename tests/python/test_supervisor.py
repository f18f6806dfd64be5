"""The supervisor of workers, when they end in rare ways."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from test_workers import APP, supervised

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
