"""Batches that run in processes, each with a device."""

from __future__ import annotations

import base64
import importlib
import io
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_processes import is_running, running

import ucall
from harness import HOST, Wire, eventually, request

SCRIPT = """
import importlib, os, sys, time, resource
import numpy as np
import ucall
server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0,
    timeouts=ucall.Timeouts(drain_timeout_s=3000),
    limits=ucall.Limits(max_reply_bytes=1 << 24),
)
numbers = []

@server.on_process_start
def begin(number: int):
    numbers.append(number)

@server.model
def scale(device: str | None) -> int:
    return {None: 0, "a": 10, "b": 20}[device]

@server.batch(devices=["a", "b"])
def where(texts: list[str]) -> list:
    if texts == ["slow"]:
        time.sleep(0.5)
    found = [os.getpid(), server.device, os.environ.get("UCALL_DEVICE"), numbers[0], scale()]
    return [[*found, text] for text in texts]

@server.batch(devices=["a", "b"])
def odd(values: list[int]) -> list:
    results = []
    for value in values:
        if value == 1:
            results.append(ucall.RPCError(5, "no", {"a": 1}))
        elif value == 2:
            results.append("x" * (1 << 24))
        elif value == 3:
            raise KeyError("x")
        elif value == 4:
            return []
        else:
            results.append(value)
    return results

@server.batch(processes=1)
def pid(values: list[int]) -> list[int]:
    return [os.getpid()] * len(values)

@server.batch(processes=1)
def nap(seconds: list[float]) -> list[int]:
    time.sleep(max(seconds))
    return [os.getpid()] * len(seconds)

@server.batch(processes=1, timeout_ms=400)
def late(seconds: list[float]) -> list[int]:
    time.sleep(max(seconds))
    return [os.getpid()] * len(seconds)

@server.batch(processes=1, max_size=8)
def double(rows: np.ndarray) -> np.ndarray:
    rows *= 2
    return rows

@server.batch(processes=1)
def totals(rows: np.ndarray) -> np.ndarray:
    return rows.sum(axis=1)

@server.batch(processes=1)
def kinds(rows: np.ndarray) -> list:
    owner = type(rows.base).__name__
    return [[owner, list(rows.shape), bool(rows.flags.writeable)] for _ in rows]

@server.batch(processes=1)
def keep(data: list[bytes], rows: np.ndarray) -> list:
    return [[it[:6], float(row.sum())] for it, row in zip(data, rows)]

@server
def sum(a: int, b: int) -> int:
    return a + b

server.on_startup(lambda: print(server.port))
server.run()
"""


def only(script: str, *names: str) -> str:
    """The script with these of the functions that have processes, each of which takes 0.1 s of a
    processor to start."""
    decorated = re.compile(r"@server\.batch\(.*\)\ndef (\w+)\(.*\n(?:.+\n)+")
    assert set(names) <= set(decorated.findall(script))
    left = decorated.sub(lambda found: found[0] if found[1] in names else "", script)
    return left if "np." in left else left.replace("import numpy as np\n", "")


@contextmanager
def serving(path: Path, engine: str, script: str) -> Iterator[tuple[subprocess.Popen[str], Wire]]:
    """A server whose processes have started, and a connection."""
    with running(path, script, engine) as (process, port):
        assert eventually(lambda: connects(port) or process.poll() is not None)
        with Wire(port) as wire:
            yield process, wire


def connects(port: int) -> bool:
    """Whether the server listens."""
    try:
        socket.create_connection((HOST, port)).close()
    except ConnectionError:
        return False
    return True


def call_all(wire: Wire, method: str, params: list[Any]) -> list[Any]:
    """The results or errors of calls that arrive together."""
    wire.send(b"".join(request(method, [it], id=index) for index, it in enumerate(params)))
    replies = [json.loads(wire.line()) for _ in params]
    by_id = {reply["id"]: reply.get("result", reply.get("error")) for reply in replies}
    return [by_id[index] for index in range(len(params))]


def test_batches_run_in_processes_with_a_device_each(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "where")) as (process, wire):
        wire.send(request("where", ["slow"], id=1))
        wire.send(request("sum", [1, 2], id=2))
        assert json.loads(wire.line())["id"] == 2, "the server's thread is free"
        # The process that runs nothing gets the next batches.
        others = [wire.result("where", [text]) for text in ("x", "y", "z")]
        slow = json.loads(wire.line())["result"]
        assert {it[0] for it in others} != {slow[0]} and len({it[0] for it in others}) == 1
        for pid, device, variable, number, model, _ in (slow, *others):
            assert pid != process.pid and device == variable
            assert (number, model) == {"a": (0, 10), "b": (1, 20)}[device]
        texts = [f"t{number}" for number in range(100)]
        assert [it[-1] for it in call_all(wire, "where", texts)] == texts
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert eventually(lambda: not is_running(slow[0]) and not is_running(others[0][0]))


def test_calls_fail_alone_or_with_their_batch(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, engine, only(SCRIPT, "odd")) as (process, wire):
        assert wire.error("odd", [1]) == {"code": 5, "message": "no", "data": {"a": 1}}
        too_large = wire.error("odd", [2])
        assert too_large["code"] == -32603 and "max_reply_bytes" in str(too_large["data"])
        assert wire.error("odd", [3])["code"] == -32603
        assert "expected a list of 1" in str(wire.error("odd", [4])) or "got 0" in str(
            wire.error("odd", [4])
        )
        assert wire.error("odd", ["text"])["code"] == -32602
        found = call_all(wire, "odd", [5, 1, 6, "text"])
        assert (found[0], found[1]["code"], found[2], found[3]["code"]) == (5, 5, 6, -32602)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert "KeyError: 'x'" in log, "the process logs what its function raises"


