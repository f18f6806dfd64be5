"""Samples of a process, and the check that they do not grow."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path

#: The allowed difference of memory between the first and the last part of the run, because the
#: traffic holds different amounts at different times.
RSS_SLACK_MIB = 16
RSS_SLACK_SHARE = 0.10
#: The part of a run that is warming up.
WARM_UP = 0.25
#: The allowed number of further descriptors after the traffic.
DESCRIPTORS_SLACK = 3
#: Connections after the traffic: the one that asks.
CONNECTIONS_MAX = 1


@dataclass
class Sample:
    at_s: float
    rss_mib: float
    descriptors: int
    threads: int


def sample(pid: int, at_s: float) -> Sample:
    """Memory in MiB, descriptors and threads of a process now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    rss_mib = int(fields["VmRSS"].split()[0]) / 1024
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(round(at_s, 2), round(rss_mib, 2), descriptors, int(fields["Threads"]))


def complaints(samples: list[Sample], before: Sample, after: Sample, connections: int) -> list[str]:
    """The figures that have grown: memory from the first third after the warm-up to the last, and
    open files after all clients have disconnected."""
    warm = samples[int(len(samples) * WARM_UP) :]
    third = max(1, len(warm) // 3)
    early = statistics.median(it.rss_mib for it in warm[:third])
    late = statistics.median(it.rss_mib for it in warm[-third:])
    found = []
    if late > early + max(RSS_SLACK_MIB, RSS_SLACK_SHARE * early):
        found.append(f"memory grew from {early:.1f} to {late:.1f} MiB")
    if after.descriptors > before.descriptors + DESCRIPTORS_SLACK:
        found.append(f"{after.descriptors} descriptors stay, there were {before.descriptors}")
    # Sockets of io_uring are not descriptors of the process.
    if connections > CONNECTIONS_MAX:
        found.append(f"{connections} connections stay open")
    return found
