"""`Server.worker`, and the variables beside it: which of its workers a process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from test_workers import supervised

import ucall
from harness import Wire, eventually

APP = """
import os, subprocess, sys, ucall
server = ucall.Server(port=0)
VARIABLES = "UCALL_WORKER_INDEX", "UCALL_WORKER_COUNT"
#: What a module knows while it is imported.
imported = [server.worker.index, server.worker.count, *map(os.environ.get, VARIABLES)]
ASK = "import ucall; it = ucall.Server().worker; print(it.index, it.count)"

@server
def place():
    return [os.getpid(), *imported]

@server(processes=1)
def place_of_pool():
    return imported

@server
def place_of_child():
    ran = subprocess.run([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True)
    return ran.stdout
"""


def test_workers_know_their_place_and_so_do_the_processes_of_their_pools(
    tmp_path: Path, engine: str
) -> None:
    with supervised(tmp_path, "--workers", "2", "--engine", engine, source=APP) as it:
        pids = it.wait_for(2)
        places: dict[int, Any] = {}

        def note(wire: Wire) -> int:
            pid, *place = wire.result("place")
            places.setdefault(place[0], pid)
            assert place == [place[0], 2, str(place[0]), "2"]
            assert wire.result("place_of_pool") == place
            assert wire.result("place_of_child") == "0 1\n"
            return int(pid)

        def note_all(count: int) -> bool:
            with Wire(it.port) as wire:
                note(wire)
            return len(places) == count

        assert eventually(lambda: note_all(2)) and sorted(places) == [0, 1]
        assert set(places.values()) == set(pids)
        victim = places.pop(1)
        os.kill(victim, signal.SIGKILL)
        it.wait_for(3)
        assert eventually(lambda: note_all(2)) and places[1] != victim
        assert "is no variable" not in it.text()


def test_a_server_without_workers_is_the_only_one() -> None:
    worker = ucall.Server(port=0).worker
    assert (worker.index, worker.count, repr(worker)) == (0, 1, "<worker 0 of 1>")


def test_the_children_of_a_worker_have_no_place() -> None:
    ask = "import os, ucall; print(ucall.Server().worker, *sorted(os.environ))"
    environment = os.environ | {"UCALL_WORKER_INDEX": "3", "UCALL_WORKER_COUNT": "4"}
    ran = subprocess.run(
        [sys.executable, "-c", ask], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert ran.stdout.startswith("<worker 0 of 1>") and "UCALL_WORKER" not in ran.stdout
