"""Who is at the other end of a Unix socket."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Process"]


class Process(NamedTuple):
    """The process that has connected, as the kernel tells it.

    Attributes:
        pid: Its number; 0 if it is of a namespace that cannot be seen from here.
        uid: Its effective user.
        gid: Its effective group.
    """

    pid: int
    uid: int
    gid: int
