"""Runs a section of the benchmark: `python -m bench SECTION [options]`.

A section is a module of `bench.sections` with `run(options)`. It may have `ROUNDS` and `SECONDS`,
the defaults of `--rounds` and `--seconds`, `PARTS`, of which `--only` chooses some, and further
`OPTIONS`. If it has a `PAGE`, `run` returns results, which are written to `.bench`, or with
`--write` to bench/results and by `report(results)` to the page; `--report` writes the page again,
and measures nothing.
"""

import argparse
import importlib
import json
import resource
import signal
import sys
from types import ModuleType

from bench import OUTPUT
from bench.harness import figures

SECTIONS = {
    "client": "the client and a bare socket, both calling the floor",
    "compare": "the targets of two runs side by side",
    "echo": "an echo of 1 MiB of bytes and of as many in C",
    "gate": "instructions and system calls of a call, which may not rise",
    "idle": "the memory of idle connections, in C",
    "many_servers": "clients of several servers, and gRPC's round_robin",
    "mcp": "a tool of MCP, FastMCP, the official SDK and a plain call",
    "nats": "calls through NATS, nats-py's micro service and a Go echo",
    "queue": "queues, net-queue, pyzmq, nats-py and a pair in C",
    "quick": "ucall and the floor, in minutes",
    "relay": "relayed calls, HAProxy and nginx",
    "report": "the pages of the newest whole runs",
    "shapes": "the requests that real clients send, recorded",
    "sleepers": "concurrency, a C program and FastAPI",
    "slow_peers": "calls beside thousands of slow connections",
    "store": "the key-value store and Redis",
    "streams": "streams, FastAPI, Granian and Litestar; publishing and C",
    "threads": "two threads of the C library and one",
    "tls": "TLS and plain TCP",
    "udp": "UDP, raw TCP, echoes, memcached and Knot DNS",
    "whole": "ucall, the floor and other projects' servers",
    "xdp": "AF_XDP and a socket, between two network namespaces",
}


def words(text: str) -> list[str]:
    return text.split(",")


def options_of(name: str, section: ModuleType, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=section.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if hasattr(section, "ROUNDS"):
        parser.add_argument("--rounds", type=int, default=section.ROUNDS)
    if hasattr(section, "SECONDS"):
        parser.add_argument("--seconds", type=float, default=section.SECONDS, help="of each load")
    if getattr(section, "HAS_ENGINES", False):
        parser.add_argument("--engines", type=words, default=["posix", "uring"])
    if hasattr(section, "PARTS"):
        parser.add_argument("--only", type=words, default=list(section.PARTS))
    if hasattr(section, "PAGE"):
        parser.add_argument("--write", action="store_true", help=f"write {section.PAGE.name}")
        parser.add_argument("--report", action="store_true", help="write it again")
    for flag, how in getattr(section, "OPTIONS", {}).items():
        parser.add_argument(flag, **how)
    options = parser.parse_args(arguments)
    if hasattr(section, "PARTS") and (unknown := set(options.only) - set(section.PARTS)):
        parser.error(f"{', '.join(unknown)}: not among {', '.join(section.PARTS)}")
    return options


def run(name: str, section: ModuleType, options: argparse.Namespace) -> None:
    if not hasattr(section, "PAGE"):
        section.run(options)
        return
    stored = figures.latest(name)
    results = json.loads(stored.read_text()) if options.report else section.run(options)
    if not options.report:
        figures.write(stored if options.write else figures.part(name), results)
    if options.report or options.write:
        target = getattr(section, "TARGET", f"bench-{name}")
        figures.write_section(section.PAGE, target, section.report(results))


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in SECTIONS:
        listed = "\n".join(f"  {name:14}{what}" for name, what in SECTIONS.items())
        print(f"python -m bench SECTION [options]; SECTION --help describes one.\n\n{listed}")
        sys.exit(name not in ("--help", "-h"))
    section = importlib.import_module(f"bench.sections.{name}")
    options = options_of(name, section, arguments)
    # An exception, so that servers and loads are ended before exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    # Servers and loads inherit it, for thousands of connections.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    OUTPUT.mkdir(exist_ok=True)
    run(name, section, options)


if __name__ == "__main__":
    main()
