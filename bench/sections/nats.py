"""Measures calls through NATS to ucall, to nats-py's micro service, and to an echo in Go, which is
the limit; and direct calls found by NATS.

All processes share the machine: compare the rows only.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

import nats

from bench import OUTPUT
from bench.harness import figures, processes, usage
from bench.harness.figures import Column, Sample
from bench.suite import machine
from ucall import aio

ROUNDS, SECONDS = 5, 3
OPTIONS = {"--callers": {"type": int, "default": 32}}
COLUMNS = [
    Column("calls/s", "calls_per_s", "{:.0f}"),
    Column("p50 ms", "p50_ms"),
    Column("p99 ms", "p99_ms"),
    Column("server's CPU µs", "server_cpu_us", "{:.1f}"),
    Column("caller's CPU µs", "caller_cpu_us", "{:.0f}"),
]
Call = Callable[[], Awaitable[object]]

UCALL = """
import sys, ucall
server = ucall.Server(port=0)

@server
def sum(a: int, b: int):
    return a + b

server.on_startup(lambda: print(server.port, flush=True))
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


async def load(call: Call, seconds: float, callers: int) -> list[float]:
    """The milliseconds of each call."""
    times, end = [], time.perf_counter() + seconds

    async def call_in_turn() -> None:
        while (began := time.perf_counter()) < end:
            await call()
            times.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(call_in_turn() for _ in range(callers)))
    return times


def measure(runner: asyncio.Runner, pid: int, call: Call, options: argparse.Namespace) -> Sample:
    before, own = usage.cpu_nanoseconds(pid), time.process_time()
    times = runner.run(load(call, options.seconds, options.callers))
    server_us = (usage.cpu_nanoseconds(pid) - before) / len(times) / 1e3
    caller_us = (time.process_time() - own) / len(times) * 1e6
    cuts = statistics.quantiles(times, n=100)
    figures = (len(times) / options.seconds, cuts[49], cuts[98], server_us, caller_us)
    return dict(zip((column.field for column in COLUMNS), figures, strict=True))


async def ready(connection: nats.NATS) -> None:
    """Waits until all three services answer."""
    for name in ("ucall", "micro", "echo"):
        while True:
            try:
                await connection.request(f"{name}.sum", b"[2,3]", timeout=1)
                break
            except nats.errors.Error:
                await asyncio.sleep(0.05)


def run(options: argparse.Namespace) -> None:
    commands = {
        "ucall": [sys.executable, "-c", UCALL],
        "micro": [sys.executable, "-c", MICRO],
        "echo": [str(OUTPUT / "nats-echo")],
    }
    with ExitStack() as stack:
        broker = stack.enter_context(processes.nats_server())
        url = f"nats://127.0.0.1:{broker.port}"
        started = {
            name: stack.enter_context(processes.running([*command, url], stdout=subprocess.PIPE))
            for name, command in commands.items()
        }
        port = int(started["ucall"].stdout.readline())
        runner = stack.enter_context(asyncio.Runner())
        connection = runner.run(nats.connect(url))
        runner.run(ready(connection))
        found = aio.Client(f"nats+tcp://127.0.0.1:{broker.port}/ucall")
        listed = aio.Client(f"tcp://127.0.0.1:{port}")

        def request(name: str) -> Call:
            return lambda: connection.request(f"{name}.sum", b"[2,3]", 9)

        ways = {
            "Go echo": ("echo", request("echo")),
            "nats-py's micro service": ("micro", request("micro")),
            "ucall through NATS": ("ucall", request("ucall")),
            "direct, found by NATS": ("ucall", lambda: found.sum(2, 3)),
            "direct, by its address": ("ucall", lambda: listed.sum(2, 3)),
        }
        turns = {
            name: partial(measure, runner, started[server].pid, call, options)
            for name, (server, call) in ways.items()
        }
        runs = figures.in_turns(turns, options.rounds)
        for closing in (connection, found, listed):
            runner.run(closing.close())
    print(figures.table_of(runs, COLUMNS, "call"))
    about = {"machine": machine.describe(), "options": vars(options)}
    figures.write(figures.part("nats"), about | {"samples": runs})
