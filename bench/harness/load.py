"""One load by wrk on one server, and its result."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import processes, request, usage
from harness.rows import OUTPUT, ROOT, Contender, Row

SCRIPT = ROOT / "bench/wrk/load.lua"
CHECK_SECONDS = 1


@dataclass(frozen=True)
class Sample:
    """The figures of one load. Latencies are those of a request, not of a call in a batch."""

    calls_per_second: float
    p50_us: float | None
    p99_us: float | None
    cpu_us_per_call: float
    rss_mb: float
    rss_peak_mb: float


class LoadError(Exception):
    """A reply was wrong or missing, or the load was not the expected one."""


@contextmanager
def responding(contender: Contender, row: Row) -> Iterator[tuple[processes.Server, request.Reply]]:
    """Yields the server once it has sent the right reply, and that reply."""
    core, _ = processes.cores()
    log = OUTPUT / f"{contender.name}.log"
    with processes.serving(contender.command_for(row), log, core) as server:
        yield server, request.probe_until_ready(server.port, row.batch, 10)


def check(contender: Contender, row: Row) -> None:
    """Runs a load and compares every reply with the right one, byte for byte."""
    with responding(contender, row) as (server, reply):
        expected = OUTPUT / "expected"
        expected.write_bytes(reply.body)
        result = wrk(row, server.port, CHECK_SECONDS, expected)
        check_errors(result)
        if result["checked"] == 0 or result["wrong"] > 0:
            raise LoadError(f"{result['wrong']} of {result['checked']} replies were wrong")


def measure(contender: Contender, row: Row, seconds: int) -> Sample:
    with responding(contender, row) as (server, reply):
        before = usage.cpu_nanoseconds(server.pid)
        result = wrk(row, server.port, seconds, None)
        cpu = usage.cpu_nanoseconds(server.pid) - before
        memory = usage.memory(server.pid)
        check_errors(result)
        check_lengths(result, row, reply)
        if request.probe(server.port, row.batch).body != reply.body:
            raise LoadError("the reply after the load differs from the one before it")
    return sample(result, row, cpu, memory)


def sample(result: dict, row: Row, cpu_nanoseconds: int, memory: usage.Memory) -> Sample:
    calls = result["requests"] * row.calls_a_request
    return Sample(
        calls_per_second=calls / result["duration"],
        p50_us=result["p50"] if row.has_latency else None,
        p99_us=result["p99"] if row.has_latency else None,
        cpu_us_per_call=cpu_nanoseconds / 1e3 / calls,
        rss_mb=memory.now_mb,
        rss_peak_mb=memory.peak_mb,
    )


def wrk(row: Row, port: int, seconds: int, expected: Path | None, scheme: str = "http") -> dict:
    """Runs wrk and parses the line that load.lua writes."""
    _, core = processes.cores()
    options = [f"batch={row.batch}", f"depth={row.depth}"]
    options += [f"expect={expected}"] if expected else []
    command = ["wrk", "-t1", f"-c{row.connections}", f"-d{seconds}s", "-s", str(SCRIPT)]
    command += [f"{scheme}://127.0.0.1:{port}/", "--", *options]
    process = processes.start_pinned(
        command, core, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=seconds + 30)
    finally:
        process.kill()
        process.wait()
    return parsed(output.decode(errors="replace"))


def parsed(output: str) -> dict:
    last = output.strip().splitlines()[-1] if output.strip() else ""
    if not last.startswith("{"):
        raise LoadError(f"wrk failed: {output[-300:]}")
    return json.loads(last)


def check_errors(result: dict) -> None:
    if result["requests"] == 0:
        raise LoadError("no request was answered")
    if result["status_errors"] or result["socket_errors"]:
        raise LoadError(
            f"{result['status_errors']} replies had an error status, "
            f"{result['socket_errors']} socket errors"
        )


def check_lengths(result: dict, row: Row, reply: request.Reply) -> None:
    """Checks the length of all replies together: timed loads do not read replies, and all have the
    same length. At the end wrk may hold parts of replies that it no longer counts."""
    if result["request_bytes"] != len(request.http_request(row.batch)):
        raise LoadError("load.lua and harness/request.py make different requests")
    unasked = result["bytes"] - result["requests"] * reply.whole_bytes
    if not 0 <= unasked <= row.connections * row.depth * reply.whole_bytes:
        raise LoadError(f"{result['requests']} replies had {result['bytes']} bytes")
