"""What batches in processes say of their callers: in lines of the log, and by spans."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_batch_processes import connects, only
from test_log_callers import HEADERS, TRACE
from test_processes import running

from harness import HOST, Wire, eventually, http, request
from ucall.client import Client

SCRIPT = """
import importlib, json, logging, os, signal, sys, threading
import numpy as np
import ucall, ucall.auth
from ucall import _log

handler = logging.StreamHandler()
handler.setFormatter(_log._JsonFormatter())
logging.getLogger("ucall").addHandler(handler)

TRACES, FILE = len(sys.argv) > 2, __file__ + ".spans"
if TRACES:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class ToFile(SpanExporter):
        def export(self, spans):
            with open(FILE, "a") as file:
                file.writelines(json.dumps(described(span)) + "\\n" for span in spans)
            return SpanExportResult.SUCCESS

    def described(span):
        links = [link.context.span_id for link in span.links]
        parent = span.parent and span.parent.span_id
        context = span.context
        return {
            "name": span.name, "kind": span.kind.name, "pid": os.getpid(), "links": links,
            "id": context.span_id, "parent": parent, "trace": f"{context.trace_id:032x}",
            "state": context.trace_state.to_header(), "attributes": dict(span.attributes),
            "ms": (span.end_time - span.start_time) / 1e6,
        }

    provider = TracerProvider()
    # Only the end of the process exports them.
    provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)

server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0,
    auth=ucall.auth.bearer({"s3cret": "ada"}) if not TRACES else None,
    timeouts=ucall.Timeouts(drain_timeout_s=3000),
    observability=ucall.Observability(trace=TRACES),
)

@server.batch(processes=1, max_size=3, max_wait_ms=10_000)
def fail(values: list[int]) -> list[int]:
    raise ValueError(values)

@server.batch(processes=1, max_size=2, max_wait_ms=10_000)
def die(values: list[int]) -> list[int]:
    os.kill(os.getpid(), signal.SIGKILL)

@server.batch(processes=1)
def items(values: list[int]) -> list:
    return [ValueError(value) for value in values]

@server.batch(devices=["a", "b"], max_size=2, max_wait_ms=10_000)
def square(values: list[int]) -> list:
    if not TRACES:
        return values
    with trace.get_tracer("program").start_as_current_span("inner"):
        threading.Event().wait(0.05)
        return [ValueError("odd") if it == 3 else [it * it, os.getpid()] for it in values]

@server.batch(processes=1)
def shapes(rows: np.ndarray) -> list:
    return [[type(rows.base).__name__, list(rows.shape)] for _ in rows]

@server.batch(processes=1, rows=True)
def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]

@server.batch(processes=1)
def modules(names: list[str]) -> list[bool]:
    return [name in sys.modules for name in names]

async def around(ctx: ucall.Context, call: ucall.Call):
    return await call()

if len(sys.argv) > 3:
    server.middleware(around)

server.on_startup(lambda: print(server.port))
if __name__ == "__main__":
    server.run()
