"""The machine's mode: the CPU time of a call of the floor on epoll, measured around each sample.

A virtual machine may run the same program two or three times slower for seconds or for minutes,
and change in the middle of a round. Two samples are compared only if they were taken in one mode.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from bench.harness import processes, usage
from bench.suite import drivers
from bench.suite.servers import Load, floors

SECONDS = 0.1
LOAD = Load("calibration", "32 clients, one request")
#: The floor costs at most this many times more in the one sample than in the other.
SAME_MODE_RATIO = 1.3


def floor_of_http(name: str) -> contextlib.AbstractContextManager[processes.Server]:
    """The floor on epoll, which answers requests of one length."""
    return processes.serving(floors("http")[0].command_for(LOAD), name)


@contextlib.contextmanager
def running() -> Iterator[Callable[[], float]]:
    """Yields what measures a floor that runs beside the servers of a run, idle but for this:
    microseconds of CPU time a call, of user and kernel."""
    with floor_of_http("calibration") as floor:

        def measure() -> float:
            before = usage.cpu_nanoseconds(floor.pid)
            requests = drivers.call(floor.port, LOAD, SECONDS)["requests"]
            return (usage.cpu_nanoseconds(floor.pid) - before) / 1e3 / requests

        yield measure


def is_one_mode(costs: Iterable[float]) -> bool:
    """Whether these measurements were all made in the same mode. None are."""
    costs = list(costs)
    return not costs or max(costs) <= SAME_MODE_RATIO * min(costs)
