"""Metrics: `GET /metrics` against the calls that were made, and Prometheus' own tools."""

from __future__ import annotations

import asyncio
import builtins
import http.client
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from functions import sum
from programs import require
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
from serving import Serve
from test_workers import supervised
from websockets.sync.client import connect

import ucall
from harness import HOST, Wire, eventually, request
from harness import http as http_request

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference-metrics.md").read_text(encoding="utf-8")
OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"
DURATION = "rpc_server_call_duration_seconds"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int, accept: str = "*/*", **headers: str) -> tuple[str, str]:
    """The content type and the text of a server's metrics."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", "/metrics", headers={"Accept": accept, **headers})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.status == 200, text
    return response.headers["Content-Type"], text


def samples(port: int) -> Samples:
    _, text = scrape(port)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of a name with these labels; an empty one means none."""
    wanted = {(label, text) for label, text in labels.items() if text}
    absent = {label for label, text in labels.items() if not text}
    return builtins.sum(
        number
        for (sample, has), number in found.items()
        if sample == name and wanted <= has and not absent & {label for label, _ in has}
    )


def calls(found: Samples, method: str, code: str = "") -> float:
    return value(found, f"{DURATION}_count", rpc_method=method, error_type=code)


def refuse() -> None:
    raise ucall.RPCError(42, "no")


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_calls_are_counted_by_method_and_error(serve: Serve) -> None:
    server = serve(sum, refuse, pause, metrics=True)
    with Wire(server.port) as wire:
        for number in range(3):
            wire.result("sum", [number, 1])
        wire.error("sum", ["1", 1])
        wire.error("refuse")
        wire.error("unknown")
        wire.error("also unknown")
        wire.result("pause", [0.03])
        wire.send(request("sum", [1, 1], id=...) + request("sum", [1, 2]))
        wire.line()
    found = samples(server.port)
    assert calls(found, "sum") == 5
    assert calls(found, "sum", "-32602") == 1
    assert calls(found, "refuse", "42") == 1 and calls(found, "refuse") == 0
    assert calls(found, "_OTHER", "-32601") == 2
    assert calls(found, "pause") == 1
    assert value(found, f"{DURATION}_sum", rpc_method="pause") >= 0.03
    assert value(found, f"{DURATION}_bucket", rpc_method="pause", le="0.02048") == 0
    assert value(found, f"{DURATION}_bucket", rpc_method="pause", le="+Inf") == 1
    assert value(found, f"{DURATION}_bucket", rpc_system_name="jsonrpc", le="+Inf") == 10


def test_a_method_that_is_added_or_replaced_at_run_time_is_counted(serve_once: Serve) -> None:
    server = serve_once(sum, metrics=True)
    with Wire(server.port) as wire:
        wire.result("sum", [1, 1])
        server.add(sum)
        server.add(lambda: 1, name='a "quoted" \\ name\n')
        wire.result("sum", [1, 1])
        wire.result('a "quoted" \\ name\n')
    found = samples(server.port)
    assert calls(found, "sum") == 2 and calls(found, 'a "quoted" \\ name\n') == 1


