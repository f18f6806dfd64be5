"""Where a queue over a Unix socket is."""

from __future__ import annotations

import os
import stat
import tempfile

from ucall.queue import core

__all__ = ["Communicator", "socket_path"]


class Communicator(core.Communicator):
    """Listens at, or connects to, a socket in the file system."""

    @classmethod
    def _location(cls, options: core.CommunicatorOptions) -> str:
        return socket_path(options.netloc)

    @classmethod
    def _verified_name(cls, options: core.CommunicatorOptions) -> str:
        return "localhost"


def socket_path(netloc: core.NetworkLocation) -> str:
    """The path that a location says, or one in a folder of this user's own."""
    host, port = netloc
    return host if os.sep in host else os.path.join(_own_folder(), f"{host}-{port}.sock")


def _own_folder() -> str:
    """A folder that only this user reaches.

    Raises:
        PermissionError: Somebody else has made a folder of that name.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = os.path.join(base, f"ucall-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder
