"""The settings of ``python -m ucall``: flags, then ``UCALL_…`` variables, then defaults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ucall._cli.arguments import Parser
from ucall._workers import process_role
from ucall.options import CLIENT_AUTH, GROUPS, TLS, Broker, arguments, types_of
from ucall.server import Server

__all__ = ["LOG_LEVELS", "GatewaySettings", "Settings"]

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")


@dataclass(frozen=True)
class Settings:
    """How to serve. ``None`` keeps the server's own option."""

    app: str
    host: str | None
    port: int | None
    workers: int | None
    engine: str | None
    threads: int | None
    reload: bool
    log_level: str
    uds: str | None = None
    fd: int | None = None
    access_log: str | None = None
    access_log_sample: float | None = None
    log_format: str | None = None
    ssl_certfile: list[str] | None = None
    ssl_keyfile: list[str] | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None
    ssl_client_auth: str | None = None
    broker: str | None = None
    group: str | None = None
    advertise: str | None = None
    broker_creds: str | None = None
    broker_nkey: str | None = None
    broker_ca_certs: str | None = None
    broker_certfile: str | None = None
    broker_keyfile: str | None = None
    mcp_stdio: bool = False
    #: Further options of the server, by their names.
    options: dict[str, Any] = field(default_factory=dict)
    #: What is wrong with variables whose names begin with ``UCALL_``.
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, arguments: Sequence[str] | None = None) -> Settings:
        """Reads the command line; exits with status 2 if it is invalid."""
        parser = _parser()
        flags = vars(parser.parse_args(arguments))
        if flags["mcp_stdio"]:
            _refuse_with_stdio(parser, flags)
        converters = {name: it for name, it in _converters().items() if name not in flags}
        options = {
            name: _parse_variable(parser, variable, text, {"type": convert})
            for name, convert in converters.items()
            if (text := os.environ.get(variable := _variable(name)))
        }
        warnings = _unknown_variables({*flags, *converters} - {"app"})
        return cls(**flags, options=options, warnings=warnings)

    def server_options(self) -> dict[str, Any]:
        """The arguments of a server that flags give in place of the program's.

        Raises:
            ValueError: They contradict each other.
        """
        names = [*TLS.variables(), "access_log", "access_log_sample"]
        given = {name: it for name in names if (it := getattr(self, name)) is not None}
        return arguments(given)

    def registration(self) -> Broker | None:
        """The broker that flags name.

        Raises:
            OSError: A file cannot be read.
            ValueError: They contradict each other.
        """
        if self.broker is None:
            for name in ("group", "advertise"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: has no effect without broker")
            return None
        if self.group is None:
            raise ValueError("group: expected the name of the servers with these functions")
        options: dict[str, Any] = {
            "user_credentials": self.broker_creds,
            "nkeys_seed": self.broker_nkey,
        }
        if self.broker_ca_certs or self.broker_certfile:
            import ssl

            options["tls"] = ssl.create_default_context(cafile=self.broker_ca_certs)
            if self.broker_certfile:
                options["tls"].load_cert_chain(self.broker_certfile, self.broker_keyfile)
        given = {name: it for name, it in options.items() if it is not None}
        return Broker(
            url=self.broker, group=self.group, advertise=self.advertise, options=given or None
        )


@dataclass(frozen=True)
class GatewaySettings:
    """How to relay."""

    config: str
    workers: int
    log_level: str
    log_format: str | None = None
    #: What is wrong with variables whose names begin with ``UCALL_``.
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, arguments: Sequence[str]) -> GatewaySettings:
        """Reads the command line after ``relay``; exits with status 2 if it is invalid."""
        parser = Parser(
            prog="python -m ucall relay",
            description="Relays calls to other servers, without functions of its own. SIGHUP reads "
            "the file again: docs/relay.md describes it.",
        )
        parser.add_argument("config", metavar="config.toml", help="the upstreams and the options")
        _add(
            parser,
            "--workers",
            default=1,
            type=_count,
            metavar="N",
            help="processes, restarted when they die (default: 1)",
        )
        _add_log_flags(parser)
        flags = vars(parser.parse_args(arguments))
        return cls(**flags, warnings=_unknown_variables(set(flags) - {"config"}))


def _variable(name: str) -> str:
    return "UCALL_" + name.upper()


def _converters() -> dict[str, Callable[[str], Any]]:
    """What makes a value of each option of `Server` from text, but for functions.

    They are read from its annotations, so that a new option has its variable.
    """
    by_type: dict[str, Callable[[str], Any]] = {
        "int": _number,
        "float": _float,
        "bool": _boolean,
        "str": str,
        "Iterable[str]": lambda text: text.split(","),
        "str | Iterable[str]": lambda text: text.split(","),
    }
    types = types_of(Server.__init__)
    for group in GROUPS.values():
        types |= {group.variable(name): it for name, it in types_of(group).items()}
    types = {name: "str" if it.startswith("Literal[") else it for name, it in types.items()}
    found = {name: by_type[it] for name, it in types.items() if it in by_type}
    return found | {"udp": _boolean, "uds_mode": _mode}