def test_deferred_calls_are_counted_however_they_run(serve: Serve) -> None:
    server = serve(metrics=True)
    started, opened = threading.Event(), threading.Event()

    @server(threads=True)
    def wait() -> None:
        started.set()
        opened.wait(60)

    @server
    def items(count: int) -> Iterator[int]:
        yield from range(count)

    @server
    async def later_items(count: int) -> Any:
        for number in range(count):
            yield number

    @server.batch(max_size=4, max_wait_ms=59_999)
    def double(x: list[int]) -> list[int]:
        return [2 * number for number in x]

    with Wire(server.port) as wire:
        wire.send(request("wait"))
        assert started.wait(60)
        running = samples(server.port)
        assert calls(running, "wait") == 0 and value(running, "ucall_running_calls") == 1
        assert value(running, "ucall_waiting_calls", queue="thread") == 0
        wire.send(b"".join(request("double", [number]) for number in range(3)))
        waits = lambda: value(samples(server.port), "ucall_waiting_calls", queue="batch")  # noqa: E731
        assert eventually(lambda: waits() == 3)
        wire.send(request("double", [3]))
        opened.set()
        for _ in range(5):
            wire.line()
        wire.result("items", [3])
        wire.result("later_items", [3])
    found = samples(server.port)
    for method, count in {"wait": 1, "double": 4, "items": 1, "later_items": 1}.items():
        assert calls(found, method) == count, method
    assert value(found, "ucall_running_calls") == value(found, "ucall_waiting_calls") == 0
    assert value(found, "ucall_batch_calls_count", rpc_method="double") == 1
    assert value(found, "ucall_batch_calls_sum", rpc_method="double") == 4
    assert value(found, "ucall_batch_calls_bucket", le="2") == 0
    assert value(found, "ucall_batch_calls_bucket", le="4") == 1
    assert value(found, "ucall_batch_duration_seconds_count", rpc_method="double") == 1
    for method, count in {"wait": 1, "double": 4}.items():
        assert value(found, "ucall_queue_wait_seconds_count", rpc_method=method) == count


def test_calls_wait_for_threads(serve_once: Serve) -> None:
    server = serve_once(metrics=True, max_threads=1)
    opened = threading.Event()
    server.add(lambda: opened.wait(60), name="wait", threads=True)
    with Wire(server.port) as wire:
        wire.send(request("wait") * 3)
        waits = lambda: value(samples(server.port), "ucall_waiting_calls", queue="thread")  # noqa: E731
        assert eventually(lambda: waits() == 2)
        assert value(samples(server.port), "ucall_running_calls") == 3
        waited_since = time.monotonic()
        assert not opened.wait(0.01)
        waited_s = time.monotonic() - waited_since
        opened.set()
        for _ in range(3):
            wire.line()
    found = samples(server.port)
    assert waits() == 0 and calls(found, "wait") == 3
    assert value(found, "ucall_queue_wait_seconds_count", rpc_method="wait") == 3
    assert value(found, "ucall_queue_wait_seconds_sum", rpc_method="wait") >= 2 * waited_s


def test_calls_that_end_without_a_result_are_counted_by_code(serve: Serve) -> None:
    server = serve(pause, metrics=True, max_running_calls=1)
    server.add(pause, name="short", timeout_ms=10)
    wire, other, over_http = [Wire(server.port) for _ in range(3)]
    with wire, other, over_http:
        wire.error("short", [60])
        wire.send(request("pause", [60], id=1))
        assert eventually(lambda: value(samples(server.port), "ucall_running_calls") == 1)
        assert other.error("pause", [60])["code"] == -32003
        wire.send(request("$/cancelRequest", {"id": 1}, id=...))
        wire.line()
        over_http.send(http_request(request("pause", [60])))
        assert eventually(lambda: value(samples(server.port), "ucall_running_calls") == 1)
    # The end of a connection cancels its calls over HTTP.
    assert eventually(lambda: calls(samples(server.port), "pause", "-32800") == 2)
    found = samples(server.port)
    assert calls(found, "short", "-32001") == calls(found, "pause", "-32003") == 1
    assert value(found, f"{DURATION}_count") == 4 and value(found, "ucall_running_calls") == 0


def test_connections_are_counted_by_protocol(serve: Serve) -> None:
    server = serve(sum, metrics=True)
    url = f"ws://{HOST}:{server.port}/"
    with connect(url), Wire(server.port) as raw, Wire(server.port) as over_http, Wire(server.port):
        raw.result("sum", [1, 1])
        over_http.send(http_request(request("sum", [1, 1])))
        over_http.reply()

        def are_counted() -> bool:
            found = samples(server.port)
            count = lambda protocol: value(found, "ucall_connections", protocol=protocol)  # noqa: E731
            return [count(name) for name in ("websocket", "raw", "http")] == [1, 1, 1]

        assert eventually(are_counted)
        found = samples(server.port)
        assert value(found, "ucall_connections", tls="false") == 5
        assert value(found, "ucall_connections", tls="true") == 0
        assert value(found, "ucall_accepted_connections_total") >= 5
        stats = server.stats()
        assert 0 < value(found, "ucall_received_bytes_total") <= stats["bytes_received"]
        assert 0 < value(found, "ucall_sent_bytes_total") <= stats["bytes_sent"]
        assert 0 < value(found, "ucall_turns_total") <= stats["turns"]


