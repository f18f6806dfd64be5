"""The memory of idle connections, and the calls of other clients meanwhile."""

import subprocess
from collections.abc import Callable
from functools import partial

from bench.harness import processes, usage
from bench.suite import drivers, servers
from bench.suite.servers import Load, Server

CONNECTIONS = 10_000
BUSY = Load("busy", "32 clients beside the idle ones", 32, tool="own")
OPENING_SECONDS_MAX = 30
PART_SECONDS = 5.0


def parts() -> dict[str, Callable[[], list[dict]]]:
    return {server.label: partial(measured, server) for server in servers.ours("http")}


def measured(server: Server) -> list[dict]:
    with server.running(BUSY) as running:
        return [{"server": server.name, **measure(running)}]


def measure(running: processes.Server) -> dict:
    """Measures one server. The base is its memory after a load, because the memory that it keeps
    from a load is no cost of idle connections."""
    drivers.call(running.port, BUSY, 1)
    base = usage.resident_kib(running.pid)
    command = [*drivers.own_command(BUSY), "--idle", CONNECTIONS, f"127.0.0.1:{running.port}"]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    load = processes.start_load(command, **pipes)
    try:
        output = load.stdout.readline()
        if output.split() != ["idle", str(CONNECTIONS)]:
            raise drivers.LoadError(f"no idle connections: {output.strip()}")
        idle = usage.resident_kib(running.pid)
        before = usage.cpu_nanoseconds(running.pid)
        output, _ = load.communicate("go\n", timeout=OPENING_SECONDS_MAX)
        found = drivers.own_figures(output, BUSY)
        cpu = usage.cpu_nanoseconds(running.pid) - before
    finally:
        load.kill()
        load.wait()
    return {
        "connections": CONNECTIONS,
        "base_kib": base,
        "idle_kib": idle,
        "kib_each": (idle - base) / CONNECTIONS,
        "calls_per_second": found["requests"] / found["duration"],
        "p99_us": found["p99"],
        "cpu_us_per_call": cpu / 1e3 / found["requests"],
        "errors": found["errors"],
    }
