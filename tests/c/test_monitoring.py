"""Health checks and metrics of a server in C."""

import http.client

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

import harness
from harness import Client, serving, wait_until
from wire import HOST, Wire

LATER = harness.PROGRAMS / "later.c"
CALLS = "rpc_server_call_duration_seconds_count"


def get(port: int, path: str, accept: str = "*/*") -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", path, headers={"Accept": accept})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def samples(port: int) -> dict[tuple, float]:
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def calls(found: dict[tuple, float], method: str, code: str = "") -> float:
    """The calls of a method with an error; without, those that had a result."""
    errors = [("error_type", code)] if code else []
    codes = [("rpc_response_status_code", code)] if code else []
    labels = [*errors, ("rpc_method", method), *codes, ("rpc_system_name", "jsonrpc")]
    return found.get((CALLS, *labels), 0)


def test_metrics_count_calls_on_all_threads_however_they_end(built, engine):
    with serving([built(LATER), engine, 0, 10, 2]) as server, Client(server.port) as client:
        assert client.call("outlive", {"answers": True}) == 3
        assert client.error_of("outlive", {"answers": False})["code"] == -32603
        assert client.error_of("unknown")["code"] == -32601
        client.submit("keep", {"text": "kept"})
        client.notify("kept")
        assert client.call("answer_all") == 1
        assert client.message()["result"] == "kept"
        with Client(server.port) as leaving:
            leaving.submit("keep", {"text": "left"})
            wait_until(lambda: client.call("kept") == 1)
            assert samples(server.port)["ucall_running_calls",] == 1
            leaving.reset()
        wait_until(lambda: client.call("cancelled") == 1)
        found = samples(server.port)
        assert calls(found, "outlive") == calls(found, "outlive", "-32603") == 1
        assert calls(found, "_OTHER", "-32601") == 1
        assert calls(found, "keep") == calls(found, "keep", "-32800") == 1
        assert calls(found, "answer_all") == 1 and calls(found, "kept") >= 2
        assert found["ucall_worker_starts_total",] == 2
        assert found["process_start_time_seconds",] > 1e9
        assert found["ucall_accepted_connections_total",] >= 4
        assert not any("gil" in name or "batch" in name for name, *_ in found)
        assert client.call("answer_all") == 1
        assert samples(server.port)["ucall_running_calls",] == 0
        _, text = get(server.port, "/metrics", "application/openmetrics-text")
        assert [*openmetrics.text_string_to_metric_families(text)]


def is_refused(client: Client) -> bool:
    client.submit("kept")
    return client.message().get("error", {}).get("code") == -32002


def test_a_drain_and_a_limit_make_a_server_not_ready(built, engine):
    with serving([built(LATER), engine, 0, 1, 1]) as server, Client(server.port) as client:
        assert get(server.port, "/healthz") == (200, "ok\n")
        assert get(server.port, "/readyz") == (200, "ready\n")
        client.submit("keep", {"text": "kept"})
        assert client.call("kept") == 1
        full = "not ready: overloaded: max_running_calls is reached\n"
        assert get(server.port, "/readyz") == (503, full)
        with Wire(server.port) as ready, Wire(server.port) as live:
            for wire in (ready, live):
                wire.send(b"GET ")
            # The drain keeps connections whose requests have begun: the server reads this later.
            with Wire(server.port) as last:
                last.error("unknown")
            client.call("drain", {"timeout_ms": 60_000})
            wait_until(lambda: is_refused(client))
            for wire, path in ((ready, "/readyz"), (live, "/healthz")):
                wire.send(f"{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert ready.reply()[::2] == (503, b"not ready: draining\n")
            assert live.reply()[::2] == (200, b"ok\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_monitoring_is_off_by_default_and_metrics_ask_auth(built, engine, path):
    with serving([built(LATER), engine]) as server:
        assert get(server.port, path)[0] == 404
    with serving([built(LATER), engine, 0, 1, 1, "auth"]) as server:
        assert get(server.port, path)[0] == (401 if path == "/metrics" else 200)
