"""The access log: a line for each call."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import forking
import pytest

import ucall
from harness import HOST, Wire, eventually, free_port, http, listening_port, request
from ucall.client import Client

SCRIPT = """
import asyncio, json, os, sys
from collections.abc import Iterator
import ucall

def user(ctx):
    from ucall.auth import AccessToken
    return AccessToken("eve", frozenset(), {}) if "x-token" in ctx.headers else "ada"

options = json.loads(sys.argv[1])
workers = options.pop("workers", None)
port = options.pop("port", 0)
auth = {"auth": user} if options.pop("auth", False) else {}
store = options.pop("store", None)
server = ucall.Server(port=port, **auth, **ucall.options.arguments(options))
if store is not None:
    server.store("kv", store)

@server
def sum(a: int, b: int) -> int:
    return a + b

@server
def pid() -> int:
    return os.getpid()

@server
def fail() -> None:
    raise ucall.RPCError(7, "no")

@server
async def task(text: str) -> str:
    await asyncio.sleep(0)
    return text

@server
async def forever() -> None:
    await asyncio.Event().wait()

server.add(forever, "late", timeout_ms=1)

@server(threads=True)
def thread(text: str) -> str:
    return text

@server.batch
def squares(a: list[int]) -> list[int]:
    return [it * it for it in a]

@server
def items(count: int) -> Iterator[int]:
    yield from range(count)

@server
def stats() -> dict:
    return server.stats()

server.run(workers=workers)
"""


@contextmanager
def serving(
    folder: Path, output: int | None = None, **options: Any
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server in a process of its own, and its port."""
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "script", json.dumps(options)]
    output = subprocess.PIPE if output is None else output
    process = forking.Python(command, cwd=folder, stdout=output, stderr=subprocess.PIPE)
    with process:
        assert process.stderr is not None
        try:
            port = listening_port(process)
            assert eventually(lambda: is_served(port))
            yield process, port
        finally:
            process.kill()


