"""A server on standard input and output: ``python -m ucall module:server --mcp-stdio``.

The server has one connection over raw TCP's protocol, a pair of sockets. One thread passes the
lines of standard input to it, and another one its replies to standard output, each a line. A line
that is no document is answered here, because the server would close its connection.

The connection ends with standard input, or at a signal: its sending side is shut down, and the
server drains, so that calls that listen end, others get a moment to finish, and all replies are
written. MCP does not know the notification of a drain, which is left out.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

from ucall import _core, _forks
from ucall._workers.process_role import StartupError

__all__ = ["OPTIONS", "Stdio"]

#: Runs a server, and calls a function when it has started.
Run = Callable[[Callable[[], None]], None]

log = logging.getLogger("ucall")

#: Options that a server has in place of its own. Its functions are tools; a host may be quiet for
#: days, or stand still in a debugger; and no load balancer has to learn of the end.
OPTIONS: Final = {
    "mcp": True,
    "idle_timeout_s": 1e9,
    "send_timeout_s": 1e9,
    "shutdown_delay_s": 0.0,
}

#: Bytes that are passed on at a time.
_CHUNK_BYTES = 65_536
#: Seconds that a host gets to read the last replies.
_FLUSH_S = 2.0
#: Seconds between one way to end a call and a harder one.
_STEP_S = 0.5


class Stdio:
    """Standard input and output, which only the protocol uses from now on.

    What else is written to standard output goes to standard error, also by child processes and code
    in C, and standard input is empty to them.

    Raises:
        StartupError: One of the two is closed.
    """

    def __init__(self) -> None:
        self._input, self._output = _private_copy(0), _private_copy(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # Without standard error, what is written is lost.
            os.dup2(null, 1)
            os.dup2(null, 2)
        if null > 2:
            os.close(null)
        #: Taken while a line is written, of which the server may send one part after another.
        self._writing = threading.Lock()
        self._near, far = socket.socketpair()
        # The server's, which it closes. Another file may get its number then.
        self._far_inode = os.fstat(far.fileno()).st_ino
        self._far_number = far.detach()
        self._is_ending = False
        #: Set when the connection has ended, and all its replies are written.
        self._ended = threading.Event()
        self._has_failed = False
        _forks.in_child(self._close_in_child)

    def serve(self, core: _core.Server, run: Run, drain_timeout_s: float) -> int:
        """Serves until the end of standard input, or a signal. Returns the exit status.

        Args:
            core: The server.
            run: Runs it until it is stopped, and calls a function when it has started.
            drain_timeout_s: Seconds that running calls get at the end.
        """
        self._core, self._drain_timeout_s = core, drain_timeout_s
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle_signal)
        _core.set_binds(core, False)
        try:
            run(self._start)
            self._ended.wait(_FLUSH_S)
        except KeyboardInterrupt:
            pass  # Of a second signal.
        return 1 if self._has_failed else 0

    def _start(self) -> None:
        _core.adopt(self._core, self._far_number)
        for work in (self._read_all, self._write_all):
            threading.Thread(target=work, daemon=True).start()

    def _read_all(self) -> None:
        """Passes the documents of standard input on, and answers its other lines."""
        lines = _core.Lines(self._core)
        has_more = True
        try:
            while has_more:
                data = self._read()
                has_more = bool(data)
                documents, errors = lines.receive(data)
                if errors:
                    with self._writing:
                        self._write(errors)
                self._near.sendall(documents)
        except OSError:
            pass  # The connection has ended, which `_write_all` reports.
        self._end_input()

    def _write_all(self) -> None:
        """Passes the replies on, until the connection ends."""
        lines, is_within_line = _core.ReplyLines(), False
        try:
            while received := self._near.recv(_CHUNK_BYTES):
                data = lines.adapt(received)
                if not data:
                    continue
                if not is_within_line:
                    self._writing.acquire()
                self._write(data)
                is_within_line = not data.endswith(b"\n")
                if not is_within_line:
                    self._writing.release()
        except OSError:
            pass  # `_write` has reported it.
        if not self._is_ending and not self._has_failed:
            self._fail("the server has closed the connection")
        self._ended.set()
        self._core.stop(False)

    def _read(self) -> bytes:
        """The next bytes of standard input; none at its end, and after it has failed."""
        while True:
            try:
                return os.read(self._input, _CHUNK_BYTES)
            except BlockingIOError:
                select.select([self._input], [], [])
            except OSError as failure:
                log.error("standard input: %s", failure.strerror)
                return b""

    def _write(self, data: bytes) -> None:
        """Writes to standard output. The host has left if that fails: its calls are cancelled.

        Raises:
            OSError: It has failed.
        """
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._output, left) :]
            except BlockingIOError:
                select.select([], [self._output], [])
            except OSError as failure:
                self._fail(f"standard output: {failure.strerror}")
                raise

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.error("%s", reason)
            self._core.stop(True)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._end_input():
            self._core.stop(True)
            raise KeyboardInterrupt  # Ends a function that holds this thread.

    def _end_input(self) -> bool:
        """No call follows. Returns False if that was known already."""
        if self._is_ending:
            return False
        self._is_ending = True
        with suppress(OSError):  # The connection has ended.
            self._near.shutdown(socket.SHUT_WR)
        self._core.drain(serving=True)
        threading.Thread(target=self._limit, daemon=True).start()
        return True

    def _limit(self) -> None:
        """Ends what the drain has not ended, by one way after another."""
        if self._ended.wait(self._drain_timeout_s + _STEP_S):
            return
        self._core.stop(True)
        if self._ended.wait(_STEP_S):
            return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if not self._ended.wait(_STEP_S):
            log.error("a function blocks the program, which ends without its shutdown hooks")
            os._exit(1)

    def _close_in_child(self) -> None:
        """A forked child must not keep the host, or this program, waiting for an end of file."""
        for descriptor in (self._input, self._output):
            os.close(descriptor)
        self._near.close()
        with suppress(OSError):  # The connection had ended.
            if os.fstat(self._far_number).st_ino == self._far_inode:
                os.close(self._far_number)


def _private_copy(number: int) -> int:
    """A copy of a descriptor, above the standard ones, that child programs do not inherit."""
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        name = "standard output" if number else "standard input"
        raise StartupError(f"--mcp-stdio: {name} is closed; a host has to open both") from None
