"""Tracebacks without the frames of this package, which say nothing of the program's fault."""

from __future__ import annotations

import os
from types import TracebackType

__all__ = ["cut"]

_FOLDER = os.path.dirname(__file__) + os.sep


def cut(error: BaseException) -> None:
    """Removes the frames of this package from the traceback of an exception, and from those of its
    causes and of the exceptions of a group. If there are no others, they stay."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_own_frames(one.__traceback__)
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    rest = traceback
    while rest is not None:
        if not rest.tb_frame.f_code.co_filename.startswith(_FOLDER):
            kept.append(rest)
        rest = rest.tb_next
    made: TracebackType | None = None
    for one in reversed(kept):
        made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made or traceback
