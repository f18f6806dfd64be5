"""Soaks a server on each engine, over plain TCP and TLS at the same time.

    python -m soak --minutes 10 [--engine posix] [--json FILE] [--svg FILE]

Fails if memory or descriptors grow, if the server has ended, or if a well-behaved client got
anything but its replies.
"""

from __future__ import annotations

import argparse
import json
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trustme

from soak import samples, traffic

FAULTS_MAX = 10


class Served:
    """A server in a process of its own."""

    def __init__(self, stack: ExitStack, name: str, engine: str, files: list[str]) -> None:
        command = [sys.executable, "-m", "soak.served", engine, *files]
        pipe = subprocess.PIPE
        self.name = name
        self.process = stack.enter_context(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        )
        stack.callback(self.process.kill)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.samples: list[samples.Sample] = []

    def sample(self, at_s: float) -> samples.Sample:
        return samples.sample(self.process.pid, at_s)

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=60)


def soak(engines: list[str], seconds: float) -> tuple[dict[str, Any], list[str]]:
    """A report, and its errors."""
    with ExitStack() as stack:
        certificate, trusting = _certificate(stack)
        servers = [Served(stack, engine, engine, []) for engine in engines]
        servers += [Served(stack, f"{it}, TLS", it, certificate) for it in engines]
        targets = [
            traffic.Target(it.port, trusting if it.name.endswith("TLS") else None) for it in servers
        ]
        before = [_settled(server, target) for server, target in zip(servers, targets, strict=True)]
        threads = [thread for target in targets for thread in traffic.start(target)]
        _watch(servers, targets, seconds)
        for target in targets:
            target.stop.set()
        for thread in threads:
            thread.join(timeout=traffic.PATIENCE_S)
        for target in targets:
            _await_idle(target)
        after = [_settled(server, target) for server, target in zip(servers, targets, strict=True)]
        report: dict[str, Any] = {"seconds": seconds, "servers": {}}
        found = []
        for server, target, was, now in zip(servers, targets, before, after, strict=True):
            bad = samples.complaints(server.samples, was, now, traffic.connections(target))
            bad += target.faults[:FAULTS_MAX]
            code = server.stop()
            bad += [f"ended with {code}"] if code else []
            found += [f"{server.name}: {it}" for it in bad]
            report["servers"][server.name] = {
                "before": asdict(was),
                "after": asdict(now),
                "done": dict(target.done),
                "faults": len(target.faults),
                "samples": [asdict(it) for it in server.samples],
            }
    return report, found


def _certificate(stack: ExitStack) -> tuple[list[str], ssl.SSLContext]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    files = [folder / "certificate.pem", folder / "key.pem"]
    issued.cert_chain_pems[0].write_to_path(files[0])
    issued.private_key_pem.write_to_path(files[1])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return [str(it) for it in files], context


def _settled(server: Served, target: traffic.Target) -> samples.Sample:
    """The server's figures without clients, after one call of each kind."""
    traffic.batches(target)
    time.sleep(0.2)
    return server.sample(0)


def _await_idle(target: traffic.Target) -> None:
    """Waits until the last, idle connections have reached their time limit."""
    give_up_at = time.monotonic() + traffic.PATIENCE_S
    while traffic.connections(target) > 1 and time.monotonic() < give_up_at:
        time.sleep(0.5)


def _watch(servers: list[Served], targets: list[traffic.Target], seconds: float) -> None:
    began = time.monotonic()
    interval_s = min(1.0, seconds / 40)
    next_line_s = 0.0
    while (at_s := time.monotonic() - began) < seconds:
        for server in servers:
            server.samples.append(server.sample(at_s))
        if at_s >= next_line_s:
            next_line_s += 30
            shown = (
                f"{it.name}: {it.samples[-1].rss_mib:.0f} MiB, {it.samples[-1].descriptors} fds, "
                f"{target.done['calls checked']} calls"
                for it, target in zip(servers, targets, strict=True)
            )
            print(f"{at_s:6.0f} s  {'; '.join(shown)}", flush=True)
        time.sleep(interval_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--engine", action="append", choices=["posix", "uring"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    report, found = soak(options.engine or ["posix", "uring"], 60 * options.minutes)
    if options.json:
        options.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    if options.svg:
        runs = {
            name: [samples.Sample(**it) for it in server["samples"]]
            for name, server in report["servers"].items()
        }
        from soak.chart import chart

        options.svg.write_text(chart(runs), encoding="utf-8")
    for name, server in report["servers"].items():
        was, now = server["before"], server["after"]
        print(
            f"{name}: {was['rss_mib']} MiB and {was['descriptors']} descriptors before, "
            f"{now['rss_mib']} and {now['descriptors']} after; "
            f"{server['done']['calls checked']} calls checked"
        )
    if found:
        sys.exit("\n".join(found))
    print("flat")


if __name__ == "__main__":
    main()
