"""Compares the choices of a client of four servers, of which one is ten times slower.

    python -P bench/many_servers.py [--seconds 9] [--callers 6]
    python -P bench/many_servers.py --failures [--seconds 20]
    python -P bench/many_servers.py --cost [--rounds 15]
    python -P bench/many_servers.py --discovery

Each call sleeps for 2 ms at its server, and for 20 ms at the slow one; a server runs one call at a
time. The choices take turns; the figures are the medians of three. The last row is gRPC's own
client with `round_robin`, and its servers.

With --failures no server is slow. First nothing happens to them; then they get SIGTERM one after
another, and are started again; then one is killed every three seconds, and started again. `failed`
counts the calls that raised. The figures are of one run.

With --cost it compares the CPU time of a call with that of a client of one address. All four
addresses are those of one server, since four processes would cost more on the same cores. The order
changes every round; ratios are computed within a round, and their median and quartiles are printed.
The clients are synchronous, and for asyncio.

With --discovery a client finds groups of several sizes by NATS: the seconds that it waits, its CPU
time and that of nats-server. One process answers for all servers. Medians of nine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from ucall import aio
from ucall._client.address import Addresses
from ucall._nats.connection import start
from ucall._nats.group import Group
from ucall.client import Client

#: The host, the port and the seconds of a call are arguments. The kernel frees the port of a killed
#: server with an io_uring only some time later.
UCALL = """
import sys, time, ucall.posix
server = ucall.posix.Server(
    sys.argv[1], int(sys.argv[2]), limits=ucall.Limits(max_connections=1000)
)

@server(idempotent=True)
def work():
    time.sleep(float(sys.argv[3]))

@server
def work_once():
    time.sleep(float(sys.argv[3]))

@server
def sum(a: int, b: int):
    return a + b

server.on_startup(lambda: print(server.port, flush=True))
server.run()
"""

#: gRPC's server; no code is generated, because bytes go as they are. It drains at SIGTERM.
GRPC = """
import signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import grpc

host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

def work(request, context):
    time.sleep(seconds)
    return request

