"""Parsing of loads, the output of the gate, and the duration of a whole run."""

import ast
import http.client
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from bench.harness import processes, request, usage
from bench.sections import asgi, gate, sleepers, whole
from bench.suite import drivers, exact, plan, rounds
from bench.suite.rounds import order
from bench.suite.servers import PEERS, Load, everyone

H2LOAD = """
finished in 1.00s, 7838.00 req/s, 620.11KB/s
requests: 7838 total, 7870 started, 7838 done, 7838 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 7838 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 620.11KB (634995) total, 283.24KB (290034) headers, 53.58KB (54866) data
"""
LOAD = Load("c32", "32 clients")


def test_h2load_output_is_parsed():
    found = drivers.h2load_figures(H2LOAD, list(range(1, 1001)))
    assert (found["requests"], found["duration"], found["errors"]) == (7838, 1.0, 0)
    assert found["p50"] == pytest.approx(500.5) and found["p99"] == pytest.approx(990, abs=1)


def test_replies_of_another_length_are_refused():
    with pytest.raises(drivers.LoadError, match="bytes of replies"):
        drivers.h2load_figures(H2LOAD.replace("(54866) data", "(0) data"), [1, 2])


def test_a_wrong_reply_is_refused():
    line = '{"requests":1,"duration":1,"errors":0,"unanswered":0,"reply":"%s"}'
    wrong = line % r"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":77}"
    with pytest.raises(request.WrongReplyError):
        drivers.own_figures(wrong, LOAD)
    assert drivers.own_figures(wrong.replace("77", "76"), LOAD)["errors"] == 0


def test_a_load_without_output_is_an_error():
    with pytest.raises(drivers.LoadError, match="cannot connect"):
        drivers.own_figures("load: cannot connect\n", LOAD)


def test_a_process_family_includes_its_children():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    try:
        while len(usage.family(process.pid)) < 2:
            assert process.poll() is None
    finally:
        process.communicate(b"\n", timeout=60)


def test_every_second_round_runs_backwards():
    servers = everyone()[:3]
    assert order(servers, 0) == servers
    assert order(servers, 1) == servers[::-1]


def groups_of(sections, brief=False):
    return [group for name in sections for group in plan.groups_of(name, brief)]


def test_a_whole_run_fits_its_time():
    """Half an hour, with a quarter of it for pairs that are taken again."""
    steps = [step for name in whole.OURS for step in whole.steps(name, brief=False)]
    assert 10 < sum(step.seconds for step in steps) / 60 < 24
    brief = sum(group.estimate for group in groups_of(plan.SECTIONS, brief=True))
    assert brief / 60 < 6


def test_every_server_is_measured():
    groups = [*groups_of(set(plan.SECTIONS) - {"beside"})]
    measured = {server.name for group in groups for server in group.servers}
    assert measured - {"twin-ours-c-posix"} == {server.name for server in everyone()}
    assert {*whole.OURS, *whole.PEERS} == {*plan.SECTIONS, *whole.SPECIAL}


def test_every_python_peer_is_a_function_of_their_module():
    module = ast.parse((PEERS / "python/servers.py").read_text())
    kinds = {it.name for it in module.body if isinstance(it, ast.FunctionDef)}
    others = [sleepers.FASTAPI, *asgi.PEERS]
    servers = [*(it for it in everyone() if it.family == "python"), *others]
    assert {server.command[3] for server in servers} <= kinds


class Modes:
    """A calibration with these results, the last one again and again."""

    def __init__(self, *costs: float) -> None:
        self.costs = list(costs)

    def measure(self) -> float:
        return self.costs.pop(0) if len(self.costs) > 1 else self.costs[0]


def run_two(monkeypatch, *costs: float, rounds_asked: int = 2) -> rounds.Records:
    """Runs the floor and ucall in C while the machine's modes are these."""
    floor, server = everyone()[0], next(it for it in everyone() if it.name == "ours-c-posix")
    monkeypatch.setattr(rounds, "measured", lambda server, load, seconds: {"errors": 0})
    group = rounds.Group("s", (floor, server), (LOAD,), rounds_asked, 1)
    records = rounds.Records()
    run_ = rounds.Run(Modes(*costs).measure, records, rounds.Progress(0))
    rounds.run_load(group, LOAD, "s.0", [floor, server], run_)
    return records


