"""A flood of calls over UDP from forged addresses: memory, replies, and callers over TCP meanwhile.

A process sends calls from addresses of 127/8, as one with a raw socket could from any. Its socket
tells the kernel the source of each datagram (IP_PKTINFO). `make test-udp-flood` floods for longer,
and compares the delays of calls over TCP with those before, which needs a quiet machine; by default
only the bounds that hold on any machine are checked.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import Wire, eventually, program

#: Datagrams of the flood, in the long form.
DATAGRAMS = int(os.environ.get("UDP_FLOOD_DATAGRAMS", "0"))
#: What a server takes for other reasons.
SLACK_BYTES = 2 << 20
P99_RATIO_MAX = 3
DELAY_CALLS = 5_000

SERVER = """
import logging, sys, ucall, ucall.posix, ucall.uring
logging.disable(logging.CRITICAL)
server = getattr(ucall, sys.argv[1]).Server(
    port=0, udp=ucall.UDP(max_dedupe_bytes=int(sys.argv[2]))
)
@server
def sum(a: int, b: int) -> int: return a + b
@server
def datagrams() -> dict: return server.stats()["datagrams"]
server.on_startup(lambda: print(server.port))
server.run()
"""

#: Sends as many more calls as each line says.
FLOOD = """
import os, socket, struct, sys
port, number = int(sys.argv[1]), 0
os.nice(19)  # It may not delay the caller over TCP, which has the same core.
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for line in sys.stdin:
    for number in range(number, number + int(line)):
        source = (0x7f010000 + number % 60_000).to_bytes(4, "big")
        info = struct.pack("=i4s4s", 0, source, bytes(4))
        text = b'{"jsonrpc":"2.0","method":"sum","params":[1,2],"id":%d}' % number
        sender.sendmsg([text], [(socket.IPPROTO_IP, 8, info)], 0, ("127.0.0.1", port))
    number += 1
    print("sent", flush=True)
"""


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def _p99_us(wire: Wire) -> float:
    """Of calls over TCP, one after another."""
    delays = []
    for number in range(DELAY_CALLS):
        began = time.perf_counter()
        assert wire.result("sum", [number, 1]) == number + 1
        delays.append(time.perf_counter() - began)
    return sorted(delays)[len(delays) * 99 // 100] * 1e6


class Flood:
    def __init__(self, process: Any) -> None:
        self._process = process

    def begin(self, count: int) -> None:
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()

    def is_over(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def send(self, count: int) -> None:
        self.begin(count)
        assert self._process.stdout.readline() == "sent\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_a_flood_of_forged_addresses_takes_bounded_memory(engine: str) -> None:
    with program(SERVER, engine, str(2 << 20)) as server:
        port = int(server.stdout.readline())
        with Wire(port) as wire, program(FLOOD, str(port)) as process:
            flood = Flood(process)
            flood.send(1)
            before = _resident_bytes(server.pid)
            for _ in range(100):
                flood.send(200)
                # A caller over TCP is served meanwhile, and at the end of that turn or of the next
                # ones no datagram waits.
                assert wire.result("sum", [1, 2]) == 3
            _check(wire, flood, 20_000, _resident_bytes(server.pid) - before, 1 << 20)


@pytest.mark.skipif(not DATAGRAMS, reason="`make test-udp-flood` runs it on a quiet machine")
def test_a_flood_delays_callers_over_tcp_little(engine: str) -> None:
    with program(SERVER, engine, str(64 << 20)) as server:
        port = int(server.stdout.readline())
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(server.pid, {cores[0]})
        with Wire(port) as wire, program(FLOOD, str(port)) as process:
            for pid in (os.getpid(), process.pid):
                os.sched_setaffinity(pid, {cores[-1]})
            flood = Flood(process)
            flood.send(1)
            quiet_us, before = _p99_us(wire), _resident_bytes(server.pid)
            began = time.perf_counter()
            flood.begin(DATAGRAMS)
            # Otherwise the caller takes the core that they share before the flood has begun.
            assert eventually(lambda: wire.result("datagrams")["received"] > DATAGRAMS // 20)
            flooded_us = _p99_us(wire)
            seconds = time.perf_counter() - began
            assert not flood.is_over()
            counts = wire.result("datagrams")
            assert process.stdout.readline() == "sent\n"
            grown = _resident_bytes(server.pid) - before
            print(f"p99 over TCP: {quiet_us:.0f} µs quiet, {flooded_us:.0f} µs flooded with")
            print(f"{counts['received'] / seconds:,.0f} datagrams a second; {grown:,} bytes more")
            _check(wire, flood, DATAGRAMS, grown, 32 << 20)
        assert flooded_us <= P99_RATIO_MAX * quiet_us


def _check(wire: Wire, flood: Flood, count: int, grown: int, share: int) -> None:
    def counts() -> dict[str, int]:
        # The kernel tells how many it has dropped with the next one that it does not drop.
        flood.send(1)
        found: dict[str, int] = wire.result("datagrams")
        return found

    def is_over() -> bool:
        found = counts()
        return found["received"] + found["dropped"] >= count

    assert eventually(is_over)
    found = counts()
    assert found["invalid"] == 0
    # Past their share of the memory, callers without a cookie are refused.
    assert found["refused"] > 0
    assert grown <= share + SLACK_BYTES, f"{grown:,} bytes for {found}"
