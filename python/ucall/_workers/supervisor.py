"""Starts worker processes, restarts them, and owns the sockets that they listen on.

The supervisor binds one socket, keeps it open, and passes it to all workers. So connections go to
the workers that are ready, and none in the accept queue is reset. It has no engine, event loop or
thread. Workers run the same program, with the descriptor of a control socket in their environment.
On it they request the listening socket and their queues of AF_XDP, and report that they are ready.
The first worker whose functions run batches in processes has the supervisor start one more, their
host (`pool_host`), to which it passes a socket of each worker.
A service manager hears from the supervisor alone: that all workers are ready, that they are
being replaced, and, if it has a watchdog, a sign of life while each worker gives the supervisor its
own.

| event | action |
|---|---|
| a worker dies | logged, and restarted, after a delay that doubles while workers die early |
| a worker cannot be started | logged, and retried in the same way |
| SIGHUP, a changed source | for each worker: start a successor; once that is ready, retire it |
| a successor dies before that | the worker continues, and no further one is replaced |
| the first workers die | stop all workers and exit, unless --reload waits for a change |
| SIGTERM, Ctrl-C | drain all workers; a second Ctrl-C kills them |
| the host dies | logged, and started again when a worker asks |
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from ucall import _core
from ucall._server import launch
from ucall._workers import process_role, systemd
from ucall._workers.hosts import Hosts, exit_reason
from ucall._workers.wakeups import Wakeups

if TYPE_CHECKING:
    from ucall.options import UDP

__all__ = ["Supervisor", "command", "supervise"]

log = logging.getLogger("ucall")

#: The delay doubles after each worker that lived for less than this.
_STABLE_S = 5.0
_BACK_OFF_MIN_S = 0.1
_BACK_OFF_MAX_S = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(eq=False)
class Worker:
    """A worker process."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    #: Its page of the shared counters; 0 if all pages are in use.
    page: int
    started_at: float = field(default_factory=time.monotonic)
    #: When it gave its last sign of life; None before it is ready.
    last_beat: float | None = None
    received: bytes = b""
    #: Those that it has sent for its host.
    descriptors: list[int] = field(default_factory=list)


@dataclass(eq=False)
class WorkerSlot:
    """A worker, and the successor that is starting."""

    number: int
    worker: Worker | None = None
    successor: Worker | None = None
    back_off_s: float = 0.0
    start_at: float | None = 0.0


