"""How a run begins: whether it may, where it listens, and who hears of it."""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ucall._server import serving_threads
from ucall._workers import process_role

if TYPE_CHECKING:
    from ucall import _core

__all__ = [
    "announce",
    "bind",
    "bind_on_thread",
    "check_no_running_loop",
    "in_turn",
    "is_left_to_program",
    "listen_host",
    "report_to_service_manager",
    "take_inherited",
    "write_log",
]

log = logging.getLogger("ucall")


def is_left_to_program(method: str) -> bool:
    """Whether a module that another program imports calls ``method`` at its top level.

    Its server is then that program's to run. `Server.start` does not hold up an import, so it is
    left only where the program itself is imported again, by a child of `multiprocessing`.
    """
    if process_role.is_importing():
        return True
    module = process_role.imported_module()
    if module is None or module == process_role.MULTIPROCESSING_MAIN:
        return module is not None
    if method == "start":
        return False
    log.warning("%s is imported: its %s() returns at once, and serves nothing", module, method)
    return True


def check_no_running_loop() -> None:
    """Raises RuntimeError if this thread runs an event loop of asyncio, which would stand still."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio.events._get_running_loop() is not None:
        raise RuntimeError(
            "run() would block the event loop of this thread: call start(), which serves on "
            "another one, or await serve()"
        )


def listen_host(host: str) -> str:
    """The host; in its place the socket that a service manager has passed to this process."""
    if host.startswith(process_role.FD) or "LISTEN_FDS" not in os.environ:
        return host
    from ucall._workers import systemd

    descriptor = systemd.inherited_socket()
    return host if descriptor is None else f"{process_role.FD}{descriptor}"


def take_inherited(core: _core.Server) -> None:
    """Has a server listen on the socket that a service manager has passed, if any."""
    if (host := listen_host(core.host)) != core.host:
        core.configure(host=host)


def bind(core: _core.Server) -> None:
    """Binds a server that is about to run, and says where, once."""
    take_inherited(core)
    if not core.is_stop_requested and core.bind():
        announce(f"listening on {_url(core)}, engine: {core.engine}")


def announce(line: str) -> None:
    """Logs a line; a program that does not configure logging finds it on standard error."""
    if log.hasHandlers():
        log.info("%s", line)
    elif log.level <= logging.INFO and sys.stderr is not None:
        print(f"ucall: {line}", file=sys.stderr, flush=True)


def write_log(form: str | None) -> None:
    """Writes the log of the package to standard error, if a server asks for a format."""
    if form is not None:
        from ucall._log import write_to_stderr

        write_to_stderr(form)


def bind_on_thread(core: _core.Server) -> None:
    """Binds a server that is about to start on a thread.

    In an interactive session, such as a notebook, it replaces the server of this port that an
    earlier run of a cell has started: nothing else could stop that.
    """
    core.forget_stop()
    try:
        core.bind()
    except OSError as failure:
        earlier = [
            it
            for it in list(serving_threads.running)
            if it.was_started and _have_one_port(it.core, core)
        ]
        if failure.errno != errno.EADDRINUSE or not earlier or not hasattr(sys, "ps1"):
            raise
        for other in earlier:
            other.core.stop(False)
            other.join()
        core.bind()


def _have_one_port(one: _core.Server, other: _core.Server) -> bool:
    return one.port == other.port and (bool(one.port) or one.host == other.host)


def report_to_service_manager(
    core: _core.Server, on_drain: Callable[[], object] | None
) -> Callable[[], object] | None:
    """Prepares the reports to a service manager, besides ``on_drain``; returns the first one."""
    callbacks = [on_drain] if on_drain else []
    core.set_callbacks(in_turn(*callbacks), None, None)
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from ucall._workers import systemd

    notifier = systemd.notifier()
    if notifier is None:
        return None
    stopping = in_turn(notifier.stopping, *callbacks)
    core.set_callbacks(stopping, notifier.beat, notifier.beat_interval_s)
    return functools.partial(notifier.ready, f"serving on {_url(core)}")


def in_turn(*functions: Callable[[], object]) -> Callable[[], None] | None:
    """A function that calls these one after another; ``None`` without any."""
    if not functions:
        return None

    def call_all() -> None:
        for function in functions:
            function()

    return call_all


def _url(core: _core.Server) -> str:
    return process_role.url(core.scheme, core.host, core.port)
