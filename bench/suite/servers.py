"""The servers under measurement: the floors, ucall's, and other projects'."""

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bench import OUTPUT, ROOT
from bench.harness import certificate, processes, request

PEERS = ROOT / "bench/peers"
PYTHON = OUTPUT / "peers/bin/python"
FLOOR_TLS = OUTPUT / "target/release/floor_tls"
PYTHON_UCALL = OUTPUT / "peers-ucall/bin/python"
NATIVE = OUTPUT / "target/release"
#: Formats that `bench/load` does not send, and what loads their servers.
OTHER_FORMATS = {"grpc": "h2load", "capnproto": "capnproto"}
ENGINES = {"posix": "posix", "uring": "io_uring"}


@dataclass(frozen=True)
class Load:
    """A load. `clients` are those whose requests it sends, one client on each connection; without
    them it repeats one request. `rate` makes it an open loop; `depth` requests are pipelined.
    `idle` connections have had a call before, and get none. `body` is a request other than `sum`,
    whose reply contains `expected`."""

    name: str
    label: str
    connections: int = 32
    clients: tuple[str, ...] = ()
    batch: int = 0
    depth: int = 1
    rate: int | None = None
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

    `start` says how it gets its port: `told` as its last argument; `asked` for a free one with
    `--port 0`; a `floor`, which also needs its reply; or it `picks` one itself. All but `told`
    announce their port."""

    name: str
    label: str
    family: str
    command: tuple[str, ...]
    protocol: str = "http"
    start: Literal["told", "asked", "floor", "picks"] = "told"
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Whether its program is installed."""
        return all(Path(word).exists() for word in self.command if word.startswith(str(ROOT)))

    def command_for(self, load: Load) -> list[str]:
        if self.start == "picks":
            return list(self.command)
        if self.start == "asked":
            return [*self.command, "--port", "0"]
        content = request.body(load.batch)
        raw = self.protocol == "raw"
        options = ["--raw"] if raw else []
        # At 0, each read of the floor holds one request, of any length.
        length = 0 if load.clients else len(content if raw else request.http_request(load.batch))
        options += ["--batch", str(load.batch)] if load.batch else []
        return [*self.command, "--port", "0", "--pipeline", str(length), *options]

    @contextlib.contextmanager
    def running(self, load: Load) -> Iterator[processes.Server]:
        core, _ = processes.cores()
        log = OUTPUT / f"{self.name}.log"
        if self.start != "told":
            with processes.serving(self.command_for(load), log, core) as server:
                yield server
            return
        port = processes.free_port()
        command = [*self.command, str(port)]
        with processes.serving_on(command, port, log, core, self.environment) as server:
            yield server


def served(kind: str, *options: str) -> tuple[str, ...]:
    """The command of a server of ours in Python."""
    return (sys.executable, str(ROOT / "bench/serve.py"), kind, *options)


def floors(protocol: str) -> list[Server]:
    suffix = "" if protocol == "http" else f"-{protocol}"
    return [
        Server(
            f"floor-{program}{suffix}",
            f"floor: C, {label}{protocol_name(protocol)}",
            "floor",
            (str(OUTPUT / f"floor-{program}"),),
            protocol,
            start="floor",
        )
        for program, label in (("epoll", "epoll"), ("uring", "io_uring"))
    ]


def protocol_name(protocol: str) -> str:
    return {"http": "", "raw": ", raw TCP", "websocket": ", WebSocket"}[protocol]


