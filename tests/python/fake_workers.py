"""A supervisor in this process, whose workers are no processes, on a clock that a test moves."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from timing import Clock

from ucall._workers import process_role
from ucall._workers.supervisor import Supervisor, Worker


class Process:
    """A process that runs nothing, and ends when a test says so."""

    def __init__(self, pid: int, command: list[str], options: dict[str, Any]) -> None:
        self.pid, self.command, self.options = pid, command, options
        self.returncode: int | None = None
        self.signals: list[int] = []
        self.stdout: Any = None
        environment = options.get("env", {})
        if process_role.WORKER in environment:
            #: The worker's end of its control socket.
            self.control = socket.socket(fileno=os.dup(int(environment[process_role.WORKER])))
            self.control.settimeout(60)

    def poll(self) -> int | None:
        return self.returncode

    wait = poll

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Notifier:
    """A service manager that notes the messages it gets."""

    beat_interval_s: float | None = 2.0

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def ready(self, status: str) -> None:
        self.heard.append(status)

    def reloading(self) -> None:
        self.heard.append("reloading")

    def stopping(self) -> None:
        self.heard.append("stopping")

    def beat_for(self, signs: list[float], now: float) -> None:
        self.beats = signs, now

    def next_beat(self) -> float | None:
        return self.due

    due: float | None = None


class Made:
    """A supervisor, its clock, and the processes that it has started."""

    def __init__(self, clock: Clock, **options: Any) -> None:
        self.clock = clock
        self.processes: list[Process] = []
        self.fails: OSError | None = None
        self.timeouts: list[float | None] = []
        self.supervisor = Supervisor(**{"workers": 2, "command": ["worker", "x"]} | options)
        self.slots = self.supervisor._slots
        select = self.supervisor._selector.select

        def selected(timeout: float | None) -> Any:
            self.timeouts.append(timeout)
            return select(0)

        self.supervisor._selector.select = selected  # type: ignore[method-assign,assignment]

    def start(self, command: list[str], **options: Any) -> Process:
        if self.fails is not None:
            raise self.fails
        self.processes.append(Process(1000 + len(self.processes), command, options))
        return self.processes[-1]

    def turn(self, *signals: int, after_s: float = 0.0) -> None:
        self.clock.pass_by(after_s)
        self.supervisor._signals.extend(signals)
        self.supervisor._turn()

    def send(self, process: Process, text: str) -> None:
        process.control.sendall(text.encode())
        self.turn()

    def ready(self, *numbers: int) -> None:
        """Processes of these numbers, in their order of starting, report that they are ready."""
        for number in numbers:
            self.send(self.processes[number], "ready\n")

    def end(self, number: int, status: int = -signal.SIGKILL) -> None:
        self.processes[number].returncode = status
        self.turn()

    def serving(self) -> list[int | None]:
        """The numbers of the processes that are the workers."""
        return [slot.worker and self._number(slot.worker) for slot in self.slots]

    def successors(self) -> list[int | None]:
        return [slot.successor and self._number(slot.successor) for slot in self.slots]

    def _number(self, worker: Worker) -> int:
        return worker.process.pid - 1000

    def close(self) -> None:
        supervisor = self.supervisor
        for worker in supervisor._all_workers():
            worker.control.close()
        for process in self.processes:
            if hasattr(process, "control"):
                process.control.close()
        for pair in supervisor._pairs:
            for end in pair:
                end.close()
        if supervisor._listener is not None:
            supervisor._listener.close()
        supervisor._selector.close()