# As the servers of ucall, it runs one call at a time.
server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
handlers = {"work": grpc.unary_unary_rpc_method_handler(work)}
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", handlers)])
port = server.add_insecure_port(f"{host}:{port}")
server.start()
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
print(port, flush=True)
ended.wait()
server.stop(10).wait()
"""
FAST_S, SLOW_S = 0.002, 0.02
_ROUND_ROBIN = {"loadBalancingConfig": [{"round_robin": {}}]}


class RoundRobinClient:
    """gRPC's client, which calls the servers in turn. By default it retries only calls of which it
    knows that they were not sent."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._channel = grpc.insecure_channel(
            f"ipv4:{','.join(addresses)}",
            options=[
                ("grpc.service_config", json.dumps(_ROUND_ROBIN)),
                # Otherwise a server that restarts is left alone for up to two minutes.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._work = self._channel.unary_unary("/bench/work")

    def work(self) -> None:
        """Raises `grpc.RpcError` if it fails."""
        self._work(b"", timeout=60)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> RoundRobinClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


@contextmanager
def serving(host: str, seconds: float, source: str = UCALL) -> Iterator[int]:
    """A server in a process of its own, and its port."""
    command = [sys.executable, "-c", source, host, "0", str(seconds)]
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

    def __iter__(self) -> Locked:
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
            reply = client.work()
            if reply is not None:
                reply.raise_for_status()
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
        peers = [stack.enter_context(serving("127.0.0.1", it, GRPC)) for it in slow]
        peer_uris = [f"127.0.0.1:{port}" for port in peers]
        policies["gRPC's round_robin, one slow"] = (RoundRobinClient, peer_uris)
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


COUNT, KILL_INTERVAL_S = 4, 3.0


class Servers:
    """Four servers, which keep their ports when they are restarted."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._ports = [free_port() for _ in range(COUNT)]
        self.addresses = [f"127.0.0.1:{port}" for port in self._ports]
        self._processes = [self._start(port) for port in self._ports]

    def restart(self, number: int, sent: signal.Signals) -> None:
        """Ends a server and starts it again."""
        self._processes[number].send_signal(sent)
        self._processes[number].communicate()
        self._processes[number] = self._start(self._ports[number])

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _start(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", self._source, "127.0.0.1", str(port), str(FAST_S)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline()
        return process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


def leave(servers: Servers, end: float) -> None:
    time.sleep(max(end - time.perf_counter(), 0))


def restart_in_turn(servers: Servers, end: float) -> None:
    for number in itertools.count():
        if time.perf_counter() > end:
            return
        servers.restart(number % COUNT, signal.SIGTERM)


def kill_in_turn(servers: Servers, end: float) -> None:
    for number in itertools.count():
        if time.perf_counter() + KILL_INTERVAL_S > end:
            return leave(servers, end)
        time.sleep(KILL_INTERVAL_S)
        servers.restart(number % COUNT, signal.SIGKILL)


EVENTS = {"none": leave, "SIGTERM in turn": restart_in_turn, "kill -9 every 3 s": kill_in_turn}


def load_until(
    call: Callable[[], object], callers: int, has_ended: threading.Event
) -> tuple[list[float], list[Exception], list[threading.Thread]]:
    """The milliseconds of the calls that succeed, the errors of the others, and the callers."""
    times: list[float] = []
    failures: list[Exception] = []

    def run() -> None:
        while not has_ended.is_set():
            began = time.perf_counter()
            try:
                call()
            except Exception as error:
                failures.append(error)
            else:
                times.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    return times, failures, threads


def call_once(addresses: list[str]) -> Callable[[], object]:
    client = Client(addresses)
    return lambda: client.work_once().raise_for_status()


def call_idempotent(addresses: list[str]) -> Callable[[], object]:
    client = Client(addresses)
    return lambda: client.work().raise_for_status()


def call_grpc(addresses: list[str]) -> Callable[[], object]:
    return RoundRobinClient(addresses).work


FAILURES = {
    "ucall": (UCALL, call_once),
    "ucall, idempotent": (UCALL, call_idempotent),
    "gRPC's round_robin": (GRPC, call_grpc),
}


def fail(callers: int, seconds: float) -> None:
    print(
        "| client | event | calls | failed | p50 ms | p99 ms | p99 by that without | longest ms |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name, (source, make_call) in FAILURES.items():
        quiet = 0.0
        for event, cause in EVENTS.items():
            servers, has_ended = Servers(source), threading.Event()
            try:
                call = make_call(servers.addresses)
                call()
                times, failures, threads = load_until(call, callers, has_ended)
                cause(servers, time.perf_counter() + seconds)
                has_ended.set()
                for thread in threads:
                    thread.join()
            finally:
                has_ended.set()
                servers.kill()
            cuts = statistics.quantiles(times, n=1000)
            quiet = quiet or cuts[989]
            print(
                f"| {name} | {event} | {len(times):,} | {len(failures)} | {cuts[499]:.1f} "
                f"| {cuts[989]:.1f} | {cuts[989] / quiet:.1f} | {max(times):.0f} |",
                flush=True,
            )


def cpu_us(client: Client, calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        _ = client.sum(a=55, b=21).json
    return (time.process_time() - began) / calls * 1e6


class Awaited:
    """A client for asyncio in a loop of its own."""

    def __init__(self, addresses: str | list[str]) -> None:
        self._client, self._runner = aio.Client(addresses), asyncio.Runner()

    def cpu_us(self, calls: int) -> float:
        async def run() -> None:
            for _ in range(calls):
                _ = (await self._client.sum(a=55, b=21)).json

        began = time.process_time()
        self._runner.run(run())
        return (time.process_time() - began) / calls * 1e6


def cost(rounds: int, calls: int = 3000) -> None:
    print("| client | over | one address, µs | four, µs | ratio |\n|---|---|---:|---:|---:|")
    with serving("0.0.0.0", FAST_S) as port:
        for kind, scheme in itertools.product(("threads", "asyncio"), ("http", "tcp", "ws")):
            make = Client if kind == "threads" else Awaited
            one = make(f"{scheme}://127.0.0.1:{port}")
            four = make([f"{scheme}://127.0.0.{number}:{port}" for number in range(1, 5)])
            found = []
            for number in range(rounds + 1):
                order = [one, four] if number % 2 else [four, one]
                times = {
                    id(it): it.cpu_us(calls) if isinstance(it, Awaited) else cpu_us(it, calls)
                    for it in order
                }
                found.append((times[id(one)], times[id(four)]))
            ratios = [after / before for before, after in found[1:]]
            low, middle, high = statistics.quantiles(ratios, n=4)
            alone, spread = (statistics.median(it) for it in zip(*found[1:], strict=True))
            print(
                f"| {kind} | {scheme} | {alone:.1f} | {spread:.1f} "
                f"| {middle:.2f} [{low:.2f} {high:.2f}] |",
                flush=True,
            )


#: Answers a discovery for as many servers as its second argument says.
ANSWERS = """
import asyncio, json, sys, nats

async def main():
    connection = await nats.connect(sys.argv[1])
    count = int(sys.argv[2])
    answers = [json.dumps({
        "type": "io.nats.micro.v1.ping_response", "name": f"group{count}", "version": "0.0.0",
        "id": f"{number:022d}", "metadata": {
            "title": "app:server", "program_version": "0.0.0",
            "address": f"10.0.{number // 256}.{number % 256}:8545", "transports": "http,ws,tcp",
        },
    }).encode() for number in range(count)]

    async def answer(message):
        for text in answers:
            await connection.publish(message.reply, text)

    await connection.subscribe(f"$SRV.PING.group{count}", cb=answer)
    await connection.flush()
    print(len(answers[0]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def cpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def discover() -> None:
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        sys.exit("nats-server is not installed")
    port = free_port()
    broker = subprocess.Popen(
        [program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.PIPE, text=True
    )
    assert broker.stderr is not None
    while "Server is ready" not in broker.stderr.readline():
        pass
    url = f"127.0.0.1:{port}"
    print("| servers | answer, bytes | wait ms | client's CPU ms | nats-server's CPU ms |")
    print("|---:|---:|---:|---:|---:|")
    try:
        for count in (10, 100, 1000, 4000):
            command = [sys.executable, "-c", ANSWERS, f"nats://{url}", str(count)]
            answers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert answers.stdout is not None
            length = int(answers.stdout.readline())
            group = Group(Addresses(f"nats://{url}/group{count}"), {}, 1000)
            found = []
            for _ in range(10):
                began, own, before = time.perf_counter(), time.process_time(), cpu_s(broker.pid)
                assert len(start(group.discover()).result()) == count
                waited = time.perf_counter() - began
                times = waited, time.process_time() - own, cpu_s(broker.pid) - before
                found.append([it * 1000 for it in times])
            waited, own, before = (statistics.median(it) for it in zip(*found[1:], strict=True))
            print(f"| {count:,} | {length} | {waited:.0f} | {own:.1f} | {before:.1f} |", flush=True)
            group.close()
            answers.kill()
            answers.communicate()
    finally:
        broker.kill()
        broker.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a client of several servers.")
    parser.add_argument("--seconds", type=float, default=9, help="for each row")
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--failures", action="store_true")
    parser.add_argument("--discovery", action="store_true")
    parser.add_argument("--rounds", type=int, default=15, help="with --cost")
    options = parser.parse_args()
    if options.cost:
        cost(options.rounds)
    elif options.discovery:
        discover()
    elif options.failures:
        fail(options.callers, options.seconds)
    else:
        compare(options.callers, options.seconds)


main()
