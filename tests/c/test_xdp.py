"""Calls over AF_XDP, between two network namespaces."""

import json
import socket

import networks
import pytest

import harness

XDP = harness.PROGRAMS / "xdp.c"


@pytest.mark.skipif(networks.why_no_network() is not None, reason=str(networks.why_no_network()))
def test_a_program_answers(built, engine):
    with networks.network(1500) as network:
        command = ["ip", "netns", "exec", network.server, built(XDP), engine]
        with harness.serving(command) as server, network.on_client():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.settimeout(harness.START_SECONDS_MAX)
                client.connect(("192.0.2.2", server.port))
                for number in range(100):
                    call = {"method": "sum", "params": {"a": number, "b": 1}, "id": number}
                    client.send(json.dumps({"jsonrpc": "2.0", **call}).encode())
                    assert json.loads(client.recv(2048))["result"] == number + 1
            assert network.has_program()
        assert not network.has_program()
    assert "xdp: eth0: 2 queues in native mode with copies" in server.errors
