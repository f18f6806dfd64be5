"""The socket of a service manager, and reports to it, by systemd's protocols: see sd_listen_fds(3)
and sd_notify(3).

The manager names a datagram socket in ``NOTIFY_SOCKET``. A process that serves takes the variable
out of its environment, because its children are not the service.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Iterable

__all__ = ["Notifier", "inherited_socket", "notifier"]

log = logging.getLogger("ucall")

#: The first of the descriptors that the manager passes.
_FIRST_DESCRIPTOR = 3
#: How long a message waits for a manager that is slow to read.
_SEND_TIMEOUT_S = 1.0

_notifier: Notifier | None = None


def notifier() -> Notifier | None:
    """The notifier of this process; None without a service manager."""
    global _notifier
    if address := os.environ.pop("NOTIFY_SOCKET", ""):
        _notifier = Notifier(address, _take_watchdog_s())
    return _notifier


def _take_watchdog_s() -> float | None:
    """The seconds within which the manager expects a sign of life; None if it expects none."""
    microseconds = os.environ.pop("WATCHDOG_USEC", "")
    process = os.environ.pop("WATCHDOG_PID", "") or str(os.getpid())
    if not microseconds.isdecimal() or int(microseconds) == 0 or process != str(os.getpid()):
        return None
    return int(microseconds) / 1e6


def inherited_socket() -> int | None:
    """The descriptor of the socket that the manager has passed to this process; None without one.

    The first server that asks gets it. The variables are for this process alone.

    Raises:
        OSError: There are several.
    """
    count, process = os.environ.get("LISTEN_FDS", ""), os.environ.get("LISTEN_PID", "")
    if process != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        return None
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    if int(count) > 1:
        raise OSError(
            errno.EINVAL, f"LISTEN_FDS: expected one socket, got {count}: a server has one address"
        )
    os.set_inheritable(_FIRST_DESCRIPTOR, False)
    return _FIRST_DESCRIPTOR


class Notifier:
    """Sends messages to the service manager.

    Args:
        address: The path of its socket, or ``@`` and the name of an abstract one.
        watchdog_s: The seconds within which it expects a sign of life.
    """

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        #: Signs of life are sent at half of the time, as sd_watchdog_enabled(3) recommends.
        self.beat_interval_s = None if watchdog_s is None else watchdog_s / 2
        self._next_beat = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def ready(self, status: str) -> None:
        """Reports that the service serves, for the first time or after `reloading`."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Reports that the service is being replaced; `ready` follows."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=restarting the workers")

    def stopping(self) -> None:
        """Reports that the service is about to end."""
        self._send("STOPPING=1\nSTATUS=draining")

    def beat(self) -> None:
        """Sends a sign of life."""
        self._send("WATCHDOG=1", 0)

    def beat_for(self, last_signs: Iterable[float], now: float) -> None:
        """Sends a sign of life when one is due, unless a worker hangs.

        Args:
            last_signs: When each worker that serves gave its last one. The supervisor restarts the
                others.
        """
        if self.beat_interval_s is None or now < self._next_beat:
            return
        self._next_beat = now + self.beat_interval_s
        if now - min(last_signs, default=now) <= self.beat_interval_s:
            self.beat()

    def next_beat(self) -> float | None:
        """When `beat_for` is due; None without a watchdog."""
        return None if self.beat_interval_s is None else self._next_beat

    def _send(self, message: str, timeout_s: float = _SEND_TIMEOUT_S) -> None:
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendto(message.encode(), self._address)
        except BlockingIOError:
            pass  # The manager has not read the earlier ones yet.
        except OSError as failure:
            log.warning("cannot notify the service manager: %s", failure)
