"""Compares the choices of a client of four servers, of which one is ten times slower.

`choices`: each call sleeps for 2 ms at its server, and for 20 ms at the slow one; a server runs one
call at a time. The figures are the medians of three rounds. The last row is gRPC's own client with
`round_robin`, and its servers.

`failures`: no server is slow. First nothing happens to them; then they get SIGTERM one after
another, and are started again; then one is killed every three seconds, and started again. `failed`
counts the calls that raised. The figures are of one run.

`cost` compares the CPU time of a call with that of a client of one address. All four
addresses are those of one server, since four processes would cost more on the same cores. The order
changes every round; ratios are computed within a round, and their median and quartiles are printed.
The clients are synchronous, and for asyncio.

`discovery`: a client finds groups of several sizes by NATS: the seconds that it waits, its CPU
time and that of nats-server. One process answers for all servers. Medians of nine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import grpc

from bench.harness import figures, processes, usage
from bench.harness.figures import Column, Sample, spread
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


@contextmanager
def serving(host: str, seconds: float, source: str = UCALL) -> Iterator[int]:
    """A server in a process of its own, and its port."""
    command = [sys.executable, "-c", source, host, "0", str(seconds)]
    with processes.running(command, stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())


def choose_by(choice: Callable[[list], Callable[[], object]]) -> Callable[[list[str]], Client]:
    """Makes clients whose pairs of servers are two times the same one, so that it is chosen."""

    def make(addresses: list[str]) -> Client:
        client = Client(addresses)
        balancer = client._pool._balancer
        choose = choice(list(balancer.members))
        # Unlike a generator it serves several threads.
        balancer.pairs = iter(lambda: (choose(),) * 2, None)
        balancer._sort = lambda: None
        return client

    return make


POLICIES: dict[str, Callable[[list[str]], Client]] = {
    "random": choose_by(lambda members: partial(random.choice, members)),
    "round robin": choose_by(lambda members: itertools.cycle(members).__next__),
    "two choices": Client,
    "two choices, hedged": lambda addresses: Client(addresses, hedge=True),
}


class Callers:
    """Threads that call again and again."""

    def __init__(self, call: Callable[[], object], count: int, warm_up_s: float = 0) -> None:
        #: The milliseconds of the calls that succeed after the first ones, and others' errors.
        self.times: list[float] = []
        self.failures: list[Exception] = []
        self._call, self._counts_from = call, time.perf_counter() + warm_up_s
        self._has_ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._has_ended.is_set():
            began = time.perf_counter()
            try:
                reply = self._call()
                if reply is not None:
                    reply.raise_for_status()
            except Exception as error:
                self.failures.append(error)
            else:
                if began > self._counts_from:
                    self.times.append((time.perf_counter() - began) * 1000)

    def end(self) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join()


def measure(
    make: Callable[[list[str]], Client | RoundRobinClient],
    addresses: list[str],
    callers: int,
    seconds: float,
) -> Sample:
    with closing(make(addresses)) as client:
        running = Callers(lambda: client.work(), callers, warm_up_s=1)
        time.sleep(1 + seconds)
        running.end()
    if running.failures:
        raise running.failures[0]
    cuts = statistics.quantiles(running.times, n=1000)
    rate = len(running.times) / seconds
    return {"rate": rate, "p50": cuts[499], "p95": cuts[949], "p99": cuts[989]}


def choices(options: argparse.Namespace) -> None:
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
        turns = {
            name: partial(measure, make, addresses, options.callers, options.seconds / 3)
            for name, (make, addresses) in policies.items()
        }
        runs = figures.in_turns(turns, 3)
    columns = [Column("calls/s", "rate", "{:,.0f}")]
    columns += [Column(f"{name} ms", name, "{:.1f}") for name in ("p50", "p95", "p99")]
    print(figures.table_of(runs, columns, "choice"))


COUNT, KILL_INTERVAL_S = 4, 3.0


class Servers:
    """Four servers, which keep their ports when they are restarted."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._ports = [processes.free_port() for _ in range(COUNT)]
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


def calling(method: str) -> Callable[[list[str]], Callable[[], object]]:
    def make(addresses: list[str]) -> Callable[[], object]:
        client = Client(addresses)
        return lambda: getattr(client, method)()

    return make


FAILURES = {
    "ucall": (UCALL, calling("work_once")),
    "ucall, idempotent": (UCALL, calling("work")),
    "gRPC's round_robin": (GRPC, lambda addresses: RoundRobinClient(addresses).work),
}


