"""Compares the client with a loop of `sendall` and `recv`, in turns.

Both call the floor, which sends the same reply to every request. The target is a ratio of at most
1.5. Client and server have a core each.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

from bench.harness import figures, processes, request
from bench.harness.figures import Column, spread
from bench.suite.calibration import floor_of_http
from ucall.client import Client

ROUNDS = 15
OPTIONS = {"--calls": {"type": int, "default": 5000, "help": "of each contender a round"}}
BARE = "bare socket"
COLUMNS = [
    Column("µs a call", "us", "{:.1f}"),
    Column(f"ratio to a {BARE}", "us", base=BARE, kind=spread),
]


def bare(port: int) -> Callable[[], None]:
    """The cheapest call in Python: a prepared request, and a reply that is not parsed."""
    sent = request.http_request(0)
    connection = request.connect(port)

    def call() -> None:
        connection.sendall(sent)
        connection.recv(65536)

    return call


def method(port: int) -> Callable[[], None]:
    """With the id of the floor's reply."""
    client = Client(port=port).with_options(id=1)

    def call() -> None:
        assert client.sum(a=55, b=21).json == request.EXPECTED_RESULT

    return call


def whole(port: int) -> Callable[[], None]:
    """The same call as a request object."""
    client = Client(port=port)
    sent = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}

    def call() -> None:
        assert client(sent).json == request.EXPECTED_RESULT

    return call


def measure(call: Callable[[], None], count: int) -> figures.Sample:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return {"us": (time.perf_counter() - start) / count * 1e6}


def run(options: argparse.Namespace) -> None:
    processes.pin_to(processes.cores()[1])
    with floor_of_http("client") as server:
        calls = {BARE: bare, "client.sum()": method, "client({...})": whole}
        ready = {name: make(server.port) for name, make in calls.items()}
        for call in ready.values():
            measure(call, options.calls // 5)
        turns = {name: partial(measure, call, options.calls) for name, call in ready.items()}
        print(figures.table_of(figures.in_turns(turns, options.rounds), COLUMNS, "calls by"))
