"""Memory of changes that many watchers get, each measured in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_store_watch import Watch, watch_call
from test_types_memory import Served

from harness import Wire, program

SERVER = """
import sys, ucall
server = ucall.Server(port=0, limits=ucall.Limits(max_held_bytes=16 << 20))
server.store("kv", sys.argv[1])
server.on_startup(lambda: print(server.port))
server.run()
"""
VALUE = "x" * (2 << 20)
WATCHERS = 40


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    with program(SERVER, str(tmp_path / "kv")) as process:
        yield Served(process.pid, int(process.stdout.readline()))


def test_streams_of_one_slow_client_share_its_limit(served: Served) -> None:
    with Wire(served.port, buffer_bytes=4096) as slow, Wire(served.port) as wire:
        for number in range(WATCHERS):
            slow.send(watch_call(id=number, token=number))
            assert slow.message()["params"]["value"]["event"] == "watch"
        before = served.memory_mib("VmRSS")
        wire.result("kv.put", ["a", VALUE])
        # It also may watch while it does not read.
        slow.send(watch_call(id=WATCHERS, token=WATCHERS))
        wire.result("kv.put", ["b", 1])
        tokens = []
        while len(tokens) < 2 * WATCHERS:
            change = slow.message()["params"]
            if change["token"] < WATCHERS:
                tokens.append(change["token"])
        assert sorted(tokens) == sorted([*range(WATCHERS)] * 2)
        assert served.memory_mib("VmHWM") - before < 32


def test_watchers_wait_while_the_server_holds_too_much_memory(served: Served) -> None:
    with ExitStack() as stack, Wire(served.port) as wire:
        watches = [
            stack.enter_context(Watch(served.port, buffer_bytes=4096)) for _ in range(WATCHERS)
        ]
        before = served.memory_mib("VmRSS")
        wire.result("kv.put", ["a", VALUE])
        for watch in watches:
            assert watch.item()["key"] == "a"
        assert served.memory_mib("VmHWM") - before < 64
        wire.result("kv.put", ["b", 1])
        assert all(watch.item()["key"] == "b" for watch in watches)
