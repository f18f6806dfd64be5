"""One load on one server, by wrk, h2load, `bench/load` or Cap'n Proto's, and its result."""

import http.client
import json
import re
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import certificate, processes, request, shapes, usage
from bench.harness.processes import LoadError, run_load
from bench.suite.servers import OTHER_FORMATS, PEERS, PYTHON, Load, Server

PROGRAM = OUTPUT / "target/release/load"
GRPC_BODY = b"\x00\x00\x00\x00\x04\x08\x37\x10\x15"
#: A reply is a message's head of five bytes, and `result = 76` in two.
GRPC_REPLY_BYTES = 7
FAILURES = (
    LoadError,
    processes.StartError,
    request.WrongReplyError,
    subprocess.TimeoutExpired,
    OSError,
    http.client.HTTPException,
    ValueError,
)


def parsed(output: str) -> dict:
    """The last line of wrk's script or of `bench/load`."""
    last = output.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise LoadError(output.strip()[-300:] or "it wrote nothing")
    return json.loads(last)


def by_wrk(server: Server, port: int, load: Load, seconds: int) -> dict:
    script = ROOT / "bench/wrk/load.lua"
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "-s", script]
    return parsed(run_load([*command, f"http://127.0.0.1:{port}/"], seconds))


def by_h2load(server: Server, port: int, load: Load, seconds: int) -> dict:
    """Latencies come from h2load's log, one line a request: start, status, microseconds."""
    body, log = OUTPUT / "grpc.body", OUTPUT / "h2load.log"
    body.write_bytes(GRPC_BODY)
    log.unlink(missing_ok=True)
    command = ["h2load", "-t1", f"-c{load.connections}", f"-m{load.depth}", f"-D{seconds}"]
    command += ["--warm-up-time=0", f"--log-file={log}", f"--data={body}"]
    command += ["-Hcontent-type: application/grpc", "-Hte: trailers"]
    output = run_load([*command, f"http://127.0.0.1:{port}/bench.Calls/Sum"], seconds)
    micros = [int(line.split("\t")[2]) for line in log.read_text().splitlines()]
    return h2load_figures(output, micros)


def h2load_figures(output: str, micros: list[int]) -> dict:
    seconds = re.search(r"finished in ([\d.]+)s", output)
    totals = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    data = re.search(r"\((\d+)\) data", output)
    if not (seconds and totals and data and len(micros) > 1):
        raise LoadError(f"h2load failed: {output[-300:]}")
    succeeded, *failed = map(int, totals.groups())
    if abs(int(data[1]) - succeeded * GRPC_REPLY_BYTES) > 1000 * GRPC_REPLY_BYTES:
        raise LoadError(f"{data[1]} bytes of replies to {succeeded} requests")
    cuts = statistics.quantiles(micros, n=1000, method="inclusive")
    return {
        "requests": succeeded,
        "duration": float(seconds[1]),
        "errors": sum(failed),
        "p50": cuts[499],
        "p99": cuts[989],
        "p999": cuts[998],
    }


def by_capnproto(server: Server, port: int, load: Load, seconds: int) -> dict:
    numbers = (port, load.connections, load.depth, seconds)
    output = run_load([OUTPUT / "peer-capnproto-load", *numbers], seconds)
    return {**parsed(output), "errors": 0}


def own_command(load: Load, protocol: str = "http") -> list[object]:
    is_tls = protocol == "https"
    protocol = "http" if is_tls else protocol
    command = [PROGRAM, "--protocol", protocol, *requests_of(load, protocol)]
    command += ["--authority", certificate.AUTHORITY] if is_tls else []
    command += ["--connections", load.connections, "--depth", load.depth]
    command += ["--rate", load.rate] if load.rate else []
    command += ["--idle", load.idle] if load.idle else []
    return command + (["--reconnect"] if load.reconnect else [])


def requests_of(load: Load, protocol: str) -> list[object]:
    """The load's options that say what it sends."""
    if load.clients and protocol != "websocket":
        files = shapes.files(load.clients, protocol)
        return [word for path in files for word in ("--requests", path)]
    body = load.body or OUTPUT / f"request-{load.batch}.json"
    if not load.body:
        body.write_bytes(request.body(load.batch))
    return ["--body", body]


def by_own(server: Server, port: int, load: Load, seconds: int) -> dict:
    command = [*own_command(load, server.protocol), "--seconds", seconds, f"127.0.0.1:{port}"]
    return own_figures(run_load(command, seconds), load)


