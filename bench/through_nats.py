"""Measures calls through NATS to ucall, to nats-py's micro service, and to an echo in Go, which is
the limit; and direct calls found by NATS.

    make bench-nats [BENCH_FLAGS="--seconds 3 --rounds 5 --callers 32"]

The kinds of calls take turns; the figures are medians over the rounds. All processes share the
machine: compare the rows only. `results/nats/latest.json` has the figures.
"""

import argparse
import asyncio
import datetime
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats

from ucall import aio

UCALL = """
import sys, ucall
server = ucall.Server(port=0)

@server
def sum(a: int, b: int):
    return a + b

server.run(broker=ucall.Broker(url=sys.argv[1], group="ucall"))
"""
MICRO = """
import asyncio, json, sys, nats, nats.micro

async def main():
    connection = await nats.connect(sys.argv[1])
    service = await nats.micro.add_service(connection, name="micro", version="1.0.0")

    async def answer(request):
        a, b = json.loads(request.data)
        await request.respond(json.dumps(a + b).encode())

    await service.add_group(name="micro").add_endpoint(name="sum", handler=answer)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def broker() -> Iterator[str]:
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        sys.exit("nats-server is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not (found := list(Path(folder).glob("*.ports"))) or not found[0].read_text():
                time.sleep(0.01)
            yield json.loads(found[0].read_text())["nats"][0]
        finally:
            process.kill()
            process.wait()


@contextmanager
def server(command: list[str], url: str) -> Iterator[int]:
    """The process id of a server."""
    process = subprocess.Popen([*command, url])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def cpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def load(call, seconds: float, callers: int) -> list[float]:
    """The seconds of each call."""
    latencies, end = [], time.perf_counter() + seconds

    async def call_in_turn() -> None:
        while (began := time.perf_counter()) < end:
            await call()
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(call_in_turn() for _ in range(callers)))
    return latencies


async def measure(url: str, pids: dict[str, int], arguments: argparse.Namespace) -> None:
    connection = await nats.connect(url)
    found = aio.Client(f"nats+tcp://{url.partition('://')[2]}/ucall")
    while True:
        try:
            await connection.request("ucall.sum", b"[2,3]", timeout=1)
            await connection.request("micro.sum", b"[2,3]", timeout=1)
            await connection.request("echo.sum", b"[2,3]", timeout=1)
            break
        except nats.errors.Error:
            await asyncio.sleep(0.05)
    [member] = await found._pool._servers._find()
    listed = aio.Client(f"tcp://{member.name}")
    ways = {
        "Go echo": ("echo", lambda: connection.request("echo.sum", b"[2,3]", 9)),
        "nats-py's micro service": ("micro", lambda: connection.request("micro.sum", b"[2,3]", 9)),
        "ucall through NATS": ("ucall", lambda: connection.request("ucall.sum", b"[2,3]", 9)),
        "direct, found by NATS": ("ucall", lambda: found.sum(2, 3)),
        "direct, by its address": ("ucall", lambda: listed.sum(2, 3)),
    }
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, (pid, call) in random.sample(list(ways.items()), len(ways)):
            before, own = cpu_s(pids[pid]), time.process_time()
            latencies = sorted(await load(call, arguments.seconds, arguments.callers))
            count = len(latencies)
            server_us = (cpu_s(pids[pid]) - before) / count * 1e6
            caller_us = (time.process_time() - own) / count * 1e6
            p50, p99 = latencies[count // 2] * 1e3, latencies[count * 99 // 100] * 1e3
            rows[name].append((count / arguments.seconds, p50, p99, server_us, caller_us))
    write_results(rows, arguments)
    print("| call | calls/s | p50 ms | p99 ms | server's CPU µs | caller's CPU µs |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, figures in rows.items():
        rate, p50, p99, server_us, caller_us = map(statistics.median, zip(*figures, strict=True))
        print(
            f"| {name} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {server_us:.0f} | {caller_us:.0f} |"
        )
    await connection.close()
    await found.close()
    await listed.close()


def write_results(rows: dict[str, list[tuple[float, ...]]], arguments: argparse.Namespace) -> None:
    columns = "calls_per_s", "p50_ms", "p99_ms", "server_cpu_us", "caller_cpu_us"
    rounds = {
        name: [dict(zip(columns, it, strict=True)) for it in row] for name, row in rows.items()
    }
    results = {
        "date": datetime.date.today().isoformat(),
        "cpus": os.cpu_count(),
        "options": vars(arguments),
        "rounds": rounds,
    }
    path = Path(__file__).with_name("results") / "nats" / "latest.json"
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, default=32)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(broker())
        commands = {
            "ucall": [sys.executable, "-c", UCALL],
            "micro": [sys.executable, "-c", MICRO],
            "echo": [str(Path(__file__).parents[1] / ".bench/nats-echo")],
        }
        pids = {name: stack.enter_context(server(it, url)) for name, it in commands.items()}
        asyncio.run(measure(url, pids, arguments))


if __name__ == "__main__":
    main()
