"""What importing a module does, and how a server starts."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serve

import ucall
from harness import Wire, free_port, listening_port, program
from ucall.client import Client

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_to_make_a_server_binds_nothing_and_reads_no_file(tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    told = ucall.Observability(access_log="text", metrics=True)
    options: dict[str, Any] = {"observability": told}
    with ucall.Server(port=0, udp=ucall.UDP()) as running:
        taken, missing = running.port, tmp_path / "missing.pem"
        made = [
            ucall.Server(port=taken, udp=ucall.UDP(), **options),
            ucall.Server("no.such.host.invalid", 80, **options),
            ucall.Server(uds="/nowhere/at/all", **options),
            ucall.Server(port=0, tls=ucall.TLS(certfile=missing), **options),
            ucall.Server(port=0, udp=ucall.UDP(port=0), **options),
        ]
        assert [(it.port, it.udp_port) for it in made] == [
            (taken, taken),
            (80, None),
            (0, None),
            (None, None),
            (None, None),
        ]
        with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
            made[3].start()
    # A server that never ran is closed as any other.
    made[2].stop()
    with made[0] as first, made[4]:
        assert first.port == first.udp_port == taken
        assert made[4].port and made[4].udp_port
    assert made[4].port and repr(made[4]).startswith(f"<ucall.Server on 127.0.0.1:{made[4].port}")
    del made, first, running
    gc.collect()
    assert len(os.listdir("/dev/fd")) == len(before)


def test_a_run_that_cannot_begin_gives_its_port_back() -> None:
    server = ucall.Server(port=0)
    with pytest.raises(ValueError, match="max_seconds"):
        server.run(max_seconds=float("nan"))
    with ucall.Server(port=server.port):
        pass


def test_a_start_after_a_stop_serves() -> None:
    server = ucall.Server(port=0)
    server.add(lambda: 1, name="one")
    server.stop()
    with server, Wire(server.port) as wire:
        assert wire.result("one") == 1
    server.start(port=0)
    with pytest.raises(RuntimeError, match="runs already"):
        server.start(port=0)
    with Wire(server.port) as wire:
        assert wire.result("one") == 1
    server.stop()


def test_a_server_that_runs_starts_no_workers() -> None:
    with (
        ucall.Server(port=0) as server,
        pytest.raises(RuntimeError, match="the server runs already"),
    ):
        server.run(workers=2)


IMPORTED = """
import asyncio, ucall
server = ucall.Server(port=0)
{}
begun = True
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that no other test imports."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"imported_{tmp_path.name}"
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "how", ["server.run(max_cycles=0)", "asyncio.run(asyncio.wait_for(server.serve(), 5))"]
)
def test_an_imported_module_does_not_serve(
    tmp_path: Path, module: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{module}.py").write_text(IMPORTED.format(how))
    imported = importlib.import_module(module)
    assert imported.begun and imported.server.port is None
    [record] = caplog.records
    method = "run" if "max_cycles" in how else "serve"
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{module} is imported: its {method}() returns at once, and serves nothing"
    )
    # Functions of the module run its server.
    imported.server.run(max_cycles=0)
    assert imported.server.port
    imported.server.stop()


