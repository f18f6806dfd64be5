"""Children that are forked in functions and return from them: they end and send nothing."""

from __future__ import annotations

import json
import signal

import pytest

from harness import Wire, http, program, request

# From 3.12 on Python warns of a fork beside threads.
SOURCE = """
import asyncio, importlib, os, signal, sys, time, warnings
import ucall
warnings.simplefilter("ignore", DeprecationWarning)
engine, how = importlib.import_module("ucall." + sys.argv[1]), sys.argv[2]

def forked():
    child = os.fork()
    if child == 0:
        return "the child"
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def auth(ctx):
    return forked() and "somebody" if how == "auth" else "anybody"

options = {"slow_call_s": 60, "drain_timeout_s": 3000}
server = engine.Server(
    port=0, auth=auth if how == "auth" else None, **ucall.options.arguments(options)
)

@server(name="def")
def plain(value):
    return [forked(), value]

@server
def raises(value):
    status = forked()
    if status == "the child":
        sys.exit(0)
    return [status, value]

@server(threads=True)
def thread(value):
    return [forked(), value]

@server(name="async")
async def at_once(value):
    return [forked(), value]

@server
async def later(value):
    await asyncio.sleep(0)
    before = forked()
    await asyncio.sleep(0)
    return [before, value]

@server.batch(max_size=4)
def batch(values: list[int]):
    status = forked()
    return [[status, value] for value in values]

@server.batch(max_size=4, threads=True)
def thread_batch(values: list[int]):
    status = forked()
    return [[status, value] for value in values]

@server.batch(max_size=8, threads=True)
def crowd(values: list[int]):
    if os.getpid() != parent:
        print("in a child", flush=True)
    time.sleep(0.002)
    if max(values) >= 300:
        forked()
    return values

parent = os.getpid()

@server
def same(value):
    return value

@server
def printed(value):
    print(value)
    return value

@server
def signalled(value):
    os.kill(os.getpid(), signal.SIGUSR1)
    return [statuses, value]

statuses = []
signal.signal(signal.SIGUSR1, lambda *_: statuses.append(forked()))

async def hosted():
    server.on_startup(lambda: print(server.port))
    serving = asyncio.ensure_future(server.serve())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    server.stop()
    await serving

if how == "hosted":
    asyncio.run(hosted())
elif how == "background":
    server.start()
    print(server.port)
    sys.stdin.readline()
    server.stop()
else:
    server.on_startup(lambda: print(server.port))
    server.run()
print("returned")
"""

KINDS = ["def", "raises", "thread", "async", "later", "batch", "thread_batch"]
COMPLAINT = "a forked child has returned from a function that a server runs"


def calls(method: str) -> list[bytes]:
    """A call that forks between other calls of the same turn."""
    return [request("same", [1], 1), request(method, [2], 2), request("same", [3], 3)]


@pytest.mark.parametrize("how", ["run", "background", "hosted"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_comes_back_is_ended(engine: str, kind: str, how: str) -> None:
    with program(SOURCE, engine, how) as process:
        port = int(process.stdout.readline())
        with Wire(port) as raw, Wire(port) as wire:
            raw.send(b"".join(calls(kind)))
            replies = [json.loads(raw.line()) for _ in range(3)]
            results = {reply["id"]: reply["result"] for reply in replies}
            assert results == {1: 1, 2: [1, 2], 3: 3}
            wire.send(b"".join(map(http, calls(kind))))
            results = [json.loads(wire.reply()[2])["result"] for _ in range(3)]
            assert results == [1, [1, 2], 3]
            # Only the parent has the connections, and nothing else has arrived on them.
            for each in (raw, wire):
                each.end()
                assert each.rest() == b""
        if how != "run":
            process.stdin.write("\n")
        else:
            process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "returned\n"), errors
        assert errors.count(COMPLAINT) == 2, errors


def test_a_child_runs_no_other_call_of_its_batch(engine: str) -> None:
    with program(SOURCE, engine, "run") as process:
        with Wire(int(process.stdout.readline())) as wire:
            documents = b",".join([*calls("def"), request("printed", [4], 4)])
            wire.send(b"[" + documents + b"]")
            results = [reply["result"] for reply in json.loads(wire.line())]
            assert results == [1, [1, 2], 3, 4]
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "4\nreturned\n"


def test_a_child_runs_no_later_batch(engine: str) -> None:
    with program(SOURCE, engine, "run") as process:
        with Wire(int(process.stdout.readline())) as wire:
            # The later ones run before the results of the earlier ones are written.
            wire.send(b"".join(request("crowd", [number], number) for number in range(400)))
            results = [json.loads(wire.line())["result"] for _ in range(400)]
            assert sorted(results) == list(range(400))
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "returned\n"


def test_a_forked_child_of_auth_is_ended(engine: str) -> None:
    with program(SOURCE, engine, "auth") as process:
        with Wire(int(process.stdout.readline())) as wire:
            wire.send(http(request("same", [1])) * 2)
            for _ in range(2):
                assert json.loads(wire.reply()[2])["result"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1].count(COMPLAINT) == 2


def test_a_child_of_a_signal_handler_is_ended(engine: str) -> None:
    with program(SOURCE, engine, "run") as process:
        with Wire(int(process.stdout.readline())) as wire:
            # The signal handler may run in the function, or between two turns.
            wire.result("signalled", [1])
            assert wire.result("signalled", [2])[0][0] == 1
            wire.end()
            assert wire.rest() == b""
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1].count(COMPLAINT) == 2