def npy(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("items", [8, 100_000], ids=["short", "long"])
def test_arrays_are_stacked_in_shared_memory(tmp_path: Path, engine: str, items: int) -> None:
    script = only(SCRIPT, "kinds", "double", "totals")
    with serving(tmp_path, engine, script) as (_, wire):
        port = wire.socket.getpeername()[1]
        with ucall.client.Client(f"tcp://{HOST}:{port}") as client:
            rows = [np.arange(items, dtype="f4") + number for number in range(6)]
            # It learns that the server takes arrays beside the text.
            assert client.kinds(rows[0][:4]).json[1] == [1, 4]
            assert (client.double(rows[1]).numpy == rows[1] * 2).all()
            total = client.totals(rows[1][:4]).numpy
            assert (total.shape, total.dtype) == ((), "f4") and total == 10
            with client.batch() as calls:
                found = [calls.kinds(row) for row in rows]
                doubled = [calls.double(row) for row in rows]
            for number, (kind, twice) in enumerate(zip(found, doubled, strict=True)):
                assert kind.json == ["PartMemory", [6, items], True], "a copy"
                assert (twice.numpy == rows[number] * 2).all()
            other = client.kinds(rows[0].reshape(2, -1))
            assert other.json == ["PartMemory", [1, 2, items // 2], True]


def test_arrays_in_json_and_bytes_arrive_as_they_are(tmp_path: Path, engine: str) -> None:
    row = np.arange(3, dtype="f8")
    with serving(tmp_path, engine, only(SCRIPT, "keep")) as (_, wire):
        data = base64.b64encode(b"\x93NUMPY").decode()
        assert wire.result("keep", [data, npy(row)]) == ["k05VTVBZ", 3.0]
        port = wire.socket.getpeername()[1]
        with ucall.client.Client(f"tcp://{HOST}:{port}") as client:
            file = io.BytesIO()
            np.save(file, row)
            for _ in range(2):  # The second time as parts: a file is no array here.
                kept, total = client.keep(file.getvalue(), row).json
                assert (base64.b64decode(kept), total) == (b"\x93NUMPY", 3.0)


def test_registered_types_are_known_in_processes(tmp_path: Path, engine: str) -> None:
    script = only(SCRIPT).replace("@server.on_process_start", TYPES + "@server.on_process_start")
    with serving(tmp_path, engine, script) as (_, wire):
        assert wire.result("next_version", ["1.2"]) == "1.3"


TYPES = """
class Version:
    def __init__(self, text):
        self.parts = text.split(".")

def encode(version):
    return ".".join(version.parts)

server.register_type(Version, encode=encode, decode=Version)

@server.batch(processes=1)
def next_version(versions: list[Version]) -> list[Version]:
    return [Version(f"{it.parts[0]}.{int(it.parts[1]) + 1}") for it in versions]

"""


def test_batches_are_warm_before_the_server_listens(tmp_path: Path, engine: str) -> None:
    script = only(SCRIPT).replace("@server.on_process_start", WARM + "@server.on_process_start")
    with serving(tmp_path, engine, script) as (_, wire):
        sizes = wire.result("sizes", ["x"])
        assert sizes == [1, 2, 4, 1, 2, 4, 1]


WARM = """
seen = []

@server.batch(processes=1, max_size=4, warm_up=("a text",), weight=lambda text: len(text))
def sizes(texts: list[str]) -> list[list[int]]:
    seen.append(len(texts))
    return [list(seen)] * len(texts)

"""


def test_functions_unfit_for_processes_are_rejected() -> None:
    server = ucall.Server(port=0)
    unfit: list[tuple[str, Any, dict[str, Any]]] = [
        ("is async", _later, {"processes": 1}),
        ("is a generator", _stream, {"processes": 1}),
        ("takes the contexts of its calls", _with_contexts, {"devices": ["a"]}),
        ("expected threads or processes", _plain, {"processes": 1, "threads": True}),
        ("devices: expected a list of names", _plain, {"devices": "cuda:0"}),
        ("devices: expected a list of names", _plain, {"devices": [1]}),
    ]
    for message, function, options in unfit:
        with pytest.raises(TypeError, match=message):
            server.batch(function, **options)
    for message, options in [("devices: expected at least one", {"devices": []})]:
        with pytest.raises(ValueError, match=message):
            server.batch(_plain, **options)
    with pytest.raises(ValueError, match="processes"):
        server.batch(_plain, processes=0)
    assert server.device is None


def _plain(values: list[int]) -> list[int]:
    return values


async def _later(values: list[int]) -> list[int]:
    return values


def _stream(values: list[int]) -> Iterator[list[int]]:
    yield values


def _with_contexts(contexts: list[ucall.Context], values: list[int]) -> list[int]:
    return values


def test_devices_are_taken_in_turn() -> None:
    from ucall._functions.registration import BatchRules, described_run

    rules = BatchRules(1, 0, 1, processes=3, devices=["a", "b"])
    described = described_run("thread", None, rules)
    assert described == "in batches of up to 1, in 3 processes on a, b"
    assert rules.process_devices == ("a", "b", "a") and rules.process_count == 3
    assert BatchRules(1, 0, 1, processes=2).process_devices == (None, None)
    assert BatchRules(1, 0, 1).process_count == 0


def test_a_function_that_is_no_name_of_a_module_does_not_start(engine: str) -> None:
    server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(port=0)

    @server.batch(processes=1)
    def inner(values: list[int]) -> list[int]:
        return values

    with pytest.raises(RuntimeError, match=r"its process could not start: .*inner"):
        server.start()