def test_a_module_may_start_a_server_on_a_thread(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(IMPORTED.format("server.start()"))
    server: ucall.Server = importlib.import_module(module).server
    assert server.port
    server.stop()


SPAWNING = """
import os, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import ucall

beside = ucall.Server(port=0)
beside.start()
server = ucall.Server(port=0, observability=ucall.Observability(slow_call_s=60))

def ports() -> list:
    return [beside.port, server.port, os.getpid()]

@server
def spawned(method: str) -> list:
    with ProcessPoolExecutor(1, get_context(method)) as pool:
        return pool.submit(ports).result()

server.run()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_that_imports_the_program_again_serves_nothing(tmp_path: Path, method: str) -> None:
    (tmp_path / "app.py").write_text(SPAWNING)
    command = [sys.executable, str(tmp_path / "app.py")]
    process: Any = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            with Wire(listening_port(process)) as wire:
                *ports, pid = wire.result("spawned", [method])
                assert ports == [None, None] and pid != process.pid
        finally:
            process.terminate()
        assert process.stderr.read() == ""


async def later() -> int:
    return 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_within_an_event_loop_names_start_and_serve(is_async: bool) -> None:
    server = ucall.Server(port=0)
    server.add(later if is_async else lambda: 1, name="one")

    async def main() -> None:
        server.run(max_cycles=0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match=r"call start\(\), .* or await serve\(\)"):
            asyncio.run(main())
        gc.collect()  # A coroutine that is not awaited would warn.
    assert server.port is None


def test_asyncio_run_in_a_plain_function_names_threads(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> int:
        coroutine = later()
        try:
            return asyncio.run(coroutine)
        finally:
            coroutine.close()

    def other() -> None:
        raise RuntimeError("no event loop is to blame")

    def run_for_all(calls: list[int]) -> list[int]:
        return [run() for _ in calls]

    server = serve(later, other, run)
    server.add(run, name="in_a_thread", threads=True)
    server.batch(run_for_all)
    with Wire(server.port) as wire:
        assert wire.result("in_a_thread") == 1
        assert wire.error("run")["code"] == wire.error("other")["code"] == -32603
        assert wire.error("run_for_all", [1])["code"] == -32603
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("run raised: a plain function runs on the thread")
    assert "threads=True" in lines[0] and lines[1].startswith("other raised (")
    assert lines[2].startswith("run_for_all raised: a plain function runs on the thread")
    # Without async functions there is no loop.
    alone = serve(run)
    with Wire(alone.port) as wire:
        assert wire.result("run") == 1


SCRIPT = """
import logging, sys, ucall
if sys.argv[1] == "quiet":
    logging.getLogger("ucall").setLevel("WARNING")
if sys.argv[1] == "logging":
    logging.basicConfig(level="INFO", format="%(levelname)s:%(message)s")
server = ucall.{engine}.Server(port=0)
server.run(max_cycles=0)
server.run(max_cycles=0)
print(server.port, server.engine)
"""


@pytest.mark.parametrize(
    ("how", "prefix"), [("plain", "ucall: "), ("logging", "INFO:"), ("quiet", None)]
)
def test_a_program_prints_its_address_once(how: str, prefix: str | None, engine: str) -> None:
    with program(f"import ucall.{engine}\n" + SCRIPT.format(engine=engine), how) as process:
        output, errors = process.communicate(timeout=60)
    port, name = output.split()
    line = f"{prefix}listening on http://127.0.0.1:{port}, engine: {name}\n"
    assert errors == ("" if prefix is None else line)


CELLS = """
import sys
sys.ps1 = "In [1]: "  # As in IPython and the interactive interpreter.

import ucall
from ucall.client import Client

server = ucall.Server(port=PORT)


@server
def run() -> int:
    return NUMBER


server.start()
print(Client(port=PORT).run().json)
"""


def test_the_cells_of_a_notebook_run_twice() -> None:
    cells = CELLS.replace("PORT", str(free_port()))
    source = "\n".join(
        f"exec({cells.replace('NUMBER', number)!r}, globals())" for number in ("1", "2")
    )
    with program(source) as process:
        output, errors = process.communicate(timeout=60)
    assert (output, errors, process.returncode) == ("1\n2\n", "", 0)
    # A program that is not interactive is told.
    with program(source.replace("sys.ps1 = ", "_ = ")) as process:
        output, errors = process.communicate(timeout=60)
    assert output == "1\n" and "is in use" in errors


def _blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_tutorials_module_is_tested_while_it_is_served(tmp_path: Path) -> None:
    """By two processes of pytest, beside the program that has its port."""
    port = free_port()
    app = _blocks("tutorial.md")[0]
    assert "server.run()" in app and app in _blocks("testing.md")
    (tmp_path / "app.py").write_text(app.replace("Server()", f"Server(port={port})"))
    tests = [block for block in _blocks("testing.md") if "import app" in block]
    for number, test in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(test)
    passed = 2 * "".join(tests).count("def test_")
    command = [sys.executable, "app.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as served:
        try:
            assert listening_port(served) == port
            names = ("xdist", "pytest_ucall", "anyio.pytest_plugin")
            plugins = [option for name in names for option in ("-p", name)]
            processes = ["-n", "2", "--dist=each"]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *plugins, *processes],
                cwd=tmp_path,
                # Otherwise each process imports the plugins of all that is installed.
                env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0 and f"{passed} passed" in done.stdout, done.stdout
            with Client(port=port) as client:
                assert client.sum(2, 3).json == 5
        finally:
            served.kill()
