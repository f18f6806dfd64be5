"""Shows the progress of an upload, or the bytes on the connection, on stderr."""

from __future__ import annotations

import sys
import time

from ucall._cli.output import printable

__all__ = ["ProgressObserver"]

#: An upload shows a bar after this time.
_BAR_DELAY_S = 0.5
_REDRAW_S = 0.1
_BAR_CELLS = 30
#: Bytes of a request or a reply that are shown.
_SHOWN_BYTES = 8192


class ProgressObserver:
    """A `ucall._client.socket_connection.Observer` that writes to stderr."""

    def __init__(self, is_verbose: bool, has_bar: bool) -> None:
        self._is_verbose = is_verbose
        self._has_bar = has_bar
        self._received = b""
        self._received_bytes = 0
        self._started_at = 0.0
        self._drawn = 0.0

    def sending(self, data: memoryview) -> None:
        """A request is about to be sent."""
        self._started_at = time.monotonic()
        if self._is_verbose:
            _show(">", bytes(data[: 4 * _SHOWN_BYTES]), len(data))

    def sent(self, done_bytes: int, total_bytes: int) -> None:
        """A part of a request was sent."""
        now = time.monotonic()
        if not self._has_bar or now - self._started_at < _BAR_DELAY_S:
            return
        if done_bytes >= total_bytes:
            self._clear()
        elif now - self._drawn >= _REDRAW_S:
            self._drawn = now
            _draw(done_bytes, total_bytes)

    def received(self, data: bytes) -> None:
        """Bytes were received."""
        if self._is_verbose:
            self._received_bytes += len(data)
            self._received += data[: max(0, 4 * _SHOWN_BYTES - len(self._received))]

    def finish(self) -> None:
        """The call has ended, with or without a reply."""
        self._clear()
        if self._received:
            _show("<", self._received, self._received_bytes)

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = 0.0
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _draw(done_bytes: int, total_bytes: int) -> None:
    share = done_bytes / total_bytes
    bar = "#" * int(share * _BAR_CELLS)
    done, total = done_bytes / 1e6, total_bytes / 1e6
    sys.stderr.write(f"\r[{bar:{_BAR_CELLS}}] {share:4.0%} {done:.1f} of {total:.1f} MB\x1b[K")
    sys.stderr.flush()


def _show(mark: str, data: bytes, total_bytes: int) -> None:
    shown = data[:_SHOWN_BYTES]
    lines = shown.decode(errors="replace").removesuffix("\n").split("\n")
    for line in lines:
        print(mark, printable(line.removesuffix("\r")), file=sys.stderr)
    if total_bytes > len(shown):
        print(f"{mark} … {total_bytes - len(shown)} bytes more", file=sys.stderr)
