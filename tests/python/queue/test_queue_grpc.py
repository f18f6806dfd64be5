"""Queues over gRPC: TLS, and a server that starts late."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from frames import hello
from resources import wait_until

from ucall import queue as nq

WAIT_S = 60
#: HTTP/2 before the first stream: empty settings, and an acknowledgement of the other side's.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(
    b"\0\0\0\4" + flags + b"\0\0\0\0" for flags in (b"\0", b"\1")
)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority, other_ca = trustme.CA(), trustme.CA()
    for name, ca in (("server", authority), ("client", authority), ("other", other_ca)):
        issued = ca.issue_cert("localhost")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return tmp_path


def security(folder: Path, name: str) -> nq.SecurityOptions:
    expected = None if name == "server" else "localhost"
    return nq.SecurityOptions(
        folder / f"{name}.key", folder / f"{name}.pem", folder / "authority.pem", name=expected
    )


def test_both_sides_verify_each_other(certificates: Path) -> None:
    netloc = nq.NetworkLocation(port=0)
    options = nq.CommunicatorOptions(netloc=netloc, security=security(certificates, "server"))
    with nq.new("grpc", "server", options) as server:
        netloc = nq.NetworkLocation(*server.address)
        known = nq.CommunicatorOptions(netloc=netloc, security=security(certificates, "client"))
        with nq.new("grpc", "client", known) as client:
            client.put("in").result(WAIT_S)
            assert server.get(timeout=WAIT_S).data == "in"
        unknown = nq.CommunicatorOptions(netloc=netloc, security=security(certificates, "other"))
        other = nq.new("grpc", "client", unknown)
        with pytest.raises(TimeoutError):
            other.put("out").result(0.5)
        other.close(0)


def test_a_client_may_start_before_its_server() -> None:
    probe = nq.new("grpc", "server", nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0)))
    assert probe.address is not None
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*probe.address))
    probe.close(0)
    with nq.new("grpc", "client", options) as client:
        put = client.put("early")
        options = nq.CommunicatorOptions(netloc=options.netloc)
        with nq.new("grpc", "server", options) as server:
            assert server.get(timeout=WAIT_S).data == "early"
            put.result(WAIT_S)
            client.close()


def test_a_port_in_use_is_reported() -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
    with nq.new("grpc", "server", options) as server:
        assert server.address is not None
        taken = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
        with pytest.raises(OSError, match="cannot listen"):
            nq.new("grpc", "server", taken)


def test_a_server_needs_a_certificate(certificates: Path) -> None:
    half = nq.SecurityOptions(certificate=certificates / "server.pem")
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=half)
    with pytest.raises(ValueError, match="a key and a certificate"):
        nq.new("grpc", "server", options)


@pytest.mark.parametrize("purpose", ["client", "server"])
def test_a_missing_file_is_reported_at_once(purpose: nq.Purpose, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    security = nq.SecurityOptions(key=missing, certificate=missing)
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=security)
    with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
        nq.new("grpc", purpose, options)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port))
    with pytest.raises(ValueError, match=f"netloc: expected a port up to 65535, got {port}"):
        nq.new("grpc", "server", options)


def test_connections_without_a_link_are_closed_in_time() -> None:
    connection = nq.ConnectionOptions(handshake_s=0.3)
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), connection=connection)
    with nq.new("grpc", "server", options) as server:
        assert server.address is not None
        there = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
        with nq.new("grpc", "client", there) as client:
            client.put("before").result(WAIT_S)
            strangers = [socket.create_connection(server.address, WAIT_S) for _ in range(20)]
            for other_ca in strangers[::2]:
                other_ca.sendall(PREFACE)
            for other_ca in strangers:
                with contextlib.suppress(ConnectionError):
                    while other_ca.recv(65536):
                        pass
                other_ca.close()
            client.put("after").result(WAIT_S)
            assert [server.get(timeout=WAIT_S).data for _ in range(2)] == ["before", "after"]


def test_two_mebibytes_wait_between_a_link_and_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    open_link = nq.Communicator._open_link

    def opened(
        self: nq.Communicator,
        dialed: bool,
        wake: Callable[[], None],
        in_flight_size: int,
        certificate: bytes | None,
    ) -> Any:
        sizes.append(in_flight_size)
        return open_link(self, dialed, wake, in_flight_size, certificate)

    monkeypatch.setattr(nq.Communicator, "_open_link", opened)
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
    with nq.new("grpc", "server", options) as server:
        options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
        with nq.new("grpc", "client", options) as client:
            client.put("a").result(WAIT_S)
    assert set(sizes) == {2 << 20}


def test_reading_pauses_while_the_communicator_is_full() -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
    server = nq.new("grpc", "server", options)
    is_busy, goes_on = threading.Event(), threading.Event()

    def wake() -> None:
        # On the communicator's thread.
        is_busy.set()
        goes_on.wait(WAIT_S)

    link = server._open_link(False, wake, in_flight_size=1000)
    link.receive(hello(b"a client of ours"))
    assert is_busy.wait(WAIT_S)
    link.receive(b"x" * 999)
    assert not link.is_full
    link.receive(b"x")
    assert link.is_full
    goes_on.set()
    wait_until(lambda: not link.is_full)
    server.close(0)
