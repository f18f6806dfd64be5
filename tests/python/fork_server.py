"""Forks the programs that `forking.py` asks for, from a process that has imported the package.

python fork_server.py SOCKET LISTENER: serves until the other side of the socket closes; both are
descriptors. A connection to the listener asks for one program, and gets its status.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import atexit
import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

import forking

import ucall.aio
import ucall.cli
import ucall.client
import ucall.posix
import ucall.uring

with suppress(ImportError):  # In a build without queues.
    import ucall.queue  # noqa: F401

Request = dict[str, Any]


def serve(requests: socket.socket, listener: socket.socket) -> Request | None:
    """Forks a child for each request. Returns the request in the child, and ``None`` at the end."""
    #: For each child the descriptor that gets its status.
    statuses: dict[int, int] = {}
    reader, writer = os.pipe()
    for end in reader, writer:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable = select.select([requests, listener, reader], [], [])[0]
        if reader in readable:
            os.read(reader, 4096)
        _report(statuses)
        if requests in readable:
            asking = requests
        elif listener in readable:
            asking, _ = listener.accept()
        else:
            continue
        length, descriptors, _, _ = socket.recv_fds(asking, forking.LENGTH_BYTES, 4)
        if not length and asking is requests:
            return None
        data = asking.recv(int.from_bytes(length), socket.MSG_WAITALL)
        if asking is not requests:
            descriptors.append(asking.detach())
        if (child := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for standard, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, standard)
            unused = [*descriptors, *statuses.values(), reader, writer]
            for descriptor in [*unused, requests.detach(), listener.detach()]:
                os.close(descriptor)
            return marshal.loads(data)  # type: ignore[no-any-return]
        statuses[child] = descriptors.pop()
        for descriptor in descriptors:
            os.close(descriptor)
        if asking is requests:
            requests.send(b"%d" % child)


def _report(statuses: dict[int, int]) -> None:
    """Writes the status of each child that has ended."""
    while statuses:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with suppress(BrokenPipeError), open(statuses.pop(child), "wb") as report:
            report.write(b"%d" % status)


def become(request: Request) -> types.ModuleType:
    """Makes this process like one that Python has started for a program, and returns its module."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.orig_argv[:] = request["command"]
    sys.argv[:] = request["arguments"]
    folders = {"-c": "", "-m": request["folder"]}
    sys.path[0] = folders.get(request["kind"], os.path.dirname(os.path.abspath(request["what"])))
    if request["environment"].get("PYTHONUNBUFFERED") == "":
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - until the process ends
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    return main


def execute(kind: str, what: str, main: types.ModuleType) -> None:
    """Runs a program in its module."""
    if kind == "-c":
        exec(compile(what, "<string>", "exec"), vars(main))
    elif kind == "-m":
        # It runs once more, under the name of a program.
        sys.modules.pop(what, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main.__file__ = os.path.abspath(what)
        exec(compile(Path(what).read_bytes(), main.__file__, "exec"), vars(main))


def end(status: int) -> None:
    """Ends this process as Python does, up to the destruction of all objects: to copy their memory
    would take three quarters of the time of a small program. Returns if its output is closed."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    # Ctrl-C is for the tests, which then close the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Collections in the children leave what they share as it is.
    gc.collect()
    gc.freeze()
    request = serve(*(socket.socket(fileno=int(it)) for it in sys.argv[1:]))
    if request is not None:
        main = become(request)
        try:
            execute(request["kind"], request["what"], main)
        except SystemExit as left:
            if not isinstance(left.code, int | None):
                raise
            end(left.code or 0)
        end(0)
