"""Measures queues: messages of five sizes from one process to another, over loopback.

Compares ucall's queues with net-queue, pyzmq (raw bytes, no acknowledgement) and a pair of C
programs, of which the reader allocates memory for each message. Over MQTT each turn has a mosquitto
of its own with an unlimited queue, which net-queue needs, and over NATS and JetStream a nats-
server, which stores messages of up to 1 MiB in a folder in /dev/shm if there is one. net-queue's
gRPC is left out, because 2.6.0 does not find its own module for it. All contenders run in turns,
because machines drift: compare only ratios of one run. Sizes with targets get more rounds. A turn
that exceeds its time is reported, and the next one begins. With `--write` the tables
of docs/benchmarks-queues.md and docs/queue.svg are written. A whole run takes six minutes.
"""

import argparse
import contextlib
import functools
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import certificate, figures, processes, usage
from bench.harness.processes import LoadError
from bench.render import queues

PAIRS = ROOT / "bench/pairs"
NET_QUEUE = OUTPUT / "netqueue" / "bin" / "python"
OURS = Path(sys.executable)
ZEROMQ = OUTPUT / "zeromq" / "bin" / "python"
SECONDS = 1
# Rounds of each size.
SIZES = {64: 5, 2048: 2, 65536: 2, queues.LARGE: 5, 64 << 20: 2}
CONTENDERS = {
    "C pair": None,
    "ucall": (OURS, "ours.py", "tcp"),
    "ucall, epoll": (OURS, "ours.py", "posix"),
    "ucall, Unix": (OURS, "ours.py", "unix"),
    "ucall, Unix, arrays": (OURS, "ours.py", "arrays"),
    "ucall, SHM": (OURS, "ours.py", "shm"),
    "ucall, SHM, trusted": (OURS, "ours.py", "trusted"),
    "ucall, TLS": (OURS, "ours.py", "tls"),
    "ucall, asyncio": (OURS, "ours.py", "async"),
    "pyzmq": (ZEROMQ, "zeromq.py", "sync"),
    "pyzmq, asyncio": (ZEROMQ, "zeromq.py", "async"),
    "net-queue": (NET_QUEUE, "netqueue.py", "sync"),
    "net-queue, asyncio": (NET_QUEUE, "netqueue.py", "async"),
    "ucall, MQTT": (OURS, "ours.py", "mqtt"),
    "net-queue, MQTT": (NET_QUEUE, "netqueue.py", "mqtt"),
    "ucall, gRPC": (OURS, "ours.py", "grpc"),
    "ucall, NATS": (OURS, "ours.py", "nats"),
    "ucall, JetStream": (OURS, "ours.py", "jetstream"),
    "nats-py, JetStream": (OURS, "natspy.py", "jetstream"),
}
BROKERS = "mqtt", "nats", "jetstream"
# The longest message of a stream, with its headers.
STREAM_BYTES_MAX = (1 << 20) - 1024
# Time beyond the measurement, for interpreters to start and messages in flight to arrive.
SLACK_S = 8.0

Turn = dict[str, float]


