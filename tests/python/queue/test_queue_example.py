"""The example of docs/queues.md, word for word, in two processes, and its asyncio form."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forking
import pytest
from pairs import free_location

from ucall import queue as nq

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "queue"
SERVER = """
from ucall import queue as nq
with nq.new(purpose=nq.Purpose.SERVER) as queue:      # server.py
    message = queue.get()
    queue.put("Hello, Client!")
print(message.data)
"""
CLIENT = """
from ucall import queue as nq
with nq.new(purpose=nq.Purpose.CLIENT) as queue:      # client.py
    queue.put("Hello, Server!")
    message = queue.get()
print(message.data)
"""
# The same calls, awaited.
AWAITED = """
import asyncio
from ucall.aio import queue as nq
async def main():
    async with nq.new(purpose=nq.Purpose.{purpose}) as queue:
{lines}
    print(message.data)
asyncio.run(main())
"""
AWAITED_SERVER = AWAITED.format(
    purpose="SERVER",
    lines='        message = await queue.get()\n        await queue.put("Hello, Client!")',
)
AWAITED_CLIENT = AWAITED.format(
    purpose="CLIENT",
    lines='        await queue.put("Hello, Server!")\n        message = await queue.get()',
)
# Another program may use the default port at the same time.
OTHER_PORT = """
from ucall.queue.core import CommunicatorOptions, NetworkLocation
defaults = CommunicatorOptions.__init__.__defaults__
CommunicatorOptions.__init__.__defaults__ = tuple(
    NetworkLocation({!r}, {!r}) if isinstance(it, NetworkLocation) else it for it in defaults
)
"""
# Runs two programs at the same time, in a network namespace whose loopback is not up yet.
LAUNCH = """
import contextlib, fcntl, json, socket, struct, subprocess, sys
with contextlib.suppress(PermissionError), socket.socket() as any_socket:
    UP, SIOCGIFFLAGS, SIOCSIFFLAGS = 1, 0x8913, 0x8914
    request = struct.pack("16sh14x", b"lo", 0)
    flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | UP))
pipe = subprocess.PIPE
programs = [
    subprocess.Popen([sys.executable, "-c", source], stdout=pipe, text=True)
    for source in json.loads(sys.argv[1])
]
try:
    print(json.dumps([program.communicate(timeout=60)[0] for program in programs]))
finally:
    for program in programs:
        program.kill()
"""
ALONE = ["unshare", "--map-root-user", "--net"]
PROGRAMS = pytest.mark.parametrize(
    "programs",
    [
        (CLIENT, SERVER),
        (AWAITED_CLIENT, AWAITED_SERVER),
        (AWAITED_CLIENT, SERVER),
        (CLIENT, AWAITED_SERVER),
    ],
    ids=["threads", "asyncio", "asyncio asks", "asyncio answers"],
)


def run(programs: list[str], before: list[str]) -> list[str]:
    command = [*before, sys.executable, "-c", LAUNCH, json.dumps(programs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    output: list[str] = json.loads(done.stdout)
    return output


@PROGRAMS
def test_example(programs: tuple[str, str]) -> None:
    on_other_port = OTHER_PORT.format(*free_location())
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    commands = [[sys.executable, "-c", on_other_port + source] for source in programs]
    started = [forking.Python(command, **pipes) for command in commands]
    try:
        printed = [program.communicate(timeout=60) for program in started]
    finally:
        for program in started:
            program.kill()
    assert printed == [("Hello, Client!\n", ""), ("Hello, Server!\n", "")]


@pytest.mark.parametrize("programs", [(CLIENT, SERVER), (AWAITED_CLIENT, AWAITED_SERVER)])
def test_example_on_the_default_port(programs: tuple[str, str]) -> None:
    assert nq.CommunicatorOptions().netloc == ("127.0.0.1", 51966)
    output = run([*programs], free_address())
    assert output == ["Hello, Client!\n", "Hello, Server!\n"]


def free_address() -> list[str]:
    """A command prefix that runs programs where the default port is free."""
    if shutil.which("unshare") and not subprocess.run([*ALONE, "true"], check=False).returncode:
        return ALONE
    # Another test may get the port from the system at any moment.
    pytest.skip("a network of its own is not to be had")


def test_the_two_programs_of_the_examples() -> None:
    command = [sys.executable, str(EXAMPLES / "server.py"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            _, port = server.stdout.readline().split()
            client = [sys.executable, str(EXAMPLES / "client.py"), port]
            done = subprocess.run(client, capture_output=True, text=True, timeout=60, check=True)
            assert done.stdout == "[0 2 4 6 8]\n"
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
        finally:
            server.kill()
