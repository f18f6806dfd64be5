"""What relayed calls need of their worker: no interpreter lock, descriptors, shared counters."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from applications import HOLDS_THE_LOCK, PID
from relaying import address, echo
from scripted import Peer, scripted
from test_workers import supervised

from harness import Wire, eventually, http, program, request, send_line

RELAYS = f"""
import sys, ucall
keys = ucall.auth.bearer({{"s3cret": "alice"}})
server = ucall.Server(port=0, auth=keys if sys.argv[2] else None)
server.relay("up.*", to=sys.argv[1])
server.start()
print(server.port)
{HOLDS_THE_LOCK}
"""


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_relayed_call_needs_no_interpreter_lock(has_keys: bool) -> None:
    """Nor does a bearer token, or a connection that begins or ends."""
    header = "Authorization: Bearer s3cret"
    with (
        scripted(echo) as upstream,
        program(RELAYS, address(upstream), "x" * has_keys) as process,
    ):
        port = int(process.stdout.readline())
        send_line(process)
        assert process.stdout.readline() == "held\n"
        for number in range(20):
            with Wire(port) as wire:
                wire.send(http(request("up.f", [number]), header))
                assert json.loads(wire.reply()[2])["result"] == [number]
                if has_keys:
                    wire.send(http(request("up.f", [number]), header.replace("s3", "S3")))
                    assert wire.reply()[0] == 401


FEW_DESCRIPTORS = """
import importlib, os, resource, sys, ucall
server = importlib.import_module(f"ucall.{sys.argv[2]}").Server(
    port=0, observability=ucall.Observability(metrics=True)
)
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, used + 100))
server.relay("up.*", to=sys.argv[1], max_failures=1, timeout_ms=60_000)
server.start()
print(server.port)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_shortage_of_descriptors_opens_no_circuit(engine: str) -> None:
    """Calls over HTTP need a connection each; those past the limit may be made again."""
    go: list[bool] = []

    def waiting(peer: Peer) -> None:
        while True:
            call = json.loads(peer.http_request())
            assert eventually(lambda: bool(go))
            reply = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": 1}).encode()
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(reply), reply))

    with scripted(waiting) as upstream:
        to = f"http://127.0.0.1:{upstream.port}"
        with program(FEW_DESCRIPTORS, to, engine) as process:
            first = process.stdout.readline()
            if not first and "EngineError" in process.stderr.read():
                pytest.skip("no io_uring here")
            with Wire(int(first)) as wire:
                wire.send(b"".join(request("up.f", id=number) for number in range(100)))
                replies = [json.loads(wire.line())]
                go.append(True)
                replies += [json.loads(wire.line()) for _ in range(99)]
                errors = [it["error"] for it in replies if "error" in it]
                assert 0 < len(errors) < 100
                assert {error["code"] for error in errors} == {-32003}
                assert all("retry_after_ms" in error["data"] for error in errors)
                assert eventually(lambda: wire.call("up.f").get("result") == 1)
                text = urlopen(f"http://127.0.0.1:{int(first)}/metrics").read().decode()
                label = f'upstream="{to}"'
                assert f"ucall_upstream_failures_total{{{label}}} 0" in text.splitlines()
                assert f'ucall_upstream_circuits{{{label},state="closed"}} 1' in text.splitlines()


WORKERS = f"""
{PID.replace("port=0", "port=0, observability=ucall.Observability(metrics=True)")}
server.relay("up.*", to=os.environ["UPSTREAM"], max_failures=2)
"""


def test_metrics_add_up_the_upstreams_of_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(peer: Peer) -> None:
        peer.raw_request()

    with scripted(dying) as upstream:
        monkeypatch.setenv("UPSTREAM", address(upstream))
        with (
            supervised(tmp_path, "--workers", "2", source=WORKERS) as app,
            app.wires(2) as wires,
        ):

            def metric(name: str) -> list[int]:
                text = urlopen(f"http://127.0.0.1:{app.port}/metrics").read().decode()
                return [int(value) for value in re.findall(rf"(?m)^{name}\{{.*\}} (\d+)$", text)]

            for pid, failures in [(min(wires), 2), (max(wires), 4)]:
                for _ in range(2):
                    assert wires[pid].error("up.f")["data"]["sent"] is True
                assert metric("ucall_upstream_failures_total") == [failures]
            # Closed, open and probing: each worker has a breaker of its own.
            assert metric("ucall_upstream_circuits") == [0, 2, 0]

            def one_is_new() -> bool:
                try:
                    return metric("ucall_upstream_circuits") == [1, 1, 0]
                except ConnectionResetError:  # The killed worker had the connection.
                    return False

            os.kill(min(wires), 9)
            assert eventually(one_is_new)
            assert metric("ucall_upstream_failures_total") == [4]
            for wire in wires.values():
                wire.close()
            app.stop()