def test_a_pair_in_two_modes_is_taken_again(monkeypatch):
    records = run_two(monkeypatch, 1.8, 1.8, 4.7, 1.8)
    pairs = [sample["pair"] for sample in records.samples]
    assert pairs == [f"s.0.{number}" for number in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert records.rejected == 2 and not records.problems


def test_a_machine_that_keeps_its_mode_is_measured_once(monkeypatch):
    records = run_two(monkeypatch, 1.8)
    assert len(records.samples) == 4 and records.rejected == 0


def test_a_server_without_enough_pairs_is_a_problem(monkeypatch):
    records = run_two(monkeypatch, *[1.8, 4.7] * 20)
    assert len(records.samples) == 2 * 2 * rounds.ROUNDS_MAX_RATIO
    assert "only 0 of 2" in records.problems[0]


STORED = {"posix": {"instructions by callgrind": 1000.0, "system calls": 3.0}}


@pytest.mark.parametrize(("now", "holds"), [(900, True), (1030, True), (1031, False)])
def test_the_gate_accepts_a_small_increase(now, holds):
    found = {"posix": {"instructions by callgrind": now, "system calls": 3.0}}
    assert [each for each, _ in gate.compared(STORED, found)] == [holds, True]


def test_the_gate_takes_the_lower_of_two_counts():
    found = {"a": {"system calls": 3.0, "instructions by callgrind": 4_500.0}, "b": {"x": 1.0}}
    again = {"a": {"system calls": 3.1, "instructions by callgrind": 3_500.0}}
    lower = {"a": {"system calls": 3.0, "instructions by callgrind": 3_500.0}, "b": {"x": 1.0}}
    assert gate.lower(found, again) == lower


def test_the_gate_reports_missing_counters():
    stored = {"posix": {**STORED["posix"], "instructions by perf": 900.0}}
    lines = list(gate.compared(stored, {"posix": {"system calls": 3.5}}))
    assert [holds for holds, _ in lines] == [False, False, True]
    words = [line.split()[0] for _, line in lines]
    assert words == ["MISSING", "DEARER", "SKIPPED"]


def test_a_tool_that_counts_nothing_here_starts_no_server():
    tool = exact.Tool("blind", ("env", "false"), "{}", exact.perf_totals)
    server, notes = SimpleNamespace(label="a server"), []
    assert exact.try_tool(tool, server, (), notes) == {}
    assert notes == ["a server under blind: no total in its report: "]


@pytest.mark.parametrize("error", [http.client.IncompleteRead(b""), http.client.BadStatusLine("")])
def test_a_server_that_dies_amid_a_reply_is_a_reason_for_missing_figures(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(exact, "a_call", fail)
    server, notes = SimpleNamespace(label="a server"), []
    assert exact.try_tool(exact.STRACE, server, (), notes) == {}
    assert len(notes) == 1 and notes[0].startswith("a server under strace: ")


def test_stray_system_calls_are_none_of_a_call(monkeypatch):
    def totals(_tool, _server, _sent, requests):
        return {"read": requests, "futex": 5 * (requests > 200), "brk": 6 * (requests > 200)}

    monkeypatch.setattr(exact, "totals", totals)
    tool = exact.Tool("true", ("env",), "A={}", lambda _: {}, few=200)
    monkeypatch.setattr(exact, "why_it_counts_nothing", lambda _: None)
    assert exact.a_call(tool, None, ()) == {"read": 1.0, "brk": 0.003}


def test_the_gate_fails_for_another_build(monkeypatch):
    monkeypatch.delenv("CARGO_PROFILE_RELEASE_LTO", raising=False)
    monkeypatch.delenv("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", raising=False)
    monkeypatch.setattr(gate, "TOOLS", ())
    assert gate.reason_to_fail({gate.build(): STORED}) is None
    assert gate.reason_to_fail({}, writes=True) is None
    assert "BENCH_FLAGS=--write" in gate.reason_to_fail({"rustc 1.0.0": STORED})
    monkeypatch.setattr(gate, "TOOLS", ("no-such-tool",))
    assert "no-such-tool not found" in gate.reason_to_fail({}, writes=True)
    monkeypatch.setenv("CARGO_PROFILE_RELEASE_LTO", "off")
    assert "not the release build" in gate.reason_to_fail({}, writes=True)


def test_requests_are_sent_in_turn_and_their_replies_read(monkeypatch):
    bodies = [b"1", b"2" * 70_000, b"3"]
    replies = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(it), it) for it in bodies]
    asked = [b"first", b"other"]
    got = []

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            for reply in replies:
                got.append(connection.recv(100))
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=[listener])
        server.start()
        exact.exchange_in_turn(listener.getsockname()[1], asked, 3)
        server.join()
    assert got == [b"first", b"other", b"first"]


#: Ends by its second signal if it is ``"deaf"`` to the first, else 1.5 s of work after the first.
ENDING = """
import signal, sys, time
handled = []
signal.signal(signal.SIGTERM, lambda *_: handled.append(1))
print("begins", flush=True)
while len(handled) < 1 + (sys.argv[1] == "deaf"):
    time.sleep(0.01)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
ends_at = time.monotonic() + 1.5
while time.monotonic() < ends_at and sys.argv[1] == "busy":
    pass
"""


@pytest.mark.parametrize("how", ["busy", "deaf"])
def test_a_second_signal_is_for_a_server_that_waits_alone(how: str) -> None:
    command = [sys.executable, "-c", ENDING, how]
    with processes.running(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert processes.ended_by_sigterm(process)
        assert process.returncode == 0
