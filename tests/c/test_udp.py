"""Calls over UDP."""

import json
import socket

import harness
from harness import serving

UDP = harness.PROGRAMS / "udp.c"


def exchange(port: int, *requests: dict) -> list:
    """The replies of one source to requests, one after another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(harness.START_SECONDS_MAX)
        client.connect(("127.0.0.1", port))
        replies = []
        for request in requests:
            client.send(json.dumps({"jsonrpc": "2.0", **request}).encode())
            replies.append(json.loads(client.recv(65_536)))
        return replies


def test_both_threads_answer_and_a_repeat_does_not_run(built, engine):
    with serving([built(UDP), engine]) as server:
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


def test_an_address_past_its_calls_a_second_is_dropped(built, engine):
    with serving([built(UDP), engine, "limited"]) as server:
        batch = [{"jsonrpc": "2.0", "method": "count", "id": number} for number in range(4)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(harness.START_SECONDS_MAX)
            client.connect(("127.0.0.1", server.port))
            client.send(json.dumps(batch).encode())
            client.send(json.dumps(batch[:3]).encode())
            assert [reply["result"] for reply in json.loads(client.recv(2048))] == [1, 2, 3]
