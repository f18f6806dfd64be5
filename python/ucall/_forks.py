"""Tells the owners of connections and locks that this process is a forked child.

A thread of the parent may hold any lock at the fork, and connections stay the parent's. So their
owners forget both before the child runs anything else. This is the only file that registers
functions for that, but for the signals of a pool's process in `_functions.pool_process`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, TypeVar
from weakref import WeakSet

__all__ = ["in_child", "register"]


class _Owner(Protocol):
    def abandon(self) -> None:
        """Forgets connections without closing them, and replaces locks."""


FunctionT = TypeVar("FunctionT", bound=Callable[[], object])
_owners: WeakSet[_Owner] = WeakSet()
_functions: list[Callable[[], object]] = []


def register(owner: _Owner) -> None:
    """Calls ``owner.abandon`` in each forked child, while the owner exists."""
    _owners.add(owner)


def in_child(function: FunctionT) -> FunctionT:
    """Calls a function in each forked child. Also a decorator."""
    _functions.append(function)
    return function


def _run_all() -> None:
    with ExitStack() as stack:  # All run, whatever one of them raises.
        for function in (*_functions, *(owner.abandon for owner in _owners)):
            stack.callback(function)


os.register_at_fork(after_in_child=_run_all)
