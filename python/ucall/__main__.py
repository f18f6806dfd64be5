"""``python -m ucall module:server``: serves the functions of a module.

    python -m ucall module:server --host 0.0.0.0 --port 8545 --workers 4

Without ``--workers`` and ``--reload`` this process serves; with them it supervises workers.

    python -m ucall relay config.toml --workers 4

relays calls to other servers as a file says, and always supervises workers.

    python -m ucall module:server --mcp-stdio

serves the functions as tools of MCP on standard input and output.

    python -m ucall xdp-setup eth0 /run/ucall-xdp.sock --user app

is the command ``ucall-xdp-setup``.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import sys
from collections.abc import Callable

from ucall._command.application import StartupError, import_server
from ucall._command.settings import GatewaySettings, Settings
from ucall._log import write_to_stderr
from ucall._workers import process_role
from ucall.server import check, override, serve_stdio

log = logging.getLogger("ucall")


def main() -> int:
    """Serves or supervises until a signal; returns the exit status."""
    if sys.argv[1:2] == ["relay"]:
        relay = GatewaySettings.read(sys.argv[2:])
        _log_to_stderr(relay)
        _warn(relay.warnings)
        return _reporting(lambda: _relay(relay))
    if sys.argv[1:2] == ["xdp-setup"]:
        from ucall._workers import xdp_setup

        return xdp_setup.main(sys.argv[2:])
    settings = Settings.read()
    _log_to_stderr(settings, settings.access_log)
    _warn(settings.warnings)
    supervised = settings.workers is not None or settings.reload
    if supervised and not process_role.is_worker():
        return _reporting(lambda: _supervise(settings))
    return _reporting(lambda: _serve_stdio(settings) if settings.mcp_stdio else _serve(settings))


def _warn(warnings: list[str]) -> None:
    """Logs the warnings once: the variables of a worker are those of its supervisor."""
    if not process_role.is_worker():
        for warning in warnings:
            log.warning("%s", warning)


def _reporting(run: Callable[[], int]) -> int:
    """Runs a program; logs why it cannot start, if it cannot. Returns the exit status."""
    try:
        return run()
    except StartupError as failure:
        log.error("%s", failure)
    except OSError as failure:
        log.error("%s", _reason(failure))
    return 1


def _log_to_stderr(settings: Settings | GatewaySettings, form: str | None = None) -> None:
    """Logs the package's own records, unless the program configures the root logger.

    The root logger and its level are the program's, so other packages log as it says.
    """
    write_to_stderr(settings.log_format or form or "text")
    log.setLevel(settings.log_level.upper())


def _reason(failure: OSError) -> str:
    """The reason without its number, but with the file or the remedy, if any."""
    reason = failure.strerror or str(failure)
    if failure.filename is not None:
        return f"{failure.filename}: {reason}"
    if failure.errno == errno.EADDRINUSE:
        return f"{reason}; choose another by --port or --uds"
    return reason


def _supervise(settings: Settings) -> int:
    from ucall._workers import supervisor

    reload = None
    if settings.reload:
        if importlib.util.find_spec("watchfiles") is None:
            raise StartupError("--reload needs watchfiles: pip install watchfiles")
        watch = "from ucall.__main__ import watch; watch()"
        reload = [sys.executable, "-c", watch, os.getcwd()]
    command = [sys.executable, "-m", "ucall", *sys.argv[1:]]
    return supervisor.Supervisor(settings.workers or 1, command, reload).run()


def _relay(settings: GatewaySettings) -> int:
    from ucall._command import gateway
    from ucall._workers import supervisor

    if process_role.is_worker():
        gateway.build(gateway.read_text(), settings.config).run()
        return 0
    configuration = gateway.Configuration(settings.config)
    configuration.load()
    command = [sys.executable, "-m", "ucall", *sys.argv[1:]]
    return supervisor.Supervisor(
        settings.workers, command, may_replace=configuration.reload, stdin=configuration.fileno
    ).run()


def watch() -> None:
    """Writes a line per change of a Python source below the folders in ``sys.argv``: ``--reload``.

    It runs in a process of its own, so that the supervisor needs no thread.
    """
    from watchfiles import PythonFilter, watch

    for changes in watch(*sys.argv[1:], watch_filter=PythonFilter(), raise_interrupt=False):
        print(*sorted(path for _, path in changes), flush=True)


def _serve(settings: Settings) -> int:
    process_role.threads = settings.threads
    process_role.options = settings.options
    server = import_server(settings.app)
    if settings.log_format is not None:  # In place of the server's own.
        write_to_stderr(settings.log_format)
    try:
        broker = settings.registration()
        given = settings.server_options()
        override(
            server,
            engine=settings.engine,
            host=process_role.listen_host(settings.host, settings.uds, settings.fd),
            port=settings.port,
            tls=given.get("tls"),
            observability=given.get("observability"),
        )
        check(server, broker)
    except (ImportError, ValueError) as failure:
        raise StartupError(str(failure)) from None
    server.run(broker=broker)
    return 0


def _serve_stdio(settings: Settings) -> int:
    from ucall._mcp import stdio

    # Before the module is imported, which may print.
    own = stdio.Stdio()
    process_role.threads = settings.threads
    process_role.options = settings.options | stdio.OPTIONS
    server = import_server(settings.app)
    try:
        observability = settings.server_options().get("observability")
        override(
            server,
            engine=settings.engine,
            host=None,
            port=None,
            tls=None,
            observability=observability,
        )
    except ValueError as failure:
        raise StartupError(str(failure)) from None
    return serve_stdio(server, own)


if __name__ == "__main__":
    sys.exit(main())
