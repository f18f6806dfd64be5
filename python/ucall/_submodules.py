"""Imports submodules on first use: ``import ucall; ucall.auth.bearer``.

Importing them with the package would make ``import ucall`` slow for programs that only serve.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

__all__ = ["on_demand"]


def on_demand(
    package: str, *names: str
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` (PEP 562) of a package."""

    def find(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        what = f"module {package!r} has no attribute {name!r}"
        # Python suggests a similar name from `name` and `obj`.
        raise AttributeError(what, name=name, obj=sys.modules[package])

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return find, listed
