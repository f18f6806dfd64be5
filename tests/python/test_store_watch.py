"""Streams of the changes of a store: in one process, across processes, and for slow readers."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from applications import STORE
from serving import Serve
from streaming import cancel_request
from test_store import WORKERS, operations
from test_workers import supervised
from websockets.sync.client import connect

import ucall
from harness import HOST, Wire, eventually, http, program, request, send_line


def watch_call(params: Any = None, id: int = 7, token: Any = "w") -> bytes:
    call = json.loads(request("kv.watch", params, id))
    return json.dumps(call | {"_meta": {"progressToken": token}}).encode()


class Watch(Wire):
    """A watcher over raw TCP, which watches when this returns."""

    def __init__(self, port: int, params: Any = None, buffer_bytes: int | None = None) -> None:
        super().__init__(port, buffer_bytes=buffer_bytes)
        self.send(watch_call(params))
        first = self.item()
        assert first["event"] == "watch"
        self.since: int = first["version"]

    def item(self) -> dict[str, Any]:
        message = self.message()
        assert message["params"]["token"] == "w", message
        item: dict[str, Any] = message["params"]["value"]
        return item


def put(key: Any, version: int, value: Any) -> dict[str, Any]:
    return {"event": "put", "key": key, "version": version, "value": value}


@pytest.fixture
def store(tmp_path: Path) -> ucall.store.Store:
    return ucall.store.open(tmp_path / "kv")


@pytest.fixture
def port(serve: Serve, store: ucall.store.Store) -> int:
    server = serve()
    server.store("kv", store)
    return server.port


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    with Wire(port) as wire:
        yield wire


def test_each_change_of_a_key_comes_in_order(port: int, wire: Wire) -> None:
    assert wire.result("kv.put", ["a", 0]) == 1
    with Watch(port, ["a"]) as watch:
        assert watch.since == 1
        assert wire.result("kv.put", ["a", {"x": [1.5]}]) == 2
        wire.result("kv.put", ["ab", 1])
        assert wire.result("kv.cas", ["a", 2, 5]) == 4
        assert wire.result("kv.cas", ["a", 2, 6]) is None
        assert wire.result("kv.increment", ["a"]) == 6
        wire.result("kv.put", {"key": "a", "bytes": "AP8="})
        assert wire.result("kv.delete", ["a"]) is True
        assert wire.result("kv.delete", ["a"]) is False
        wire.result("kv.put", ["a", "end"])
        assert [watch.item() for _ in range(6)] == [
            put("a", 2, {"x": [1.5]}),
            put("a", 4, 5),
            put("a", 5, 6),
            {"event": "put", "key": "a", "version": 6, "bytes": "AP8="},
            {"event": "delete", "key": "a", "version": 7},
            put("a", 8, "end"),
        ]


def test_a_prefix_and_all_keys(port: int, wire: Wire) -> None:
    with Watch(port, {"prefix": "user:"}) as users, Watch(port) as all_keys:
        for key in ["user:1", "other", "user:", "use"]:
            wire.result("kv.put", [key, key])
        assert [users.item()["key"] for _ in range(2)] == ["user:1", "user:"]
        assert [all_keys.item()["version"] for _ in range(4)] == [1, 2, 3, 4]


def test_a_batch_comes_whole_or_not_at_all(port: int, wire: Wire) -> None:
    with Watch(port) as watch:
        assert wire.result("kv.put", ["a", 1]) == 1
        failing = operations(["put", "b", 1], ["cas", "a", 9, 2])
        assert wire.result("kv.batch", [failing]) is None
        wire.error("kv.batch", [operations(["put", "b", 1], ["put", "c", [1]], ["increment", "c"])])
        done = operations(["put", "b", 2], ["delete", "a"], ["increment", "n", 5], ["put", "b", 3])
        versions = wire.result("kv.batch", [done])
        assert watch.item() == put("a", 1, 1)
        items = [watch.item() for _ in range(4)]
        assert [(it["event"], it["key"]) for it in items] == [
            ("put", "b"),
            ("delete", "a"),
            ("put", "n"),
            ("put", "b"),
        ]
        assert [items[0]["version"], items[3]["version"]] == [versions[0], versions[3]]
        assert [it["version"] for it in items] == list(range(2, 6))


def test_an_expiry_is_a_change_without_a_write(port: int, wire: Wire) -> None:
    wire.result("kv.put", {"key": "before", "value": 1, "ttl_ms": 1500})
    with Watch(port) as watch:
        wire.result("kv.put", {"key": "a", "value": 1, "ttl_ms": 20})
        assert watch.item()["event"] == "put"
        assert watch.item() == {"event": "expire", "key": "a", "version": 3}
        assert watch.item() == {"event": "expire", "key": "before", "version": 4}


def test_writes_of_functions_are_seen(port: int, store: ucall.store.Store) -> None:
    with Watch(port, {"prefix": {"bytes": base64.b64encode(b"\xff").decode()}}) as watch:
        store.put("x", 1)
        version = store.put(b"\xff\0", 2)
        assert watch.item() == put({"bytes": "/wA="}, version, 2)


def test_other_transports(port: int, wire: Wire) -> None:
    with connect(f"ws://{HOST}:{port}") as socket, Wire(port) as events:
        socket.send(watch_call(["a"]).decode())
        assert json.loads(socket.recv(60))["params"]["value"]["event"] == "watch"
        events.send(http(request("kv.watch", ["a"]), "Accept: text/event-stream"))
        while b'"event":"watch"' not in events.line():
            pass
        wire.result("kv.put", ["a", 1])
        assert json.loads(socket.recv(60))["params"]["value"] == put("a", 1, 1)
        while b'"event":"put"' not in (line := events.line()):
            pass
        assert json.loads(line.removeprefix(b"data: "))["params"]["value"] == put("a", 1, 1)


def test_a_cancelled_watcher_gets_nothing_more(port: int, wire: Wire, tmp_path: Path) -> None:
    with Watch(port) as watch:
        wire.result("kv.put", ["a", 1])
        assert watch.item()["version"] == 1
        watch.send(cancel_request(7))
        assert watch.message()["error"]["code"] == -32800
        wire.result("kv.put", ["a", 2])
        assert watch.result("kv.get", ["a"])["value"] == 2
    # Without watchers a deletion has no version.
    wire.result("kv.delete", ["a"])
    assert wire.result("kv.put", ["a", 3]) == 3


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (request("kv.watch", ["a"]), -32600),
        (watch_call([""]), -32602),
        (watch_call(["k" * 512]), -32602),
        (watch_call([1]), -32602),
        (watch_call([{"byte": ""}]), -32602),
        (watch_call(["a", "b"]), -32602),
        (watch_call({"after": 1}), -32602),
    ],
)
def test_wrong_calls_are_refused(wire: Wire, call: bytes, code: int) -> None:
    wire.send(call)
    assert json.loads(wire.line())["error"]["code"] == code


def test_a_watcher_that_reads_slowly_is_told_what_it_has_missed(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    store = server.store("kv", ucall.store.open(tmp_path / "kv", max_watch_bytes=1 << 20))
    with Watch(server.port, buffer_bytes=4096) as slow, Watch(server.port) as quick:
        for number in range(1, 1001):
            version = store.put("a", "x" * 20_000)
            assert quick.item()["version"] == version == number
        versions = []
        while "error" not in (message := slow.message()):
            versions.append(message["params"]["value"]["version"])
        assert versions == list(range(1, len(versions) + 1)) and len(versions) < 900
        error = message["error"]
        assert error["code"] == -32003
        assert f"after version {len(versions)} are gone (max_watch_bytes)" in error["data"]
        # Its connection goes on.
        assert slow.result("kv.get", ["a"])["version"] == 1000


def test_each_change_is_sent_at_once_beside_other_calls(
    port: int, store: ucall.store.Store
) -> None:
    is_done = threading.Event()

    def call() -> None:
        with Wire(port) as wire:
            while not is_done.is_set():
                wire.result("kv.get", ["a"])

    with ThreadPoolExecutor(2) as callers, Watch(port) as watch:
        calls = [callers.submit(call) for _ in range(2)]
        try:
            for number in range(1, 101):
                store.put("a", number)
                assert watch.item()["version"] == number
        finally:
            is_done.set()
        for done in calls:
            done.result()


def test_a_pause_loses_nothing_within_the_limit(port: int, store: ucall.store.Store) -> None:
    with Watch(port, buffer_bytes=4096) as slow:
        for _ in range(300):
            store.put("a", "x" * 20_000)
        assert [slow.item()["version"] for _ in range(300)] == list(range(1, 301))


def test_many_changes_of_one_commit(port: int, store: ucall.store.Store) -> None:
    with Watch(port) as watch:
        for _ in range(3):
            store.batch([("put", f"{number}", number) for number in range(1000)])
        assert [watch.item()["version"] for _ in range(3000)] == list(range(1, 3001))


def test_it_is_described(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    server.store("kv", tmp_path / "kv")
    with Wire(server.port) as wire:
        methods = {it["name"]: it for it in wire.result("rpc.discover")["methods"]}
        with Watch(server.port) as changes:
            wire.result("kv.put", [{"bytes": "/w=="}, 1])
            wire.result("kv.put", {"key": "b", "bytes": "/w=="})
            wire.result("kv.delete", ["b"])
            items = [changes.item() for _ in range(3)]
    watch = methods["kv.watch"]
    for item in items:
        jsonschema.validate(item, watch["x-item"])
    assert [param["name"] for param in watch["params"]] == ["key", "prefix"]
    assert watch["x-stream"] is True
    assert watch["x-item"]["properties"]["event"]["enum"] == ["watch", "put", "delete", "expire"]
    assert "x-stream" not in methods["kv.scan"]


def watch_all(stack: ExitStack, port: int, count: int) -> dict[int, Watch]:
    """A watcher at each worker process."""
    watches: dict[int, Watch] = {}
    while len(watches) < count:
        with Wire(port) as wire:
            wire.result("pid")
        watch = Watch(port)
        watch.send(request("pid"))
        pid = watch.message()["result"]
        if pid in watches:
            watch.__exit__()
        else:
            watches[pid] = stack.enter_context(watch)
    return watches


OTHER = """
import sys, ucall
store = ucall.store.open(sys.argv[1])
for line in sys.stdin:
    print(store.put("other", line.strip()), flush=True)
