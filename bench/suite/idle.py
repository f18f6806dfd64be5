"""The memory of idle connections, and the calls of other clients meanwhile."""

import subprocess

from bench.harness import processes, usage
from bench.suite import drivers, servers
from bench.suite.rounds import Run
from bench.suite.servers import Load

CONNECTIONS = 10_000
BUSY = Load("busy", "32 clients beside the idle ones", 32, tool="own")
OPENING_SECONDS_MAX = 30
ESTIMATE_SECONDS = 5.0


def estimate(brief: bool) -> float:
    return ESTIMATE_SECONDS * len(servers.ours("http"))


def measure_all(brief: bool, run: Run) -> list[dict]:
    found = []
    for server in servers.ours("http"):
        run.progress.print_line(f"idle: {CONNECTIONS:,} connections on {server.label}")
        try:
            with server.running(BUSY) as running:
                found.append({"server": server.name, **measure(running)})
        except drivers.FAILURES as error:
            run.records.problem(f"idle: {server.label}: {error}")
        run.progress.advance(ESTIMATE_SECONDS)
    return found


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