def _unknown_variables(names: set[str]) -> list[str]:
    """A line for each variable that has no effect."""
    import difflib

    known = {process_role.INDEX, process_role.COUNT, process_role.DEVICE, *map(_variable, names)}
    warnings = []
    for variable in sorted(os.environ):
        if variable.startswith("UCALL_") and variable not in known:
            near = difflib.get_close_matches(variable, known, 1, 0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{variable} is no variable of ucall{hint}")
    return warnings


def _parser() -> Parser:
    parser = Parser(
        prog="python -m ucall",
        description="Serves the functions of a module. Options override the server's, except "
        "--threads.",
        epilog="Each flag, and each option of ucall.Server that is no function, has a variable "
        "UCALL_… in the environment, such as UCALL_PORT and UCALL_MAX_BODY_BYTES. "
        "The command ucall calls functions: ucall --help",
    )
    parser.add_argument("app", metavar="module:server", help="the module, and the server in it")
    _add(parser, "--host", help="address to listen on; 0.0.0.0 for all addresses")
    _add(parser, "--port", type=_port, help="port to listen on; 0 picks a free one")
    _add(parser, "--uds", metavar="PATH", help="Unix socket to listen on instead")
    _add(parser, "--fd", type=_descriptor, metavar="N", help="listening socket to inherit instead")
    _add(parser, "--workers", type=_count, metavar="N", help="processes, restarted when they die")
    _add(parser, "--engine", choices=("auto", "uring", "posix"), help="auto: uring where allowed")
    _add(parser, "--threads", type=_count, metavar="N", help="run plain functions in N threads")
    _add_log_flags(parser)
    _add(parser, "--access-log", choices=("text", "json"), help="write a line for each call")
    _add(
        parser,
        "--access-log-sample",
        type=_share,
        metavar="SHARE",
        help="share of calls with a line, from 0 to 1",
    )
    _add(parser, "--ssl-certfile", nargs="+", metavar="FILE", help="certificates, for TLS")
    _add(parser, "--ssl-keyfile", nargs="+", metavar="FILE", help="their private keys")
    _add(parser, "--ssl-keyfile-password", metavar="PASSWORD", help="password of encrypted keys")
    _add(parser, "--ssl-ca-certs", metavar="FILE", help="authorities of clients' certificates")
    _add(
        parser, "--ssl-client-auth", choices=CLIENT_AUTH, help="whether clients need a certificate"
    )
    _add(parser, "--broker", metavar="URL", help="register with NATS: nats://host:port,…")
    _add(parser, "--group", metavar="NAME", help="name of the servers with these functions")
    _add(parser, "--advertise", metavar="HOST", help="host or host:port that clients find by NATS")
    _add(parser, "--broker-creds", metavar="FILE", help="credentials for NATS (.creds)")
    _add(parser, "--broker-nkey", metavar="FILE", help="seed of an NKey for NATS")
    _add(parser, "--broker-ca-certs", metavar="FILE", help="authorities of the broker's TLS")
    _add(parser, "--broker-certfile", metavar="FILE", help="certificate for the broker")
    _add(parser, "--broker-keyfile", metavar="FILE", help="its private key")
    _add_switch(
        parser,
        "--reload",
        help="restart when a source below this folder changes (needs watchfiles)",
    )
    _add_switch(
        parser,
        "--mcp-stdio",
        help="serve MCP on standard input and output, and listen on no port",
    )
    return parser


def _add_log_flags(parser: Parser) -> None:
    levels = f"lowest level to log: {', '.join(LOG_LEVELS)} (default: info)"
    _add(
        parser,
        "--log-level",
        default="info",
        type=str.lower,
        choices=LOG_LEVELS,
        metavar="LEVEL",
        help=levels,
    )
    _add(parser, "--log-format", choices=("text", "json"), help="how the log is written")


def _add(parser: Parser, flag: str, default: Any = None, **options: Any) -> None:
    variable = _variable(flag.strip("-").replace("-", "_"))
    text = os.environ.get(variable)
    parsed = _parse_variable(parser, variable, text, options) if text else default
    parser.add_argument(flag, default=parsed, **options)


def _add_switch(parser: Parser, flag: str, **options: Any) -> None:
    variable = _variable(flag.strip("-").replace("-", "_"))
    text = os.environ.get(variable)
    default = text and _parse_variable(parser, variable, text, {"type": _boolean})
    parser.add_argument(flag, action="store_true", default=bool(default), **options)


#: Flags that also have an effect on standard input and output.
_WITH_STDIO = ("app", "mcp_stdio", "engine", "threads", "log_level", "log_format", "access_log")


def _refuse_with_stdio(parser: Parser, flags: dict[str, Any]) -> None:
    """Exits if a flag or variable is about addresses, processes or brokers."""
    for name, value in flags.items():
        is_given = value is not None and value is not False
        if is_given and not name.startswith(_WITH_STDIO):
            flag = name.replace("_", "-")
            parser.error(f"--{flag} (or {_variable(name)}): has no effect with --mcp-stdio")


def _parse_variable(parser: Parser, variable: str, text: str, options: dict[str, Any]) -> Any:
    """The value of a variable, converted and checked as argparse does for a flag."""
    if options.get("nargs"):
        return text.split(os.pathsep)
    try:
        value = options.get("type", str)(text)
    except argparse.ArgumentTypeError as error:
        parser.error(f"{variable}: {error}")
    choices = options.get("choices", (value,))
    if value not in choices:
        parser.error(f"{variable}: expected one of {', '.join(choices)}, got {text!r}")
    return value


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def _boolean(text: str) -> bool:
    if not _is_yes(text) and text.lower() not in ("0", "false", "no", "off"):
        raise argparse.ArgumentTypeError(f"expected yes or no, got {text!r}")
    return _is_yes(text)


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected octal digits, got {text!r}") from None


def _port(text: str) -> int:
    port = _number(text)
    if not 0 <= port < 65_536:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {port}")
    return port


def _descriptor(text: str) -> int:
    number = _number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a descriptor, got {number}")
    return number


def _count(text: str) -> int:
    count = _number(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {count}")
    return count


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, got {text!r}")
    return share


def _is_yes(text: str) -> bool:
    return text.lower() in ("1", "true", "yes", "on")
