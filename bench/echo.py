"""Measures an echo of 1 MiB of bytes over HTTP against the same number of bytes through C.

    python bench/echo.py [--engines posix,uring] [--pairs N] [--calls N] [--bytes N]

Ours decodes the base64 into a `bytes`, calls a Python function with it, and encodes what that
returns. The floor (`floor/echo.c`) receives as many bytes and sends them back without a look. Both
serve one keep-alive connection. Prints the server's CPU time a call, user and system, and the
median and quartiles of the ratio within pairs.
"""

import argparse
import base64
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
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--calls", type=int, default=200, help="of each load (200)")
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
    """One connection, and the one request that it sends again and again."""

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
        """Sends it, and returns the body of the reply."""
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
        """A call whose reply is looked at: the same base64 must be in it."""
        if self.text not in bytes(self.call()):
            raise ValueError("the reply holds other bytes")


def bounds(reply: bytearray, count: int) -> tuple[int, int | None]:
    """Where the body starts and ends; no end while the head is not whole."""
    split = reply.find(b"\r\n\r\n", 0, count)
    if split < 0:
        return 0, None
    fields = bytes(reply[:split]).lower().split(b"\r\n")
    length = next(int(field[15:]) for field in fields if field.startswith(b"content-length:"))
    return split + 4, split + 4 + length


def cpu_us_per_call(name: str, payload: bytes, calls: int) -> float:
    server_core, _ = processes.cores()
    with processes.serving(command_of(name), OUTPUT / f"echo-{name}.log", server_core) as server:
        caller = Caller(server.port, payload)
        for _ in range(WARM_UP_CALLS):
            caller.check()
        before = usage.cpu_nanoseconds(server.pid)
        for _ in range(calls):
            caller.call()
        return (usage.cpu_nanoseconds(server.pid) - before) / 1e3 / calls


def shown(values: Sequence[float], digits: int) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:,.{digits}f} [{low:,.{digits}f} {high:,.{digits}f}]"


def main() -> None:
    options = arguments()
    build_floor()
    processes.pin_to(processes.cores()[1])
    payload = os.urandom(options.bytes)
    names = ["floor", *options.engines]
    series: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.pairs):
        for name in names if number % 2 == 0 else reversed(names):
            series[name].append(cpu_us_per_call(name, payload, options.calls))
    print(f"Echo of {options.bytes:,} bytes: server CPU a call, median [quartiles], µs")
    for name in names:
        line = f"  {name:6} {shown(series[name], 0):>24}"
        if name != "floor":
            ratios = [
                ours / floor for ours, floor in zip(series[name], series["floor"], strict=True)
            ]
            line += f"   ratio to floor {shown(ratios, 2)}"
        print(line)


main()
