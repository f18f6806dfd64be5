"""The servers under measurement: the floors, ucall's, and other projects'."""

import contextlib
import functools
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import certificate, processes, request

PEERS = ROOT / "bench/peers"
PYTHON = OUTPUT / "peers/bin/python"
NATIVE = OUTPUT / "target/release"
#: Formats that `bench/load` does not send, and what loads their servers.
OTHER_FORMATS = {"grpc": "h2load", "capnproto": "capnproto"}
ENGINES = {"posix": "posix", "uring": "io_uring"}


@dataclass(frozen=True)
class Load:
    """A load. `clients` are those whose requests it sends, one client on each connection; without
    them it repeats one request. `rate` makes it an open loop, and so does `share`, a percentage of
    what the server reaches in a closed loop; `depth` requests are pipelined.
    `idle` connections have had a call before, and get none. `body` is a request other than `sum`,
    whose reply contains `expected`."""

    name: str
    label: str
    connections: int = 32
    clients: tuple[str, ...] = ()
    batch: int = 0
    depth: int = 1
    rate: int | None = None
    share: int = 0
    idle: int = 0
    reconnect: bool = False
    tool: str | None = None
    body: Path | None = None
    expected: str = ""

    @property
    def calls_a_request(self) -> int:
        return max(self.batch, 1)


@dataclass(frozen=True)
class Server:
    """A server under measurement. `family` is one of floor, ours, python, native.

    Servers of other projects get a port as their last argument. Ours and the floors announce the
    free one that they pick. A floor that `counts` requests gets the length of one, and the reply.
    """

    name: str
    label: str
    family: str
    command: tuple[str, ...]
    protocol: str = "http"
    counts: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Whether its program is installed."""
        return all(Path(word).exists() for word in self.command if word.startswith(str(ROOT)))

    def command_for(self, load: Load) -> list[str]:
        if not self.counts:
            return list(self.command)
        is_raw = self.protocol == "raw"
        made = request.body if is_raw else request.http_request
        # At 0, each read of the floor holds one request, of any length.
        length = 0 if load.clients else len(made(load.batch))
        reply = OUTPUT / f"reply-{self.protocol}-{load.batch}"
        reply.write_bytes(request.reply_bytes(load.batch, is_raw))
        return [*self.command, str(length), str(reply)]

    def running(self, load: Load) -> contextlib.AbstractContextManager[processes.Server]:
        if self.family in ("floor", "ours"):
            return processes.serving(self.command_for(load), self.name)
        port = processes.free_port()
        return processes.serving_on([*self.command, port], port, self.name, self.environment)


def served(kind: str, *options: str) -> tuple[str, ...]:
    """The command of a server of ours in Python."""
    return (sys.executable, str(ROOT / "bench/serve.py"), kind, *options)


def in_c(*options: str) -> tuple[str, ...]:
    """The command of a server of ours in C."""
    return (str(OUTPUT / "c-sum"), "--port", "0", *options)


def floors(protocol: str) -> list[Server]:
    suffix = "" if protocol == "http" else f"-{protocol}"
    return [
        Server(
            f"floor-{program}{suffix}",
            f"floor: C, {label}{protocol_name(protocol)}",
            "floor",
            (str(OUTPUT / f"floor-{program}"),),
            protocol,
            counts=True,
        )
        for program, label in (("epoll", "epoll"), ("uring", "io_uring"))
    ]


def protocol_name(protocol: str) -> str:
    return {"http": "", "raw": ", raw TCP", "websocket": ", WebSocket"}[protocol]


def on_engines(
    name: str, label: str, command: tuple[str, ...], protocol: str = "http"
) -> list[Server]:
    """A server of ours on each engine, which stands for {} in its name and its label."""
    return [
        Server(
            name.format(engine),
            label.format(engine_label),
            "ours",
            (*command, "--engine", engine),
            protocol,
        )
        for engine, engine_label in ENGINES.items()
    ]


def ours(protocol: str) -> list[Server]:
    suffix = "" if protocol == "http" else f"-{protocol}"
    how = f"{{}}{protocol_name(protocol)}"
    return [
        *on_engines(f"ours-python-{{}}{suffix}", f"ucall Python, {how}", served("sum"), protocol),
        *on_engines(f"ours-c-{{}}{suffix}", f"ucall C, {how}", in_c(), protocol),
    ]


def twin(server: Server) -> Server:
    """The same program under another name, which is compared with it."""
    return replace(server, name=f"twin-{server.name}", label=f"{server.label}, again")


def over_tls() -> list[Server]:
    """The floor of TLS, and servers over TLS."""
    options = ("--ssl-certfile", str(certificate.CHAIN))
    floor = Server(
        "floor-tls",
        "floor: rustls on epoll, TLS",
        "floor",
        (str(NATIVE / "floor_tls"), *options),
        "https",
    )
    return [
        floor,
        *(
            replace(
                server,
                name=f"{server.name}-tls",
                label=f"{server.label}, TLS",
                command=(*server.command, *options),
                protocol="https",
            )
            for server in ours("http")
        ),
    ]


def python_beside() -> list[list[Server]]:
    """Python servers of `sum` alone, beside a thread that computes, and with much garbage, by
    engine."""
    return [
        [
            replace(server, label=f"{server.label}, alone"),
            beside(server, "thread", "beside a thread that computes"),
            beside(server, "garbage", "with garbage collections"),
        ]
        for server in ours("http")
        if "python" in server.name
    ]


def beside(server: Server, what: str, label: str) -> Server:
    command = (*server.command, "--beside", what)
    return replace(
        server, name=f"{server.name}-{what}", label=f"{server.label}, {label}", command=command
    )


def python_peer(name: str, label: str, kind: str, *options: str, protocol: str = "http") -> Server:
    """`kind` is a function of bench/peers/python/servers.py, which is run as a module, because the
    memory that compiling it takes is not the server's."""
    command = (str(PYTHON), "-m", "servers", kind, *options)
    environment = {"PYTHONPATH": f"{PEERS / 'python'}:{OUTPUT / 'proto'}"}
    return Server(name, label, "python", command, protocol, environment=environment)