def measure_c_pair(size: int, seconds: float) -> Turn:
    command = [str(OUTPUT / "floor-pair"), str(size), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rate, cpu = map(float, done.stdout.split())
    return {"rate": rate, "cpu_us": cpu / (rate * seconds) * 1e6, "put_mb": 0, "get_mb": 0}


@contextlib.contextmanager
def broker(mode: str) -> Iterator[processes.Server]:
    """Runs a mosquitto or a nats-server."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        if mode != "mqtt":
            with processes.nats_server("-js", "-sd", folder) as server:
                yield server
            return
        port, configuration = processes.free_port(), Path(folder, "mosquitto.conf")
        lines = f"listener {port} 127.0.0.1", "allow_anonymous true", "user root"
        configuration.write_text("\n".join([*lines, "max_queued_messages 0", ""]))
        command = [processes.required("mosquitto"), "-c", str(configuration)]
        with processes.broker(command, port, "mosquitto") as server:
            yield server


def measure_pair(contender: str, size: int, seconds: float) -> Turn:
    if CONTENDERS[contender] is None:
        return measure_c_pair(size, seconds)
    python, script, mode = CONTENDERS[contender]
    if mode not in BROKERS:
        return measure_sides(python, script, mode, processes.free_port(), size, seconds)
    if mode == "jetstream" and size > STREAM_BYTES_MAX:
        raise LoadError("longer than a stream takes")
    with broker(mode) as between:
        turn = measure_sides(python, script, mode, between.port, size, seconds)
        return turn | {"broker_mb": usage.resident_mb(between.pid, "VmHWM")}


def measure_sides(
    python: Path, script: str, mode: str, port: int, size: int, seconds: float
) -> Turn:
    """Runs one turn of two processes: see `measure_pair`."""

    def start(role: str) -> subprocess.Popen[str]:
        words = python, PAIRS / script, role, mode, port, size, seconds
        pipe = subprocess.PIPE
        return subprocess.Popen([str(word) for word in words], stdout=pipe, stderr=pipe, text=True)

    sides = [start("get")]
    # A process that hangs is ended, so that all reads below return.
    watchdog = threading.Timer(2 * seconds + SLACK_S, lambda: [side.kill() for side in sides])
    watchdog.start()
    try:
        # net-queue's clients do not retry if the server does not listen yet.
        first_line = sides[0].stdout.readline()
        sides.append(start("put"))
        outputs = [side.communicate() for side in sides]
    finally:
        has_timed_out = watchdog.finished.is_set()
        watchdog.cancel()
        for side in sides:
            side.kill()
            side.wait()
    if has_timed_out or not first_line:
        raise LoadError(f"stalled for {2 * seconds + SLACK_S:.0f} s")
    try:
        messages, took, get_cpu, get_mb = map(float, outputs[0][0].split())
        put_cpu, put_mb = map(float, outputs[1][0].split())
    except ValueError:
        errors = "".join(side[1] for side in outputs).strip().splitlines()
        raise LoadError(errors[-1] if errors else "said nothing") from None
    cpu_us = (get_cpu + put_cpu) / max(messages, 1) * 1e6
    return {"rate": messages / took, "cpu_us": cpu_us, "put_mb": put_mb, "get_mb": get_mb}


def turn(contender: str, size: int, seconds: float) -> Turn | None:
    try:
        return measure_pair(contender, size, seconds)
    except LoadError as failure:
        figures.log(f"{contender}: {failure}")
        return None


def measure(size: int, given: argparse.Namespace) -> queues.Turns:
    """Runs the turns of all contenders at one size."""
    turns = {name: functools.partial(turn, name, size, given.seconds) for name in given.only}
    rounds = given.rounds or SIZES.get(size, 3)
    return figures.in_turns(turns, rounds, queues.size_name(size))


PAGE = ROOT / "docs/benchmarks-queues.md"
OPTIONS = {
    "--only": {"nargs": "*", "default": list(CONTENDERS), "choices": list(CONTENDERS)},
    "--sizes": {"type": int, "nargs": "*", "default": list(SIZES)},
    "--rounds": {"type": int, "help": "of every size; by default more for sizes with targets"},
}


def is_installed(name: str) -> bool:
    missing = {
        "net-queue": not NET_QUEUE.exists(),
        "pyzmq": not ZEROMQ.exists(),
        "MQTT": not processes.installed("mosquitto"),
        "NATS": not processes.installed("nats-server"),
        "JetStream": not processes.installed("nats-server"),
    }
    return not any(lacks for word, lacks in missing.items() if word in name)


def report(results: dict) -> str:
    """The section of the page; draws docs/queue.svg."""
    samples = {int(size): turns for size, turns in results["samples"].items()}
    (ROOT / "docs/queue.svg").write_text(queues.plot(samples), encoding="utf-8")
    return queues.section(samples, results["how"])


def run(given: argparse.Namespace) -> dict:
    given.only = list(filter(is_installed, given.only))
    certificate.issue()
    samples = {size: measure(size, given) for size in given.sizes}
    print(queues.table(samples))
    print(queues.verdicts(samples))
    linux = platform.release().split("-")[0]
    how = f"Linux {linux}, {os.cpu_count()} cores, turns of {given.seconds:g} s"
    return {"how": how, "samples": samples}
