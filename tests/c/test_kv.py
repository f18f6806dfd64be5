"""The store of examples/c/kv.c: its procedures, and its content after a kill."""

import load
import pytest

import harness
from harness import Client, serving

KV = harness.example("kv.c")


@pytest.fixture
def command(built, engine, tmp_path) -> list:
    return [built(KV), "--port", 0, "--engine", engine, "--folder", tmp_path / "store"]


def test_set_get_delete(command):
    with serving(command) as server, Client(server.port) as client:
        values = [1, -2.5, "x", "é\n😀", None, True, [1, [2]], {"a": {"b": []}}]
        for value in values:
            assert client.call("set", {"key": "k\u00e9y", "value": value}) is True
            assert client.call("get", {"key": "k\u00e9y"}) == value
        assert client.call("get", {"key": "other"}) is None
        assert client.call("delete", {"key": "k\u00e9y"}) is True
        assert client.call("delete", {"key": "k\u00e9y"}) is False
        assert client.call("get", {"key": "k\u00e9y"}) is None


def test_invalid_params_are_errors(command):
    with serving(command) as server, Client(server.port) as client:
        for params in ({}, {"key": 1, "value": 2}, {"key": "a"}, ["a", 1]):
            assert client.error_of("set", params)["code"] == -32602
        for key in ("", "x" * 512):
            error = client.error_of("set", {"key": key, "value": 1})
            assert error == {"code": -32602, "message": "The key is empty or too long"}
        for count in (0, -1, 1001):
            assert client.error_of("scan", {"count": count})["code"] == -32602


def test_a_scan_finds_everything_in_order(command):
    with serving(command) as server, Client(server.port) as client:
        assert client.call("scan") == {"items": [], "cursor": None}
        keys = [f'key {number:03} "\\\n\x01é' for number in range(25)]
        for key in reversed(keys):
            client.call("set", {"key": key, "value": {"of": key}})
        pages, cursor = [], None
        while True:
            page = client.call("scan", {"cursor": cursor, "count": 10} if cursor else {})
            pages.append(page["items"])
            cursor = page["cursor"]
            if cursor is None:
                break
            # Keys that are deleted or added meanwhile do not confuse the cursor.
            client.call("delete", {"key": cursor})
        assert [len(page) for page in pages] == [10, 10, 5]
        assert [item for page in pages for item in page] == [[key, {"of": key}] for key in keys]
        assert client.call("scan", {"count": 1000})["cursor"] is None


def test_it_serves_many_at_once(command):
    with serving(command) as server:
        assert load.run(server.port, [load.stored], clients=8, calls=800) == 800


def test_answered_writes_survive_a_kill(command):
    """After each of five kills during writes, every acknowledged write is there."""
    answered: dict[str, int] = {}
    for attempt in range(5):
        server = harness.Server(command)
        with Client(server.port) as client:
            for key, value in answered.items():
                assert client.call("get", {"key": key}) == value
            for number in range(40):
                key = f"{attempt}-{number}"
                assert client.call("set", {"key": key, "value": number}) is True
                answered[key] = number
            for number in range(200):
                client.submit("set", {"key": f"unanswered {number}", "value": number})
            server.kill()
    with serving(command) as server, Client(server.port) as client:
        for key, value in answered.items():
            assert client.call("get", {"key": key}) == value
        page = client.call("scan", {"count": 1000})
        assert len(page["items"]) >= len(answered)
