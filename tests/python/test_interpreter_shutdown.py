"""Threads whose function returns while the interpreter is finalised: the program still ends as it
would without them."""

from __future__ import annotations

import json
import signal
import time

import pytest

from harness import Wire, let_read, new_interpreter, request, send_line

#: Makes finalisation slow, as in a large program, and lets other threads run during it.
LINGERING = """
import importlib, os, sys, threading, time, ucall
engine = importlib.import_module("ucall." + sys.argv[1])

class Lingering:
    def __del__(self, sleep=time.sleep, write=os.write):
        sleep(0.4)
        write(1, b"finalised\\n")

threading.lingering = Lingering()
"""
STUCK = """
server = engine.Server(
    port=0, limits=ucall.Limits(max_threads=32), timeouts=ucall.Timeouts(drain_timeout_s=0.05)
)

@server(threads=True)
def block(seconds: float):
    time.sleep(seconds)

class Odd:
    def __init__(self, seconds):
        time.sleep(seconds)

server.register_type(Odd, encode=lambda odd: time.sleep(0.3), decode=Odd)

@server(threads=True)
def decode(odd: Odd):
    return odd

@server.batch(max_size=1, parallel=32, threads=True)
def batch(seconds: list[float]):
    time.sleep(seconds[0])
    raise KeyError("for the log")

server.on_startup(lambda: print(server.port, flush=True))
server.run()
print("returned", flush=True)
"""


@pytest.mark.parametrize("method", ["block", "decode", "batch"])
def test_pool_threads_return_at_any_moment(engine: str, method: str) -> None:
    with new_interpreter(LINGERING + STUCK, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:
            for number in range(32):
                wire.send(request(method, [0.1 + 0.02 * number], number))
            let_read(port)
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "returned\nfinalised\n"), errors
        assert "FATAL" not in errors and "Fatal" not in errors, errors


DAEMON = """
import asyncio, logging
logging.getLogger("ucall").setLevel("ERROR")
importlib.import_module("ucall.server")._STOP_TIMEOUT_S = 0.05
server = engine.Server(port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000))

@server
def block(seconds: float):
    time.sleep(seconds)

@server
async def block_late(seconds: float):
    await asyncio.sleep(0.01)
    time.sleep(seconds)

server.on_startup(lambda: print(server.port, flush=True))
threading.Thread(target=server.run, daemon=True).start()
sys.stdin.readline()
"""


@pytest.mark.parametrize("method", ["block", "block_late"])
def test_a_server_in_a_daemon_thread_stops(engine: str, method: str) -> None:
    with new_interpreter(LINGERING + DAEMON, engine) as process:
        with Wire(int(process.stdout.readline())) as wire:
            wire.send(request(method, [0.3]))
            time.sleep(0.1)
            process.stdin.write("\n")
            output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "finalised\n", "")


BACKGROUND = """
server = engine.Server(
    port=0,
    timeouts=ucall.Timeouts(drain_timeout_s=3000),
    observability=ucall.Observability(slow_call_s=60),
)

@server(threads=True)
def block(seconds: float):
    time.sleep(seconds)
    return "finished"

server.start()
print(server.port, flush=True)
sys.stdin.readline()
"""


def test_calls_in_a_pool_finish_when_the_program_ends(engine: str) -> None:
    with new_interpreter(LINGERING + BACKGROUND, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:
            wire.send(request("block", [0.3]))
            let_read(port)
            send_line(process)
            assert json.loads(wire.line())["result"] == "finished"
            output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "finalised\n", "")


def test_a_stuck_call_does_not_block_exit(engine: str) -> None:
    source = STUCK.replace("time.sleep(seconds)\n", "time.sleep(1000)\n", 1)
    with new_interpreter(LINGERING + source, engine) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire:
            wire.send(request("block", [1]))
            let_read(port)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "returned\nfinalised\n")