"""


def test_another_process_wakes_watchers(port: int, tmp_path: Path) -> None:
    """Without being woken, the server looks for changes once a second: too late for so many."""
    with Watch(port) as watch, program(OTHER, str(tmp_path / "kv")) as other:
        for round in range(400):
            other.stdin.write(f"{round}\n")
            other.stdin.flush()
            assert watch.item() == put("other", round + 1, str(round))


def test_watchers_of_all_workers_see_the_writes_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE", str(tmp_path / "kv"))
    with (
        supervised(tmp_path, "--workers", "3", source=WORKERS) as app,
        program(OTHER, str(tmp_path / "kv")) as other,
        ExitStack() as stack,
    ):
        app.wait_for(3)
        watches = watch_all(stack, app.port, 3)
        wires = [stack.enter_context(Wire(app.port)) for _ in range(6)]
        for round in range(20):
            for wire in wires:
                wire.send(request("kv.increment", ["n"]))
            other.stdin.write(f"{round}\n")
            other.stdin.flush()
            for wire in wires:
                assert "result" in json.loads(wire.line())
            assert int(other.stdout.readline()) > 0
        seen = {pid: [watch.item() for _ in range(140)] for pid, watch in watches.items()}
        first, *others = seen.values()
        assert all(items == first for items in others)
        assert [it["value"] for it in first if it["key"] == "n"] == list(range(1, 121))
        assert [it["value"] for it in first if it["key"] == "other"] == [str(n) for n in range(20)]
        versions = [it["version"] for it in first]
        assert versions == list(range(versions[0], versions[0] + 140))
        # A killed worker is forgotten, and the others go on.
        killed = min(watches)
        os.kill(killed, signal.SIGKILL)
        app.wait_for(4)
        del watches[killed]
        assert app.call("kv.increment", ["n"]) == 121
        for watch in watches.values():
            assert watch.item()["value"] == 121
        assert eventually(lambda: len([*(tmp_path / "kv").glob("watch.*")]) == 2)
        assert watch_all(stack, app.port, 3).keys() >= watches.keys()
        app.stop()
    ucall.store.open(tmp_path / "kv")
    assert not [*(tmp_path / "kv").glob("watch.*")]


def test_watchers_end_with_their_server(tmp_path: Path) -> None:
    with program(STORE, str(tmp_path / "kv")) as process:
        with Watch(int(process.stdout.readline())) as watch:
            send_line(process)
            while "id" not in (message := watch.message()):
                assert message["method"] == "$/drain"
            assert message["error"]["code"] == -32007
        assert process.wait(60) == 0
    ucall.store.open(tmp_path / "kv")
    assert not [*(tmp_path / "kv").glob("watch.*")]
