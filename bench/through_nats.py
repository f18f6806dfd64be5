"""Measures calls through NATS beside nats-py's own micro service, and direct calls found by NATS.

    python -P bench/through_nats.py [--seconds 3] [--rounds 5] [--callers 32]

The way of a call takes turns; the figures are medians over the rounds. All processes share the
machine: compare the rows only.
"""

import argparse
import asyncio
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

server.run(broker=sys.argv[1], group="ucall")
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
            import json

            yield json.loads(found[0].read_text())["nats"][0]
        finally:
            process.kill()
            process.wait()


@contextmanager
def server(source: str, url: str) -> Iterator[int]:
    """The process id of a server."""
    process = subprocess.Popen([sys.executable, "-c", source, url])
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
            break
        except nats.errors.Error:
            await asyncio.sleep(0.05)
    [member] = await found._pool._servers._find()
    listed = aio.Client(f"tcp://{member.name}")
    ways = {
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, default=32)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(broker())
        sources = {"ucall": UCALL, "micro": MICRO}
        pids = {name: stack.enter_context(server(it, url)) for name, it in sources.items()}
        asyncio.run(measure(url, pids, arguments))


if __name__ == "__main__":
    main()
