"""Servers within event loops of their programs: poll(2), and libuv."""

import signal
import socket

import pytest

import harness
from harness import Client, serving


@pytest.fixture
def loop(built, engine):
    with serving([built(harness.PROGRAMS / "loop.c"), engine, 60_000]) as server:
        yield server


def test_calls_are_served_from_poll(loop):
    with Client(loop.port) as client, Client(loop.port) as other:
        for number in range(100):
            assert client.call("echo", [number]) == number
            assert other.call("thread") is True
        text = "x" * (4 << 20)
        assert client.call("echo", [text]) == text


def test_pipelined_calls_are_all_served(loop):
    with Client(loop.port) as client:
        for number in range(2_000):
            client.submit("echo", [number])
        assert [client.message()["result"] for _ in range(2_000)] == list(range(2_000))


def test_the_descriptor_is_not_readable_without_work(loop):
    """The loop waits: it returns for events, and for the sweeps of a connection."""
    with Client(loop.port) as client:
        # A sweep is due each second.
        before = client.call("polls")
        with socket.create_connection(("127.0.0.1", loop.port)) as idle:
            idle.settimeout(2.5)
            with pytest.raises(TimeoutError):
                idle.recv(1)
        assert client.call("polls") - before < 50


def test_deadlines_pass_without_events(built, engine):
    with (
        serving([built(harness.PROGRAMS / "loop.c"), engine, 50]) as server,
        Client(server.port) as client,
    ):
        assert client.error_of("never")["code"] == -32001


def test_idle_connections_are_closed_without_events(built, engine):
    with (
        serving([built(harness.PROGRAMS / "loop.c"), engine, 60_000, 50]) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as idle,
    ):
        assert idle.recv(1) == b""


def test_a_signal_handler_wakes_the_loop(loop):
    with Client(loop.port) as client:
        for _ in range(20):
            loop.process.send_signal(signal.SIGUSR1)
        assert client.call("echo", [1]) == 1


def test_libuv(built, engine):
    program = built(harness.example("libuv.c"))
    with (
        serving([program, "--port", 0, "--engine", engine]) as server,
        Client(server.port) as client,
    ):
        harness.wait_until(lambda: client.call("ticks") > 3)
        for _ in range(100):
            client.submit("ticks")
        ticks = [client.message()["result"] for _ in range(100)]
        assert ticks == sorted(ticks)
