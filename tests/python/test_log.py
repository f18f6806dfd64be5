"""The package's log: text or JSON, a write for each record, and tracebacks without our frames."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_workers import supervised

import ucall
from harness import Wire, eventually, request
from ucall import _log
from ucall.testing import AsyncTestClient, TestClient

FOLDER = str(Path(ucall.__file__).parent)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What is written, by each write of at most 5,000 bytes."""
    writes: list[bytes] = []

    def write(descriptor: int, data: bytes) -> int:
        writes.append(bytes(data[:5000]))
        return len(writes[-1])

    monkeypatch.setattr(_log.os, "write", write)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    yield writes
    _log.log.removeHandler(_log._handler)


def test_a_record_is_one_write(written: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # Those of pytest.
    _log.write_to_stderr("text")
    _log.write_to_stderr("text")
    _log.log.error("first\nsecond \x1b[31m")
    [line] = written
    assert line.endswith(b" ERROR ucall: first\n  second \\x1b[31m\n")
    written.clear()
    _log.log.error("a" * 12_000)
    assert [len(it) for it in written][:2] == [5000, 5000] and len(written) == 3


def test_json_has_all_of_a_record(written: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    _log.write_to_stderr("json")
    try:
        raise ValueError("why\n\x1b")
    except ValueError as error:
        _log.log.error("%s raised", "price", exc_info=error)
    [line] = written
    assert line.count(b"\n") == 1 and b"\x1b" not in line
    record = json.loads(line)
    assert list(record) == ["time", "level", "logger", "pid", "message", "exception"]
    assert (record["level"], record["logger"], record["pid"]) == ("error", "ucall", os.getpid())
    assert record["message"] == "price raised" and record["exception"].endswith("why\n\x1b")
    assert len(record["time"]) == 24 and record["time"][10::13] == "TZ"


def test_a_program_that_configures_logging_gets_nothing_twice(
    written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    _log.write_to_stderr("text")
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    _log.log.error("hidden")
    assert written == []


def inner() -> None:
    raise ZeroDivisionError("why")


def plain() -> None:
    inner()


async def coroutine() -> None:
    await asyncio.sleep(0)
    inner()


async def items() -> Any:
    yield 1
    inner()


@pytest.mark.parametrize("function", [plain, coroutine, items])
@pytest.mark.parametrize("client", ["thread", "loop"])
@pytest.mark.parametrize("options", [{}, {"threads": True}], ids=["", "threads"])
def test_tracebacks_have_no_frames_of_the_package(
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Any],
    client: str,
    options: dict[str, Any],
) -> None:
    if options and function is not plain:
        pytest.skip("only plain functions run in threads")
    server = ucall.Server(debug=True)
    server.add(function, name="fail", **options)

    async def in_loop() -> Any:
        async with AsyncTestClient(server) as made:
            return (await made.fail()).error

    def in_thread() -> Any:
        with TestClient(server) as made:
            return made.fail().error

    error = asyncio.run(in_loop()) if client == "loop" else in_thread()
    assert error.code == -32603
    [record] = [it for it in caplog.records if it.exc_info]
    text = logging.Formatter().formatException(record.exc_info)
    for shown in (text, error.data):
        assert "in inner" in shown and FOLDER not in shown


def test_those_of_causes_and_groups_neither() -> None:
    from ucall._tracebacks import cut

    def raised(*, by: Callable[[], object]) -> BaseException:
        try:
            by()
        except BaseException as error:
            return error
        raise AssertionError

    # A function of the package that calls one of the program.
    own = raised(by=lambda: asyncio.run(_exit_guarded()))
    group = ExceptionGroup("both", [ValueError(), RuntimeError()])
    group.__cause__ = own
    cut(group)
    traceback = own.__traceback__
    names = []
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    assert names and not any(name.startswith(FOLDER) for name in names)


async def _exit_guarded() -> object:
    from ucall._server.embedded import exit_guarded

    return await exit_guarded(coroutine())


def test_workers_log_in_json(tmp_path: Path) -> None:
    source = """
import ucall
server = ucall.Server()
@server
def fail() -> None:
    raise ValueError("why\\n" * 500)
"""
    flags = ["--workers", "2", "--log-format", "json"]
    with supervised(tmp_path, *flags, source=source) as server:
        for _ in range(20):
            with Wire(server.port) as wire:
                wire.send(request("fail"))
                wire.message()

        def records() -> list[Any]:
            return [json.loads(line) for line in server.log.read_text().splitlines()]

        assert eventually(lambda: sum("exception" in it for it in records()) == 20)
        server.stop()


def test_a_program_of_its_own_logs_as_its_option_says(tmp_path: Path) -> None:
    source = """
import ucall
from ucall.testing import TestClient
server = ucall.Server(observability=ucall.Observability(log_format="json"))
@server
def fail() -> None:
    raise ValueError
with TestClient(server) as client:
    client.fail()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60)
    records = [json.loads(line) for line in done.stderr.splitlines()]
    assert [it["message"] for it in records if "exception" in it] == ["fail raised"]
    assert any(it["level"] == "info" for it in records)
    with pytest.raises(ValueError, match="log_format: expected 'text' or 'json', got 'xml'"):
        ucall.Observability(log_format="xml")  # type: ignore[arg-type]
