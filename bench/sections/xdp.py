"""Compares a server over AF_XDP with one over a socket.

Two network namespaces are joined by veth, which the benchmark makes and removes, so it needs root.
Our server calls `sum` in C, on the engine posix, without dedupe. The threads that receive for each
side (threaded NAPI) have the core of that side, so all work for the server is on the server's core:
receiving, the server, and sending up to the other side's queue. Its CPU time is that of the
server's threads, of its receiving thread and of ksoftirqd, in nanoseconds from schedstat; the time
that the core was busy at all, in ticks from /proc/stat, is printed beside it.

Each round measures each server once, every second round in reverse order. Prints medians and
quartiles, and those of the ratios within a round. Generic mode needs a driver that runs no program:
veth runs none with an MTU of 9,000, so it has a network of its own, and a socket there beside it.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import socket
import statistics
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import networks

from bench import OUTPUT
from bench.harness import figures, processes, usage
from bench.harness.figures import Column, Sample, spread

ROUNDS, SECONDS = 9, 1
ADDRESS = "192.0.2.2"
WARM_UP_SECONDS = 0.2
#: Of the calls a second that the socket's server answers with 256 in flight.
LOAD = 0.7
SIOCETHTOOL, ETHTOOL_SGRO, ETHTOOL_STSO = 0x8946, 0x2C, 0x1F
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Contender:
    """A server, and the network that it is in."""

    name: str
    command: tuple[str, ...]
    mtu: int = 1500
    #: The figures that the ratios are to.
    base: str = "socket"


OURS = (str(OUTPUT / "c-server"), "--engine", "posix", "--udp", ADDRESS)
ECHO = Contender("recvmmsg echo in C", (str(OUTPUT / "floor-udp_echo"), ADDRESS))
SOCKET = Contender("socket", OURS)
NATIVE = Contender("native", (*OURS, "--xdp", "xdp"))
POLLING = Contender("native, busy polling", (*OURS, "--xdp", "poll"))
LARGE = Contender("socket, MTU 9,000", OURS, 9000, "socket, MTU 9,000")
GENERIC = Contender("generic, MTU 9,000", (*OURS, "--xdp", "xdp"), 9000, "socket, MTU 9,000")
CONTENDERS = [ECHO, SOCKET, NATIVE, LARGE, GENERIC]
#: The most that the CPU time of native mode may be, of that of the socket, by calls in flight.
GOALS = {32: 0.5, 256: 0.4}


class Side:
    """A namespace, and the thread of the kernel that receives for it."""

    def __init__(self, namespace: str, core: int) -> None:
        before = set(napi_threads())
        in_namespace(namespace, receive_by_napi)
        threaded = "echo 1 > /sys/class/net/eth0/threaded"
        output_of(["ip", "netns", "exec", namespace, "sh", "-c", threaded])
        self.namespace, self.core = namespace, core
        self.threads = [pid for pid in napi_threads() if pid not in before]
        assert self.threads, "the kernel has no threaded NAPI for veth"
        for pid in self.threads:
            os.sched_setaffinity(pid, {core})


class Network:
    def __init__(self, made: networks.Network) -> None:
        server_core, client_core = processes.cores()
        self.server, self.client = Side(made.server, server_core), Side(made.client, client_core)


def output_of(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def in_namespace(name: str, work) -> None:
    """Does it in a child, whose namespace nobody else needs."""
    pid = os.fork()
    if pid == 0:
        with open(f"/run/netns/{name}") as namespace:
            status = ctypes.CDLL(None).setns(namespace.fileno(), 0)
        os._exit(status or work() or 0)
    assert os.waitpid(pid, 0)[1] == 0


def receive_by_napi() -> None:
    """Has the driver receive by NAPI without a program, too, as network cards do.

    veth does so with GRO, and only for packets of an interface without TSO.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command, enabled in ((ETHTOOL_SGRO, 1), (ETHTOOL_STSO, 0)):
            value = ctypes.create_string_buffer(struct.pack("II", command, enabled))
            request = struct.pack("16sP16x", b"eth0", ctypes.addressof(value))
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def tasks_named(start: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if entry.read_text().startswith(start):
                found.append(int(entry.parent.name))
    return sorted(found)


def napi_threads() -> list[int]:
    return tasks_named("napi/eth0-")


def busy_us(core: int) -> float:
    """The time in which a core was not idle."""
    lines = Path("/proc/stat").read_text().splitlines()
    fields = next(line.split() for line in lines if line.startswith(f"cpu{core} "))
    user, nice, system, _, _, interrupts, softirq, *_ = map(int, fields[1:])
    return (user + nice + system + interrupts + softirq) * TICK_US


@contextlib.contextmanager
def serving(network: Network, contender: Contender) -> Iterator[tuple[int, int]]:
    """The process id and the port of a server."""
    inside = ["ip", "netns", "exec", network.server.namespace]
    # `ip netns exec` becomes the program.
    with processes.running(
        [*inside, *contender.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: processes.pin_to(network.server.core),
    ) as process:
        words = process.stdout.readline().split()
        assert words, f"{contender.name} did not start"
        yield process.pid, int(words[-1])


def load(network: Network, port: int, kind: str, much: float, seconds: float) -> Sample:
    inside = ["ip", "netns", "exec", network.client.namespace]
    words = [OUTPUT / "floor-xdp_load", ADDRESS, port, kind, round(much), seconds]
    answered, lost, p50 = processes.run_load([*inside, *words], seconds).split()
    return {"calls": int(answered), "lost": int(lost), "p50_us": float(p50)}


def measure(
    network: Network, contender: Contender, kind: str, much: float, seconds: float
) -> Sample:
    core = network.server.core
    with serving(network, contender) as (pid, port):
        load(network, port, "window", 32, WARM_UP_SECONDS)
        tasks = [pid, *tasks_named(f"ksoftirqd/{core}\n"), *network.server.threads]
        before = usage.cpu_nanoseconds(*tasks), busy_us(core)
        found = load(network, port, kind, much, seconds)
        after = usage.cpu_nanoseconds(*tasks), busy_us(core)
    calls = max(found["calls"], 1)
    found["cpu_us"] = (after[0] - before[0]) / 1e3 / calls
    found["core_us"] = (after[1] - before[1]) / calls
    found["rate"] = calls / seconds
    found["share_lost"] = found["lost"] / max(found["lost"] + found["calls"], 1)
    return found


def rounds_of(
    found: dict[int, Network],
    contenders: Sequence[Contender],
    kind: str,
    much: float,
    given: argparse.Namespace,
) -> figures.Runs:
    turns = {
        it.name: partial(measure, found[it.mtu], it, kind, much, given.seconds) for it in contenders
    }
    return figures.in_turns(turns, given.rounds, f"{kind} {much:.0f}")


def cpu_table(runs: figures.Runs, window: int) -> str:
    """With the ratio to the server over a socket of the same network, and to the echo."""
    columns = [
        Column("CPU µs/call", "cpu_us", kind=spread),
        Column("core busy µs/call", "core_us", kind=spread),
        Column("calls/s", "rate", "{:,.0f}"),
        Column("of the echo", "cpu_us", base=ECHO.name, kind=spread),
    ]
    rows = []
    for it in CONTENDERS:
        of_socket = Column("", "cpu_us", base=it.base, kind=spread).cell(runs, it.name)
        goal = f"{GOALS[window]}" if it is NATIVE else ""
        rows.append([it.name, *(each.cell(runs, it.name) for each in columns), of_socket, goal])
    header = [f"{window} calls in flight", *(column.title for column in columns)]
    return figures.table([*header, "of the socket", "goal"], rows)


def run(options: argparse.Namespace) -> None:
    why = networks.why_no_xdp()
    if why is not None:
        print(f"bench-xdp: skipped: {why}")
        return
    every: dict[str, figures.Runs] = {}
    with contextlib.ExitStack() as stack:
        found = {}
        for number, mtu in enumerate((1500, 9000)):
            made = stack.enter_context(networks.network(mtu, name=f"bench{number}"))
            found[mtu] = Network(made)
        processes.pin_to(processes.cores()[1])
        for window in GOALS:
            runs = rounds_of(found, CONTENDERS, "window", window, options)
            every[f"window {window}"] = runs
            print(cpu_table(runs, window), end="\n\n", flush=True)
        rate = LOAD * statistics.median(figures.values(runs, SOCKET.name, "rate"))
        runs = rounds_of(found, [SOCKET, NATIVE, LARGE, GENERIC], "rate", rate, options)
        every["rate"] = runs
        title = f"{rate:,.0f} calls a second, in bursts of 64"
        lost = Column("calls lost", "share_lost", "{:.2%}", kind=spread)
        print(figures.table_of(runs, [lost], title), end="\n\n", flush=True)
        runs = rounds_of(found, [SOCKET, NATIVE, POLLING], "window", 1, options)
        every["window 1"] = runs
        columns = [Column("p50 µs", "p50_us", "{:.1f}", kind=spread)]
        columns.append(Column("CPU µs/call", "cpu_us", "{:.1f}", kind=spread))
        print(figures.table_of(runs, columns, "one call in flight"))
    figures.write(figures.part("xdp"), every)
