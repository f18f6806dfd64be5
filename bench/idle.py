"""Measures a server's memory for each of 10,000 idle connections: `make bench-idle`.

    python bench/idle.py PROGRAM [--connections N] [--engines posix uring]

PROGRAM takes `--engine` and `--port`, and serves `sum`. For each number of calls a new server
starts and answers calls on one connection; its memory is then the base. Then the connections open;
each makes its calls and stays open. The output is the growth of the process's resident memory for
each connection, without the kernel's memory.
"""

import argparse
import contextlib
import resource
import socket
from pathlib import Path

from harness import processes, usage
from harness.rows import OUTPUT

# A head like those of most clients, which a connection caches from its second request on.
BODY = b'{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n"
HEAD += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
CALLS_EACH = (0, 1, 3)
CALLS_BEFORE = 1_000
DESCRIPTORS_RESERVED = 100


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the memory of idle connections.")
    parser.add_argument("program", type=Path)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--engines", nargs="+", default=["posix", "uring"])
    return parser.parse_args()


def connect(port: int, calls: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(calls):
        connection.sendall(HEAD + BODY)
        reply = connection.recv(4096)
        assert reply.endswith(b'"result":76}'), reply
    return connection


def resident_kib(pid: int) -> float:
    return usage.memory(pid).now_mb * 1e6 / 1024


def kib_each(program: Path, engine: str, connections: int, calls: int) -> float:
    command = [str(program), "--engine", engine, "--port", "0"]
    core, _ = processes.cores()
    with (
        contextlib.ExitStack() as opened,
        processes.serving(command, OUTPUT / f"idle-{engine}.log", core) as server,
    ):
        opened.enter_context(connect(server.port, CALLS_BEFORE))
        base = resident_kib(server.pid)
        for _ in range(connections):
            opened.enter_context(connect(server.port, calls))
        # The server has accepted the connections before this one when this call returns.
        opened.enter_context(connect(server.port, 1))
        return (resident_kib(server.pid) - base) / connections


def main() -> None:
    options = arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(hard, options.connections + DESCRIPTORS_RESERVED), hard)
    )
    print(f"KiB for each of {options.connections:,} connections, by calls made on it")
    print("| | " + " | ".join(map(str, CALLS_EACH)) + " |")
    for engine in options.engines:
        found = [
            kib_each(options.program, engine, options.connections, calls) for calls in CALLS_EACH
        ]
        print(f"| {engine} | " + " | ".join(f"{kib:.2f}" for kib in found) + " |")


main()