def test_waits_for_the_interpreter_lock_are_measured(serve_once: Serve) -> None:
    server, has_ended = serve_once(sum, metrics=True), threading.Event()
    name = "ucall_gil_wait_seconds_total"

    def hold_the_lock() -> None:
        while not has_ended.is_set():
            builtins.sum(range(1000))

    thread = threading.Thread(target=hold_the_lock)
    with Wire(server.port) as wire:
        before = value(samples(server.port), name)
        thread.start()

        def has_grown() -> bool:
            # Each waits until the other thread has had the lock for its interval of 5 ms.
            assert [wire.result("sum", [number, 0]) for number in range(8)] == [*range(8)]
            return value(samples(server.port), name) > before + 0.01

        try:
            assert eventually(has_grown)
        finally:
            has_ended.set()
            thread.join()


def test_counts_go_on_after_a_restart(serve_once: Serve) -> None:
    server = serve_once(sum, metrics=True)
    for starts in (1, 2):
        with Wire(server.port) as wire:
            wire.result("sum", [1, 1])
        found = samples(server.port)
        assert calls(found, "sum") == value(found, "ucall_worker_starts_total") == starts
        server.stop()
        server.start()


def test_metrics_ask_auth_and_are_off_by_default(serve_once: Serve) -> None:
    def check(ctx: ucall.Context) -> str | None:
        return "user" if ctx.headers.get("authorization") == "Bearer secret" else None

    server = serve_once(sum, metrics=True, auth=check)
    for port, status in [(server.port, 401), (serve_once(sum).port, 404)]:
        with Wire(port) as wire:
            wire.send(http_request(b"", target="/metrics", method="GET"))
            assert wire.reply()[0] == status
    assert DURATION in scrape(server.port, Authorization="Bearer secret")[1]


def every_kind_of_metric(serve: Serve) -> int:
    """The port of a server that has a sample of every metric."""
    server = serve(sum, refuse, metrics=True)
    server.batch(lambda x: x, name='"batch"\\')
    server.relay("relayed.*", to="tcp://127.0.0.1:1", health_check="ping")
    server.stop()
    server.model(lambda: 1)
    server.start()
    with Wire(server.port) as wire:
        wire.result("sum", [1, 1])
        wire.error("refuse")
        wire.error("unknown")
        wire.result('"batch"\\', [1])
    return server.port


def test_buckets_tell_durations_of_models_apart(serve_once: Serve) -> None:
    server = serve_once(sum, metrics=True)
    with Wire(server.port) as wire:
        wire.result("sum", [1, 1])
    series = rf'^{DURATION}_bucket{{.*rpc_method="sum",le="([^"]+)"'
    bounds = re.findall(series, scrape(server.port)[1], re.MULTILINE)
    assert bounds[:8] == [
        *("1e-05", "2e-05", "4e-05", "8e-05", "0.00016", "0.00032", "0.00064", "0.00128")
    ]
    assert bounds[8:11] == ["0.00192", "0.00256", "0.00384"]
    assert bounds[-4:] == ["5.24288", "7.86432", "10.48576", "+Inf"]
    number = [float(it) for it in bounds]
    assert sorted(number) == number and len(number) == 35
    assert {0.35 <= it < 0.6 for it in number} == {False, True}


def test_a_program_has_the_text_for_a_page_of_its_own(serve_once: Serve) -> None:
    server = serve_once(sum, metrics=True)
    own = "# TYPE own gauge\nown 1.0\n"

    @server.http("/metrics")
    def metrics(request: ucall.HttpRequest) -> str:
        return server.metrics() + own

    with Wire(server.port) as wire:
        wire.result("sum", [1, 1])
    found = samples(server.port)
    assert value(found, "own") == 1 and calls(found, "sum") == 1
    with pytest.raises(RuntimeError, match="Observability"):
        ucall.Server(port=0).metrics()


