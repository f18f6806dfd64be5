"""Calls over UDP."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

import harness
from harness import serving
from wire import UdpWire

UDP = harness.PROGRAMS / "udp.c"


def exchange(port: int, *requests: dict, source: str = "127.0.0.1") -> list:
    """The replies of one source to requests, one after another."""
    with UdpWire(port, source=source) as wire:
        return [wire.exchange({"jsonrpc": "2.0", **request}) for request in requests]


@contextlib.contextmanager
def serving_both(command: list) -> Iterator[harness.Server]:
    """A server both of whose threads serve. Each binds when it begins to, and then takes some of
    the sources of the other."""
    with serving(command) as server:
        threads = set()
        # A port that is used again must not send a copy.
        ids = itertools.count()
        while len(threads) < 2:
            (reply,) = exchange(server.port, {"method": "thread", "id": next(ids)})
            threads.add(reply["result"])
        yield server


def test_both_threads_answer_and_a_repeat_does_not_run(built, engine):
    with serving_both([built(UDP), engine]) as server:
        # Sources are spread over the threads by their ports.
        for number in range(20):
            request = {"method": "sum", "params": {"a": number, "b": 1}, "id": number}
            assert exchange(server.port, request) == [
                {"jsonrpc": "2.0", "id": number, "result": number + 1}
            ]
        first, second, other = exchange(
            server.port,
            {"method": "count", "id": 1},
            {"method": "count", "id": 1},
            {"method": "count", "id": 2},
        )
        assert (first["result"], second["result"], other["result"]) == (1, 1, 2)


def test_without_dedupe_a_repeat_runs(built, engine):
    with serving([built(UDP), engine, "without_dedupe"]) as server:
        replies = exchange(server.port, *[{"method": "count", "id": 1}] * 2)
        assert [reply["result"] for reply in replies] == [1, 2]


def test_deferred_calls_are_answered_and_repeats_do_not_run(built, engine):
    with serving_both([built(UDP), engine]) as server:
        first, second, other = exchange(
            server.port,
            {"method": "later", "id": 1},
            {"method": "later", "id": 1},
            {"method": "later", "id": 2},
        )
        assert (first["result"], second["result"], other["result"]) == (1, 1, 2)


def test_a_stream_needs_tcp(built, engine):
    with serving([built(UDP), engine]) as server:
        token = {"_meta": {"progressToken": 1}}
        collected, opened, asked = exchange(
            server.port,
            {"method": "stream", "id": 1},
            {"method": "stream", "params": {"items": True}, "id": 2},
            {"method": "stream", "id": 3, **token},
        )
        assert collected["result"] == [1, 2]
        assert (opened["error"]["code"], asked["error"]["code"]) == (-32600, -32600)


def test_messages_of_the_server_need_tcp(built, engine):
    with serving([built(UDP), engine]) as server:
        (reply,) = exchange(server.port, {"method": "messages", "id": 1})
        assert reply["result"] == 0
        with harness.Client(server.port) as client:
            client.submit("messages")
            documents = [client.message() for _ in range(3)]
            assert sorted(document.get("result", 0) for document in documents) == [0, 0, 4]


def test_a_port_of_udp_is_bound_once(built):
    harness.run([built(harness.PROGRAMS / "ports.c"), "taken"])


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of this machine")
def test_a_picked_port_is_free_for_udp_too(built):
    harness.run([built(harness.PROGRAMS / "ports.c"), "picked"])


def test_datagrams_are_counted(built, engine):
    # All of one source, so that one thread has them.
    with serving_both([built(UDP), engine]) as server, UdpWire(server.port) as wire:

        def request(method: str, number: int) -> dict:
            return {"jsonrpc": "2.0", "method": method, "id": number}

        wire.send(b"[]")
        assert wire.exchange(request("count", 1)) == wire.exchange(request("count", 1))
        assert wire.exchange([request("count", 2)] * 65)["error"]["code"] == -32600
        for number in range(10, 10_000):
            # As of the end of an earlier turn.
            counts = wire.exchange(request("stats", number))["result"]
            if counts["refused"]:
                break
        names = ("invalid", "repeated", "refused", "dropped")
        assert [counts[name] for name in names] == [1, 1, 1, 0]
        assert counts["sent"] == counts["received"] - 1


def test_auth_on_all_addresses_needs_force(built, engine):
    program = built(UDP)
    refused = subprocess.run([program, engine, "auth"], capture_output=True, text=True, timeout=60)
    assert (refused.returncode, "udp_auth" in refused.stderr) == (1, True)
    with serving([program, engine, "forced_auth"]) as server:
        assert exchange(server.port, {"method": "user", "id": 1})[0]["result"] is True
        if sys.platform == "linux":
            request = {"method": "user", "id": 1}
            (reply,) = exchange(server.port, request, source="127.0.0.2")
            assert reply["error"]["code"] == -32004


def test_an_address_past_its_calls_a_second_is_refused(built, engine):
    with serving([built(UDP), engine, "limited"]) as server:
        batch = [{"jsonrpc": "2.0", "method": "count", "id": number} for number in range(4)]
        with UdpWire(server.port) as wire:
            assert wire.exchange(batch)["error"]["code"] == -32006
            assert [reply["result"] for reply in wire.exchange(batch[:3])] == [1, 2, 3]
