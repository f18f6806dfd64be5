"""The key-value store: its calls, which never reach Python, and the same store from Python."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from applications import HOLDS_THE_LOCK, PID
from serving import Serve
from test_workers import supervised

import ucall
from harness import Wire, eventually, http, program, request, send_line


def operations(*calls: list[Any]) -> list[dict[str, Any]]:
    """The operations of a batch, each of a method and its params."""
    return [{"method": method, "params": params} for method, *params in calls]


@pytest.fixture
def store(tmp_path: Path) -> ucall.store.Store:
    return ucall.store.open(tmp_path / "kv")


@pytest.fixture
def wire(serve: Serve, store: ucall.store.Store) -> Iterator[Wire]:
    """A connection to a server of `store`, on each engine."""
    server = serve()
    server.store("kv", store)
    with Wire(server.port) as wire:
        yield wire


def test_an_entry_lives_from_put_to_delete(wire: Wire) -> None:
    assert wire.result("kv.get", ["a"]) is None
    assert wire.result("kv.put", ["a", {"x": [1.50, None]}]) == 1
    assert wire.result("kv.get", {"key": "a"}) == {"version": 1, "value": {"x": [1.5, None]}}
    assert wire.result("kv.put", {"key": "a", "value": None}) == 2
    assert wire.result("kv.get", ["a"]) == {"version": 2, "value": None}
    assert wire.result("kv.delete", ["a"]) is True
    assert wire.result("kv.delete", ["a"]) is False
    assert wire.result("kv.get", ["a"]) is None


@pytest.mark.parametrize("text", ["1.0", "1e2", '"\\u00e9\\/"', "[ 1,  2]", "12345678901234567890"])
def test_a_value_is_kept_as_its_text(wire: Wire, text: str) -> None:
    wire.send(b'{"jsonrpc":"2.0","method":"kv.put","params":["a",%s],"id":1}' % text.encode())
    assert json.loads(wire.line())["result"] == 1
    wire.send(request("kv.get", ["a"]))
    head = '{"jsonrpc":"2.0","id":1,"result":{"version":1,"value":'
    assert wire.line().decode() == head + text + "}}"


def test_line_breaks_between_values_become_spaces(wire: Wire) -> None:
    body = b'{"jsonrpc":"2.0","method":"kv.put","params":["a",[1,\r\n2]],"id":1}'
    wire.send(http(body))
    assert wire.reply()[0] == 200
    wire.send(http(request("kv.get", ["a"])))
    assert wire.reply()[2].endswith(b'"value":[1,  2]}}')


def test_bytes_are_base64(wire: Wire, store: ucall.store.Store) -> None:
    for content in [b"", b"\0\xff\n", os.urandom(1000)]:
        coded = base64.b64encode(content).decode()
        version = wire.result("kv.put", {"key": "b", "bytes": coded})
        assert wire.result("kv.get", ["b"]) == {"version": version, "bytes": coded}
        assert store.get("b") == (content, version)
    assert wire.error("kv.put", {"key": "b", "bytes": "AA"})["data"].startswith("bytes: expected")


def test_keys_are_any_strings_up_to_their_limit(wire: Wire) -> None:
    for key in ['é\n"\\', "\U0001f600", "k" * 511, "a\0b"]:
        wire.result("kv.put", [key, key])
        assert wire.result("kv.get", [key])["value"] == key
    keys = [entry["key"] for entry in wire.result("kv.scan")["entries"]]
    assert keys == sorted(keys, key=str.encode) and len(keys) == 4
    for key in ["", "k" * 512, "é" * 256]:
        for method, params in [("get", [key]), ("put", [key, 1]), ("increment", [key])]:
            error = wire.error(f"kv.{method}", params)
            assert error["code"] == -32602
            assert error["data"].startswith("key: expected 1 to 511 bytes, got ")


def test_keys_are_bytes_too(wire: Wire, store: ucall.store.Store) -> None:
    for key in [b"\xff", b"\xff\0\n", b"\xff" * 511, os.urandom(20) + b"\xfe"]:
        coded = {"bytes": base64.b64encode(key).decode()}
        version = wire.result("kv.put", [coded, 1])
        assert wire.result("kv.get", {"key": coded}) == {"version": version, "value": 1}
        assert store.get(key) == (1, version)
        assert wire.result("kv.scan", {"prefix": coded})["entries"][0]["key"] == coded
    # The UTF-8 of a string is the same key, and comes back as a string.
    wire.result("kv.put", [{"bytes": base64.b64encode("é".encode()).decode()}, 2])
    assert wire.result("kv.get", ["é"])["value"] == 2
    assert (
        wire.result("kv.scan", {"end": {"bytes": "/w=="}, "start": {"bytes": "/w=="}})["entries"]
        == []
    )
    page = wire.result("kv.scan", {"start": {"bytes": "/w=="}, "limit": 1})
    assert page["cursor"] == {"bytes": "/w=="} == page["entries"][0]["key"]
    keys = [entry["key"] for entry in wire.result("kv.scan", {"cursor": page["cursor"]})["entries"]]
    assert keys[0] == {"bytes": base64.b64encode(b"\xff\0\n").decode()}
    wire.result("kv.batch", [operations(["delete", {"bytes": "/w=="}], ["increment", "é", 1])])
    found = [key for key, _ in store.scan()]
    assert b"\xff" not in found and "é" in found and b"\xff" * 511 in found
    assert [key for key, _ in store.scan(b"\xff\0")] == [b"\xff\0\n"]
    assert store.batch([("put", b"\xfe", 1), ("cas", b"\xfe", 0, 2)]) is None
    assert store.increment(b"\xfe") == 1 and store.delete(b"\xfe")


@pytest.mark.parametrize(
    "key",
    [{}, {"bytes": 1}, {"bytes": "A"}, {"text": "a"}, {"bytes": ""}, {"bytes": "AA==", "b": 1}],
)
def test_keys_of_other_forms_are_refused(wire: Wire, key: Any) -> None:
    error = wire.error("kv.get", [key])
    assert error["code"] == -32602 and error["data"].startswith("key: expected ")


@pytest.mark.parametrize(
    ("method", "params", "data"),
    [
        ("get", [], "key: expected a string"),
        ("get", [1], "key: expected a string"),
        ("get", ["a", "b"], "expected at most 1 params"),
        ("get", {"kay": "a"}, "kay: unexpected; expected key"),
        ("put", ["a"], "value: expected a value, or bytes in its place"),
        ("put", {"key": "a", "value": 1, "bytes": ""}, "value: expected a value, or"),
        ("put", ["a", 1, 0], "ttl_ms: expected an integer from 1"),
        ("put", ["a", 1, -1], "ttl_ms: expected an integer from 0"),
        ("put", ["a", 1, "1"], "ttl_ms: expected an integer of 64 bits"),
        ("cas", ["a", None, 1], "version: expected an integer"),
        ("cas", ["a", 1.5, 1], "version: expected an integer of 64 bits"),
        ("increment", ["a", "1"], "by: expected an integer of 64 bits"),
        ("increment", ["a", 2**63], "by: expected an integer of 64 bits"),
        ("scan", {"prefix": 1}, "prefix: expected a string"),
        ("scan", {"limit": 0}, "limit: expected 1 to 10000"),
        ("scan", {"limit": 10_001}, "limit: expected 1 to 10000"),
        ("batch", [], "operations: expected an array"),
        ("batch", [[1]], 'operations[0].method: expected "put", "delete", "cas" or "increment"'),
        ("batch", [[{"method": "put"}]], "operations[0].params: expected an array or an object"),
        ("batch", [operations(["put", "a", 1], ["get", "a"])], "operations[1].method: expected"),
        ("batch", [operations(["put", "a"])], "operations[0].value: expected a value"),
        ("batch", [operations(["put", "", 1])], "operations[0].key: expected 1 to 511 bytes"),
        ("batch", [operations(["delete", "a"]) * 1001], "operations: expected at most 1000"),
    ],
)
def test_wrong_params_are_named(wire: Wire, method: str, params: Any, data: str) -> None:
    error = wire.error(f"kv.{method}", params)
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    assert error["data"].startswith(data), error
    assert wire.result("kv.scan")["entries"] == []


def test_cas_and_increment_and_batch(wire: Wire) -> None:
    assert wire.result("kv.cas", ["a", 1, "x"]) is None
    assert wire.result("kv.cas", ["a", 0, "x"]) == 1
    assert wire.result("kv.cas", ["a", 1, "y"]) == 2
    assert wire.result("kv.increment", ["n"]) == 1
    assert wire.result("kv.increment", {"key": "n", "by": -5}) == -4
    assert wire.error("kv.increment", ["a"])["data"] == "key: expected the key of an integer"
    puts = operations(["put", "b", [1]], ["delete", "a"])
    others = operations(["increment", "n", 10], ["cas", "c", 0, 1])
    assert wire.result("kv.batch", [puts + others]) == [5, True, 6, 7]
    assert wire.result("kv.batch", [operations(["delete", "b"], ["cas", "c", 1, 2])]) is None
    error = wire.error("kv.batch", [operations(["put", "d", 1], ["increment", "b"])])
    assert error["data"] == "operations[1].key: expected the key of an integer"
    assert wire.result("kv.get", ["d"]) is None
    assert wire.result("kv.get", ["b"]) == {"version": 5, "value": [1]}


def test_a_scan_goes_on_at_its_cursor(wire: Wire) -> None:
    puts = [["put", f"k{number:03}", number] for number in range(250)]
    wire.result("kv.batch", [operations(*puts)])
    found, cursor, pages = [], None, 0
    while cursor is not None or pages == 0:
        page = wire.result("kv.scan", {"prefix": "k", "cursor": cursor})
        found += page["entries"]
        cursor, pages = page["cursor"], pages + 1
    assert [entry["value"] for entry in found] == list(range(250)) and pages == 3
    assert wire.result("kv.scan", {"cursor": "", "limit": 1})["entries"][0]["key"] == "k000"
    assert wire.result("kv.delete", ["k100"]) is True
    page = wire.result("kv.scan", {"cursor": "k100", "limit": 1})
    assert [entry["key"] for entry in page["entries"]] == ["k101"]
    page = wire.result("kv.scan", {"start": "k010", "end": "k012"})
    assert [entry["key"] for entry in page["entries"]] == ["k010", "k011"]


def test_calls_at_their_limits(wire: Wire) -> None:
    """Those past them are in `test_wrong_params_are_named`."""
    for thousand in range(10):
        keys = [f"{10 * number + thousand:05}" for number in range(1000)]
        puts = operations(*(["put", key, 1] for key in keys))
        assert len(wire.result("kv.batch", [puts])) == 1000
    page = wire.result("kv.scan", {"limit": 10_000})
    assert len(page["entries"]) == 10_000 and page["cursor"] is None
    wire.result("kv.put", ["10000", 1])
    page = wire.result("kv.scan", {"limit": 10_000})
    assert len(page["entries"]) == 10_000 and page["cursor"] == "09999"


def test_a_value_at_its_limit(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    server.store("kv", ucall.store.open(tmp_path / "kv", max_value_bytes=10))
    with Wire(server.port) as wire:
        assert wire.result("kv.put", ["a", "8 bytes."]) == 1
        assert wire.result("kv.put", {"key": "b", "bytes": "QUFBQUFBQUFBQQ=="}) == 2
        for value in ({"value": "9 bytes.."}, {"bytes": "QUFBQUFBQUFBQUE="}):
            expected = "value: expected at most 10 bytes, got 11 (max_value_bytes)"
            assert wire.error("kv.put", {"key": "a", **value})["data"] == expected


def test_an_entry_expires(wire: Wire, store: ucall.store.Store) -> None:
    assert wire.result("kv.put", {"key": "a", "value": 1, "ttl_ms": 1})
    assert eventually(lambda: wire.result("kv.get", ["a"]) is None)
    store.put("b", 1, ttl_ms=1)
    store.put("c", 1, ttl_ms=3_600_000)
    assert eventually(lambda: [key for key, _ in store.scan()] == ["c"])


def test_a_batch_mixes_with_functions_and_notifications(serve: Serve, tmp_path: Path) -> None:
    def double(number: int) -> int:
        return 2 * number

    server = serve(double)
    store = server.store("kv", tmp_path / "kv")
    with Wire(server.port) as wire:
        calls = [
            request("kv.put", ["a", 1], ...),
            request("kv.put", ["b", 1], 2),
            request("double", [2], 3),
            request("kv.get", ["none"], 4),
        ]
        wire.send(http(b"[" + b",".join(calls) + b"]"))
        replies = json.loads(wire.reply()[2])
        assert [reply["id"] for reply in replies] == [2, 3, 4]
        assert [reply["result"] for reply in replies[1:]] == [4, None]
        assert eventually(lambda: store.get("a") is not None)
        wire.send(http(request("kv.put", ["c", 1], ...)))
        assert wire.reply()[0] == 204
        assert eventually(lambda: store.get("c") is not None)
        assert server.stats()["calls"] == 5


def test_python_and_calls_share_the_store(serve: Serve, store: ucall.store.Store) -> None:
    def put_and_get(key: str) -> Any:
        store.put(key, [key])
        found = store.get(key)
        return found and found.value

    server = serve(put_and_get)
    assert server.store("kv", store) is store
    with Wire(server.port) as wire:
        assert wire.result("put_and_get", ["a"]) == ["a"]
        assert wire.result("kv.get", ["a"])["value"] == ["a"]
        wire.result("kv.put", ["b", {"ü": 1}])
    assert store.get("b") == ({"ü": 1}, 2)


def test_a_name_is_served_once(tmp_path: Path) -> None:
    server = ucall.Server(port=0)
    server.store("kv", tmp_path / "kv")
    with pytest.raises(ValueError, match=r"'kv.get' is already the name of"):
        server.add(lambda: 1, "kv.get")
    with pytest.raises(ValueError, match=r"'kv.get' is already the name of"):
        server.store("kv", tmp_path / "other")
    with pytest.raises(ValueError, match="name: expected the name of a store, got ''"):
        server.store("", tmp_path / "other")
    server.store("other", tmp_path / "kv")
    relay = "tcp://127.0.0.1:1"
    with pytest.raises(ValueError, match=r"'kv.get' is already the name of a store's method"):
        server.relay(["free", "kv.get"], to=relay)
    server.relay(["free", "later.get", "later.*", "kv.*"], to=relay)
    for name in ("free", "later.*"):
        with pytest.raises(ValueError, match=r" is already the name of a relayed method"):
            server.relay(name, to=relay)
    with pytest.raises(ValueError, match="'free' is already the name of a relayed method"):
        server.add(lambda: 1, "free")
    with pytest.raises(ValueError, match=r"'later.get' is already the name of a relayed method"):
        server.store("later", tmp_path / "kv")
    (tmp_path / "file").write_text("text")
    with pytest.raises(OSError, match="cannot open the store"):
        server.store("file", tmp_path / "file")


def test_authentication_precedes_a_native_call(serve: Serve, tmp_path: Path) -> None:
    def auth(ctx: ucall.Context) -> object:
        return ctx.headers.get("authorization") == "Bearer right"

    server = serve(auth=auth)
    server.store("kv", tmp_path / "kv")
    for token, status in [("right", 200), ("wrong", 401)]:
        with Wire(server.port) as wire:
            wire.send(http(request("kv.put", ["a", 1]), f"Authorization: Bearer {token}"))
            assert wire.reply()[0] == status
    with Wire(server.port) as wire:
        wire.send(request("kv.get", ["a"]))
        assert json.loads(wire.line())["error"]["code"] == -32004


SERVES_A_STORE = f"""
import sys, ucall
server = ucall.Server(port=0)
server.store("kv", sys.argv[1])
server.add(lambda: 1, "plain")
server.start()
print(server.port)
{HOLDS_THE_LOCK}
print("released")
sys.stdin.readline()
"""


def test_a_native_call_needs_no_interpreter_lock(tmp_path: Path) -> None:
    with program(SERVES_A_STORE, str(tmp_path / "kv")) as process:
        port = int(process.stdout.readline())
        with Wire(port) as wire, Wire(port) as other:
            assert wire.result("plain") == 1
            send_line(process)
            assert process.stdout.readline() == "held\n"
            # This turn may have begun before the lock was taken.
            for number in range(1, 50):
                assert wire.result("kv.put", ["a", number]) == number
                assert wire.result("kv.get", ["a"]) == {"version": number, "value": number}
            other.send(request("plain"))
            process.stdin.write("x")
            process.stdin.flush()
            assert process.stdout.readline() == "released\n"
            assert json.loads(other.line())["result"] == 1
            assert wire.result("plain") == 1


WORKERS = PID + 'server.store("kv", os.environ["STORE"])\n'


def test_worker_processes_share_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", str(tmp_path / "kv"))
    with supervised(tmp_path, "--workers", "3", source=WORKERS) as app, app.wires(3) as wires:
        sums: list[int] = []

        def count(wire: Wire) -> None:
            for _ in range(40):
                sums.append(wire.result("kv.increment", ["n"]))

        threads = [threading.Thread(target=count, args=[wire]) for wire in wires.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sums) == list(range(1, 121))
        # A caller that has its answer finds its write at every worker.
        for number, wire in enumerate([*wires.values()] * 20):
            version = wire.result("kv.put", ["a", number])
            for other in wires.values():
                assert other.result("kv.get", ["a"]) == {"version": version, "value": number}
        for wire in wires.values():
            wire.close()
        app.stop()


FORKS = """
import os, sys, ucall
store = ucall.store.open(sys.argv[1])
if os.fork() == 0:
    store.put("child", 1)
    os._exit(0)
os.wait()
print(store.get("child").value)
if os.fork() == 0:
    try:
        store.get("child")
    except OSError as error:
        print(error)
    os._exit(0)
os.wait()
store.put("parent", 1)
print(sorted(key for key, _ in store.scan()))
"""


def test_a_store_is_opened_after_a_fork(tmp_path: Path) -> None:
    with program(FORKS, str(tmp_path / "kv")) as process:
        output, errors = process.communicate()
        assert output.splitlines() == [
            "1",
            "the store was opened before this process was forked: close it before the fork",
            "['child', 'parent']",
        ], errors


def test_a_timeout_covers_native_calls(serve: Serve, tmp_path: Path) -> None:
    server = serve(timeout_ms=60_000)
    server.store("kv", tmp_path / "kv")
    with Wire(server.port) as wire:
        call = {"jsonrpc": "2.0", "method": "kv.put", "params": ["a", 1], "id": 1}
        wire.send(json.dumps(call | {"_meta": {"timeout_ms": 0}}).encode())
        assert json.loads(wire.line())["error"]["code"] == -32001
        assert wire.result("kv.get", ["a"]) is None
