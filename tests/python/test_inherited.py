"""Listening sockets that another program has bound: `fd` and systemd's socket activation."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import require

import ucall
from harness import HOST, Wire, free_port, request
from ucall.client import Client

APP = """
import os, ucall
server = ucall.Server()

@server
def pid() -> int:
    return os.getpid()

@server
def variables() -> list:
    return [name for name in os.environ if name.startswith("LISTEN_")]

server.run()
"""
WAYS = {
    "script": ["app.py"],
    "command": ["-m", "ucall", "app:server"],
    "workers": ["-m", "ucall", "app:server", "--workers", "2"],
}


@contextlib.contextmanager
def running(folder: Path, command: list[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    (folder / "app.py").write_text(APP)
    process: Any = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **how)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(params=["tcp", "unix"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket that this process has bound."""
    # Socket paths must be shorter than `tmp_path`.
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if request.param == "tcp":
            made = stack.enter_context(socket.create_server((HOST, 0)))
        else:
            made = stack.enter_context(socket.socket(socket.AF_UNIX))
            made.bind(f"{folder}/app.sock")
            made.listen()
        yield made


def place(listening: socket.socket) -> Any:
    """What `Wire` and clients take."""
    address = listening.getsockname()
    return address if isinstance(address, str) else address[1]


def test_a_server_takes_a_socket_and_leaves_it_open(listening: socket.socket, engine: str) -> None:
    server: ucall.Server = getattr(ucall, engine).Server(fd=listening.fileno())
    server.add(lambda: 1, name="one")
    assert server.port is None
    for _ in range(2):
        with server, Wire(place(listening)) as wire:
            assert wire.result("one") == 1
            assert server.port == (listening.getsockname()[1] if server.port else 0)
    # What arrives meanwhile waits for the next server.
    with Wire(place(listening)) as wire:
        wire.send(request("one"))
        with server:
            assert wire.line()
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_program_gets_a_descriptor(tmp_path: Path, listening: socket.socket, way: str) -> None:
    """As by exec, from a program that opens a socket."""
    number = listening.fileno()
    environment = os.environ | {"LISTEN_PID": "1", "LISTEN_FDS": "1"}
    command = [sys.executable, *WAYS[way]]
    if way == "script":
        # As systemd does, from descriptor 3 on. A shell passes its own process id.
        start = f'exec 3<&{number}; LISTEN_PID=$$ exec "$@"'
        command = ["bash", "-c", start, "bash", *command]
    else:
        command += ["--fd", str(number)]
    with running(tmp_path, command, pass_fds=[number], env=environment) as process:
        with Wire(place(listening)) as wire:
            assert wire.result("pid") == process.pid or way == "workers"
            assert bool(wire.result("variables")) == (way != "script")
        process.terminate()
        assert process.wait(60) == 0
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def test_workers_whose_supervisor_was_killed_leave_the_socket_open(
    tmp_path: Path, listening: socket.socket
) -> None:
    number = listening.fileno()
    command = [sys.executable, *WAYS["workers"], "--fd", str(number)]
    with running(tmp_path, command, pass_fds=[number]) as process:
        with Wire(place(listening)) as wire:
            assert wire.result("pid") != process.pid
        process.kill()
    # Their standard error is closed, so they have ended.
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


@pytest.mark.parametrize("way", WAYS)
def test_systemd_activates_a_server(tmp_path: Path, way: str) -> None:
    program, port = require("systemd-socket-activate"), free_port()
    command = [program, f"--listen={HOST}:{port}", "--setenv=PYTHONPATH", sys.executable]
    with running(tmp_path, [*command, *WAYS[way]]) as process:
        assert process.stderr is not None and "Listening on" in process.stderr.readline()
        # The first connection starts the program, and waits for it.
        with Client(port=port, timeout=60) as client:
            assert client.pid().json == process.pid or way == "workers"
            assert client.variables().json == []
        log = "".join(iter(process.stderr.readline, "")) if process.poll() is not None else ""
        assert "ERROR" not in log


def test_descriptors_that_cannot_be_listened_on(tmp_path: Path) -> None:
    read, write = os.pipe()
    with socket.socket() as connected, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        for number, error, text in (
            (read, errno.ENOTSOCK, "it is no socket"),
            (1_000_000, errno.EBADF, "it is not open in this process"),
            (connected.fileno(), errno.EINVAL, "no socket that listens"),
            (datagrams.fileno(), errno.EINVAL, "no socket that listens"),
        ):
            server = ucall.Server(fd=number)
            with pytest.raises(
                OSError, match=f"cannot listen on descriptor {number}: .*{text}"
            ) as it:
                server.start()
            assert it.value.errno == error
    os.close(read)
    os.close(write)
    for options, kind in (({"fd": -1}, ValueError), ({"fd": "3"}, TypeError)):
        with pytest.raises(kind, match="fd: expected the number of a descriptor"):
            ucall.Server(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fd: expected no uds"):
        ucall.Server(fd=3, uds="a")
    for server, option in ((ucall.Server(fd=3), "fd"), (ucall.Server(uds="a"), "uds")):
        with pytest.raises(ValueError, match=f"port: expected none with {option}"):
            server.start(port=0)


def test_several_sockets_of_a_service_manager_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    server = ucall.Server(port=0)
    with pytest.raises(OSError, match="LISTEN_FDS: expected one socket, got 2"):
        server.run(max_cycles=0)
    # They were for the first server.
    server.run(max_cycles=0)
    server.stop()
