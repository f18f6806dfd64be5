"""What the section `arrays` compares: forms of a call to ucall's servers, and other servers."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench import OUTPUT
from bench.harness import arrays, figures, processes, request, usage
from bench.harness.arrays import Message
from bench.suite import drivers
from bench.suite.servers import PEERS, PYTHON, served

ENGINES = ("posix", "uring")
HEAD = re.compile(rb"(?is)\r\ncontent-length: (\d+)(?=\r\n).*?\r\n\r\n")
FLOOR, SUM = "floor: C, the same bytes", "sum"
#: Of other servers: the interpreter, which its project's environment has.
INTERPRETERS = {
    "fastapi": PYTHON,
    "grpc_bytes": PYTHON,
    "zeromq": PYTHON,
    "kserve": OUTPUT / "inference/bin/python",
    "mlserver": OUTPUT / "mlserver/bin/python",
}
ALL = tuple(INTERPRETERS)
LIGHT = ("fastapi", "grpc_bytes", "zeromq")
LABELS = {
    "fastapi": "FastAPI, raw body",
    "grpc_bytes": "gRPC Python, bytes",
    "zeromq": "pyzmq",
    "kserve": "KServe, Open Inference, binary",
    "mlserver": "MLServer, Open Inference, gRPC, binary",
}
#: What `array_load` needs to know of servers that `bench/load` does not call.
OTHER_LOADS = {
    "grpc_bytes": ("grpc", "/bench.Arrays/Echo"),
    "zeromq": ("zeromq", "-"),
    "kserve": ("chunked", "-"),
    "mlserver": ("grpc", "/inference.GRPCInferenceService/ModelInfer"),
}


@dataclass(frozen=True)
class Load:
    """Calls and the seconds that they took, and with those before them, which were not timed, all
    that the server's CPU time is for."""

    calls: int
    seconds: float
    all_calls: int


@dataclass(frozen=True)
class Contender:
    """A server that runs, and what runs a load of some seconds on it."""

    server: processes.Server
    load: Callable[[float], Load]

    def sample(self, seconds: float) -> figures.Sample:
        pids = usage.family(self.server.pid)
        before = usage.cpu_nanoseconds(*pids)
        load = self.load(seconds)
        used = usage.cpu_nanoseconds(*pids) - before
        return {
            "cpu_us": used / 1e3 / load.all_calls,
            "time_us": load.seconds * 1e6 / load.calls,
            "rate": load.calls / load.seconds,
        }


def by_program(port: int, message: Message, connections: int, seconds: float) -> Load:
    """By `bench/load`, which compares all replies with its first."""
    return counted(drivers.repeat(port, [message.sent], connections, seconds))


def counted(found: dict) -> Load:
    return Load(found["requests"], found["duration"], found["requests"] + 1)


def by_peer(
    kind: str, method: str, port: int, message: Message, connections: int, seconds: float
) -> Load:
    """By a program in Python: only the time of the server counts."""
    path = OUTPUT / "arrays.message"
    path.write_bytes(message.sent)
    command = [PYTHON, "-m", "array_load", kind, method, port, path, connections, seconds]
    environment = {**os.environ, "PYTHONPATH": str(PEERS / "python")}
    output = processes.run_load(command, seconds, env=environment)
    if message.within not in Path(f"{path}.reply").read_bytes():
        raise processes.LoadError(f"{kind}: the reply holds other bytes")
    return counted(drivers.succeeded(drivers.parsed(output)))


class Caller:
    """One connection, and the request that it repeats."""

    def __init__(self, port: int, message: Message) -> None:
        self.request = message.sent
        self.connection = request.connect(port)
        self.reply = memoryview(bytearray(len(self.request) + 4096))
        reply = bytes(self.call())
        assert message.within in reply, f"another reply: {reply[:200]!r}"

    def call(self) -> memoryview:
        """Reads by large pieces from the first reply on, to which the kernel adapts its buffer."""
        self.connection.sendall(self.request)
        count, whole = 0, len(self.reply)
        while count < whole:
            received = self.connection.recv_into(self.reply[count:])
            assert received, "the server closed the connection"
            count += received
            if whole == len(self.reply) and (head := HEAD.search(self.reply[:count])):
                whole = head.end() + int(head[1])
        return self.reply[:whole]


def by_socket(caller: Caller, seconds: float) -> Load:
    """One call after the other on one connection."""
    calls, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        caller.call()
        calls += 1
    return Load(calls, elapsed, calls)


@dataclass
class Field:
    """The servers that run, each started when a contender first needs it."""

    stack: contextlib.ExitStack
    before: Path | None = None
    servers: dict[str, processes.Server] = field(default_factory=dict)

    def floor(self) -> processes.Server:
        command = (str(OUTPUT / "floor-echo"),)
        return self.started("floor", lambda: processes.serving(command, "arrays-floor"))

    def ours(self, engine: str, is_before: bool = False) -> processes.Server:
        name = f"{engine}{'-before' if is_before else ''}"
        _, *command = served("arrays", "--engine", engine)
        python = self.before if is_before else served("arrays")[0]
        return self.started(name, lambda: processes.serving([python, *command], f"arrays-{name}"))

    def peer(self, name: str) -> processes.Server:
        port = processes.free_port()
        command = [INTERPRETERS[name], "-m", "array_servers", name, port]
        folder = {"PYTHONPATH": str(PEERS / "python")}
        start = partial(processes.serving_on, command, port, f"arrays-{name}", folder, 60)
        return self.started(name, start)

    def started(
        self, name: str, start: Callable[[], contextlib.AbstractContextManager[processes.Server]]
    ) -> processes.Server:
        if name not in self.servers:
            self.servers[name] = self.stack.enter_context(start())
        return self.servers[name]

    def called(self, server: processes.Server, message: Message, connections: int) -> Contender:
        """A contender over HTTP, whose first reply is checked."""
        caller = Caller(server.port, message)
        if connections == 1:
            return Contender(server, partial(by_socket, caller))
        return Contender(server, partial(by_program, server.port, message, connections))

    def peers(self, values: Any, connections: int, names: Collection[str]) -> dict[str, Contender]:
        """Other servers, of those that are installed."""
        content = values.tobytes()
        messages = {
            "fastapi": arrays.raw(values),
            "grpc_bytes": Message(content, content),
            "zeromq": Message(content, content),
            "kserve": arrays.in_inference(values),
            "mlserver": arrays.in_protobuf(values),
        }
        found = {}
        for name, message in messages.items():
            if name not in names or not INTERPRETERS[name].exists():
                continue
            server = self.peer(name)
            if name == "fastapi":
                found[LABELS[name]] = self.called(server, message, connections)
                continue
            kind, method = OTHER_LOADS[name]
            load = partial(by_peer, kind, method, server.port, message, connections)
            found[LABELS[name]] = Contender(server, load)
        return found


@contextlib.contextmanager
def field_of(before: Path | None) -> Iterator[Field]:
    with contextlib.ExitStack() as stack:
        yield Field(stack, before)


def sums() -> Message:
    return Message(request.http_request(0), b"76")
