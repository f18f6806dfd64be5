"""Upstreams of relays that are names."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from serving import Serve
from test_relay_gateway import Gateway

from harness import Wire, eventually

#: RFC 6761 reserves it: no resolver knows it.
UNKNOWN = "no-such-host.invalid"


def ready(port: int) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz") as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("scheme", ["tcp", "http"])
def test_a_name_that_is_not_known_is_an_error_of_its_calls_alone(serve: Serve, scheme: str) -> None:
    upstream, server = serve(), serve(metrics=True)
    upstream.add(add, name="up.add")
    server.relay("up.*", to=[f"{scheme}://localhost:{upstream.port}", f"{scheme}://{UNKNOWN}:1"])
    with Wire(server.port) as wire:
        assert wire.result("up.add", [1, 2]) == 3
        assert ready(server.port) == (200, "ready\n")
        server.relay("bad.*", to=f"{scheme}://{UNKNOWN}:1", timeout_ms=60_000)
        for _ in range(2):
            error = wire.error("bad.f")
            assert error["code"] == -32005 and error["data"]["sent"] is False
            assert "it has no address" in error["data"]["reason"]
        status, text = ready(server.port)
        assert (status, f"{UNKNOWN}:1: it has no address" in text) == (503, True)
        assert wire.result("up.add", [1, 2]) == 3

        def is_red() -> bool:
            with urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
                lines = reply.read().decode().splitlines()
            label = f'upstream="{scheme}://{UNKNOWN}:1"'
            return f'ucall_upstream_circuits{{{label},state="open"}} 2' in lines

        assert eventually(is_red)


def test_a_gateway_starts_although_a_name_is_not_known(serve: Serve, tmp_path: Path) -> None:
    upstream = serve()
    upstream.add(add, name="up.add")
    relays = {"up.*": f"tcp://localhost:{upstream.port}", "bad.*": f"tcp://{UNKNOWN}:1"}
    tables = (f"[[relay]]\nmethods = '{name}'\nto = '{to}'\n" for name, to in relays.items())
    gateway = Gateway(tmp_path, "[server]\nport = 0\n" + "".join(tables), "--workers", "1")
    try:
        gateway.wait_for("is ready")
        with Wire(gateway.port) as wire:
            assert wire.result("up.add", [1, 2]) == 3
            assert wire.error("bad.f")["code"] == -32005
        gateway.wait_for(f"{UNKNOWN}:1: it has no address")
        gateway.reload(gateway.config.read_text())
        gateway.wait_for("is ready", 2)
        with Wire(gateway.port) as wire:
            wire.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"}).encode())
            assert "result" in json.loads(wire.line())
    finally:
        gateway.close()
