"""Measures the memory of the C library for each of 10,000 idle connections.

For each number of calls a new server starts and answers calls on one connection; its memory is then
the base. Then the connections open; each makes its calls and stays open. The output is the growth
of the process's resident memory for each connection, without the kernel's memory.
"""

import argparse
import contextlib
import socket

from bench.harness import figures, processes, request, usage
from bench.suite.servers import in_c

HAS_ENGINES = True
OPTIONS = {"--connections": {"type": int, "default": 10_000}}
# A head like those of most clients, which a connection caches from its second request on.
REQUEST = request.http_request(0).replace(
    b"Content-Type", b"User-Agent: bench/1.0\r\nAccept: */*\r\nContent-Type"
)
CALLS_EACH = (0, 1, 3)
CALLS_BEFORE = 1_000


def connect(port: int, calls: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(calls):
        connection.sendall(REQUEST)
        reply = connection.recv(4096)
        assert reply.endswith(b'"result":76}'), reply
    return connection


def kib_each(engine: str, connections: int, calls: int) -> float:
    with (
        contextlib.ExitStack() as opened,
        processes.serving(in_c("--engine", engine), f"idle-{engine}") as server,
    ):
        opened.enter_context(connect(server.port, CALLS_BEFORE))
        base = usage.resident_kib(server.pid)
        for _ in range(connections):
            opened.enter_context(connect(server.port, calls))
        # The server has accepted the connections before this one when this call returns.
        opened.enter_context(connect(server.port, 1))
        return (usage.resident_kib(server.pid) - base) / connections


def run(options: argparse.Namespace) -> None:
    rows = [
        [engine, *(f"{kib_each(engine, options.connections, it):.2f}" for it in CALLS_EACH)]
        for engine in options.engines
    ]
    print(f"KiB for each of {options.connections:,} connections, by calls made on it")
    print(figures.table(["", *map(str, CALLS_EACH)], rows))
