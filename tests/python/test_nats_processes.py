"""Servers that register with NATS: the command line, workers, and what is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forking
import pytest
from applications import PID
from brokers import NatsServer, instances, registered, request

from harness import eventually
from ucall.client import Client


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as started:
        yield started


APP = f"""
{PID}
@server
def is_first() -> bool:
    return server.worker.index == 0
"""


def start_app(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "ucall", "app:server", *arguments]
    return forking.Python(
        command, cwd=folder, env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )


def stop_app(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize("by", ["flags", "variables"])
def test_the_command_line_registers(broker: NatsServer, tmp_path: Path, by: str) -> None:
    options = {"broker": broker.url, "group": "models", "advertise": "elsewhere:1"}
    arguments = [it for name, value in options.items() for it in (f"--{name}", value)]
    variables = {f"UCALL_{name.upper()}": value for name, value in options.items()}
    given: Any = (arguments, {}) if by == "flags" else ([], variables)
    process = start_app(tmp_path, *given[0], **given[1])
    try:
        assert registered(broker)
        assert instances(broker)[0]["metadata"]["address"] == "elsewhere:1"
        assert json.loads(request(broker, "models.pid").data) == process.pid
        assert stop_app(process) == 0
        assert instances(broker) == []
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--broker", "http://x", "--group", "g"], "broker: expected nats://host:port"),
        (["--broker", "nats://x"], "group: expected the name"),
        (["--broker", "nats://x", "--group", "g", "--broker-creds", "/none"], "/none"),
        (["--broker", "nats://x", "--group", "g", "--broker-ca-certs", "/none"], "No such file"),
    ],
)
def test_the_command_line_refuses(tmp_path: Path, arguments: list[str], message: str) -> None:
    process = start_app(tmp_path, *arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and message in errors and "Traceback" not in errors


def test_one_of_several_workers_registers_for_all(broker: NatsServer, tmp_path: Path) -> None:
    process = start_app(tmp_path, "--workers", "3", "--broker", broker.url, "--group", "models")
    try:
        assert registered(broker)
        [info] = instances(broker)
        with Client(info["metadata"]["address"]) as client:
            pids: set[int] = set()

            def has_all_workers() -> bool:
                pids.add(call_new(client))
                return len(pids) == 3

            assert eventually(has_all_workers)
        assert registered(broker)
        before = info["id"]
        kill_registered(info["metadata"]["address"])
        assert eventually(lambda: [it["id"] for it in instances(broker)] not in ([], [before]))
        assert len(instances(broker)) == 1
        assert json.loads(request(broker, "models.pid").data) != process.pid
        process.send_signal(signal.SIGHUP)
        second = instances(broker)
        assert eventually(
            lambda: len(found := instances(broker)) == 1 and found != second, timeout_s=60
        )
        assert stop_app(process) == 0
    finally:
        process.kill()
        process.communicate()


def call_new(client: Client) -> int:
    """A call on a connection of its own."""
    client.close()
    pid: int = client.pid().json
    return pid


def kill_registered(address: str) -> None:
    """Kills the worker that has registered, the first one."""
    with Client(address) as client:

        def has_killed() -> bool:
            client.close()
            batch = client.batch()
            pid, is_first = batch.pid(), batch.is_first()
            batch.send()
            if not is_first.json:
                return False
            os.kill(pid.json, signal.SIGKILL)
            return True

        assert eventually(has_killed)


def test_nothing_is_imported_without_a_broker(tmp_path: Path) -> None:
    code = """
import sys, ucall, ucall.aio
from ucall.client import Client
server = ucall.Server(port=0)
server.add(lambda: 1, name="one")
with server:
    Client(["127.0.0.1:%d" % server.port]).one().json
print([name for name in sys.modules if name.split(".")[0] == "nats" or "_nats" in name])
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
