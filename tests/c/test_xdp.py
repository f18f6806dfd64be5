"""Calls over AF_XDP, between two network namespaces."""

import networks
import pytest

import harness
from wire import UdpWire, request

XDP = harness.PROGRAMS / "xdp.c"


pytestmark = networks.require_xdp()


def _ask(port, method, params=None, number=0):
    """The result of a call from a port of its own."""
    with UdpWire(port, host="192.0.2.2") as wire:
        return wire.exchange(request(method, params or {}, number))["result"]


def test_a_program_answers(built, engine):
    with networks.network(1500) as network:
        command = ["ip", "netns", "exec", network.server, built(XDP), engine, "1"]
        with harness.serving(command) as server, network.on_client():
            for number in range(100):
                assert _ask(server.port, "sum", {"a": number, "b": 1}, number) == number + 1
            assert _ask(server.port, "polling") == 0
            assert network.has_program()
        assert not network.has_program()
    assert "xdp: eth0: 2 queues in native mode with copies" in server.errors


def test_threads_share_the_queues(built, engine):
    with networks.network(1500) as network:
        command = ["ip", "netns", "exec", network.server, built(XDP), engine, "2", "poll"]
        with harness.serving(command) as server, network.on_client():
            answering = set()
            while answering != {0, 1}:  # The second one may start later.
                answering.add(_ask(server.port, "thread"))
            assert _ask(server.port, "polling") == 2
        assert not network.has_program()
    # The log has equal lines once.
    assert "xdp: eth0: 1 of 2 queues in native mode with copies" in server.errors


def test_each_thread_needs_a_queue(built):
    with networks.network(1500) as network:
        command = ["ip", "netns", "exec", network.server, built(XDP), "posix", "3"]
        expected = "xdp: eth0: it has 2 queues, and each of 3 workers needs one"
        with pytest.raises(harness.StartError, match=expected), harness.serving(command):
            pass
