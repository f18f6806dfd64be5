"""The machine's mode: the CPU time of a call of the floor on epoll, measured around each sample.

A virtual machine may run the same program two or three times slower for seconds or for minutes,
and change in the middle of a round. Two samples are compared only if they were taken in one mode.
"""

import contextlib
from collections.abc import Iterable, Iterator

from bench import OUTPUT
from bench.harness import processes, request, usage
from bench.suite import drivers

SECONDS = 0.1
#: The floor costs at most this many times more in the one sample than in the other.
SAME_MODE_RATIO = 1.3


class Calibration:
    """A floor that runs beside the servers of a run, idle but for these measurements."""

    def __init__(self, floor: processes.Server) -> None:
        self._floor = floor

    def measure(self) -> float:
        """Microseconds of CPU time a call, of user and kernel."""
        body = OUTPUT / "request-0.json"
        body.write_bytes(request.body(0))
        command = [str(drivers.PROGRAM), "--body", str(body), "--connections", "32"]
        command += ["--seconds", str(SECONDS), f"127.0.0.1:{self._floor.port}"]
        before = usage.cpu_nanoseconds(self._floor.pid)
        output = drivers.run_command(command, SECONDS)
        spent = usage.cpu_nanoseconds(self._floor.pid) - before
        return spent / 1e3 / drivers.parsed(output)["requests"]


def floor_of_http(log: str) -> contextlib.AbstractContextManager[processes.Server]:
    """The floor on epoll, which answers requests of one length."""
    length = len(request.http_request(0))
    command = [str(OUTPUT / "floor-epoll"), "--port", "0", "--pipeline", str(length)]
    return processes.serving(command, OUTPUT / f"{log}.log", processes.cores()[0])


@contextlib.contextmanager
def running() -> Iterator[Calibration]:
    with floor_of_http("calibration") as floor:
        yield Calibration(floor)


def is_one_mode(costs: Iterable[float]) -> bool:
    """Whether these measurements were all made in the same mode. None are."""
    costs = list(costs)
    return not costs or max(costs) <= SAME_MODE_RATIO * min(costs)
