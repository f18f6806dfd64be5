"""CPU time and memory of a process, from /proc."""

from dataclasses import dataclass
from pathlib import Path


def cpu_nanoseconds(*pids: int) -> int:
    """CPU time, user and system, of all threads of the processes.

    From schedstat, which counts nanoseconds; `utime` and `stime` count ticks. Threads that have
    ended are not included; the servers here keep theirs.
    """
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def family(pid: int) -> list[int]:
    """The process and its descendants, because some servers work in child processes."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


@dataclass(frozen=True)
class Memory:
    """Resident bytes, now and at most, in MB (10^6 bytes)."""

    now_mb: float
    peak_mb: float


def memory(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return Memory(kilobytes_in_mb(fields["VmRSS"]), kilobytes_in_mb(fields["VmHWM"]))


def resident_kib(pid: int) -> float:
    return memory(pid).now_mb * 1e6 / 1024


def kilobytes_in_mb(field: str) -> float:
    return int(field.split()[0]) * 1024 / 1e6
