"""Parsing of loads, the output of the gate, and the duration of a whole run."""

import subprocess
import sys

import pytest

import gate
from harness import request, usage
from suite import drivers, plan
from suite.rounds import order
from suite.servers import Load, everyone

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


def test_a_whole_run_fits_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(drivers, "OUTPUT", tmp_path)
    monkeypatch.setattr(plan, "PAYLOAD_BYTES", (64,) * len(plan.PAYLOAD_BYTES))
    whole = sum(group.estimate for group in plan.groups_of(list(plan.SECTIONS), brief=False))
    assert 15 < whole / 60 < 23
    brief = sum(group.estimate for group in plan.groups_of(list(plan.SECTIONS), brief=True))
    assert brief / 60 < 6


def test_every_server_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(drivers, "OUTPUT", tmp_path)
    monkeypatch.setattr(plan, "PAYLOAD_BYTES", (64,))
    groups = plan.groups_of(list(plan.SECTIONS), brief=False)
    measured = {server.name for group in groups for server in group.servers}
    assert measured == {server.name for server in everyone()}


STORED = {"posix": {"instructions by callgrind": 1000.0, "system calls": 3.0}}


@pytest.mark.parametrize(("now", "holds"), [(900, True), (1030, True), (1031, False)])
def test_the_gate_accepts_a_small_increase(now, holds):
    found = {"posix": {"instructions by callgrind": now, "system calls": 3.0}}
    assert [each for each, _ in gate.compared(STORED, found)] == [holds, True]


def test_the_gate_reports_missing_counters():
    lines = list(gate.compared(STORED, {"posix": {"system calls": 3.5}}))
    assert [holds for holds, _ in lines] == [True, False]
    assert lines[0][1].startswith("SKIPPED") and lines[1][1].startswith("DEARER")


def test_the_gate_skips_another_build(monkeypatch):
    monkeypatch.setenv("CARGO_PROFILE_RELEASE_LTO", "off")
    assert "not the release build" in gate.reason_to_skip({"rustc": gate.compiler()})
