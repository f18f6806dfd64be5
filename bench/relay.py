"""Compares relays in front of one `sum` in Python: `make bench-relay`.

    python bench/relay.py [--engine posix] [--rounds N] [--seconds S]
    python bench/relay.py --report bench/results/relay/DATE.json

The relays are ucall over raw TCP and over HTTP, HAProxy in its HTTP mode and nginx, both with
connections to the upstream that are kept. Each round runs all of them, and the upstream without a
relay; every second round in reverse order. The relay has one core; the upstream and wrk share the
other one. Prints the CPU time a call of the relay, and of the relay and the upstream together, at
32 connections, the median latency at one connection, the ratios to HAProxy within each round, and
the goals of these ratios. Writes the samples to `.bench/relay.json`.

`--report` measures nothing: it writes the table of such a file into docs/relay.md.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import load, processes, usage
from harness.rows import OUTPUT, ROOT, ROWS, sum_server
from suite import machine

RELAY = Path(__file__).with_name("servers") / "relay.py"
BASELINE = "HAProxy"
PAGE = ROOT / "docs/relay.md"
BEGIN = "<!-- figures: written by bench/relay.py --report -->"
END = "<!-- end of figures -->"


class Figure(NamedTuple):
    """A column of the table."""

    title: str
    #: The most that it may be for `OURS`, of that of HAProxy.
    goal: float


OURS = "ucall, raw TCP"
FIGURES = {
    "relay_us": Figure("CPU of the relay", 0.55),
    "both_us": Figure("CPU of relay and upstream", 0.6),
    "p50_us": Figure("p50, 1 connection", 1.0),
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

Sample = dict[str, float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares relays.")
    parser.add_argument("--engine", choices=["posix", "uring"], default="posix")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2, help="of each load (2)")
    parser.add_argument("--report", type=Path, help="write the table of this file into the docs")
    return parser.parse_args()


def ours(scheme: str, engine: str, upstream: int) -> contextlib.AbstractContextManager:
    to = f"{scheme}://127.0.0.1:{upstream}"
    command = [sys.executable, str(RELAY), "--engine", engine, "--to", to]
    core, _ = processes.cores()
    return processes.serving(command, OUTPUT / f"relay-{scheme}.log", core)


def theirs(name: str, config: str, flags: list[str], upstream: int):
    """Another relay; None if it is not installed."""
    program = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None:
        print(f"{name} is not installed", file=sys.stderr)
        return None
    folder, port, (core, _) = OUTPUT / name, processes.free_port(), processes.cores()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config"
    file.write_text(config.format(port=port, upstream=upstream, folder=folder))
    command = [program, *(flag.format(file=file, folder=folder) for flag in flags)]
    return processes.serving_on(command, port, folder / "log", core, {})


@contextlib.contextmanager
def relays(engine: str) -> Iterator[tuple[processes.Server, dict[str, processes.Server]]]:
    """The upstream, and all relays to it."""
    _, other = processes.cores()
    command = [*sum_server(), "--engine", engine, "--port", "0"]
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(
            processes.serving(command, OUTPUT / "relay-upstream.log", other)
        )
        haproxy = theirs("haproxy", HAPROXY, ["-db", "-f", "{file}"], upstream.port)
        nginx = theirs("nginx", NGINX, ["-c", "{file}", "-p", "{folder}"], upstream.port)
        contexts = {
            "direct": contextlib.nullcontext(upstream),
            OURS: ours("tcp", engine, upstream.port),
            "ucall, HTTP": ours("http", engine, upstream.port),
            BASELINE: haproxy,
            "nginx": nginx,
        }
        found = {
            name: stack.enter_context(context) for name, context in contexts.items() if context
        }
        for server in found.values():
            check(server)
        yield upstream, found


def check(server: processes.Server) -> None:
    """A second of load with every reply checked."""
    expected = OUTPUT / "expected-relay"
    expected.write_text('{"jsonrpc":"2.0","id":1,"result":76}')
    result = load.wrk(ROWS["headline"], server.port, 1, expected)
    load.check_errors(result)
    if result["checked"] == 0 or result["wrong"] > 0:
        raise load.LoadError(f"{result['wrong']} replies were wrong")


def sample(upstream: processes.Server, server: processes.Server, seconds: int) -> Sample:
    pids = [server.pid, upstream.pid]
    before = [usage.cpu_nanoseconds(pid) for pid in pids]
    result = load.wrk(ROWS["headline"], server.port, seconds, None)
    used = [usage.cpu_nanoseconds(pid) - start for pid, start in zip(pids, before, strict=True)]
    load.check_errors(result)
    relay_ns, upstream_ns = used if server is not upstream else (0, used[1])
    single = load.wrk(ROWS["single"], server.port, seconds, None)
    load.check_errors(single)
    calls = result["requests"]
    return {
        "relay_us": relay_ns / calls / 1e3,
        "both_us": (relay_ns + upstream_ns) / calls / 1e3,
        "p50_us": single["p50"],
    }


def ratio(found: dict[str, list[Sample]], name: str, figure: str) -> float:
    """The median ratio to HAProxy within a round."""
    pairs = zip(found[name], found[BASELINE], strict=True)
    return statistics.median(one[figure] / base[figure] for one, base in pairs)


def table(found: dict[str, list[Sample]]) -> str:
    titles = [figure.title for figure in FIGURES.values()]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(FIGURES)]
    for name, samples in found.items():
        cells = []
        for figure in FIGURES:
            text = f"{statistics.median(one[figure] for one in samples):.2f} µs"
            if BASELINE in found:
                text += f" ({ratio(found, name, figure):.2f})"
            cells.append(text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if BASELINE in found:
        goals = [f"{goal:.2f}" for _, goal in FIGURES.values()]
        lines.append(f"| {OURS}: at most | {' | '.join(goals)} |")
    return "\n".join(lines)


def missed(found: dict[str, list[Sample]]) -> list[str]:
    """The figures that are past their goals."""
    if BASELINE not in found:
        return []
    past = [it for it, figure in FIGURES.items() if ratio(found, OURS, it) > figure.goal]
    return [FIGURES[it].title for it in past]


def describe(results: dict[str, Any]) -> str:
    machine, options = results["machine"], results["options"]
    return (
        f"{machine['date']}, commit {machine['commit']}: {machine['cpus']} cores of "
        f"{machine['cpu']}, Linux {machine['kernel']}, engine {options['engine']}, "
        f"{options['rounds']} rounds"
    )


def section(results: dict[str, Any]) -> str:
    """The section of the page."""
    found = results["samples"]
    past = missed(found)
    verdict = f"Past the goal: {', '.join(past)}." if past else "All goals are met."
    text = (
        "`sum` at 32 connections and, for the latency, at one, in front of one ucall server: CPU "
        "time a call, and in brackets the median ratio to HAProxy within a round. The relays have "
        "one core; the upstream and the load share the other one."
    )
    paragraph = textwrap.fill(f"{text} {verdict} {describe(results)}.", 100)
    return "\n\n".join([BEGIN, "## Figures", paragraph, table(found), END])


def with_section(page: str, text: str) -> str:
    """The page with this section in place of the one before, or at its end."""
    before, found, rest = page.partition(BEGIN)
    after = rest.partition(END)[2] if found else "\n"
    return before.rstrip("\n") + "\n\n" + text + after


def main() -> None:
    options = arguments()
    if options.report:
        results = json.loads(options.report.read_text())
        PAGE.write_text(with_section(PAGE.read_text(), section(results)))
        return
    OUTPUT.mkdir(exist_ok=True)
    with relays(options.engine) as (upstream, servers):
        found: dict[str, list[Sample]] = {name: [] for name in servers}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            for name in list(servers)[:: -1 if number % 2 else 1]:
                found[name].append(sample(upstream, servers[name], options.seconds))
    print(f"{options.engine}, ratios to {BASELINE} in brackets", table(found), sep="\n\n")
    for title in missed(found):
        print(f"past the goal: {title}")
    measured = {"engine": options.engine, "rounds": options.rounds, "seconds": options.seconds}
    results = {"machine": machine.describe(), "options": measured, "samples": found}
    (OUTPUT / "relay.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
