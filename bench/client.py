"""Compares the client with a loop of `sendall` and `recv` on the same server, in turns.

    python bench/client.py [--rounds 15] [--calls 5000]

Both call the floor (`make floor`), which sends the same reply to every request. The target is a
ratio of at most 1.5. Client and server have a core each. The order changes every round; ratios are
computed within a round, and their median and quartiles are printed.
"""

import argparse
import socket
import statistics
import sys
import time
from collections.abc import Callable

from harness import processes
from harness.rows import OUTPUT
from ucall.client import Client

RESULT = 76
Calls = Callable[[int], None]


def bare(port: int) -> Calls:
    """The cheapest call in Python: a prepared request, and a reply that is not parsed."""
    body = b'{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def calls(count: int) -> None:
        for _ in range(count):
            connection.sendall(request)
            connection.recv(65536)

    return calls


def method(port: int) -> Calls:
    """`client.sum(a=55, b=21)` with the id of the floor's reply; reads the result."""
    client = Client(port=port).with_options(id=1)

    def calls(count: int) -> None:
        for _ in range(count):
            assert client.sum(a=55, b=21).json == RESULT

    return calls


def whole(port: int) -> Calls:
    """`client({...})`: the same call as a request object."""
    client = Client(port=port)
    request = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}

    def calls(count: int) -> None:
        for _ in range(count):
            assert client(request).json == RESULT

    return calls


CONTENDERS = {"bare socket": bare, "client.sum()": method, "client({...})": whole}


def microseconds(calls: Calls, count: int) -> float:
    """Microseconds of one call."""
    start = time.perf_counter()
    calls(count)
    return (time.perf_counter() - start) / count * 1e6


def measure(port: int, rounds: int, count: int) -> dict[str, list[float]]:
    """The figure of each contender in each round."""
    ready = {name: make(port) for name, make in CONTENDERS.items()}
    for calls in ready.values():
        calls(count // 5)
    found: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(rounds):
        order = list(ready) if number % 2 == 0 else list(reversed(ready))
        for name in order:
            found[name].append(microseconds(ready[name], count))
    return found


def report(found: dict[str, list[float]]) -> None:
    base = found["bare socket"]
    print("| calls by | µs a call | ratio to a bare socket |\n|---|---|---|")
    for name, figures in found.items():
        ratios = [figure / other for figure, other in zip(figures, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        spread = "" if name == "bare socket" else f"{middle:.2f} [{low:.2f} {high:.2f}]"
        print(f"| {name} | {statistics.median(figures):.1f} | {spread} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the client against a bare socket.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=5000, help="of each contender a round")
    options = parser.parse_args()
    floor = OUTPUT / "floor-epoll"
    if not floor.exists():
        sys.exit("the floor is missing: make floor builds it")
    server_core, client_core = processes.cores()
    processes.pin_to(client_core)
    with processes.serving([str(floor), "--port", "0"], OUTPUT / "client.log", server_core) as it:
        report(measure(it.port, options.rounds, options.calls))


main()
