"""Compares the choices of a client of four servers, of which one is ten times slower.

    python -P bench/many_servers.py [--seconds 9] [--callers 6]
    python -P bench/many_servers.py --cost [--rounds 15]

Each call sleeps for 2 ms at its server, and for 20 ms at the slow one; a server runs one call at a
time. The choices take turns; the figures are the medians of three.

With --cost it compares the CPU time of a call with that of a client of one address. All four
addresses are those of one server, since four processes would cost more on the same cores. The order
changes every round; ratios are computed within a round, and their median and quartiles are printed.
"""

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ucall.client import Client

SLOW = """
import sys, time, ucall
server = ucall.Server(sys.argv[1], 0, max_connections=1000)

@server(idempotent=True)
def work():
    time.sleep(float(sys.argv[2]))

@server
def sum(a: int, b: int):
    return a + b

print(server.port, flush=True)
server.run()
"""
FAST_S, SLOW_S = 0.002, 0.02


@contextmanager
def serving(host: str, seconds: float) -> Iterator[int]:
    """A server in a process of its own, and its port."""
    command = [sys.executable, "-c", SLOW, host, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def choose_by(choose: Callable[[list], object]) -> Callable[[list[str]], Client]:
    """Makes clients whose pairs of servers have two times the same one, so that it is chosen."""

    def make(addresses: list[str]) -> Client:
        client = Client(addresses)
        balancer = client._pool._balancer
        members = list(balancer.members)
        balancer.pairs = ((it, it) for it in iter(lambda: choose(members), None))
        balancer._sort = lambda: None
        return client

    return make


class RoundRobin:
    def __init__(self) -> None:
        self._next = itertools.count()

    def __call__(self, members: list) -> object:
        return members[next(self._next) % len(members)]


class Locked:
    """Generators serve one thread at a time."""

    def __init__(self, pairs: Iterator) -> None:
        self._pairs, self._lock = pairs, threading.Lock()

    def __iter__(self) -> "Locked":
        return self

    def __next__(self) -> object:
        with self._lock:
            return next(self._pairs)


def locked(make: Callable[[list[str]], Client]) -> Callable[[list[str]], Client]:
    def made(addresses: list[str]) -> Client:
        client = make(addresses)
        client._pool._balancer.pairs = Locked(client._pool._balancer.pairs)
        return client

    return made


POLICIES: dict[str, Callable[[list[str]], Client]] = {
    "random": locked(choose_by(random.choice)),
    "round robin": locked(choose_by(RoundRobin())),
    "two choices": Client,
    "two choices, hedged": lambda addresses: Client(addresses, hedge=True),
}


def load(client: Client, callers: int, seconds: float) -> list[float]:
    """The milliseconds of each call of several threads, after the first second."""
    times: list[float] = []
    end = time.perf_counter() + seconds + 1

    def run() -> None:
        while (began := time.perf_counter()) < end:
            client.work().raise_for_status()
            if began > end - seconds:
                times.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def compare(callers: int, seconds: float) -> None:
    found: dict[str, list[tuple[float, ...]]] = {}
    with ExitStack() as stack:
        slow = [FAST_S] * 3 + [SLOW_S]
        ports = [stack.enter_context(serving("127.0.0.1", it)) for it in slow]
        even = stack.enter_context(serving("127.0.0.1", FAST_S))
        uris = [f"127.0.0.1:{port}" for port in ports]
        policies = {f"{name}, one slow": (make, uris) for name, make in POLICIES.items()}
        policies["two choices, none slow"] = (Client, [*uris[:3], f"127.0.0.1:{even}"])
        for _ in range(3):
            for name, (make, addresses) in policies.items():
                with make(addresses) as client:
                    times = load(client, callers, seconds / 3)
                cuts = statistics.quantiles(times, n=1000)
                figures = (len(times) * 3 / seconds, cuts[499], cuts[949], cuts[989])
                found.setdefault(name, []).append(figures)
    print("| choice | calls/s | p50 ms | p95 ms | p99 ms |\n|---|---:|---:|---:|---:|")
    for name, rounds in found.items():
        rate, *times = (statistics.median(it) for it in zip(*rounds, strict=True))
        print(f"| {name} | {rate:,.0f} | " + " | ".join(f"{it:.1f}" for it in times) + " |")


def cpu_us(client: Client, calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        _ = client.sum(a=55, b=21).json
    return (time.process_time() - began) / calls * 1e6


def cost(rounds: int, calls: int = 3000) -> None:
    print("| over | one address, µs | four, µs | ratio |\n|---|---:|---:|---:|")
    with serving("0.0.0.0", FAST_S) as port:
        for scheme in ("http", "tcp", "ws"):
            one = Client(f"{scheme}://127.0.0.1:{port}")
            four = Client([f"{scheme}://127.0.0.{number}:{port}" for number in range(1, 5)])
            found = []
            for number in range(rounds + 1):
                order = [one, four] if number % 2 else [four, one]
                times = {id(client): cpu_us(client, calls) for client in order}
                found.append((times[id(one)], times[id(four)]))
            ratios = [after / before for before, after in found[1:]]
            low, middle, high = statistics.quantiles(ratios, n=4)
            alone, spread = (statistics.median(it) for it in zip(*found[1:], strict=True))
            print(
                f"| {scheme} | {alone:.1f} | {spread:.1f} | {middle:.2f} [{low:.2f} {high:.2f}] |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a client of several servers.")
    parser.add_argument("--seconds", type=float, default=9, help="for each choice")
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--rounds", type=int, default=15, help="with --cost")
    options = parser.parse_args()
    if options.cost:
        cost(options.rounds)
    else:
        compare(options.callers, options.seconds)


main()
