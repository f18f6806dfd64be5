"""CPU time and memory of a process, from /proc."""

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


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory in MB (10^6 bytes): now, or for VmHWM at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = dict(line.split(":", 1) for line in lines)[field]
    return int(kilobytes.split()[0]) * 1024 / 1e6


def resident_kib(pid: int) -> float:
    return resident_mb(pid) * 1e6 / 1024
