"""Servers for the tests, each on a free port and stopped at the end."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import authorities  # noqa: F401 - before what reads those of the system
import forking
import pytest
from both_clients import new_client
from serving import NO_URING, Serve, run_on_thread

import ucall
from harness import Wire
from ucall.options import arguments

# Fixtures of other modules.
__all__ = ["new_client"]

# A shell that starts the tests in the background ignores Ctrl-C, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Otherwise gRPC crashes children that are forked while its threads run, such as terminals.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Otherwise each process that imports NumPy starts threads that wait actively, 80 ms of a processor.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests for newer versions of Python.
collect_ignore = [
    *(["test_types_aliases.py"] if sys.version_info < (3, 12) else []),
    *(["test_deferred_annotations.py"] if sys.version_info < (3, 14) else []),
]


# Nothing that collecting the tests makes is garbage, and to look for it takes a third of the time.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes pytest's objects, so that a test that collects garbage does not traverse them."""
    gc.enable()
    gc.freeze()
    # Its descriptors are there before a test counts its own.
    if not session.config.option.collectonly:
        forking.server()


@pytest.fixture(params=["posix", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine by name; io_uring only if the system allows it."""
    name: str = request.param
    if name == "uring" and NO_URING:
        pytest.skip(NO_URING)
    return name


@pytest.fixture
def serve(engine: str) -> Iterator[Serve]:
    """Starts servers of functions, on each engine in turn: ``serve(f, g, max_body_bytes=9)``."""
    kind: type[ucall.Server] = importlib.import_module(f"ucall.{engine}").Server
    yield from _serving(kind)


@pytest.fixture(params=["ours", "asyncio", "uvloop"])
def hosted(request: pytest.FixtureRequest, serve: Serve, engine: str) -> Iterator[Serve]:
    """Starts servers as `serve` does: each on a loop of its own, or within a program's loop."""
    if request.param == "ours":
        yield serve
        return
    new_event_loop = pytest.importorskip(request.param).new_event_loop
    running: list[tuple[ucall.Server, threading.Thread]] = []

    def run(server: ucall.Server) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(server.serve())

    def start(*functions: Callable[..., Any], **options: Any) -> ucall.Server:
        kind = importlib.import_module(f"ucall.{engine}").Server
        server: ucall.Server = kind(port=0, **arguments(options))
        for function in functions:
            server.add(function)
        running.append((server, run_on_thread(server, functools.partial(run, server))))
        return server

    yield start
    for server, thread in running:
        server.stop()
        thread.join()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("only root may mount a file system")
    except FileNotFoundError:
        pytest.skip("there is no mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def serve_once() -> Iterator[Serve]:
    """The same on one engine, for tests that do not depend on the engine."""
    yield from _serving(ucall.Server)


def _serving(kind: type[ucall.Server]) -> Iterator[Serve]:
    servers: list[ucall.Server] = []

    def serve(*functions: Callable[..., Any], **options: Any) -> ucall.Server:
        server = kind(port=0, **arguments(options))
        servers.append(server)
        for function in functions:
            server.add(function)
        server.start()
        return server

    yield serve
    for server in servers:
        server.stop()


@pytest.fixture
def connect_to(serve_once: Serve) -> Iterator[Callable[..., Wire]]:
    """A connection to a server of functions: ``wire = connect_to(f)``."""
    wires: list[Wire] = []

    def connect_to(*functions: Callable[..., Any], **options: Any) -> Wire:
        wire = Wire(serve_once(*functions, **options).port)
        wires.append(wire)
        return wire

    yield connect_to
    for wire in wires:
        wire.socket.close()