def ours(protocol: str) -> list[Server]:
    commands = {"python": served("sum"), "c": (str(OUTPUT / "c-sum"),)}
    suffix = "" if protocol == "http" else f"-{protocol}"
    return [
        Server(
            f"ours-{language}-{engine}{suffix}",
            f"ucall {language.title()}, {label}{protocol_name(protocol)}",
            "ours",
            (*command, "--engine", engine),
            protocol,
            start="asked",
        )
        for language, command in commands.items()
        for engine, label in ENGINES.items()
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
        (str(FLOOR_TLS), *options),
        "https",
        start="asked",
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


def python_beside() -> list[Server]:
    """Python servers of `sum` alone, beside a thread that computes, and with much garbage."""
    return [
        replace(
            server,
            name=f"{server.name}-{beside}" if beside else server.name,
            label=f"{server.label}, {label}",
            command=(*server.command, *(("--beside", beside) if beside else ())),
        )
        for server in ours("http")
        if "python" in server.name
        for beside, label in (
            ("", "alone"),
            ("thread", "beside a thread that computes"),
            ("garbage", "with garbage collections"),
        )
    ]


def python_peer(
    name: str, label: str, script: str, *options: str, protocol: str = "http"
) -> Server:
    command = (str(PYTHON), str(PEERS / "python" / script), *options)
    environment = {"PYTHONPATH": str(OUTPUT / "proto")} if protocol == "grpc" else {}
    return Server(name, label, "python", command, protocol, environment=environment)


def old_ucall(engine: str, label: str) -> Server:
    command = (str(PYTHON_UCALL), str(PEERS / "python/ucall_0_5_4.py"), engine)
    return Server(f"ucall-0.5.4-{engine}", f"ucall 0.5.4 (PyPI), {label}", "python", command)


@functools.cache
def peers() -> tuple[Server, ...]:
    return (
        python_peer("fastapi-def", "FastAPI, def", "fastapi_http.py", "def"),
        python_peer("fastapi-async", "FastAPI, async def", "fastapi_http.py", "async"),
        python_peer(
            "fastapi-websocket", "FastAPI, WebSocket", "fastapi_websocket.py", protocol="websocket"
        ),
        python_peer("grpc-threads", "gRPC Python, threads", "grpc_threads.py", protocol="grpc"),
        python_peer("grpc-asyncio", "gRPC Python, asyncio", "grpc_asyncio.py", protocol="grpc"),
        python_peer("litestar", "Litestar", "litestar_http.py"),
        python_peer("litserve", "LitServe", "litserve_http.py"),
        python_peer("blacksheep", "BlackSheep", "blacksheep_http.py"),
        python_peer("aiohttp", "aiohttp", "aiohttp_http.py"),
        python_peer("granian", "Granian, RSGI", "granian_rsgi.py"),
        python_peer("robyn", "Robyn", "robyn_http.py"),
        python_peer("socketify", "socketify", "socketify_http.py"),
        python_peer("protocol", "asyncio protocol on uvloop", "protocol_http.py"),
        native_peer("grpc-cpp", "gRPC C++", OUTPUT / "peer-grpc", "grpc"),
        native_peer("capnproto", "Cap'n Proto (C++)", OUTPUT / "peer-capnproto", "capnproto"),
        native_peer("h2o", "H2O (C) with simdjson", OUTPUT / "peer-h2o"),
        native_peer(
            "uwebsockets", "uWebSockets (C++)", OUTPUT / "peer-uwebsockets", options=("http",)
        ),
        native_peer("actix", "actix-web (Rust)", NATIVE / "actix"),
        native_peer("jsonrpsee", "jsonrpsee (Rust)", NATIVE / "jsonrpsee"),
        native_peer("ntex", "ntex (Rust, io_uring)", NATIVE / "ntex"),
        native_peer("may", "may_minihttp (Rust)", NATIVE / "may"),
        old_ucall("posix", "posix"),
        old_ucall("uring", "io_uring"),
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
        script = f"{name}_websocket.py"
        found.append(python_peer(name, name, script, task, protocol="websocket"))
    return [replace(it, name=f"{it.name}-{task}", label=f"{it.label}, {task}") for it in found]


def echo_servers() -> list[Server]:
    """Servers of `echo_text` over WebSocket: ucall's."""
    return [
        Server(
            f"echo-{language}-{engine}",
            f"ucall {language.title()}, {label}, echo",
            "ours",
            (*command, "--engine", engine),
            "websocket",
            start="picks",
        )
        for language, command in (("python", served("echo")), ("c", (str(OUTPUT / "c-echo"),)))
        for engine, label in ENGINES.items()
    ]


def payload_server(engine: str, label: str) -> Server:
    command = served("payload", "--engine", engine)
    return Server(f"payload-{engine}", f"ucall Python, {label}", "ours", command, start="picks")


def payload_floor() -> Server:
    """The floor of payloads, which receives and sends the same bytes without reading them."""
    command = (str(OUTPUT / "floor-echo"),)
    return Server("floor-echo", "floor: C, the same bytes", "floor", command, start="picks")


def floors_of(server: str) -> tuple[str, ...]:
    """The names of the floors to compare a server with, the nearest first."""
    suffix = "-raw" if server.endswith("-raw") else ""
    if server.endswith("-tls"):
        return ("floor-tls",)
    if server.startswith("twin-"):
        return (server.removeprefix("twin-"),)
    if server.startswith("payload"):
        return ("floor-echo",)
    if server.startswith("ours-") and "uring" in server:
        return (f"floor-uring{suffix}", f"floor-epoll{suffix}")
    return (f"floor-epoll{suffix}",)


def everyone() -> list[Server]:
    """All servers, in the order of the reports."""
    native = [server for server in peers() if server.family == "native"]
    by_python = [server for server in peers() if server.family == "python"]
    http, raw = ([*floors(how), *ours(how)] for how in ("http", "raw"))
    payload = [payload_server(engine, label) for engine, label in ENGINES.items()]
    echo = [*echo_servers(), *websocket_peers("echo")]
    websocket = [*ours("websocket"), *websocket_peers("sum"), *echo]
    return [*http, *native, *by_python, *raw, *over_tls(), payload_floor(), *payload, *websocket]