class Supervisor:
    """Starts workers, and restarts them.

    Args:
        workers: The number of workers.
        command: The command line of a worker.
        reload: A command that writes a line per change of a source: restarts the workers.
        may_replace: Called on SIGHUP; returns whether to replace the workers.
    """

    def __init__(
        self,
        workers: int,
        command: list[str],
        reload: list[str] | None = None,
        may_replace: Callable[[], bool] = lambda: True,
        stdin: Callable[[], int] = lambda: subprocess.DEVNULL,
    ) -> None:
        #: The counters of all workers, past ones included.
        self.counters = _core.SharedCounters(_anonymous_file())
        #: The pages in no use, the first one last.
        self._pages = self.counters.page_indices[::-1]
        #: For each page of a worker or its successor, from 1: where its messages come from, and
        #: where the others send them to.
        self._pairs = [_message_pair() for _ in range(min(2 * workers, _pairs_max()))]
        self._command = command
        self._reload = reload
        self._watcher: subprocess.Popen[bytes] | None = None
        self._may_replace = may_replace
        self._stdin = stdin
        self._slots = [WorkerSlot(number) for number in range(1, workers + 1)]
        self._retiring: list[Worker] = []
        self._hosts = Hosts(command, stdin)
        #: Slots whose workers are to be replaced; the first one is in progress.
        self._rolling: list[WorkerSlot] = []
        self._tickets = secrets.token_bytes(32)
        #: The socket of all workers, once it is bound.
        self._listener: _core.ListeningSocket | None = None
        self._wakeups = Wakeups()
        #: The socket of a service manager, in place of a host. Workers do not hear of it.
        self._inherited = launch.listen_host("")
        #: Detached when the supervisor ends.
        self._xdp: _core.XdpProgram | None = None
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._is_stopping = False
        self._was_ready = False
        self._status = 0
        self._notifier = systemd.notifier()
        #: Whether the service manager takes the workers for ready.
        self._is_reported = False
        self._url = ""

    def copy_senders(self) -> list[int]:
        """Descriptors of sockets that lead to each worker."""
        return [os.dup(sender.fileno()) for _, sender in self._pairs]

    def run(self) -> int:
        """Supervises until a signal stops it; returns the exit status."""
        before = {number: signal.signal(number, self._record_signal) for number in _SIGNALS}
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        wakeup_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._selector.register(reader, selectors.EVENT_READ, lambda: reader.recv(4096))
        self._watcher = self._watch() if self._reload else None
        try:
            while not self._is_finished():
                self._turn()
        finally:
            if self._watcher is not None:
                self._watcher.kill()
                self._watcher.wait()
            self._kill_all()
            self._hosts.kill()
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._listener is not None:
                self._listener.close()
            self._xdp = None
            for end in (reader, writer, *(end for pair in self._pairs for end in pair)):
                end.close()
        return self._status

    def _record_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _turn(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            is_due = slot.start_at is not None and slot.start_at <= now
            if is_due and not self._is_stopping:
                self._start_due(slot)
        for key, _ in self._selector.select(self._select_timeout(now)):
            key.data()
        while self._signals:
            self._handle_signal(self._signals.pop(0))
        self._reap()
        if self._listener is not None and self._wakeups.take(time.monotonic()):
            self._listener.wake_all()
        if self._notifier is not None and not self._is_stopping:
            self._notify(self._notifier)

    def _notify(self, notifier: systemd.Notifier) -> None:
        """Reports to the service manager what it has to know."""
        workers = [slot.worker for slot in self._slots]
        beats = [worker.last_beat for worker in workers if worker is not None]
        ready = [beat for beat in beats if beat is not None]
        if not self._is_reported and not self._rolling and len(ready) == len(self._slots):
            self._is_reported = True
            notifier.ready(f"serving on {self._url}, workers: {len(ready)}")
        notifier.beat_for(ready, time.monotonic())

    def _select_timeout(self, now: float) -> float | None:
        if self._is_stopping:
            return None
        times = [self._wakeups.next_at, *(slot.start_at for slot in self._slots)]
        due = [at for at in times if at is not None]
        if self._notifier is not None and (beat := self._notifier.next_beat()) is not None:
            due.append(beat)
        return max(0.0, min(due) - now) if due else None

    def _is_finished(self) -> bool:
        return self._is_stopping and not self._all_workers()

    def _all_workers(self) -> list[Worker]:
        workers = [worker for slot in self._slots for worker in (slot.worker, slot.successor)]
        return [worker for worker in workers if worker is not None] + self._retiring

    # Starting and replacing workers.

    def _start_due(self, slot: WorkerSlot) -> None:
        slot.start_at = None
        try:
            slot.worker = self._start(slot)
        except OSError as failure:
            log.error("worker %d cannot be started: %s", slot.number, failure)
            self._schedule_restart(slot, 0.0)

    def _start(self, slot: WorkerSlot) -> Worker:
        """Starts a worker process.

        Raises:
            OSError: Memory or descriptors are exhausted, or the program's file is missing.
        """
        ours, theirs = socket.socketpair()
        page = self._pages[-1] if self._pages else 0
        receiver = self._pairs[page - 1][0].fileno() if 0 < page <= len(self._pairs) else -1
        sockets = [receiver, *(sender.fileno() for _, sender in self._pairs)]
        environment = os.environ | {
            process_role.WORKER: str(theirs.fileno()),
            process_role.INDEX: str(slot.number - 1),
            process_role.COUNT: str(len(self._slots)),
            process_role.TICKETS: self._tickets.hex(),
            process_role.SOCKETS: " ".join(map(str, sockets)),
        }
        if self._notifier is not None and self._notifier.beat_interval_s is not None:
            # Several signs of life fit into each of the supervisor's own.
            environment[process_role.HEARTBEAT] = str(self._notifier.beat_interval_s / 4)
        with theirs:
            try:
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    pass_fds=[theirs.fileno(), *(number for number in sockets if number >= 0)],
                    stdin=self._stdin(),
                    # The terminal sends SIGINT to the supervisor alone, which stops the workers.
                    process_group=0,
                )
            except OSError:
                ours.close()
                raise
        if page:
            self._pages.pop()
        worker = Worker(process, ours, page)
        ours.setblocking(False)
        handle: Callable[[], None] = lambda: self._handle_message(slot, worker)  # noqa: E731
        self._selector.register(ours, selectors.EVENT_READ, handle)
        return worker

    def _handle_message(self, slot: WorkerSlot, worker: Worker) -> None:
        """Handles a worker's messages.

        They are ``listen SCHEME PORT MODE HOST``, ``xdp INTERFACE PORT HOST``, ``host KEY`` with a
        descriptor, ``ready`` and ``beat``.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(worker.control, 4096, 16)
            worker.descriptors.extend(descriptors)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(worker.control)
            return
        *lines, worker.received = (worker.received + data).split(b"\n")
        for line in lines:
            what, *arguments = line.decode().split(" ", 4)
            if what == "listen":
                scheme, port, uds_mode, host = arguments
                self._send_listener(worker, (host, int(port), int(uds_mode), scheme))
            elif what == "xdp":
                interface, port, host = arguments
                self._send_xdp(slot, worker, (interface, host, int(port)))
            elif what == "host" and worker.descriptors:
                self._hosts.connect(worker, arguments[0], worker.descriptors.pop(0))
            elif what == "beat" and worker.last_beat is not None:
                worker.last_beat = time.monotonic()
            elif what == "ready":
                self._handle_ready(slot, worker)

    def _send_listener(self, worker: Worker, address: tuple[str, int, int, str]) -> None:
        answer, descriptors = "", []
        try:
            if self._listener is None:
                self.bind(*address)
            assert self._listener is not None
            answer = f"{worker.page} {self._listener.is_inherited:d}"
            descriptors = [self._listener.descriptor(), os.dup(self.counters.fileno())]
        except OSError as failure:
            answer = str(failure)
        with suppress(OSError):  # The worker may have died.
            socket.send_fds(worker.control, [answer.encode()], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def attach_xdp(self, interface: str, host: str, port: int) -> _core.XdpProgram:
        """Steers the datagrams at an interface to all workers.

        Raises:
            OSError: The kernel refuses it, or there are fewer queues than workers.
            ValueError: ``ucall-xdp-setup`` serves one process only.
        """
        if self._xdp is None:
            if interface.startswith(process_role.UNIX):
                raise ValueError("xdp: with workers, expected an interface, not ucall-xdp-setup")
            self._xdp = _core.XdpProgram(interface, host, port, len(self._slots))
        return self._xdp

    def _send_xdp(self, slot: WorkerSlot, worker: Worker, where: tuple[str, str, int]) -> None:
        try:
            program = self.attach_xdp(*where)
            answer = f"{int(program.is_native)} {slot.number - 1} {len(self._slots)}"
            descriptors = [program.fileno()]
        except (OSError, ValueError) as failure:
            answer, descriptors = str(failure), []
        with suppress(OSError):  # The worker may have died.
            socket.send_fds(worker.control, [answer.encode()], descriptors)

    def bind(self, host: str, port: int, uds_mode: int, scheme: str) -> None:
        """Binds the socket of all workers.

        Raises:
            OSError: The address is unavailable.
        """
        if not host.startswith(process_role.FD):
            host = self._inherited or host
        self.listen(_core.ListeningSocket(host, port, uds_mode), scheme)

    def listen(self, listener: _core.ListeningSocket, scheme: str) -> None:
        """Takes over the socket of all workers."""
        self._listener = listener
        self._url = process_role.url(scheme, listener.host, listener.port)
        launch.announce(f"listening on {self._url}, workers: {len(self._slots)}")

    def _handle_ready(self, slot: WorkerSlot, worker: Worker) -> None:
        self._was_ready = True
        worker.last_beat = time.monotonic()
        log.info("worker %d (pid %d) is ready", slot.number, worker.process.pid)
        if worker is slot.successor:
            if slot.worker is not None:
                slot.worker.process.send_signal(signal.SIGHUP)
                self._retiring.append(slot.worker)
            slot.worker, slot.successor = worker, None
            # The old worker may have died meanwhile: its restart is obsolete.
            slot.start_at = None
            # A slot that is listed again, for a later change, stays listed.
            if slot in self._rolling:
                self._rolling.remove(slot)
            self._roll_next()

    def _reap(self) -> None:
        """Handles the exits of workers and hosts."""
        self._hosts.reap()
        for worker in [worker for worker in self._retiring if worker.process.poll() is not None]:
            self._retiring.remove(worker)
            self._remove(worker)
        for slot in self._slots:
            if slot.successor is not None and slot.successor.process.poll() is not None:
                self._cancel_rolling(slot, slot.successor)
            if slot.worker is not None and slot.worker.process.poll() is not None:
                worker, slot.worker = slot.worker, None
                self._replace(slot, worker)
        if sys.platform == "linux" and os.getpid() == 1:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Reaps what process 1 of a container inherits: the children of workers that have died."""
        own = {worker.process.pid for worker in self._all_workers()}
        own |= self._hosts.pids()
        if self._watcher is not None:
            own.add(self._watcher.pid)
        with suppress(ChildProcessError):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (ended := os.waitid(os.P_ALL, 0, flags)) is not None and ended.si_pid not in own:
                os.waitpid(ended.si_pid, 0)

    def _remove(self, worker: Worker) -> None:
        if self._listener is not None:
            # The kernel may have woken it for a connection that it has not accepted.
            self._wakeups.begin(time.monotonic())
        if worker.control in self._selector.get_map():
            self._selector.unregister(worker.control)
        worker.control.close()
        for descriptor in worker.descriptors:
            os.close(descriptor)
        self._hosts.remove(worker)
        if worker.page:
            self.counters.retire(worker.page)
            self._pages.append(worker.page)
            self._pages.sort(reverse=True)

    def _cancel_rolling(self, slot: WorkerSlot, successor: Worker) -> None:
        slot.successor, self._rolling = None, []
        self._remove(successor)
        self._hosts.retire_unused()
        if not self._is_stopping:
            how = exit_reason(successor.process)
            log.error("the successor of worker %d %s; no worker is replaced", slot.number, how)

    def _replace(self, slot: WorkerSlot, worker: Worker) -> None:
        self._remove(worker)
        if self._is_stopping:
            return
        process = worker.process
        log.error("worker %d (pid %d) %s", slot.number, process.pid, exit_reason(process))
        self._schedule_restart(slot, time.monotonic() - worker.started_at)

    def _schedule_restart(self, slot: WorkerSlot, uptime_s: float) -> None:
        """Schedules the restart of a slot's worker; stops if no worker was ever ready."""
        if not self._was_ready:
            if self._reload is not None:
                log.info("waiting for a source to change")
                return
            log.error("no worker was ever ready: stopping")
            self._status = 1
            return self._stop()
        delay_s = min(max(slot.back_off_s * 2, _BACK_OFF_MIN_S), _BACK_OFF_MAX_S)
        slot.back_off_s = 0.0 if uptime_s >= _STABLE_S else delay_s
        slot.start_at = time.monotonic() + slot.back_off_s

    # Handling signals.

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP and not self._is_stopping:
            if self._may_replace():
                log.info("restarting the workers, one after another")
                self._begin_rolling()
        elif number == signal.SIGTERM or (number == signal.SIGINT and not self._is_stopping):
            self._stop()
        elif number == signal.SIGINT:
            self._kill_all()

    def _begin_rolling(self) -> None:
        in_progress = [slot for slot in self._rolling if slot.successor is not None]
        # The successor in progress may have read the old source: its slot is listed again.
        self._rolling = in_progress[:1] + self._slots if in_progress else list(self._slots)
        self._hosts.retire()
        if self._notifier is not None and self._is_reported:
            self._is_reported = False
            self._notifier.reloading()
        self._roll_next()

    def _roll_next(self) -> None:
        """Starts the next successor, unless one is starting."""
        if any(slot.successor is not None for slot in self._slots) or self._is_stopping:
            return
        while self._rolling:
            slot = self._rolling[0]
            if slot.worker is not None:
                return self._start_successor(slot)
            # Its worker has died, and the next one will read the new source.
            self._rolling.pop(0)
            slot.start_at = time.monotonic()

    def _start_successor(self, slot: WorkerSlot) -> None:
        try:
            slot.successor = self._start(slot)
        except OSError as failure:
            self._rolling = []
            log.error(
                "the successor of worker %d cannot be started: %s; no worker is replaced",
                slot.number,
                failure,
            )

    def _stop(self) -> None:
        if not self._is_stopping:
            log.info("stopping")
            if self._notifier is not None:
                self._notifier.stopping()
        self._is_stopping = True
        workers = self._all_workers()
        if self._listener is not None and all(worker.last_beat is None for worker in workers):
            # None would ever accept the connections that wait.
            self._listener.shut_down()
        for worker in workers:
            with suppress(OSError):  # It may have died.
                worker.control.send(process_role.ALL_STOP)
            worker.process.terminate()

    def _kill_all(self) -> None:
        self._is_stopping = True
        for worker in self._all_workers():
            worker.process.kill()

    # Watching sources.

    def _watch(self) -> subprocess.Popen[bytes]:
        assert self._reload is not None
        watcher = subprocess.Popen(
            self._reload, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
        )
        assert watcher.stdout is not None
        descriptor = watcher.stdout.fileno()
        os.set_blocking(descriptor, False)

        def changed() -> None:
            if not os.read(descriptor, 65536):
                self._selector.unregister(descriptor)
                watcher.wait()
                log.error(
                    "the watcher of sources %s: source changes no longer restart the workers",
                    exit_reason(watcher),
                )
            elif not self._is_stopping:
                log.info("a source has changed: restarting")
                self._begin_rolling()

        self._selector.register(descriptor, selectors.EVENT_READ, changed)
        return watcher


