"""Imports the server that a command line names: ``module:server``."""

from __future__ import annotations

import importlib
import logging
import os
import sys

from ucall._workers import process_role
from ucall._workers.process_role import StartupError
from ucall.server import Server

__all__ = ["StartupError", "import_server"]

log = logging.getLogger("ucall")


def import_server(app: str) -> Server:
    """The server at ``module:name``, in the current folder or installed. It does not run.

    Raises:
        StartupError: There is no such module or server; the message names what there is.
    """
    module, _, path = app.partition(":")
    name = module.removesuffix(".py").replace(os.sep, ".").strip(".")
    if name != module:
        raise StartupError(f"{app}: expected a module, {name}:{path or 'server'}, not its file")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with process_role.importing():
            found: object = importlib.import_module(module)
    except ModuleNotFoundError as failure:
        # A module that is missing within the imported one gets a traceback.
        if failure.name not in (module, module.partition(".")[0]):
            raise
        raise StartupError(f"{app}: no module {failure.name} in {os.getcwd()}") from None
    path = path or _only_server(module)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            missing = f"{app}: {module} has no {path}"
            raise StartupError(missing + _alternatives(module)) from None
    if not isinstance(found, Server):
        raise StartupError(f"{app}: expected a ucall.Server, got {type(found).__name__}")
    return found


def _only_server(module: str) -> str:
    """The name of the server that ``module`` alone means: ``server``, or the only one."""
    names = _server_names(module)
    name = names[0] if len(names) == 1 else "server"
    if name in names:
        log.info("serving %s:%s", module, name)
    return name


def _server_names(module: str) -> list[str]:
    found = vars(sys.modules[module]).items()
    return [name for name, value in found if isinstance(value, Server)]


def _alternatives(module: str) -> str:
    """Names the servers in a module."""
    names = [f"{module}:{name}" for name in _server_names(module)]
    return f"; there is {', '.join(names)}" if names else "; there is no ucall.Server in it"
