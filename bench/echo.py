"""Compares an echo of 1 MiB of bytes over HTTP with a C program that echoes as many bytes.

    python bench/echo.py [--engines posix,uring] [--pairs N] [--calls N] [--bytes N]

ucall decodes the base64 into a `bytes`, calls a Python function with it, and encodes the result.
The floor (`floor/echo.c`) receives as many bytes and sends them back without reading them. Each
server has one keep-alive connection. Prints the server's CPU time a call, user and system, and the
median and quartiles of the ratio within pairs.

The kernel's time for the same bytes varies by a factor of 3, for seconds at a time: its page
allocator may return buffers that are in the cache or that were never used, and congestion control
(BBR) may set a timer for every segment, which is slow in a virtual machine. It changes when a
process starts or ends. So all servers run at once and are called in turns of a few milliseconds, in
many pairs.
"""

import argparse
import base64
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence

from harness import processes, usage
from harness.rows import OUTPUT, ROOT

FLOOR = OUTPUT / "floor-echo"
WARM_UP_CALLS = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures an echo of bytes against C.")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["posix", "uring"])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--calls", type=int, default=20, help="of each turn (20)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="before base64 (1 MiB)")
    return parser.parse_args()


def build_floor() -> None:
    OUTPUT.mkdir(exist_ok=True)
    source = ROOT / "bench/floor/echo.c"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", FLOOR, source], check=True)


def command_of(name: str) -> list[str]:
    if name == "floor":
        return [str(FLOOR)]
    return [sys.executable, str(ROOT / "bench/servers/echo.py"), "--engine", name]


class Caller:
    """One connection, and the request that it repeats."""

    def __init__(self, port: int, payload: bytes) -> None:
        text = base64.b64encode(payload).decode()
        body = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": [text], "id": 1}).encode()
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.request = head.encode() + body
        self.text = text.encode()
        self.reply = bytearray(len(self.request) + 4096)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self) -> memoryview:
        """Sends the request, and returns the body of the reply."""
        self.socket.sendall(self.request)
        view, count, end = memoryview(self.reply), 0, None
        while end is None or count < end:
            received = self.socket.recv_into(view[count:])
            if received == 0:
                raise ConnectionError("the server closed the connection")
            count += received
            if end is None:
                start, end = bounds(self.reply, count)
        return view[start:end]

    def check(self) -> None:
        """Calls once and checks that the reply contains the same base64."""
        if self.text not in bytes(self.call()):
            raise ValueError("the reply holds other bytes")


def bounds(reply: bytearray, count: int) -> tuple[int, int | None]:
    """The start and end of the body; no end while the head is incomplete."""
    split = reply.find(b"\r\n\r\n", 0, count)
    if split < 0:
        return 0, None
    fields = bytes(reply[:split]).lower().split(b"\r\n")
    length = next(int(field[15:]) for field in fields if field.startswith(b"content-length:"))
    return split + 4, split + 4 + length


def warm(caller: Caller) -> None:
    for _ in range(WARM_UP_CALLS):
        caller.check()


def cpu_us_per_call(server: processes.Server, caller: Caller, calls: int) -> float:
    before = usage.cpu_nanoseconds(server.pid)
    for _ in range(calls):
        caller.call()
    return (usage.cpu_nanoseconds(server.pid) - before) / 1e3 / calls


def measure(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[float]]:
    """The figure of each server in each round. All run at once; those not called sleep."""
    payload = os.urandom(options.bytes)
    server_core, client_core = processes.cores()
    processes.pin_to(client_core)
    series: dict[str, list[float]] = {name: [] for name in names}
    with contextlib.ExitStack() as running:
        started = {
            name: running.enter_context(
                processes.serving(command_of(name), OUTPUT / f"echo-{name}.log", server_core)
            )
            for name in names
        }
        callers = {name: Caller(server.port, payload) for name, server in started.items()}
        for caller in callers.values():
            warm(caller)
        for number in range(options.pairs):
            for name in names if number % 2 == 0 else reversed(names):
                figure = cpu_us_per_call(started[name], callers[name], options.calls)
                series[name].append(figure)
    return series


def shown(values: Sequence[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:,.{digits}f} [{low:,.{digits}f} {high:,.{digits}f}]"


def main() -> None:
    options = arguments()
    build_floor()
    series = measure(["floor", *options.engines], options)
    print(f"Echo of {options.bytes:,} bytes: server CPU a call, median [quartiles], µs")
    for name, figures in series.items():
        line = f"  {name:6} {shown(figures, 0):>24}"
        if name != "floor":
            pairs = zip(figures, series["floor"], strict=True)
            line += f"   ratio to floor {shown([ours / floor for ours, floor in pairs], 2)}"
        print(line)


main()
