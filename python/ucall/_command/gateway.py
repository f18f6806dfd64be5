"""``python -m ucall relay config.toml``: a gateway without functions, configured by a file.

The supervisor reads the file, and checks it by building the server that it describes. The workers
get its text as their standard input, so a worker that is restarted has the configuration of the
others even if the file has changed since. SIGHUP reads the file again.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from ucall import auth
from ucall._command.application import StartupError
from ucall._workers import process_role
from ucall.options import GROUPS, PLACES, types_of
from ucall.server import Server, check

__all__ = ["Configuration", "build", "read_text"]

log = logging.getLogger("ucall")

#: Options that a reload cannot change, because the sockets stay open.
_FIXED = ("host", "port", "uds", "uds_mode", "fd")

Check = Callable[[object], bool]


class Configuration:
    """The file of a gateway.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        #: The fixed options that the workers have been started with.
        self._fixed: dict[str, object] | None = None
        self._text: IO[bytes] | None = None

    def fileno(self) -> int:
        """The descriptor of a file with the text, which all workers share."""
        assert self._text is not None
        return self._text.fileno()

    def load(self) -> None:
        """Reads the file, and passes it to the workers that start from now on.

        Raises:
            StartupError: The file cannot be used; the message names the key.
        """
        try:
            text = Path(self._path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"{self._path}: {error}") from None
        build(text, self._path)
        options = tomllib.loads(text).get("server", {})
        fixed = {name: options.get(name) for name in _FIXED}
        changed = [name for name in _FIXED if self._fixed and fixed[name] != self._fixed[name]]
        if changed:
            raise StartupError(f"{self._path}: server.{changed[0]}: a change needs a restart")
        self._fixed = fixed
        # An environment, or an argument, is limited to 128 KiB.
        self._text = _anonymous_file()
        self._text.write(text.encode())
        self._text.flush()

    def reload(self) -> bool:
        """Reads the file again; returns whether it can be used, and otherwise logs why not."""
        try:
            self.load()
        except StartupError as error:
            log.error("%s; the workers keep their configuration", error)
            return False
        return True


def _anonymous_file() -> IO[bytes]:
    if sys.platform == "linux":
        return open(os.memfd_create("ucall-configuration"), "w+b")
    return tempfile.TemporaryFile()


def read_text() -> str:
    """The configuration of this worker, once."""
    text = os.pread(0, os.fstat(0).st_size, 0)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    return text.decode()


def build(text: str, name: str) -> Server:
    """The server that a configuration describes. It is not bound.

    Args:
        text: The configuration, in TOML.
        name: That of its file, for errors.

    Raises:
        StartupError: The configuration is wrong; the message names the key.
    """
    try:
        return _build(tomllib.loads(text))
    except (TypeError, ValueError, OSError, ImportError) as error:
        raise StartupError(f"{name}: {error}") from None


def _build(tables: dict[str, Any]) -> Server:
    _refuse_unknown("", tables, ("server", "auth", "relay"))
    options = _server_options(_table("server", tables.get("server", {})))
    relays = tables.get("relay", [])
    if not isinstance(relays, list) or not relays:
        raise ValueError("relay: expected at least one table [[relay]]")
    keys = _auth(tables.get("auth"))
    with process_role.importing():
        try:
            server = Server(**options, auth=keys)
            check(server)
        except (TypeError, ValueError) as error:
            name = str(error).partition(":")[0]
            group = PLACES[name][0] if name in PLACES else ""
            raise ValueError(f"server.{group}{'.' * bool(group)}{error}") from None
    for index, relay in enumerate(relays):
        _add_relay(server, f"relay[{index}]", _table(f"relay[{index}]", relay))
    return server


def _server_options(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a server, from a table with a table for each class of options."""
    own = {name: it for name, it in options.items() if name not in GROUPS}
    for name in own.keys() & PLACES.keys():
        group, field = PLACES[name]
        raise ValueError(f"server.{name}: no such key; expected server.{group}.{field}")
    _check_options("server", own, types_of(Server.__init__))
    for group in options.keys() - own.keys():
        key = f"server.{group}"
        fields = _table(key, options[group])
        _check_options(key, fields, types_of(GROUPS[group]))
        for missing in GROUPS[group].required() - fields.keys():
            raise ValueError(f"{key}.{missing}: expected it")
        try:
            own[group] = GROUPS[group](**fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"server.{error}") from None
    return own


def _add_relay(server: Server, key: str, options: dict[str, Any]) -> None:
    _check_options(key, options, types_of(Server.relay))
    for name in ("methods", "to"):
        if name not in options:
            raise ValueError(f"{key}.{name}: expected it")
    try:
        server.relay(**options)
    except (TypeError, ValueError) as error:
        is_option = str(error).partition(":")[0] in options
        raise ValueError(f"{key}{'.' if is_option else ': '}{error}") from None
    except OSError as error:
        raise ValueError(f"{key}: {error}") from None


def _auth(table: object) -> auth.Keys | None:
    if table is None:
        return None
    options = _table("auth", table)
    _refuse_unknown("auth.", options, ("bearer", "api_key", "header"))
    kinds = [kind for kind in ("bearer", "api_key") if kind in options]
    if len(kinds) != 1:
        raise ValueError("auth: expected either bearer or api_key")
    keys, header = options[kinds[0]], options.get("header", "X-API-Key")
    if not isinstance(keys, dict) and not _is_list(keys):
        raise ValueError(f"auth.{kinds[0]}: expected a list of keys, or a table of users by keys")
    if not isinstance(header, str) or ("header" in options and kinds == ["bearer"]):
        raise ValueError("auth.header: expected the name of a header, for api_key")
    try:
        return auth.bearer(keys) if kinds == ["bearer"] else auth.api_key(keys, header)
    except ValueError as error:
        raise ValueError(f"auth.{kinds[0]}: {error}") from None


def _table(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{key}: expected a table, got {value!r}")
    return value


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: What a value is, by the annotation of its option without ``| None``, and how to check that.
_TYPES: dict[str, tuple[str, Check]] = {
    "bool": ("true or false", lambda it: isinstance(it, bool)),
    "int": ("a whole number", lambda it: isinstance(it, int) and not isinstance(it, bool)),
    "float": ("a number", _is_number),
    "Iterable[str]": ("a list of strings", _is_list),
    "str | Iterable[str]": ("a string or a list", lambda it: isinstance(it, str) or _is_list(it)),
    "Path | Iterable[Path]": ("a file or a list", lambda it: isinstance(it, str) or _is_list(it)),
    "Mapping[str, str]": (
        "a table of strings",
        lambda it: isinstance(it, Mapping) and _is_list([*it.values()]),
    ),
    "Mapping[str, Any]": ("a table", lambda it: isinstance(it, Mapping)),
}
#: What only a program can give, or has a table of its own.
_NOT_IN_FILES = {"Auth", "Lifespan", "Never", *(it.__name__ for it in GROUPS.values())}
_STRING: tuple[str, Check] = ("a string", lambda it: isinstance(it, str))


def _check_options(key: str, options: dict[str, Any], types: dict[str, str]) -> None:
    """Checks names and types."""
    known = {name: it for name, it in types.items() if it not in _NOT_IN_FILES}
    _refuse_unknown(f"{key}.", options, known)
    for name, value in options.items():
        expected, is_valid = _TYPES.get(known[name], _STRING)
        if not is_valid(value):
            raise ValueError(f"{key}.{name}: expected {expected}, got {value!r}")


def _refuse_unknown(prefix: str, options: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            expected = near[0] if near else ", ".join(known)
            raise ValueError(f"{prefix}{name}: no such key; expected {expected}")