def failures(options: argparse.Namespace) -> None:
    rows = []
    for name, (source, make_call) in FAILURES.items():
        quiet = 0.0
        for event, cause in EVENTS.items():
            figures.log(f"{name}: {event}")
            servers = Servers(source)
            try:
                call = make_call(servers.addresses)
                call()
                callers = Callers(call, options.callers)
                try:
                    cause(servers, time.perf_counter() + options.seconds)
                finally:
                    callers.end()
            finally:
                servers.kill()
            times, failed = callers.times, len(callers.failures)
            cuts = statistics.quantiles(times, n=1000)
            quiet = quiet or cuts[989]
            cells = [f"{len(times):,}", f"{failed}", f"{cuts[499]:.1f}", f"{cuts[989]:.1f}"]
            rows.append(
                [f"{name}, {event}", *cells, f"{cuts[989] / quiet:.1f}", f"{max(times):.0f}"]
            )
    header = ["client, event", "calls", "failed", "p50 ms", "p99 ms", "p99 by that without"]
    print(figures.table([*header, "longest ms"], rows))


def in_threads(addresses: str | list[str]) -> Callable[[int], None]:
    client = Client(addresses)

    def run(calls: int) -> None:
        for _ in range(calls):
            _ = client.sum(a=55, b=21).json

    return run


def in_asyncio(addresses: str | list[str]) -> Callable[[int], None]:
    """In a loop of its own."""
    client, runner = aio.Client(addresses), asyncio.Runner()

    async def run(calls: int) -> None:
        for _ in range(calls):
            _ = (await client.sum(a=55, b=21)).json

    return lambda calls: runner.run(run(calls))


def cpu_us(run: Callable[[int], None], calls: int = 3000) -> Sample:
    began = time.process_time()
    run(calls)
    return {"us": (time.process_time() - began) / calls * 1e6}


def cost(options: argparse.Namespace) -> None:
    columns = [
        Column("CPU µs/call", "us", "{:.1f}"),
        Column("ratio", "us", base="one", kind=spread),
    ]
    kinds = {"threads": in_threads, "asyncio": in_asyncio}
    with serving("0.0.0.0", FAST_S) as port:
        for (kind, make), scheme in itertools.product(kinds.items(), ("http", "tcp", "ws")):
            one = make(f"{scheme}://127.0.0.1:{port}")
            four = make([f"{scheme}://127.0.0.{number}:{port}" for number in range(1, 5)])
            turns = {"one": partial(cpu_us, one), "four": partial(cpu_us, four)}
            for warm_up in turns.values():
                warm_up()
            runs = figures.in_turns(turns, options.rounds, f"{kind}, {scheme}")
            print(figures.table_of(runs, columns, f"{kind}, {scheme}: addresses"), flush=True)


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


def discover(group: Group, count: int, broker: int) -> Sample:
    began, own, before = time.perf_counter(), time.process_time(), usage.cpu_nanoseconds(broker)
    assert len(start(group.discover()).result()) == count
    waited, own = time.perf_counter() - began, time.process_time() - own
    return {
        "wait": waited * 1e3,
        "own": own * 1e3,
        "broker": (usage.cpu_nanoseconds(broker) - before) / 1e6,
    }


def discovery(options: argparse.Namespace) -> None:
    runs: figures.Runs = {}
    with processes.nats_server() as broker:
        url = f"nats://127.0.0.1:{broker.port}"
        for count in (10, 100, 1000, 4000):
            command = [sys.executable, "-c", ANSWERS, url, str(count)]
            with processes.running(command, stdout=subprocess.PIPE, text=True) as answers:
                length = int(answers.stdout.readline())
                group = Group(Addresses(f"{url}/group{count}"), {}, 1000)
                discover(group, count, broker.pid)
                found = [discover(group, count, broker.pid) for _ in range(9)]
                runs[f"{count:,} servers, {length} bytes each"] = found
                group.close()
    columns = [Column("wait ms", "wait", "{:.0f}"), Column("client's CPU ms", "own", "{:.1f}")]
    print(figures.table_of(runs, [*columns, Column("nats-server's CPU ms", "broker", "{:.1f}")]))


ROUNDS, SECONDS = 15, 9
OPTIONS = {"--callers": {"type": int, "default": 6}}
PARTS = {it.__name__: it for it in (choices, failures, cost, discovery)}


def run(options: argparse.Namespace) -> None:
    for name in options.only:
        PARTS[name](options)