@functools.cache
def peers() -> tuple[Server, ...]:
    return (
        python_peer("fastapi-def", "FastAPI, def", "fastapi", "def"),
        python_peer("fastapi-async", "FastAPI, async def", "fastapi", "async"),
        python_peer(
            "fastapi-websocket", "FastAPI, WebSocket", "fastapi_websocket", protocol="websocket"
        ),
        python_peer("grpc-threads", "gRPC Python, threads", "grpc_threads", protocol="grpc"),
        python_peer("grpc-asyncio", "gRPC Python, asyncio", "grpc_asyncio", protocol="grpc"),
        python_peer("litestar", "Litestar", "litestar"),
        python_peer("litserve", "LitServe", "litserve"),
        python_peer("blacksheep", "BlackSheep", "blacksheep"),
        python_peer("aiohttp", "aiohttp", "aiohttp"),
        python_peer("granian", "Granian, RSGI", "granian"),
        python_peer("robyn", "Robyn", "robyn"),
        python_peer("socketify", "socketify", "socketify"),
        python_peer("protocol", "asyncio protocol on uvloop", "protocol"),
        native_peer("grpc-cpp", "gRPC C++", OUTPUT / "peer-grpc", "grpc"),
        native_peer("capnproto", "Cap'n Proto (C++)", OUTPUT / "peer-capnproto", "capnproto"),
        native_peer("h2o", "H2O (C) with simdjson", OUTPUT / "peer-h2o"),
        native_peer(
            "uwebsockets", "uWebSockets (C++)", OUTPUT / "peer-uwebsockets", options=("http",)
        ),
        native_peer("actix", "actix-web (Rust)", NATIVE / "actix"),
        native_peer("jsonrpsee", "jsonrpsee (Rust)", NATIVE / "jsonrpsee"),
        native_peer("ntex", "ntex (Rust, io_uring)", NATIVE / "ntex"),
    )


def native_peer(
    name: str, label: str, program: Path, protocol: str = "http", options: tuple[str, ...] = ()
) -> Server:
    return Server(name, label, "native", (str(program), *options), protocol)


def websocket_peers(task: str) -> list[Server]:
    """Servers that echo each message as it is, or serve `sum`."""
    uwebsockets, tokio = OUTPUT / "peer-uwebsockets", NATIVE / "tokio_websockets"
    found = [
        native_peer("uwebsockets", "uWebSockets (C++)", uwebsockets, "websocket", (task,)),
        native_peer("tokio-websockets", "tokio-websockets (Rust)", tokio, "websocket", (task,)),
    ]
    for name in ("picows", "websockets"):
        found.append(python_peer(name, name, name, task, protocol="websocket"))
    return [replace(it, name=f"{it.name}-{task}", label=f"{it.label}, {task}") for it in found]


def echo_servers() -> list[Server]:
    """Servers of `echo_text` over WebSocket: ucall's."""
    c = (str(OUTPUT / "c-server"), "--echo", "yes")
    return [
        *on_engines("echo-python-{}", "ucall Python, {}, echo", served("echo"), "websocket"),
        *on_engines("echo-c-{}", "ucall C, {}, echo", c, "websocket"),
    ]


def floors_of(server: str) -> tuple[str, ...]:
    """The names of the floors to compare a server with, the nearest first."""
    suffix = "-raw" if server.endswith("-raw") else ""
    if server.endswith("-tls"):
        return ("floor-tls",)
    if server.startswith("twin-"):
        return (server.removeprefix("twin-"),)
    if server.startswith("ours-") and "uring" in server:
        return (f"floor-uring{suffix}", f"floor-epoll{suffix}")
    return (f"floor-epoll{suffix}",)


def everyone() -> list[Server]:
    """All servers, in the order of the reports."""
    native = [server for server in peers() if server.family == "native"]
    by_python = [server for server in peers() if server.family == "python"]
    http, raw = ([*floors(how), *ours(how)] for how in ("http", "raw"))
    echo = [*echo_servers(), *websocket_peers("echo")]
    websocket = [*ours("websocket"), *websocket_peers("sum"), *echo]
    return [*http, *native, *by_python, *raw, *over_tls(), *websocket]