"""


class Started:
    """A server in a process of its own, with what it has left at its end."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        assert eventually(lambda: connects(port) or process.poll() is not None)

    def end(self) -> list[dict[str, Any]]:
        """Ends the server. Returns the lines of its log that are JSON."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, log
        return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def errors(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["level"] == "error"]


@pytest.mark.parametrize("method", ["fail", "items"])
def test_a_failure_in_a_process_says_who_has_called(
    tmp_path: Path, engine: str, method: str
) -> None:
    with running(tmp_path, only(SCRIPT, method), engine) as (process, port):
        server = Started(process, port)
        calls = [request(method, [1], id=it) for it in (5, 6, 7)]
        with Wire(port) as wire:
            wire.send(http(b"[" + b",".join(calls) + b"]", *HEADERS))
            replies = json.loads(wire.reply()[2])
            assert {reply["error"]["code"] for reply in replies} == {-32603}
            peer = f"127.0.0.1:{wire.socket.getsockname()[1]}"
        lines = errors(server.end())
    assert [line["id"] for line in lines] == ([5] if method == "fail" else [5, 6, 7])
    expected = {"peer": peer, "transport": "http", "user": "ada", "method": method}
    for line in lines:
        assert line["message"] == f"{method} raised"
        assert {name: line[name] for name in expected} == expected
        assert line["trace_id"] == TRACE and "ValueError" in line["exception"]
        assert line.get("calls") == (3 if method == "fail" else None)


def test_calls_of_a_process_that_dies_are_logged_with_who_has_called(
    tmp_path: Path, engine: str
) -> None:
    with running(tmp_path, SCRIPT, engine) as (process, port):
        server = Started(process, port)
        calls = [request("die", [1], id=it) for it in (5, 6)]
        with Wire(port) as wire:
            wire.send(http(b"[" + b",".join(calls) + b"]", *HEADERS))
            replies = json.loads(wire.reply()[2])
            assert [reply["error"]["code"] for reply in replies] == [-32007] * 2
            peer = f"127.0.0.1:{wire.socket.getsockname()[1]}"
        died, *lines = errors(server.end())
    assert died["message"].endswith("was killed by signal 9: 2 calls failed")
    expected = {"peer": peer, "transport": "http", "user": "ada", "method": "die"}
    for line in lines:
        assert line["message"] == "a call failed: its process was killed by signal 9"
        assert {name: line[name] for name in expected} == expected
        assert line["trace_id"] == TRACE
    assert [line["id"] for line in lines] == [5, 6]


def spans_of(folder: Path) -> list[dict[str, Any]]:
    text = next(folder.glob("*.spans")).read_text()
    return [json.loads(line) for line in text.splitlines()]


def traced(number: int, parent: str, **meta: Any) -> dict[str, Any]:
    call: dict[str, Any] = json.loads(request("square", [number], number))
    return call | {"_meta": {"traceparent": parent, **meta}}


PARENTS = [f"00-{digit}af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" for digit in "01"]


def test_a_batch_in_a_process_has_a_span_with_links_to_its_calls(
    tmp_path: Path, engine: str
) -> None:
    with running(tmp_path, only(SCRIPT, "square"), engine, "trace") as (process, port):
        server = Started(process, port)
        with Wire(port) as wire:
            calls = [traced(2, PARENTS[0], tracestate="v=1"), traced(3, PARENTS[1])]
            wire.send(json.dumps(calls).encode())
            replies = {reply["id"]: reply for reply in json.loads(wire.line())}
            [_, pid] = replies[2]["result"]
            peer = wire.socket.getsockname()[1]
        server.end()
    found = spans_of(tmp_path)
    assert {span["pid"] for span in found} == {pid}
    served = [span for span in found if span["kind"] == "SERVER"]
    [batch] = [span for span in found if span["name"] == "square batch"]
    [inner] = [span for span in found if span["name"] == "inner"]
    assert batch["links"] == [span["id"] for span in served]
    assert [span["trace"] for span in served] == [parent[3:35] for parent in PARENTS]
    assert [span["state"] for span in served] == ["v=1", ""]
    device = batch["attributes"].pop("ucall.device")
    assert device in ("a", "b")
    assert batch["attributes"] == {"rpc.method": "square", "ucall.batch.size": 2}
    assert inner["parent"] == batch["id"] and batch["ms"] >= inner["ms"] >= 50
    codes = [span["attributes"].get("rpc.response.status_code") for span in served]
    assert codes == [None, "-32603"]
    where = {"server.address": HOST, "server.port": port, "client.port": peer}
    assert {name: served[0]["attributes"][name] for name in where} == where
    assert [span["attributes"]["jsonrpc.request.id"] for span in served] == ["2", "3"]


def test_traces_change_no_arguments_in_processes(tmp_path: Path, engine: str) -> None:
    script = only(SCRIPT, "shapes", "lengths")
    with running(tmp_path, script, engine, "trace") as (process, port):
        Started(process, port)
        with Client(f"tcp://{HOST}:{port}") as client:
            row = np.arange(9, dtype="f4")
            # It learns that the server takes arrays beside the text.
            assert client.shapes(row).json[1] == [1, 9]
            assert client.shapes(row).json == ["PartMemory", [1, 9]]
            assert client.lengths(["a", "bcd"]).json == [1, 3]


def test_hooks_are_within_the_span_of_a_call_in_a_process(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, only(SCRIPT, "square"), engine, "trace", "hooks") as (process, port):
        server = Started(process, port)
        with Wire(port) as wire:
            wire.send(json.dumps([traced(it, PARENTS[0]) for it in (2, 4)]).encode())
            assert [reply["result"][0] for reply in json.loads(wire.line())] == [4, 16]
        server.end()
    served = [span for span in spans_of(tmp_path) if span["name"] != "inner"]
    assert [(span["name"], span["pid"]) for span in served] == [("square", process.pid)] * 2


def test_processes_without_traces_do_not_import_them(tmp_path: Path, engine: str) -> None:
    with running(tmp_path, only(SCRIPT, "modules"), engine) as (process, port):
        Started(process, port)
        with Wire(port) as wire:
            wire.send(http(request("modules", ["opentelemetry"], id=1), *HEADERS))
            assert json.loads(wire.reply()[2])["result"] is False
