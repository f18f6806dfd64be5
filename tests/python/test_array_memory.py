"""Memory of calls with large arrays, measured in a process of its own: little more than the arrays.

``UCALL_ARRAY_CALLS=100`` (`make leaks`) makes that many calls of 16 MiB at once; by default fewer.
"""

from __future__ import annotations

import base64
import io
import itertools
import os
import resource
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy
import pytest
from part_frames import frame, parse
from test_types_memory import Served

from harness import Wire, eventually, http, program, request

CALLS = int(os.environ.get("UCALL_ARRAY_CALLS", "6"))
ITEMS = 4 << 20
#: Of the floats of a call.
MIB = ITEMS * 4 >> 20
#: What the allocators keep, and what grows once.
KEPT_MIB = 24
#: Of which the page faults are counted.
FAULT_CALLS = 10

SERVER = """
import asyncio, ctypes, sys
import numpy, ucall, ucall.posix, ucall.uring
limits = ucall.Limits(max_body_bytes=17 << 20, max_held_bytes=(1 << 32) - 1)
# Results wait while those before them are read.
timeouts = ucall.Timeouts(send_timeout_s=600)
server = getattr(ucall, sys.argv[1]).Server(port=0, limits=limits, timeouts=timeouts)
waiting = []

@server
async def hold(values: numpy.ndarray, doubles: bool) -> numpy.ndarray:
    waiting.append(asyncio.get_running_loop().create_future())
    await waiting[-1]
    return values * 2 if doubles else values[:1]

@server
def same(values: numpy.ndarray) -> numpy.ndarray: return values

@server
def held() -> int: return len(waiting)

@server
def release() -> None:
    for future in waiting: future.set_result(None)
    waiting.clear()

@server
def trim() -> int:
    return ctypes.CDLL(None).malloc_trim(0)

server.on_startup(lambda: print(server.port, flush=True))
server.run()
"""


@pytest.fixture
def served(engine: str) -> Iterator[Served]:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    with program(SERVER, engine) as process:
        yield Served(process.pid, int(process.stdout.readline()))


@pytest.mark.parametrize("doubles", [False, True], ids=["short results", "long results"])
def test_large_arrays_take_their_own_memory_and_leave_none(served: Served, doubles: bool) -> None:
    values = numpy.arange(ITEMS, dtype=numpy.float32)
    file = io.BytesIO()
    numpy.save(file, values)
    sent = http(frame(request("hold", [{"$part": 0}, doubles]), [file.getvalue()]))
    with ExitStack() as stack, Wire(served.port) as wire:
        wires = [stack.enter_context(Wire(served.port)) for _ in range(CALLS)]
        _call(wires[:1], sent, wire, values, doubles)
        before = served.memory_mib("VmRSS")
        _call(wires, sent, wire, values, doubles)
        # Each result is made, and waits to be sent, while the calls behind it still have params.
        most = CALLS * MIB * (2 if doubles else 1)
        grown = served.memory_mib("VmHWM") - before
        assert grown < 1.1 * most + KEPT_MIB, f"{grown} MiB for {most}"
        # glibc keeps freed blocks of up to 32 MiB for later calls.
        wire.result("trim")
        left = lambda: served.memory_mib("VmRSS") - before  # noqa: E731
        assert eventually(lambda: left() < KEPT_MIB), f"{left()} MiB are left"


@pytest.mark.parametrize("form", ["parts", "base64"])
def test_large_params_and_results_use_the_memory_of_earlier_ones(served: Served, form: str) -> None:
    file = io.BytesIO()
    numpy.save(file, numpy.arange(ITEMS // 2, dtype=numpy.float32))
    content = file.getvalue()
    if form == "parts":
        sent = http(frame(request("same", [{"$part": 0}]), [content]))
    else:
        sent = http(request("same", [base64.b64encode(content).decode()]))
    with Wire(served.port) as wire:
        for _ in range(3):
            _same(wire, sent, len(content))
        counts = [_page_faults(served.pid)]
        for _ in range(FAULT_CALLS):
            _same(wire, sent, len(content))
            counts.append(_page_faults(served.pid))
    # A server that is idle for a second gives its memory back.
    faults = statistics.median(after - before for before, after in itertools.pairwise(counts))
    pages = len(content) // resource.getpagesize()
    assert faults < pages / 10, f"{faults} page faults a call of {pages} pages"


def _same(wire: Wire, sent: bytes, least: int) -> None:
    wire.send(sent)
    status, _, body = wire.reply()
    assert status == 200 and len(body) > least


def _page_faults(pid: int) -> int:
    """Those for which nothing was read from a disk."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def _call(
    wires: list[Wire], sent: bytes, control: Wire, values: numpy.ndarray, doubles: bool
) -> None:
    """One call on each connection, all of which run at once."""
    for wire in wires:
        wire.send(sent)
    assert eventually(lambda: control.result("held") == len(wires))
    control.result("release")
    for wire in wires:
        status, _, body = wire.reply()
        document, parts = parse(body)
        assert (status, document["result"]) == (200, {"$part": 0})
        result = numpy.load(io.BytesIO(parts[0]))
        assert numpy.array_equal(result, values * 2 if doubles else values[:1])
