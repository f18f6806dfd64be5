"""Warns of an earlier version of ucall that is installed beside this one.

ucall 0.4 and 0.5 on PyPI have a package of the same name, whose extension modules ``posix`` and
``uring`` Python prefers to the modules of this one. Before that the package was ``ujrpc``.
"""

from __future__ import annotations

import os
import warnings

__all__ = ["warn"]


def warn(folder: str) -> None:
    """Warns with the fix. The earlier version was found in or beside ``folder``, this package's."""
    fixes = []
    if files := _foreign_files(folder):
        fixes.append(
            f"{folder} has files of ucall 0.4 or 0.5 from PyPI, which Python may import in place "
            f"of this version's: {', '.join(files)}. Run pip uninstall ucall, delete that folder, "
            "and install this version again"
        )
    if os.path.exists(f"{folder}/../ujrpc"):
        fixes.append(
            "ujrpc, an earlier version of ucall, is installed. Import from ucall in its place, and "
            "run pip uninstall ujrpc"
        )
    warnings.warn("; ".join(fixes), RuntimeWarning, stacklevel=3)


def _foreign_files(folder: str) -> list[str]:
    names = sorted(os.listdir(folder))
    foreign = ("_server.py", "posix.cpython", "uring.cpython")
    return [name for name in names if name.startswith(foreign)]
