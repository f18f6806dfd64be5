"""What a call knows, authentication, the log's callback, removal of procedures, statistics."""

import http.client
import json

import pytest

import harness
from harness import Client, serving

PROGRAM = harness.PROGRAMS / "context.c"


@pytest.fixture
def client(built, engine):
    with serving([built(PROGRAM), engine, "peers"]) as server, Client(server.port) as client:
        client.server = server
        yield client


def post(port: int, method: str, **headers: str) -> tuple[int, dict, int]:
    """The status of a call over HTTP, its reply, and the port of the client."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    request = json.dumps({"jsonrpc": "2.0", "method": method, "id": 1})
    connection.request("POST", "/", request, headers)
    source = connection.sock.getsockname()[1]
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, (json.loads(body) if response.status == 200 else {}), source


@pytest.mark.parametrize("method", ["live", "later"])
def test_a_call_knows_its_method_and_its_peer(client, method):
    source = client.socket.getsockname()[1]
    assert client.call(method) == {
        "method": method,
        "word": None,
        "address": "127.0.0.1",
        "port": source,
        "user": None,
        "notification": False,
    }


def test_a_call_over_http_knows_its_headers(client):
    for method, word in [("live", "a b"), ("later", None)]:
        status, reply, source = post(client.server.port, method, **{"X-Word": "a b"})
        assert (status, reply["result"]["word"], reply["result"]["port"]) == (200, word, source)


def test_peers_are_looked_up_if_the_configuration_says_so(built, engine):
    with serving([built(PROGRAM), engine]) as server, Client(server.port) as client:
        assert client.call("live")["port"] == -1


def test_a_trusted_proxy_names_the_client(built, engine):
    with serving([built(PROGRAM), engine, "proxies"]) as server:
        for method in ("live", "later"):
            for forwarded, address in (("unknown", None), ("a, 2001:db8::1", "2001:db8::1")):
                _, reply, _ = post(server.port, method, **{"X-Forwarded-For": forwarded})
                assert reply["result"]["address"] == address
            _, reply, source = post(server.port, method)
            assert (reply["result"]["address"], reply["result"]["port"]) == ("127.0.0.1", source)


def test_headers_of_other_peers_are_ignored(client):
    _, reply, _ = post(client.server.port, "live", **{"X-Forwarded-For": "2001:db8::1"})
    assert reply["result"]["address"] == "127.0.0.1"


def test_notifications_are_known(client):
    client.notify("note")
    assert client.call("note") == 1
    client.notify("note")
    assert client.call("note") == 2


def test_a_removed_procedure_is_unknown(client):
    assert client.call("remove", {"name": "note"}) is True
    assert client.error_of("note")["code"] == -32601
    assert client.call("remove", {"name": "note"}) is False
    # The calls of others go to their own procedures.
    assert client.call("live")["method"] == "live"
    assert client.call("remove", {"name": "remove"}) is True
    assert client.error_of("remove")["code"] == -32601


def test_statistics_count_calls_and_connections(client):
    # Counters are those of the last turn.
    client.call("stats")
    calls, accepted, open_now, received = client.call("stats")
    assert calls >= 1 and accepted == open_now == 1 and received > 50
    with Client(client.server.port) as other:
        other.call("stats")
        assert other.call("stats")[1:3] == [2, 2]


def test_a_callback_gets_the_log(client):
    assert client.error_of("never")["code"] == -32603
    assert 'procedure "never" did not reply' in client.call("log")
    assert client.server.errors == ""


def test_a_callback_authenticates_requests(built, engine):
    with serving([built(PROGRAM), engine, "auth"]) as server:
        for headers in ({}, {"X-Key": "wrong"}):
            assert post(server.port, "live", **headers)[0] == 401
        for method in ("live", "later"):
            status, reply, _ = post(server.port, method, **{"X-Key": "secret"})
            assert (status, reply["result"]["user"]) == (200, "ada")
        with Client(server.port) as client:
            client.submit("live")
            assert client.message()["error"]["code"] == -32004
