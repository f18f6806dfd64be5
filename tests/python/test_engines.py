"""The choice of the engine, and the fallback if the system refuses io_uring."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import forking
import pytest
from programs import require
from serving import NO_URING

import ucall
import ucall.posix
import ucall.uring
from harness import Wire


def test_each_module_has_its_engine() -> None:
    assert ucall.posix.Server(port=0).engine == "posix"
    assert ucall.Server(port=0).engine == ("posix" if NO_URING else "uring")
    if not NO_URING:
        assert ucall.uring.Server(port=0).engine == "uring"


def test_an_engine_error_is_an_oserror() -> None:
    assert issubclass(ucall.EngineError, OSError)


REFUSED = """
import http.client, json, ucall, ucall.uring
server = ucall.Server(port=0)
server = ucall.Server(port=0)
server.add(lambda a: a, name="echo")
assert server.engine == "posix"
with server:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    call = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [7]}
    connection.request("POST", "/", json.dumps(call))
    assert json.load(connection.getresponse())["result"] == 7
try:
    ucall.uring.Server(port=0)
except ucall.EngineError as error:
    print(error)
"""


def _where_refused(source: str, error: str) -> subprocess.CompletedProcess[str]:
    """Runs a program under a seccomp filter that forbids io_uring, as containers do."""
    inject = f"inject=io_uring_setup:error={error}"
    command = [
        require("strace"),
        "-f",
        "-o",
        "/dev/null",
        "-e",
        inject,
        sys.executable,
        "-c",
        source,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "ptrace" in done.stderr:
        pytest.skip("strace is not allowed here")
    return done


@pytest.mark.skipif(sys.platform != "linux", reason="io_uring exists on Linux only")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_refused_io_uring_is_logged_once(error: int) -> None:
    done = _where_refused(REFUSED, errno.errorcode[error])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("io_uring cannot be used here: ")
    [line] = done.stderr.splitlines()
    assert line.startswith("running on the posix engine: ")


def test_both_engines_serve_one_program() -> None:
    servers: list[ucall.Server] = [ucall.posix.Server(port=0), ucall.Server(port=0)]
    for server in servers:
        server.add(lambda: 1, name="one")
        server.start()
    for server in servers:
        with Wire(server.port) as wire:
            assert wire.result("one") == 1
        server.stop()


#: Tests run at the same time, so each is a user of its own where it can be.
LIMITED = """
import os, resource, sys
import ucall
from ucall import queue, uring

def limit_memory(memory_bytes):
    if os.getuid() == 0:
        os.setuid(int(sys.argv[1]))
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (memory_bytes, hard))
"""

MANY_RINGS = """
servers = [uring.Server(port=0) for _ in range(100)]
with servers.pop():
    pass  # Imports what root's files have, which the user below cannot read.
limit_memory(256 * 1024)
started = []
try:
    for server in servers:
        server.start()
        started.append(server)
except ucall.EngineError as error:
    print(len(started), error)
for server in started:
    server.stop()
"""

ONE_RING = """
def start(server):
    with server:
        pass

def run(server):
    server.on_startup(server.stop)
    server.run()

def communicate(server):
    location = queue.NetworkLocation("127.0.0.1", 0)
    options = queue.CommunicatorOptions(netloc=location, engine="uring")
    queue.new("tcp", "server", options).close()

use, udp, pages = globals()[sys.argv[2]], sys.argv[3] == "udp", int(sys.argv[4])
first, second = (uring.Server(port=0, udp=ucall.UDP() if udp else None) for _ in range(2))
use(first)  # As above.
limit_memory(pages * resource.getpagesize())
try:
    use(second)
except ucall.EngineError as error:
    print(error)
"""


def _with_little_memory(source: str, user: int, *arguments: str) -> str:
    command = [sys.executable, "-c", LIMITED + source, str(user), *arguments]
    done = forking.run(command, text=True)
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("this kernel does not count io_uring as locked memory")
    assert "io_uring cannot be used here: no memory" in done.stdout
    assert "ulimit -l" in done.stdout
    return done.stdout


@pytest.mark.skipif(NO_URING, reason="io_uring is refused here")
def test_a_ring_is_smaller_where_memory_is_short() -> None:
    started = _with_little_memory(MANY_RINGS, 65_534).partition(" ")[0]
    # Other tests of an ordinary user use up the same limit.
    assert int(started) >= (4 if os.getuid() == 0 else 0)


# The pages are one less than each takes, so that the last step fails.
@pytest.mark.skipif(NO_URING, reason="io_uring is refused here")
@pytest.mark.parametrize(
    ("use", "transport", "pages", "user"),
    [
        ("start", "tcp", 2, 65_533),
        ("run", "tcp", 2, 65_532),
        ("start", "udp", 3, 65_531),
        ("communicate", "tcp", 2, 65_530),
    ],
)
def test_what_needs_a_ring_names_the_limit(use: str, transport: str, pages: int, user: int) -> None:
    _with_little_memory(ONE_RING, user, use, transport, str(pages))
