"""Compares a server over AF_XDP with one over a socket: `make bench-xdp`.

    python bench/xdp/run.py [--rounds N] [--seconds S]

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
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import processes, usage
from harness.report import spread
from harness.rows import OUTPUT

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import networks

ADDRESS = "192.0.2.2"
WARM_UP_SECONDS = 0.2
#: Of the calls a second that the socket's server answers with 256 under way.
LOAD = 0.7
SIOCETHTOOL, ETHTOOL_SGRO, ETHTOOL_STSO = 0x8946, 0x2C, 0x1F
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")

Figures = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """A server, and the network that it is in."""

    name: str
    command: tuple[str, ...]
    mtu: int = 1500
    #: The figures that the ratios are to.
    base: str = "socket"


OURS = (str(OUTPUT / "c-xdp"), ADDRESS)
ECHO = Contender("recvmmsg echo in C", (str(OUTPUT / "udp-echo"), ADDRESS))
SOCKET = Contender("socket", (*OURS, "socket"))
NATIVE = Contender("native", (*OURS, "xdp"))
POLLING = Contender("native, busy polling", (*OURS, "poll"))
LARGE = Contender("socket, MTU 9,000", (*OURS, "socket"), 9000, "socket, MTU 9,000")
GENERIC = Contender("generic, MTU 9,000", (*OURS, "xdp"), 9000, "socket, MTU 9,000")
CONTENDERS = [ECHO, SOCKET, NATIVE, LARGE, GENERIC]
#: The most that the CPU time of native mode may be, of that of the socket, by calls under way.
GOALS = {32: 0.5, 256: 0.4}


class Side:
    """A namespace, and the thread of the kernel that receives for it."""

    def __init__(self, namespace: str, core: int) -> None:
        before = set(napi_threads())
        in_namespace(namespace, receive_by_napi)
        threaded = "echo 1 > /sys/class/net/eth0/threaded"
        run(["ip", "netns", "exec", namespace, "sh", "-c", threaded])
        self.namespace, self.core = namespace, core
        self.threads = [pid for pid in napi_threads() if pid not in before]
        assert self.threads, "the kernel has no threaded NAPI for veth"
        for pid in self.threads:
            os.sched_setaffinity(pid, {core})


class Network:
    def __init__(self, made: networks.Network) -> None:
        server_core, client_core = processes.cores()
        self.server, self.client = Side(made.server, server_core), Side(made.client, client_core)


def run(command: Sequence[str]) -> str:
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


def napi_threads() -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if entry.read_text().startswith("napi/eth0-"):
                found.append(int(entry.parent.name))
    return found


def ksoftirqd(core: int) -> int:
    names = {int(it.parent.name): it for it in Path("/proc").glob("[0-9]*/comm")}
    return next(pid for pid in sorted(names) if names[pid].read_text() == f"ksoftirqd/{core}\n")


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
    process = subprocess.Popen(
        [*inside, *contender.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: processes.pin_to(network.server.core),
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words, f"{contender.name} did not start"
        # `ip netns exec` becomes the program.
        yield process.pid, int(words[-1])
    finally:
        process.terminate()
        process.wait()


def load(network: Network, port: int, kind: str, much: float, seconds: float) -> Figures:
    inside = ["ip", "netns", "exec", network.client.namespace]
    words = [ADDRESS, str(port), kind, f"{much:.0f}", str(seconds)]
    answered, lost, p50 = run([*inside, str(OUTPUT / "udp-load"), *words]).split()
    return {"calls": int(answered), "lost": int(lost), "p50_us": float(p50)}


def measure(
    network: Network, contender: Contender, kind: str, much: float, seconds: float
) -> Figures:
    core = network.server.core
    with serving(network, contender) as (pid, port):
        load(network, port, "window", 32, WARM_UP_SECONDS)
        tasks = [pid, ksoftirqd(core), *network.server.threads]
        before = sum(map(usage.cpu_nanoseconds, tasks)), busy_us(core)
        figures = load(network, port, kind, much, seconds)
        after = sum(map(usage.cpu_nanoseconds, tasks)), busy_us(core)
    calls = max(figures["calls"], 1)
    figures["cpu_us"] = (after[0] - before[0]) / 1e3 / calls
    figures["core_us"] = (after[1] - before[1]) / calls
    figures["rate"] = calls / seconds
    return figures


def rounds_of(
    found: dict[int, Network],
    contenders: Sequence[Contender],
    kind: str,
    much: float,
    given: argparse.Namespace,
) -> dict[str, list[Figures]]:
    series: dict[str, list[Figures]] = {contender.name: [] for contender in contenders}
    for number in range(given.rounds):
        for contender in contenders[:: -1 if number % 2 else 1]:
            network = found[contender.mtu]
            series[contender.name].append(measure(network, contender, kind, much, given.seconds))
    return series


def ratios(series: dict[str, list[Figures]], one: str, other: str, figure: str) -> list[float]:
    pairs = zip(series[one], series[other], strict=True)
    return [first[figure] / second[figure] for first, second in pairs]


def text(values: Sequence[float], form: str = "{:.2f}") -> str:
    found = spread(values)
    return found.text(form) if found else "-"


def print_cpu(series: dict[str, list[Figures]], window: int) -> None:
    print(f"\n{window} calls under way")
    titles = f"{'CPU µs/call':21}{'core busy µs/call':24}{'calls/s':>9}"
    print(f"{'':24}{titles}  {'of the socket':18}  of the echo")
    for contender in CONTENDERS:
        found = series[contender.name]
        cpu, core = (text([it[name] for it in found]) for name in ("cpu_us", "core_us"))
        rate = statistics.median(it["rate"] for it in found)
        ratio = text(ratios(series, contender.name, contender.base, "cpu_us"))
        of_echo = text(ratios(series, contender.name, ECHO.name, "cpu_us"))
        goal = f"  goal: {GOALS[window]}" if contender is NATIVE else ""
        print(f"{contender.name:24}{cpu:21}{core:24}{rate:>9,.0f}  {ratio:18}  {of_echo}{goal}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares AF_XDP with a socket.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1, help="of each load (1)")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    why = networks.why_no_xdp()
    if why is not None:
        print(f"bench-xdp: skipped: {why}")
        return
    all_series: dict[str, dict[str, list[Figures]]] = {}
    with contextlib.ExitStack() as stack:
        found = {}
        for number, mtu in enumerate((1500, 9000)):
            made = stack.enter_context(networks.network(mtu, name=f"bench{number}"))
            found[mtu] = Network(made)
        processes.pin_to(processes.cores()[1])
        for window in GOALS:
            series = rounds_of(found, CONTENDERS, "window", window, given)
            all_series[f"window {window}"] = series
            print_cpu(series, window)
        rate = LOAD * statistics.median(it["rate"] for it in series["socket"])
        print(f"\n{rate:,.0f} calls a second, in bursts of 64: share of calls lost")
        series = rounds_of(found, [SOCKET, NATIVE, LARGE, GENERIC], "rate", rate, given)
        all_series["rate"] = series
        for name, figures in series.items():
            shares = [it["lost"] / (it["lost"] + it["calls"]) for it in figures]
            print(f"{name:24}{text(shares, '{:.2%}')}")
        print("\none call under way: p50 µs, and CPU µs/call")
        series = rounds_of(found, [SOCKET, NATIVE, POLLING], "window", 1, given)
        all_series["window 1"] = series
        for name, figures in series.items():
            p50, cpu = (text([it[key] for it in figures], "{:.1f}") for key in ("p50_us", "cpu_us"))
            print(f"{name:24}{p50:24}{cpu}")
    OUTPUT.joinpath("xdp.json").write_text(json.dumps(all_series, indent=1))


if __name__ == "__main__":
    main()
