"""Servers: start, threads, stop, and logs."""

import json
import signal
import subprocess
import time

import load
import pytest
from programs import require

import harness
from harness import Client, serving

SUM = harness.example("sum.c")
LOGIN = harness.example("login.cpp")
API = harness.PROGRAMS / "api.c"
LOGS = harness.PROGRAMS / "logs.c"


def test_the_functions_do_as_the_header_says(built, engine):
    harness.run([built(API), engine])


def test_a_thread_that_ended_keeps_no_port(built, engine):
    harness.run([built(API), engine, "left"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_handler_stops_it(built, engine, number):
    server = harness.Server([built(SUM), "--port", 0, "--engine", engine])
    with Client(server.port) as client:
        assert client.call("sum", {"a": 1, "b": 2}) == 3
        server.process.send_signal(number)
        assert client.line() == b""
    assert server.wait() == 0


def test_a_signal_stops_it_under_load(built, engine):
    for _ in range(5):
        server = harness.Server([built(LOGIN), "--port", 0, "--engine", engine, "--threads", 2])
        clients = [Client(server.port) for _ in range(8)]
        for client in clients:
            for number in range(100):
                client.submit("echo", {"content": number})
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, server.errors
        for client in clients:
            client.close()


def test_a_port_in_use_is_an_error(built):
    with serving([built(SUM), "--port", 0]) as server:
        second = subprocess.run(
            [built(SUM), "--port", str(server.port)], capture_output=True, text=True
        )
        assert second.returncode == 1
        assert f"127.0.0.1:{server.port} is in use" in second.stderr


def test_20_000_calls_of_32_clients(built, engine):
    with serving([built(SUM), "--port", 0, "--engine", engine]) as server:
        assert load.run(server.port, [load.sums], clients=32, calls=20_000) == 20_000


def test_two_threads_serve(built, engine):
    command = [built(LOGIN), "--port", 0, "--engine", engine, "--threads", 2]
    with serving(command) as server:
        loads = [load.echoes, load.sessions]
        assert load.run(server.port, loads, clients=32, calls=20_000) == 20_000
        threads = subprocess.run(
            [require("ps"), "-L", "-o", "time=", "-p", str(server.process.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert len(threads.stdout.split()) == 2


def test_both_threads_take_connections(built, engine):
    """The kernel distributes connections by address, so of 64 both threads get some."""
    command = [built(LOGIN), "--port", 0, "--engine", engine, "--threads", 2]
    with serving(command) as server:
        for _ in range(20):
            before = switches(server.process.pid)
            clients = [Client(server.port) for _ in range(64)]
            for client in clients:
                assert client.call("echo", {"content": 1}) == 1
                client.close()
            after = switches(server.process.pid)
            if all(after[thread] > before.get(thread, 0) + 3 for thread in after):
                return
        raise AssertionError(f"{before} {after}")


def switches(pid: int) -> dict[str, int]:
    """The number of waits of each thread, without the kernel's threads for io_uring."""
    counts = {}
    for thread in harness.Path(f"/proc/{pid}/task").iterdir():
        if (thread / "comm").read_text().startswith("iou-"):
            continue
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                counts[thread.name] = int(line.split()[1])
    return counts


@pytest.mark.parametrize("form", ["json", "human"])
def test_one_line_a_second_reports_the_traffic(built, engine, form):
    command = [built(LOGIN), "--port", 0, "--engine", engine, "--threads", 2, "--logs", form]
    with serving(command) as server, Client(server.port) as client:
        for number in range(100):
            assert client.call("echo", {"content": number}) == number
        harness.wait_until(lambda: server.errors.count("\n") >= 2)
    lines = server.errors.splitlines()
    if form == "json":
        told = [json.loads(line) for line in lines]
        assert sum(line["calls"] for line in told) == 100
        assert sum(line["bytes_received"] for line in told) > 100 * 60
        assert sum(line["bytes_sent"] for line in told) > 100 * 30
        assert told[0]["connections"] == 1
        assert abs(told[0]["time"] - time.time()) < 60
        # One more line may come at the end, earlier.
        assert all(line["seconds"] > 0.9 for line in told[:2])
    else:
        assert lines[0].startswith("ucall: ") and "calls/s" in lines[0]
        assert lines[0].endswith("connections: 1")


@pytest.mark.parametrize("kind", ["unread", "full", "none"])
def test_an_unread_log_does_not_stop_the_server(built, engine, kind):
    with serving([built(LOGS), engine, kind]) as server, Client(server.port) as client:
        for _ in range(3):
            assert client.call("twice") == 1


def test_no_lines_unless_asked_for(built):
    with serving([built(LOGIN), "--port", 0]) as server, Client(server.port) as client:
        client.call("echo", {"content": 1})
        time.sleep(1.2)
    assert server.errors == ""
