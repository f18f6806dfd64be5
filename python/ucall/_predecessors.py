"""Warns of an earlier version of ucall that is installed beside this one.

The distribution ``ucall`` on PyPI (0.4 and 0.5) has the module ``ucall``, too, whose extension
modules ``posix`` and ``uring`` Python prefers to the modules of this one. Before that the package
was ``ujrpc``.
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
            f"of this version's: {', '.join(files)}. Run pip uninstall ucall, then install "
            "ucall-rpc again with pip's --force-reinstall"
        )
    if os.path.exists(f"{folder}/../ujrpc"):
        fixes.append(
            "ujrpc, an earlier version of ucall, is installed. Import from ucall in its place, and "
            "run pip uninstall ujrpc"
        )
    warnings.warn("; ".join(fixes), RuntimeWarning, stacklevel=3)


def _foreign_files(folder: str) -> list[str]:
    """Their names in 0.5.4; those of other extension modules say for which Python they are."""
    names = sorted(os.listdir(folder))
    extensions = [it for it in names if it.startswith(("posix.", "uring.")) and it.endswith(".so")]
    return [*(name for name in names if name == "_server.py"), *extensions]