def call(port: int, load: Load, seconds: float) -> dict:
    """A load by `bench/load` over HTTP, all of whose calls must succeed."""
    command = [*own_command(load), "--seconds", seconds, f"127.0.0.1:{port}"]
    return succeeded(own_figures(run_load(command, seconds), load))


def repeat(
    port: int, requests: Sequence[bytes], connections: int, seconds: float, *more: object
) -> dict:
    """The same of these HTTP requests, each on connections of its own."""
    command = [PROGRAM, "--connections", connections, "--seconds", seconds, *more]
    for number, sent in enumerate(requests):
        command += ["--requests", request.write(OUTPUT / f"load-{number}.requests", [sent])]
    return succeeded(parsed(run_load([*command, f"127.0.0.1:{port}"], seconds)))


def succeeded(found: dict) -> dict:
    if found["errors"] or not found["requests"]:
        raise LoadError(f"{found['errors']} errors of {found['requests']} calls")
    return found


def own_figures(output: str, load: Load) -> dict:
    """Raises if the first reply is wrong; the program compares all others with it."""
    found = parsed(output)
    if not load.body:
        request.check_reply(200, found["reply"].encode(), request.expected_reply(load.batch))
    elif load.expected not in found["reply"]:
        raise LoadError(f"not the expected reply: {found['reply'][:200]!r}")
    return {**found, "errors": found["errors"] + found["unanswered"]}


DRIVERS: dict[str, Callable[[Server, int, Load, int], dict]] = {
    "wrk": by_wrk,
    "h2load": by_h2load,
    "capnproto": by_capnproto,
    "own": by_own,
}


def tool_for(server: Server, load: Load) -> str:
    """The load generator of a load: ours, unless the format or the load names another."""
    return load.tool or OTHER_FORMATS.get(server.protocol, "own")


def check(server: Server, port: int, load: Load) -> None:
    """Calls and checks the replies. `bench/load` compares all later ones with its first ones, and
    the floor has the same reply to all."""
    tool = tool_for(server, load)
    if tool == "h2load":
        check_grpc(port)
    elif tool == "wrk":
        request.probe_until_ready(port, load.batch, 10)
    elif load.clients and server.protocol == "http" and server.family != "floor":
        check_clients(port, load.clients)


def check_clients(port: int, clients: Sequence[str]) -> None:
    request.probe_until_ready(port, 0, 10)
    for client in clients:
        for sent, made in zip(shapes.requests(client), shapes.calls(), strict=True):
            result = sum(made["params"].values())
            request.check_call(port, sent, {"jsonrpc": "2.0", "id": made["id"], "result": result})


def check_grpc(port: int) -> None:
    command = [str(PYTHON), str(PEERS / "python/grpc_check.py"), str(port)]
    environment = {"PYTHONPATH": str(OUTPUT / "proto"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=15)
    if done.stdout.strip() != str(request.EXPECTED_RESULT):
        raise LoadError(f"gRPC's client got {done.stdout + done.stderr[-200:]!r}")


def measure(server: Server, running: processes.Server, load: Load, seconds: int) -> dict:
    """Runs a load on a running server, and returns the fields of a sample. Latencies are those of a
    request, which may be a batch. `p999_windows_us` is the median of the twentieths of a second: a
    stop of the machine changes one or two. Only `bench/load` gives it and `max_us`."""
    pids = usage.family(running.pid)
    before = usage.cpu_nanoseconds(*pids)
    found = DRIVERS[tool_for(server, load)](server, running.port, load, seconds)
    cpu = usage.cpu_nanoseconds(*pids) - before
    if not found["requests"]:
        raise LoadError(f"no request got a reply ({found['errors']} errors)")
    calls = found["requests"] * load.calls_a_request

    return {
        "calls_per_second": calls / found["duration"],
        "p50_us": found["p50"],
        "p99_us": found["p99"],
        "p999_us": found["p999"],
        "p999_windows_us": found.get("p999_windows"),
        "max_us": found.get("max"),
        "cpu_us_per_call": cpu / 1e3 / calls,
        "rss_mb": sum(map(usage.resident_mb, pids)),
        "errors": found["errors"],
    }


def echo_request(text: str) -> Path:
    """A file with a call of `echo_text`."""
    path = OUTPUT / f"echo-{len(text)}.json"
    path.write_bytes(request.call("echo_text", text))
    return path
