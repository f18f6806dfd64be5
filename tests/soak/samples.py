"""Samples of a process, and whether they stay flat."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path

#: Memory may differ by this from the first part of the run to the last: what the traffic happens to
#: hold at that moment.
RSS_SLACK_MIB = 16
RSS_SLACK_SHARE = 0.10
#: The part of a run that is warming up.
WARM_UP = 0.25
#: What may be open after the traffic more than before it.
DESCRIPTORS_SLACK = 3
#: Connections after it: the one that asks.
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
    """What is not flat: memory from the first third behind the warm-up to the last, and what is
    open when all clients have gone."""
    warm = samples[int(len(samples) * WARM_UP) :]
    third = max(1, len(warm) // 3)
    early = statistics.median(it.rss_mib for it in warm[:third])
    late = statistics.median(it.rss_mib for it in warm[-third:])
    found = []
    if late > early + max(RSS_SLACK_MIB, RSS_SLACK_SHARE * early):
        found.append(f"memory grew from {early:.1f} to {late:.1f} MiB")
    if after.descriptors > before.descriptors + DESCRIPTORS_SLACK:
        found.append(f"{after.descriptors} descriptors stay, there were {before.descriptors}")
    # io_uring's sockets are no descriptors of the process.
    if connections > CONNECTIONS_MAX:
        found.append(f"{connections} connections stay open")
    return found