@contextmanager
def logging_to(path: Path, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The same with a file as its output, which takes any number of lines."""
    with path.open("wb") as file, serving(path.parent, file.fileno(), **options) as running:
        yield running


def is_served(port: int) -> bool:
    """Whether a request is answered. It is no call, so that it has no line."""
    try:
        with Wire(port) as wire:
            wire.send(b"1\n")
            return bool(wire.line())
    except OSError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def lines(output: BinaryIO | None, count: int) -> list[dict[str, Any]]:
    """That many lines of JSON."""
    assert output is not None
    return [json.loads(output.readline()) for _ in range(count)]


def test_a_line_has_the_fields_of_a_call(tmp_path: Path) -> None:
    with serving(tmp_path, access_log="json", auth=True) as (process, port):
        with Wire(port) as wire:
            wire.send(http(request("sum", [2, 40], "a")))
            wire.reply()
            peer = f"{HOST}:{wire.socket.getsockname()[1]}"
        [line] = lines(process.stdout, 1)
        time = datetime.fromisoformat(line.pop("time"))
        assert time.utcoffset() is not None and line.pop("duration_ms") >= 0
        assert line == {
            "peer": peer,
            "transport": "http",
            "user": "ada",
            "method": "sum",
            "id": "a",
            "code": None,
            "bytes_in": len(b"[2, 40]"),
            "bytes_out": 2,
        }
        with Wire(port) as wire:
            wire.send(http(request("sum", [2, 40]), "X-Token: any"))
            wire.reply()
        assert lines(process.stdout, 1)[0]["user"] == "eve"


def test_a_call_of_a_tool_is_one_call_of_its_function(tmp_path: Path) -> None:
    params = {"name": "sum", "arguments": {"a": 2, "b": 40}}
    with serving(tmp_path, access_log="json", mcp=True) as (process, port):
        with Wire(port) as raw, Wire(port) as wire:
            wire.send(http(request("tools/call", params), target="/mcp"))
            assert wire.reply()[0] == 200
            raw.result("tools/call", params)
            raw.result("tools/list")
            assert raw.result("stats")["calls"] == 3
        found = [(it["method"], it["code"]) for it in lines(process.stdout, 4)]
        methods = ["sum", "sum", "tools/list", "stats"]
        assert found == [(method, None) for method in methods]


@pytest.mark.parametrize(
    ("scheme", "name"), [("http", "http"), ("tcp", "tcp"), ("ws", "websocket")]
)
def test_each_call_of_every_kind_has_a_line(tmp_path: Path, scheme: str, name: str) -> None:
    with serving(tmp_path, access_log="json") as (process, port):
        with Client(f"{scheme}://{HOST}:{port}") as client:
            client.sum(1, 2)
            client.task("abc")
            client.thread("abc")
            client.squares(9)
            list(client.stream.items(2))
            client.items(2)
            client.fail()
            client.late()
            client.missing(1)
            client.sum("x")
            client.notify("task", "abc")
            client.sum(3, 4)
        found = lines(process.stdout, 12)
    assert {line["transport"] for line in found} == {name}
    assert sorted(str((line["method"], line["code"], line["bytes_out"])) for line in found) == [
        "('fail', 7, 0)",
        "('items', None, 4)",
        "('items', None, 5)",
        "('late', -32001, 0)",
        "('missing', -32601, 0)",
        "('squares', None, 2)",
        "('sum', -32602, 0)",
        "('sum', None, 1)",
        "('sum', None, 1)",
        "('task', None, 0)",
        "('task', None, 5)",
        "('thread', None, 5)",
    ]
    assert sum("id" not in line for line in found) == 1


def test_calls_of_a_request_have_a_line_each(tmp_path: Path) -> None:
    calls = [json.loads(request("sum", [it, 1], it)) for it in range(3)]
    with serving(tmp_path, access_log="json") as (process, port):
        with Wire(port) as wire:
            wire.send(json.dumps(calls).encode())
            wire.line()
        assert [line["id"] for line in lines(process.stdout, 3)] == [0, 1, 2]


def test_a_call_whose_client_leaves_is_logged_as_cancelled(tmp_path: Path) -> None:
    with serving(tmp_path, access_log="json") as (process, port):
        with Wire(port) as wire:
            wire.send(http(request("forever")))
        [line] = lines(process.stdout, 1)
    assert (line["method"], line["code"]) == ("forever", -32800)


def test_lines_of_text_are_escaped(tmp_path: Path) -> None:
    with serving(tmp_path, access_log="text") as (process, port):
        with Wire(port) as wire:
            wire.result("sum", [2, 3])
            wire.error("x\n\x1b[31m id=1 ok", {})
        assert process.stdout is not None
        good, bad = (process.stdout.readline().decode() for _ in range(2))
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        rf"{stamp} 127\.0\.0\.1:\d+ tcp sum id=1 ok \d+\.\d{{3}}ms in=6 out=1\n", good
    )
    assert r' tcp "x\u000a\u001b[31m id=1 ok" id=1 -32601 ' in bad


def test_a_share_of_all_calls_is_logged(tmp_path: Path) -> None:
    calls = 2000
    counts = {}
    for share in (0.0, 0.25):
        options: dict[str, Any] = {"access_log": "json", "access_log_sample": share}
        with logging_to(tmp_path / "log", **options) as (process, port):
            with Wire(port) as wire:
                wire.send(request("sum", [1, 2]) * calls)
                for _ in range(calls):
                    wire.line()
            stop(process)
        counts[share] = len((tmp_path / "log").read_bytes().splitlines())
    assert counts[0.0] == 0
    assert calls // 8 < counts[0.25] < calls // 2


def test_an_output_that_nobody_reads_stops_no_call(tmp_path: Path) -> None:
    """The pipe fills, then the queue; later lines are dropped, and counted."""
    reader, writer = os.pipe()
    calls, method = 20_000, "x" * 120
    with serving(tmp_path, writer, access_log="json") as (process, port):
        os.close(writer)
        with Wire(port) as wire:
            for _ in range(20):
                wire.send(request(method) * (calls // 20))
                for _ in range(calls // 20):
                    wire.line()
            assert wire.result("sum", [1, 2]) == 3
            dropped = wire.result("stats")["dropped_log_lines"]
        assert dropped > 0
        with os.fdopen(reader, "rb") as output:
            # From here on the lines are read.
            told, found = 0, 0
            while told == 0:
                [line] = lines(output, 1)
                told += line.get("dropped_lines", 0)
                found += "method" in line
                with Wire(port) as wire:
                    wire.result("sum", [1, 2])
            stop(process)
            rest = [json.loads(line) for line in output]
    told += sum(line.get("dropped_lines", 0) for line in rest)
    assert told >= dropped
    assert found + len(rest) < calls


def test_a_server_stops_with_an_output_that_nobody_reads(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with serving(tmp_path, writer, access_log="json") as (process, port):
        with Wire(port) as wire:
            wire.send(request("x" * 120) * 1000)
            for _ in range(1000):
                wire.line()
        stop(process)
    os.close(reader)
    os.close(writer)


def test_all_lines_are_written_before_the_server_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(path, access_log="json") as (process, port):
        with Wire(port) as wire:
            wire.send(request("sum", [1, 2]) * 5000)
            for _ in range(5000):
                wire.line()
        stop(process)
    assert len([json.loads(line) for line in path.read_bytes().splitlines()]) == 5000


def test_workers_write_whole_lines_to_one_output(tmp_path: Path) -> None:
    calls = 300
    options: dict[str, Any] = {"access_log": "json", "workers": 2, "port": free_port()}
    path = tmp_path / "log"
    with logging_to(path, **options) as (process, port):
        served = set()
        while len(served) < 2:
            with Wire(port) as wire:
                served.add(wire.result("pid"))
                wire.send(request("sum", [1, 2]) * calls)
                for _ in range(calls):
                    wire.line()
        with Wire(port) as wire:
            assert wire.result("stats")["dropped_log_lines"] == 0
        stop(process)
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    count = sum(line["method"] == "pid" for line in found)
    assert sum(line["method"] == "sum" for line in found) == calls * count


def test_the_command_line_sets_the_log(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import ucall\nserver = ucall.Server()\nserver.add(max, 'max')\n"
    )
    port = free_port()
    command = [sys.executable, "-m", "ucall", "app:server", f"--port={port}"]
    environment = {**os.environ, "UCALL_ACCESS_LOG": "json"}
    options: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.PIPE}
    with forking.Python(
        [*command, "--access-log-sample=1"], env=environment, stderr=subprocess.PIPE, **options
    ) as process:
        try:
            assert eventually(lambda: is_served(port))
            with Wire(port) as wire:
                wire.result("max", [1, 2])
            [line] = lines(process.stdout, 1)
            assert line["method"] == "max"
        finally:
            process.terminate()
    for wrong in ("--access-log=xml", "--access-log-sample=2"):
        done = forking.run([*command, wrong], text=True, cwd=tmp_path)
        assert done.returncode == 2 and "--access-log" in done.stderr
    done = forking.run([*command, "--access-log-sample=0.5"], text=True, cwd=tmp_path)
    assert done.returncode == 1 and "no effect without access_log" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"access_log": "xml"}, "access_log: expected 'text' or 'json', got \"xml\""),
        ({"access_log": "json", "access_log_sample": 1.5}, "access_log_sample: expected 0 to 1"),
        ({"access_log": "json", "access_log_sample": float("nan")}, "access_log_sample: expected"),
        ({"access_log_sample": 0.5}, "access_log_sample: has no effect without access_log"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ucall.Server(port=0, **ucall.options.arguments(options))


def test_without_a_log_nothing_is_written(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, port):
        with Wire(port) as wire:
            wire.result("sum", [1, 2])
        stop(process)
        assert process.stdout is not None
        assert process.stdout.read() == b""