def test_prometheus_accepts_both_formats(serve_once: Serve) -> None:
    port = every_kind_of_metric(serve_once)
    kind, text = scrape(port)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in parser.text_string_to_metric_families(text)}
    kind, text = scrape(port, OPEN_METRICS)
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert {family.name for family in openmetrics.text_string_to_metric_families(text)} == names


def test_promtool_accepts_the_metrics(serve_once: Serve) -> None:
    promtool = require("promtool")
    _, text = scrape(every_kind_of_metric(serve_once))
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_page_lists_every_metric_with_its_labels(serve_once: Serve) -> None:
    _, text = scrape(every_kind_of_metric(serve_once))
    section = PAGE.split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+)([^|]*)\|", section, re.MULTILINE)
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    found = {}
    for family in parser.text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, labels)
    assert listed == found


WORKERS = """
import os, ucall
server = ucall.Server(port=0, observability=ucall.Observability(metrics=True))
@server
def sum(a: int, b: int) -> int:
    return a + b
@server
def pid() -> int:
    return os.getpid()
@server
def refuse() -> None:
    raise ucall.RPCError(42, "no")
"""


class CountedLoad:
    """Clients that call until they are told to stop, each on one connection after another.

    `replied` calls have got their replies. `lost` calls were sent on connections that broke before
    their replies came: the server may have run them or not.
    """

    METHODS = (("sum", [1, 1]), ("refuse", None), ("unknown", None))

    def __init__(self, port: int, clients: int) -> None:
        self._port = port
        self._done = threading.Event()
        names = [name for name, _ in self.METHODS]
        self.replied = [dict.fromkeys(names, 0) for _ in range(clients)]
        self.lost = [0] * clients
        self._threads = [threading.Thread(target=self._run, args=[it]) for it in range(clients)]

    def total(self, method: str) -> int:
        return builtins.sum(counts[method] for counts in self.replied)

    def __enter__(self) -> CountedLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, client: int) -> None:
        while not self._done.is_set():
            try:
                with Wire(self._port) as wire:
                    self._call(client, wire)
            except OSError:
                # The listening socket of the killed worker refuses until its successor has it.
                continue

    def _call(self, client: int, wire: Wire) -> None:
        while not self._done.is_set():
            for method, params in self.METHODS:
                self.lost[client] += 1
                wire.send(http_request(request(method, params)))
                if wire.reply()[0] != 200:
                    return
                self.lost[client] -= 1
                self.replied[client][method] += 1


def test_the_totals_of_all_workers_outlive_a_killed_one(tmp_path: Path, engine: str) -> None:
    flags = ("--workers", "3", "--engine", engine)
    with supervised(tmp_path, *flags, source=WORKERS) as it:
        pids = it.wait_for(3)
        totals: list[float] = []
        with CountedLoad(it.port, clients=12) as load:
            reached = lambda count: eventually(  # noqa: E731
                lambda: load.total("unknown") > count
            )
            assert reached(300)
            os.kill(pids[0], signal.SIGKILL)
            while len(it.ready()) < 4:
                # The killed worker may have had the connection.
                with suppress(ConnectionResetError):
                    totals.append(value(samples(it.port), f"{DURATION}_count"))
            before = load.total("unknown")
            assert reached(before + 300)
        assert totals == sorted(totals), "a counter went back"
        # Any worker answers for all.
        answers = [samples(it.port) for _ in range(10)]
        for found in answers:
            assert calls(found, "sum") == calls(answers[0], "sum")
            ran = {
                "sum": calls(found, "sum"),
                "refuse": calls(found, "refuse", "42"),
                "unknown": calls(found, "_OTHER", "-32601"),
            }
            lost = 0.0
            for method, count in ran.items():
                assert count >= load.total(method), method
                lost += count - load.total(method)
            assert lost <= builtins.sum(load.lost)
            assert value(found, "ucall_running_calls") == 0
        # A worker is counted from its first turn on.
        assert eventually(lambda: value(samples(it.port), "ucall_worker_starts_total") == 4)
        it.stop()
