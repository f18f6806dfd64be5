"""Compares an echo of 1 MiB of bytes over HTTP with a C program that echoes as many bytes.

ucall decodes the base64 into a `bytes`, calls a Python function with it, and encodes the result.
The floor (`floor/echo.c`) receives as many bytes and sends them back without reading them. Each
server has one keep-alive connection. The figure is the server's CPU time, user and system.

The kernel's time for the same bytes varies by a factor of 3, for seconds at a time: its page
allocator may return buffers that are in the cache or that were never used, and congestion control
(BBR) may set a timer for every segment, which is slow in a virtual machine. It changes when a
process starts or ends. So all servers run at once and are called in turns of a few milliseconds, in
many rounds.
"""

import argparse
import base64
import contextlib
import json
import os
import re
from functools import partial

from bench import OUTPUT
from bench.harness import arrays, figures, processes, request, usage
from bench.harness.figures import Column, spread
from bench.suite.servers import served

ROUNDS = 100
HAS_ENGINES = True
OPTIONS = {
    "--calls": {"type": int, "default": 20, "help": "of each turn (20)"},
    "--bytes": {"type": int, "default": 1 << 20, "help": "before base64 (1 MiB)"},
}
WARM_UP_CALLS = 10
HEAD = re.compile(rb"(?is)\r\ncontent-length: (\d+)(?=\r\n).*?\r\n\r\n")
COLUMNS = [
    Column("CPU µs/call", "cpu_us", "{:,.0f}", kind=spread),
    Column("ratio to the floor", "cpu_us", base="floor", kind=spread),
]


class Caller:
    """One connection, and the request that it repeats."""

    def __init__(self, port: int, message: arrays.Message) -> None:
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


def message_of(payload: bytes) -> arrays.Message:
    """A call of `echo`. The length of the head places the body in the buffers of the servers: of
    another length, the floor costs half as much again."""
    text = base64.b64encode(payload)
    sent = {"jsonrpc": "2.0", "method": "echo", "params": [text.decode()], "id": 1}
    body = json.dumps(sent).encode()
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    return arrays.Message(head + body, text)


def measure(server: processes.Server, caller: Caller, calls: int) -> figures.Sample:
    before = usage.cpu_nanoseconds(server.pid)
    for _ in range(calls):
        caller.call()
    return {"cpu_us": (usage.cpu_nanoseconds(server.pid) - before) / 1e3 / calls}


def run(options: argparse.Namespace) -> None:
    message = message_of(os.urandom(options.bytes))
    processes.pin_to(processes.cores()[1])
    commands = {"floor": (str(OUTPUT / "floor-echo"),)}
    commands |= {engine: served("echo", "--engine", engine) for engine in options.engines}
    turns = {}
    with contextlib.ExitStack() as running:
        for name, command in commands.items():
            server = running.enter_context(processes.serving(command, f"echo-{name}"))
            caller = Caller(server.port, message)
            measure(server, caller, WARM_UP_CALLS)
            turns[name] = partial(measure, server, caller, options.calls)
        runs = figures.in_turns(turns, options.rounds)
    print(figures.table_of(runs, COLUMNS, f"an echo of {options.bytes:,} bytes"))
