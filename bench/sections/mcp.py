"""Compares a tool of MCP with FastMCP's, the official SDK's, and a plain JSON-RPC call.

32 connections call one tool, `sum`, in the newest era and in that of `initialize`; the others'
servers keep no sessions and answer in JSON, which is their fastest form. Prints calls a second, the
server's CPU time a call and its ratio to the plain call and to FastMCP, the time to start until the
first reply, and the server's memory: after the load, what it grew by it, and by clients that each
open a connection, initialize and leave without a word.
"""

import argparse
import http.client
import socket
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from bench import OUTPUT
from bench.harness import figures, processes, request, usage
from bench.harness.figures import Column, Sample
from bench.suite import drivers
from bench.suite.servers import PEERS, served

ROUNDS, SECONDS = 5, 3
WARM_UP_SECONDS = 0.5
OPTIONS = {
    "--engine": {"choices": ["posix", "uring"], "default": "posix"},
    "--clients": {"type": int, "default": 1_000},
}

PYTHON = OUTPUT / "mcp/bin/python"
NEWEST, OLDER = "2026-07-28", "2025-11-25"
PLAIN, BASE = "ucall, JSON-RPC", "FastMCP"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {"name": "sum", "arguments": {"a": 55, "b": 21}}
INITIALIZE = {
    "protocolVersion": OLDER,
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


@dataclass(frozen=True)
class Contender:
    """A server, and the version in which it is called; without one, by plain JSON-RPC."""

    server: str
    version: str | None

    @property
    def label(self) -> str:
        return f"{self.server}, MCP {self.version}" if self.version else PLAIN

    def running(self, engine: str) -> AbstractContextManager[processes.Server]:
        if self.server == "ucall":
            return processes.serving(served("mcp", "--engine", engine), "mcp")
        port, kind = processes.free_port(), "fastmcp" if self.server == BASE else "sdk"
        command = [PYTHON, "-m", "servers", "mcp_tool", kind, port]
        folder = {"PYTHONPATH": str(PEERS / "python")}
        return processes.serving_on(command, port, "mcp", folder)

    def request(self, port: int) -> bytes:
        if self.version is None:
            return request.http_request(0)
        params = CALL | ({"_meta": META} if self.version == NEWEST else {})
        return post(port, "tools/call", params, self.version)


def post(port: int, method: str, params: dict, version: str) -> bytes:
    """A request at the endpoint, as a client sends it."""
    headers = {"Accept": "application/json, text/event-stream", "MCP_Protocol_Version": version}
    if version == NEWEST:
        headers |= {"Mcp_Method": method, "Mcp_Name": params["name"]}
    body = request.call(method, params=params)
    return request.post(body, path="/mcp", host=f"127.0.0.1:{port}", **headers)


def contenders() -> list[Contender]:
    peers = ["ucall", BASE, "official SDK"] if PYTHON.exists() else ["ucall"]
    return [
        Contender("ucall", None),
        *(Contender(name, version) for name in peers for version in (NEWEST, OLDER)),
    ]


def first_reply(contender: Contender, port: int) -> None:
    status, content = request.exchange(port, contender.request(port), 30)
    if status != http.client.OK or b"76" not in content:
        raise processes.LoadError(f"{contender.label}: not the expected reply: {content!r}")


def leave_silently(port: int, clients: int) -> None:
    """Each client initializes, and closes without ending its session."""
    for _ in range(clients):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(post(port, "initialize", INITIALIZE, OLDER))
            connection.recv(1 << 16)


def sample(contender: Contender, options: argparse.Namespace) -> Sample:
    began = time.perf_counter()
    with contender.running(options.engine) as server:
        first_reply(contender, server.port)
        started_ms = (time.perf_counter() - began) * 1e3
        load = partial(drivers.repeat, server.port, [contender.request(server.port)], 32)
        load(WARM_UP_SECONDS)
        pids = usage.family(server.pid)
        warm, before = usage.resident_mb(server.pid), usage.cpu_nanoseconds(*pids)
        found = load(options.seconds)
        used = usage.cpu_nanoseconds(*pids) - before
        loaded = usage.resident_mb(server.pid)
        if contender.version == OLDER:
            leave_silently(server.port, options.clients)
        return {
            "rate": found["requests"] / found["duration"],
            "cpu_us": used / 1e3 / found["requests"],
            "start_ms": started_ms,
            "rss_mb": loaded,
            "grown_kb": (loaded - warm) * 1e3,
            "left_kb": (usage.resident_mb(server.pid) - loaded) * 1e3,
        }


def run(options: argparse.Namespace) -> None:
    turns = {it.label: partial(sample, it, options) for it in contenders()}
    runs = figures.in_turns(turns, options.rounds)
    fast = f"{BASE}, MCP {NEWEST}"
    columns = [
        Column("calls/s", "rate", "{:,.0f}"),
        Column("CPU µs/call", "cpu_us"),
        Column("of JSON-RPC's", "cpu_us", base=PLAIN),
        Column(f"of {BASE}'s", "cpu_us", "{:.4f}", base=fast),
        Column("start, ms", "start_ms", "{:,.0f}"),
        Column("RSS MB", "rss_mb", "{:.0f}"),
        Column("growth by the load, kB", "grown_kb", "{:,.0f}"),
        Column(f"by {options.clients:,} silent clients, kB", "left_kb", "{:,.0f}"),
    ]
    print(figures.table_of(runs, columns, "call"))
    figures.write(figures.part("mcp"), {"options": vars(options), "samples": runs})
