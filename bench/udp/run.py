"""Compares a call over UDP with raw TCP and with datagram echoes: `python bench/udp/run.py`.

32 clients have one call each under way. The figure is the CPU time of the server for a call, user
and system, which a busy machine changes less than the rate; ratios of rounds that alternate are
steadier still. Clients and server share no core if there are two.
"""

import os
import selectors
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLIENTS = 32
ROUNDS = 2_000
PAIRS = 5
REQUEST = b'{"jsonrpc":"2.0","method":"sum","params":{"a":2,"b":3},"id":%d}'
TICKS = os.sysconf("SC_CLK_TCK")

SUM = """
import sys, ucall.{engine}
server = ucall.{engine}.Server(port=0, udp=True)
def sum(a: int, b: int) -> int:
    return a + b
server.add(sum, idempotent={idempotent})
print(server.port, flush=True)
server.run()
"""
ASYNCIO = """
import asyncio
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport
        print(transport.get_extra_info("sockname")[1], flush=True)
    def datagram_received(self, data, addr):
        self.transport.sendto(data, addr)
async def main():
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    await asyncio.Event().wait()
asyncio.run(main())
"""


def build_echo() -> str:
    output = Path(__file__).parents[2] / ".bench/udp-echo"
    output.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", output, Path(__file__).with_name("echo.c")], check=True)
    return str(output)


@contextmanager
def started(command: list[str]) -> Iterator[tuple[int, int]]:
    """The process and the port of a server that prints its port."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(server.pid, {0})
        assert server.stdout is not None
        yield server.pid, int(server.stdout.readline())
    finally:
        server.terminate()
        server.wait()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def load(port: int, kind: int, first_id: int) -> None:
    """Each client sends a call and waits for the reply, so many times."""
    selector = selectors.DefaultSelector()
    sent: dict[int, int] = {}
    for number in range(CLIENTS):
        client = socket.socket(socket.AF_INET, kind)
        client.connect(("127.0.0.1", port))
        selector.register(client, selectors.EVENT_READ)
        client.send(REQUEST % (first_id + number * ROUNDS))
        sent[client.fileno()] = first_id + number * ROUNDS
    end = {fd: first + ROUNDS for fd, first in sent.items()}
    while sent:
        for key, _ in selector.select(30):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            client.recv(2048)
            sent[key.fd] += 1
            if sent[key.fd] == end[key.fd]:
                selector.unregister(client)
                del sent[key.fd]
                client.close()
            else:
                client.send(REQUEST % sent[key.fd])


def micros_a_call(pid: int, port: int, kind: int, first_id: int) -> float:
    before = cpu_seconds(pid)
    load(port, kind, first_id)
    return (cpu_seconds(pid) - before) / (CLIENTS * ROUNDS) * 1e6


def main() -> None:
    def python(source: str) -> list[str]:
        return [sys.executable, "-c", source]

    udp, tcp = socket.SOCK_DGRAM, socket.SOCK_STREAM
    commands: dict[str, tuple[list[str], int]] = {
        "C, recvmmsg echo": ([build_echo()], udp),
        "asyncio, datagram echo": (python(ASYNCIO), udp),
    }
    for engine in ("posix", "uring"):
        once, again = (SUM.format(engine=engine, idempotent=it) for it in (False, True))
        commands[f"{engine}, sum over raw TCP"] = (python(once), tcp)
        commands[f"{engine}, sum over UDP"] = (python(once), udp)
        commands[f"{engine}, sum over UDP, idempotent"] = (python(again), udp)
    figures = {name: [] for name in commands}
    for pair in range(PAIRS):
        for name, (command, kind) in commands.items():
            with started(command) as (pid, port):
                load(port, kind, 1)
                figures[name].append(micros_a_call(pid, port, kind, 1_000_000 + pair))
    floor = statistics.median(figures["C, recvmmsg echo"])
    for name, values in figures.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name:36} {median:6.2f} µs of CPU a call ({spread}), {median / floor:.2f} of C")


if __name__ == "__main__":
    os.sched_setaffinity(0, {os.cpu_count() - 1} if (os.cpu_count() or 1) > 1 else {0})
    main()
