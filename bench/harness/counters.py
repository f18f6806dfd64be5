"""Cycles, instructions and cache misses of a server while a load runs, by perf.

Many virtual machines have no counters; then there are no figures, and CPU time is compared instead.
"""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

EVENTS = {
    "cycles:u": "user_cycles",
    "cycles:k": "system_cycles",
    "instructions:u": "user_instructions",
    "instructions:k": "system_instructions",
    "cache-misses": "cache_misses",
}


@functools.cache
def are_there() -> bool:
    """Whether perf counts cycles here, of user and kernel."""
    if not shutil.which("perf"):
        return False
    command = ["perf", "stat", "-x,", "-e", "cycles:u,cycles:k", "true"]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode == 0 and len(parsed(done.stderr)) == 2


def around(command: Sequence[str], pids: Sequence[int], report: Path) -> list[str]:
    """The load's command, during which the servers' events are counted into `report`."""
    options = ["-x,", "-e", ",".join(EVENTS), "-p", ",".join(map(str, pids)), "-o", str(report)]
    return ["perf", "stat", *options, *command]


def parsed(report: str) -> dict[str, int]:
    """The counts by our names, without those that perf has not counted."""
    found = re.findall(r"^(\d+),[^,]*,([\w:-]+),", report, re.MULTILINE)
    return {EVENTS[event]: int(count) for count, event in found if event in EVENTS}
