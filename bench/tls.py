"""Compares TLS with plain TCP on the same engine, in interleaved pairs: `make bench-tls`.

    python bench/tls.py [--engines posix,uring] [--pairs N] [--seconds S]

The load is bench-quick's headline: 32 connections, one `sum` a request. Each pair is a plain run
and an encrypted one, every second pair in reverse order. Compare CPU time a call: wrk encrypts too,
on its own core, and is slower than the server. Prints a table for each engine, and writes the
samples to `.bench/tls.json`.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import certificate, load, processes, report, usage
from harness.rows import OUTPUT, ROWS, sum_server

ROW = ROWS["headline"]
METRICS = ("cpu_us_per_call", "calls_per_second", "p50_us", "p99_us")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares TLS with plain TCP.")
    parser.add_argument("--engines", default="posix,uring", help="with a comma between them")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2, help="of each load (2)")
    return parser.parse_args()


@contextlib.contextmanager
def warm(command: Sequence[str], name: str, scheme: str) -> Iterator[processes.Server]:
    """Runs a server that has passed a second of load with every reply checked."""
    core, _ = processes.cores()
    expected = OUTPUT / "expected-tls"
    expected.write_text('{"jsonrpc":"2.0","id":1,"result":76}')
    with processes.serving(command, OUTPUT / f"{name}.log", core) as server:
        result = load.wrk(ROW, server.port, 1, expected, scheme)
        load.check_errors(result)
        if result["checked"] == 0 or result["wrong"] > 0:
            raise load.LoadError(f"{name}: {result['wrong']} replies were wrong")
        yield server


def sample(server: processes.Server, scheme: str, seconds: int) -> load.Sample:
    before = usage.cpu_nanoseconds(server.pid)
    result = load.wrk(ROW, server.port, seconds, None, scheme)
    cpu = usage.cpu_nanoseconds(server.pid) - before
    load.check_errors(result)
    return load.sample(result, ROW, cpu, usage.memory(server.pid))


def pairs_of(engine: str, options: argparse.Namespace) -> dict[str, list[load.Sample]]:
    plain = [*sum_server(), "--engine", engine, "--port", "0"]
    found: dict[str, list[load.Sample]] = {"http": [], "https": []}
    certificate.issue()
    with (
        warm(plain, f"plain-{engine}", "http") as unencrypted,
        warm(
            [*plain, "--ssl-certfile", str(certificate.CHAIN)], f"tls-{engine}", "https"
        ) as encrypted,
    ):
        both = [("http", unencrypted), ("https", encrypted)]
        for number in range(options.pairs):
            print(f"{engine}: pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
            for scheme, server in both if number % 2 == 0 else reversed(both):
                found[scheme].append(sample(server, scheme, options.seconds))
    return found


def table(engine: str, found: dict[str, list[load.Sample]]) -> str:
    lines = [f"{engine}, {ROW.label}", "", "| | plain | TLS | TLS / plain |", "|---|---|---|---|"]
    for metric in report.METRICS:
        if metric.field not in METRICS:
            continue
        plain, encrypted = (metric.values(found[scheme]) for scheme in ("http", "https"))
        ratios = [ours / theirs for theirs, ours in zip(plain, encrypted, strict=True)]
        cells = [report.spread(plain), report.spread(encrypted)]
        texts = [cell.text(metric.format) for cell in cells if cell]
        ratio = report.spread(ratios)
        texts.append(ratio.text(report.RATIO) if ratio else "")
        lines.append(f"| {metric.label} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    options = arguments()
    OUTPUT.mkdir(exist_ok=True)
    samples = {}
    for engine in options.engines.split(","):
        found = pairs_of(engine, options)
        print(table(engine, found), end="\n\n", flush=True)
        samples[engine] = {
            scheme: [dataclasses.asdict(one) for one in series] for scheme, series in found.items()
        }
    Path(OUTPUT / "tls.json").write_text(json.dumps(samples, indent=1))


main()
