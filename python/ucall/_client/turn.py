"""Which of the threads that wait for messages of one connection receives for all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from ucall._client.sockets import Deadline

__all__ = ["Turn"]


class Turn:
    """The first thread that waits has it; when it has its own message, the next one takes it."""

    def __init__(self) -> None:
        #: Guards what the threads share. Those without the turn wait for its changes.
        self.lock = threading.Condition(threading.RLock())
        self._is_taken = False
        #: Bytes sent to the first end the wait of the thread that receives.
        self._wakeup: tuple[socket.socket, socket.socket] | None = None

    def take(self, has_ended: Callable[[], bool], deadline: Deadline) -> bool:
        """Waits for the turn; ``False`` if the thread has nothing to wait for.

        Raises:
            TimeoutError: The deadline passed first.
        """
        with self.lock:
            while not has_ended():
                if not self._is_taken:
                    self._is_taken = True
                    return True
                self.lock.wait(deadline.left())
            return False

    def take_at_once(self) -> bool:
        """Takes the turn, unless another thread has it."""
        with self.lock:
            is_free, self._is_taken = not self._is_taken, True
            return is_free

    def give_back(self) -> None:
        """Lets the next thread take it."""
        with self.lock:
            self._is_taken = False
            self.notify_all()

    def make_wakeable(self) -> None:
        """Lets `wake` end the wait of the thread that receives, if it begins to wait later."""
        with self.lock:
            if self._wakeup is None:
                self._wakeup = socket.socketpair()
                for end in self._wakeup:
                    end.setblocking(False)

    @property
    def wakeup(self) -> socket.socket | None:
        """What the thread that receives waits for, too, and reads; ``None`` if not wakeable."""
        return self._wakeup[1] if self._wakeup else None

    def wake(self) -> None:
        """Lets all threads look again whether they have to wait."""
        with self.lock:
            self.notify_all()
            if self._is_taken and self._wakeup is not None:
                with suppress(BlockingIOError):
                    self._wakeup[0].send(b"\0")

    def notify_all(self) -> None:
        """Ends the waits for the lock's changes. The thread has the lock."""
        # A signal handler, or `__del__` of a stream, that interrupts it may end them first.
        with suppress(IndexError):
            self.lock.notify_all()

    def close(self) -> None:
        """Closes what wakes the thread that receives, when none does."""
        with self.lock:
            ends, self._wakeup = self._wakeup, None
        for end in ends or ():
            end.close()
