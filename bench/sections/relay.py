"""Compares relays in front of one `sum` in Python.

The relays are ucall over raw TCP and over HTTP, HAProxy in its HTTP mode and nginx, both with
connections to the upstream that are kept; beside them the upstream without a relay. The relay has
one core; the upstream and the load share the other one. The figures are the CPU time a call of the
relay, and of the relay and the upstream together, at 32 connections, the median latency at one
connection, the ratios to HAProxy, and the goals of these ratios.
"""

import argparse
import contextlib
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench import OUTPUT, ROOT
from bench.harness import figures, processes, usage
from bench.harness.figures import Column, Sample
from bench.suite import drivers, machine, plan
from bench.suite.servers import served

ROUNDS, SECONDS = 9, 2
OPTIONS = {"--engine": {"choices": ["posix", "uring"], "default": "posix"}}
PAGE = ROOT / "docs/benchmarks-relay.md"
BASELINE, OURS = "HAProxy", "ucall, raw TCP"
#: A field, its title, and the most that it may be for `OURS`, of that of HAProxy.
GOALS = {
    "relay_us": ("CPU of the relay", 0.55),
    "both_us": ("CPU of relay and upstream", 0.6),
    "p50_us": ("p50, 1 connection", 1.0),
}

HAPROXY = """
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen relay
    bind 127.0.0.1:{port}
    server upstream 127.0.0.1:{upstream}
"""

# `allowed_hosts` of the upstream refuses the name that nginx sends by default.
NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    upstream sum {{
        server 127.0.0.1:{upstream};
        keepalive 64;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 100000000;
        location / {{
            proxy_pass http://sum;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
        }}
    }}
}}
"""


def theirs(name: str, config: str, flags: list[str], upstream: int):
    """Another relay."""
    folder, port = OUTPUT / name, processes.free_port()
    folder.mkdir(exist_ok=True)
    file = folder / "config"
    file.write_text(config.format(port=port, upstream=upstream, folder=folder))
    flags = [flag.format(file=file, folder=folder) for flag in flags]
    return processes.serving_on([processes.required(name), *flags], port, f"relay-{name}")


@contextlib.contextmanager
def relays(engine: str) -> Iterator[tuple[processes.Server, dict[str, processes.Server]]]:
    """The upstream, and all relays to it."""
    with contextlib.ExitStack() as stack:

        def ours(scheme: str) -> processes.Server:
            to = f"{scheme}://127.0.0.1:{upstream.port}"
            command = served("relay", "--engine", engine, "--to", to)
            return stack.enter_context(processes.serving(command, f"relay-{scheme}"))

        _, other = processes.cores()
        command = served("sum", "--engine", engine)
        upstream = stack.enter_context(processes.serving(command, "relay-upstream", other))
        found = {"direct": upstream, OURS: ours("tcp"), "ucall, HTTP": ours("http")}
        for name, program, config, flags in (
            (BASELINE, "haproxy", HAPROXY, ["-db", "-f", "{file}"]),
            ("nginx", "nginx", NGINX, ["-c", "{file}", "-p", "{folder}"]),
        ):
            if processes.installed(program):
                relay = theirs(program, config, flags, upstream.port)
                found[name] = stack.enter_context(relay)
        yield upstream, found


def sample(upstream: processes.Server, server: processes.Server, seconds: float) -> Sample:
    """The load compares every reply with the first one, which is checked."""
    before = [usage.cpu_nanoseconds(it.pid) for it in (server, upstream)]
    calls = drivers.call(server.port, plan.CONSTANT, seconds)["requests"]
    used = [
        (usage.cpu_nanoseconds(it.pid) - start) / calls / 1e3
        for it, start in zip((server, upstream), before, strict=True)
    ]
    relay_us = 0 if server is upstream else used[0]
    p50_us = drivers.call(server.port, plan.SINGLE, seconds)["p50"]
    return {"relay_us": relay_us, "both_us": relay_us + used[1], "p50_us": p50_us}


def missed(runs: figures.Runs) -> list[str]:
    """The figures that are past their goals."""
    found = {field: figures.ratios(runs, OURS, BASELINE, field) for field in GOALS}
    return [
        GOALS[field][0]
        for field, ratios in found.items()
        if ratios and statistics.median(ratios) > GOALS[field][1]
    ]


def table(runs: figures.Runs) -> str:
    columns = []
    for field, (title, _) in GOALS.items():
        columns += [Column(f"{title}, µs", field), Column(f"of {BASELINE}'s", field, base=BASELINE)]
    goals = [cell for _, goal in GOALS.values() for cell in ("", f"at most {goal:.2f}")]
    return f"{figures.table_of(runs, columns)}\n| {OURS}: goals | {' | '.join(goals)} |"


def report(results: dict[str, Any]) -> str:
    runs, options = results["samples"], results["options"]
    past = missed(runs)
    verdict = f"Past the goal: {', '.join(past)}." if past else "All goals are met."
    text = (
        "`sum` at 32 connections and, for the latency, at one, in front of one ucall server: CPU "
        f"time a call, and the median ratio to {BASELINE} within a round. The relays have\n"
        "one core; the upstream and the load share the other one. "
        f"{verdict}\n{machine.text(results['machine'])}, engine {options['engine']}, "
        f"{options['rounds']} rounds."
    )
    return f"{text}\n\n{table(runs)}"


def run(options: argparse.Namespace) -> dict[str, Any]:
    processes.pin_to(processes.cores()[1])
    with relays(options.engine) as (upstream, servers):
        turns = {
            name: partial(sample, upstream, server, options.seconds)
            for name, server in servers.items()
        }
        runs = figures.in_turns(turns, options.rounds)
    print(table(runs), *(f"past the goal: {it}" for it in missed(runs)), sep="\n")
    measured = {"engine": options.engine, "rounds": options.rounds, "seconds": options.seconds}
    return {"machine": machine.describe(), "options": measured, "samples": runs}
