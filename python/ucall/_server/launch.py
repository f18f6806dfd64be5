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
    from ucall._nats.registration import Registration
    from ucall.server import Server

__all__ = [
    "announce",
    "bind",
    "bind_on_thread",
    "check_no_running_loop",
    "in_turn",
    "is_left_to_program",
    "listen_host",
    "report_to_service_manager",
    "supervise",
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


def _take_inherited(core: _core.Server) -> None:
    if (host := listen_host(core.host)) != core.host:
        core.configure(host=host)


def bind(server: Server) -> None:
    """Binds a server that is about to run, and says where, once."""
    _take_inherited(server._core)
    if not server._core.is_stop_requested and server._core.bind():
        announce(f"listening on {_url(server)}, engine: {server.engine}")


def announce(line: str) -> None:
    """Logs a line; a program that does not configure logging finds it on standard error."""
    if log.hasHandlers():
        log.info("%s", line)
    elif log.level <= logging.INFO and sys.stderr is not None:
        print(f"ucall: {line}", file=sys.stderr, flush=True)


def bind_on_thread(server: Server) -> None:
    """Binds a server that is about to start on a thread.

    In an interactive session, such as a notebook, it replaces the server of this port that an
    earlier run of a cell has started: nothing else could stop that.
    """
    server._core.forget_stop()
    try:
        server._core.bind()
    except OSError as failure:
        earlier = [
            it for it in list(serving_threads.running) if it._thread and _have_one_port(it, server)
        ]
        if failure.errno != errno.EADDRINUSE or not earlier or not hasattr(sys, "ps1"):
            raise
        for other in earlier:
            other.stop()
        server._core.bind()


def _have_one_port(one: Server, other: Server) -> bool:
    return one.port == other.port and (bool(one.port) or one.host == other.host)


def report_to_service_manager(
    server: Server, registration: Registration | None
) -> Callable[[], object] | None:
    """Prepares the reports to a service manager; returns the first one."""
    callbacks = [registration.deregister] if registration else []
    server._core.set_callbacks(in_turn(*callbacks), None, None)
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from ucall._workers import systemd

    notifier = systemd.notifier()
    if notifier is None:
        return None
    stopping = in_turn(notifier.stopping, *callbacks)
    server._core.set_callbacks(stopping, notifier.beat, notifier.beat_interval_s)
    return functools.partial(notifier.ready, f"serving on {_url(server)}")


def supervise(server: Server, workers: int) -> None:
    """Serves from worker processes."""
    from ucall._workers.supervisor import Supervisor, command

    core = server._core
    udp = server._udp
    if udp is not None and udp.port == 0:
        raise ValueError("udp.port: with workers, expected a port, got 0")
    supervisor = Supervisor(workers, command())
    _take_inherited(core)
    core.bind()
    listener = core.unbind()
    if listener is None:
        raise RuntimeError("the server runs already")
    supervisor.listen(listener, core.scheme)
    if udp is not None and udp.xdp is not None:
        supervisor.attach_xdp(udp.xdp, core.host, core.udp_port or core.port or 0)
    core.share_counters(supervisor.counters)
    core.share_sockets(None, supervisor.copy_senders(), None)
    status = supervisor.run()
    if status:
        raise SystemExit(status)


def in_turn(*functions: Callable[[], object]) -> Callable[[], None] | None:
    """A function that calls these one after another; ``None`` without any."""
    if not functions:
        return None

    def call_all() -> None:
        for function in functions:
            function()

    return call_all


def _url(server: Server) -> str:
    return process_role.url(server._core.scheme, server.host, server.port)
