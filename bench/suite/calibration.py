"""The machine's mode: the CPU time of a call of the floor on epoll, measured around each sample.

A virtual machine may run the same program two or three times slower for seconds or for minutes,
and change in the middle of a round. Two samples are compared only if they were taken in one mode.
"""

import contextlib
from collections.abc import Iterable, Iterator

from bench.harness import processes, usage
from bench.suite import drivers
from bench.suite.servers import Load, floors

SECONDS = 0.1
LOAD = Load("calibration", "32 clients, one request")
#: The floor costs at most this many times more in the one sample than in the other.
SAME_MODE_RATIO = 1.3


class Calibration:
    """A floor that runs beside the servers of a run, idle but for these measurements."""

    def __init__(self, floor: processes.Server) -> None:
        self._floor = floor

    def measure(self) -> float:
        """Microseconds of CPU time a call, of user and kernel."""
        before = usage.cpu_nanoseconds(self._floor.pid)
        requests = drivers.call(self._floor.port, LOAD, SECONDS)["requests"]
        return (usage.cpu_nanoseconds(self._floor.pid) - before) / 1e3 / requests


def floor_of_http(name: str) -> contextlib.AbstractContextManager[processes.Server]:
    """The floor on epoll, which answers requests of one length."""
    return processes.serving(floors("http")[0].command_for(LOAD), name)


@contextlib.contextmanager
def running() -> Iterator[Calibration]:
    with floor_of_http("calibration") as floor:
        yield Calibration(floor)


def is_one_mode(costs: Iterable[float]) -> bool:
    """Whether these measurements were all made in the same mode. None are."""
    costs = list(costs)
    return not costs or max(costs) <= SAME_MODE_RATIO * min(costs)
