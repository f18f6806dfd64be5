"""The key-value store, served by a C program."""

import contextlib

import pytest

import harness
from harness import Client, serving

STORE = harness.PROGRAMS / "store.c"


def test_threads_serve_one_store_beside_callbacks(built, engine, tmp_path):
    command = [built(STORE), engine, tmp_path / "kv"]
    with serving(command) as server, contextlib.ExitStack() as stack:
        # Enough that each thread has some.
        clients = [stack.enter_context(Client(server.port)) for _ in range(8)]
        for number, client in enumerate(clients, 1):
            assert client.call("kv.increment", {"key": "n"}) == number
            assert client.call("one") == 1
            assert client.call("kv.cas", {"key": "a", "version": 0, "value": [1]}) == (
                2 if number == 1 else None
            )
            assert client.call("kv.get", {"key": "a"}) == {"version": 2, "value": [1]}
            assert client.call("inherited") == 0
    with serving(command) as server, Client(server.port) as client:
        with pytest.raises(harness.RemoteError, match="max_value_bytes"):
            client.call("kv.put", {"key": "v", "value": "x" * 1000})
        assert client.call("kv.put", {"key": {"bytes": "/w=="}, "value": "x" * 998}) == 10
        assert client.call("kv.delete", {"key": {"bytes": "/w=="}}) is True
        entries = client.call("kv.scan")["entries"]
        assert [(entry["key"], entry["value"]) for entry in entries] == [("a", [1]), ("n", 8)]