def _pairs_max() -> int:
    """How many pairs of sockets leave half of the descriptors for other uses."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if descriptors == resource.RLIM_INFINITY else descriptors // 4


def _message_pair() -> tuple[socket.socket, socket.socket]:
    """Sockets that keep the bounds of messages. macOS has datagrams only."""
    kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
    return socket.socketpair(socket.AF_UNIX, kind)


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("ucall-counters")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def command() -> list[str]:
    """The command line of this program.

    Raises:
        RuntimeError: The interpreter is interactive.
    """
    arguments = sys.orig_argv[1:]
    if not arguments or hasattr(sys, "ps1"):
        raise RuntimeError("workers run the program again, so it must be a file or a module")
    return [sys.executable, *arguments]


def supervise(core: _core.Server, udp: UDP | None, workers: int) -> None:
    """Serves from worker processes, each of which runs this program again."""
    if udp is not None and udp.port == 0:
        raise ValueError("udp.port: with workers, expected a port, got 0")
    supervisor = Supervisor(workers, command())
    launch.take_inherited(core)
    core.bind()
    listener = core.unbind()
    if listener is None:
        raise RuntimeError("the server runs already")
    supervisor.listen(listener, core.scheme)
    if udp is not None and udp.xdp is not None:
        supervisor.attach_xdp(udp.xdp, core.host, core.udp_port or core.port or 0)
    core.share_counters(supervisor.counters)
    core.share_sockets(None, supervisor.copy_senders(), None)
    status = supervisor.run()
    if status:
        raise SystemExit(status)
