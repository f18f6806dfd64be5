"""What describes, counts and logs the calls of stores and relayed calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from serving import Serve
from test_access_log import lines, serving
from test_metrics import DURATION, calls, samples, value

import ucall
from harness import HOST, Wire, request

#: Params of each method and a call that it answers, in an order that makes them succeed.
CALLS: list[tuple[str, Any]] = [
    ("kv.put", ["a", {"b": [1.5]}]),
    ("kv.put", {"key": "b", "bytes": "AAE=", "ttl_ms": 60_000}),
    ("kv.get", ["a"]),
    ("kv.get", ["b"]),
    ("kv.get", ["missing"]),
    ("kv.cas", ["a", 1, None]),
    ("kv.increment", ["c", 2]),
    ("kv.scan", {"prefix": "", "limit": 2}),
    ("kv.batch", [[{"method": "put", "params": ["d", 1]}]]),
    ("kv.delete", ["a"]),
    ("kv.put", [{"bytes": "/w=="}, 1]),
    ("kv.scan", {"prefix": {"bytes": "/w=="}}),
]


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> ucall.Server:
    made: ucall.Server = serve(metrics=True)
    made.store("kv", tmp_path / "kv")
    return made


def test_methods_of_a_store_are_described(server: ucall.Server) -> None:
    document = httpx.get(f"http://{HOST}:{server.port}/openrpc.json").json()
    methods = {method["name"]: method for method in document["methods"]}
    # Its changes are in test_store_watch.py.
    assert set(methods) == {name for name, _ in CALLS} | {"kv.watch"}
    assert all(method["summary"].endswith(".") for method in methods.values())
    with Wire(server.port) as wire:
        for name, params in CALLS:
            described = methods[name]["params"]
            names = [param["name"] for param in described]
            given = params if isinstance(params, dict) else dict(zip(names, params, strict=False))
            assert {it["name"] for it in described if it["required"]} <= set(given) <= set(names)
            schemas = {param["name"]: param["schema"] for param in described}
            for key, argument in given.items():
                jsonschema.validate(argument, schemas[key])
            jsonschema.validate(wire.result(name, params), methods[name]["result"]["schema"])


def test_a_store_that_is_added_later_is_in_the_next_document(
    server: ucall.Server, tmp_path: Path
) -> None:
    url = f"http://{HOST}:{server.port}/openrpc.json"
    before = httpx.get(url).json()["methods"]
    server.store("more", tmp_path / "more")
    after = {method["name"] for method in httpx.get(url).json()["methods"]}
    assert len(after) == 2 * len(before) and "more.get" in after


def test_calls_of_a_store_are_counted(server: ucall.Server) -> None:
    with Wire(server.port) as wire:
        for number in range(3):
            wire.result("kv.put", ["a", number])
            wire.result("kv.get", ["a"])
        wire.error("kv.put", ["", 1])
        wire.error("kv.increment", ["a", "1"])
        wire.send(request("kv.put", ["b", 1], id=...) + request("kv.delete", ["a"]))
        wire.line()
    found = samples(server.port)
    assert calls(found, "kv.put") == 4 and calls(found, "kv.put", "-32602") == 1
    assert calls(found, "kv.get") == 3 and calls(found, "kv.delete") == 1
    assert calls(found, "kv.increment") == 0 and calls(found, "kv.increment", "-32602") == 1
    # A put ends after the disk has it, in a turn after that of its arrival.
    assert value(found, f"{DURATION}_sum", rpc_method="kv.put") > 0
    assert value(found, "ucall_running_calls") == 0


def test_relayed_calls_are_counted_by_the_listed_method(serve: Serve) -> None:
    server, upstream = serve(metrics=True), ucall.Server(port=0)
    upstream.add(lambda: 1, "up.f")
    with upstream, Wire(server.port) as wire:
        server.relay("up.*", to=f"tcp://{HOST}:{upstream.port}")
        assert wire.result("up.f") == wire.result("up.f") == 1
        assert wire.error("up.g")["code"] == -32601
    found = samples(server.port)
    assert calls(found, "up.*") == 2 and calls(found, "up.*", "-32601") == 1


def test_without_metrics_there_are_none(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    server.store("kv", tmp_path / "kv")
    with Wire(server.port) as wire:
        assert wire.result("kv.put", ["a", 1]) == 1
    assert httpx.get(f"http://{HOST}:{server.port}/metrics").status_code in (404, 405)


def test_each_call_of_a_store_has_its_own_line(tmp_path: Path) -> None:
    with serving(tmp_path, access_log="json", store=str(tmp_path / "kv")) as (process, port):
        with Wire(port) as wire:
            # All in one request, so that the puts wait for the disk while others are answered.
            wire.send(
                request("kv.put", ["a", 1], id=1)
                + request("sum", [1, 2], id=2)
                + request("kv.get", ["a"], id=3)
                + request("kv.put", ["", 1], id=4)
                + request("kv.put", ["b", 10], id=5)
                + request("kv.put", ["c", 1], id=...)
            )
            replies = {json.loads(wire.line())["id"] for _ in range(5)}
            assert replies == {1, 2, 3, 4, 5}
        found = lines(process.stdout, 6)
    assert {(it["method"], it.get("id"), it["code"]) for it in found} == {
        ("kv.put", 1, None),
        ("sum", 2, None),
        ("kv.get", 3, None),
        ("kv.put", 4, -32602),
        ("kv.put", 5, None),
        ("kv.put", None, None),
    }
    sizes = {it.get("id"): (it["bytes_in"], it["bytes_out"]) for it in found}
    assert sizes[1] == (len('["a", 1]'), 1) and sizes[2] == (len("[1, 2]"), 1)
