"""Calls functions at the end of this process, also in the children of `multiprocessing`.

These end without the functions of `atexit`, at least of those that their parent has registered:
`multiprocessing` runs its own finalizers, of which it forgets all when a child begins.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["at_process_end", "note_opened"]

_functions: list[Callable[[], object]] = []
#: That of `multiprocessing`, if this process is one of its children.
_finalizer: Any = None


def at_process_end(function: Callable[[], object]) -> Callable[[], object]:
    """Calls the function when this process ends; also a decorator."""
    _functions.append(function)
    atexit.register(function)
    return function


def note_opened() -> None:
    """There is something to do at the end of this process."""
    global _finalizer
    # All children of `multiprocessing` have imported it.
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None or sys.modules["multiprocessing.process"].parent_process() is None:
        return
    if _finalizer is None or not _finalizer.still_active():
        _finalizer = util.Finalize(None, _call_all, exitpriority=0)


def _call_all() -> None:
    for function in _functions:
        function()
