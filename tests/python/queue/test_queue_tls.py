"""TLS of queues over TCP and Unix sockets: authentication of each side, and its errors.

The tests of every transport cover the delivery of messages under TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker import BROKERS
from certificates import Authority, Files
from handshakes import client_hello, resident_bytes
from pairs import Pairs, free_location, sockets
from proxy import Proxy

from harness import in_asyncio
from ucall import queue as nq
from ucall.aio import queue as anq

WAIT_S = 60
secure = pytest.mark.parametrize("pairs", ["tcp+tls", "unix+tls"], indirect=True)
plain = pytest.mark.parametrize("pairs", ["tcp", "unix"], indirect=True)


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An untrusted authority."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], str]:
    """Waits for a line in the log."""
    caplog.set_level(logging.WARNING, "ucall")

    def wait(pattern: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for line in caplog.messages:
                if re.search(pattern, line):
                    return line
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in {caplog.messages}")

    return wait


def shown(files: Files, authority: Authority | None = None) -> nq.SecurityOptions:
    return nq.SecurityOptions(
        files.key, files.certificate, None if authority is None else authority.path
    )


def trusting(authority: Authority, **more: Any) -> nq.SecurityOptions:
    return nq.SecurityOptions(authority=authority.path, **more)


def assert_works(server: nq.Communicator, client: nq.Communicator) -> None:
    client.put("in").result(WAIT_S)
    assert server.get(timeout=WAIT_S).data == "in"
    server.put("out", client.id).result(WAIT_S)
    assert client.get(timeout=WAIT_S).data == "out"


def assert_refused(client: nq.Communicator, reason: str) -> None:
    """The error arrives at once, in futures and in `get`."""
    future = client.put("x")
    with pytest.raises(nq.ConnectionError, match=reason):
        future.result(WAIT_S)
    with pytest.raises(nq.ConnectionError, match=reason):
        client.get(timeout=WAIT_S)
    with pytest.raises(nq.ConnectionError, match=reason):
        client.put("y").result(WAIT_S)


def assert_eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@secure
def test_an_untrusted_server_is_refused(
    pairs: Pairs, other_ca: Authority, logged: Callable[[str], str]
) -> None:
    server = pairs.server()
    before = sockets()
    distrusting = pairs.client(server, security=trusting(other_ca))
    assert_refused(distrusting, "UnknownIssuer")
    assert "UnknownCA" in logged("a connection with .* is closed: TLS: .*alert")
    distrusting.close()
    assert_eventually(lambda: sockets() <= before)
    assert server.peers() == []
    assert_works(server, pairs.client(server))


@secure
def test_an_expired_certificate_is_refused(pairs: Pairs, authority: Authority) -> None:
    expired = authority.sign("localhost", "127.0.0.1", file="expired", valid_days=(-9, -1))
    server = pairs.server(security=shown(expired))
    assert_refused(pairs.client(server), "certificate expired")


@secure
def test_a_certificate_for_another_name_is_refused(pairs: Pairs, authority: Authority) -> None:
    server = pairs.server(security=shown(authority.sign("example.com", "192.0.2.1")))
    assert_refused(pairs.client(server), "not valid for name")
    assert_works(server, pairs.client(server, security=trusting(authority, name="example.com")))
    assert_works(server, pairs.client(server, security=trusting(authority, name="192.0.2.1")))


def test_the_host_is_verified(authority: Authority) -> None:
    """A client verifies the name or IP address of its server, and localhost over a Unix socket."""
    by_address = shown(authority.sign("127.0.0.1", file="by-address"))
    by_name = shown(authority.sign("localhost", file="by-name"))
    for security, host, is_good in (
        (by_address, "127.0.0.1", True),
        (by_address, "localhost", False),
        (by_name, "localhost", True),
        (by_name, "127.0.0.1", False),
    ):
        options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=security)
        with nq.new("tcp", "server", options) as server:
            netloc = nq.NetworkLocation(host, server.address[1])  # type: ignore[index]
            there = nq.CommunicatorOptions(netloc=netloc, security=trusting(authority))
            with nq.new("tcp", "client", there) as client:
                if is_good:
                    assert_works(server, client)
                else:
                    assert_refused(client, "not valid for name")


@secure
def test_clients_present_a_required_certificate(
    pairs: Pairs, authority: Authority, other_ca: Authority, logged: Callable[[str], str]
) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    server = pairs.server(security=shown(files, authority))
    assert_refused(pairs.client(server), "CertificateRequired")
    assert "no certificates" in logged("is closed: TLS: peer sent no certificates")
    other = shown(other_ca.sign("client"), authority)
    assert_refused(pairs.client(server, security=other), "alert: (UnknownCA|BadCertificate)")
    expired = authority.sign("client", file="old", valid_days=(-9, -1))
    assert_refused(
        pairs.client(server, security=shown(expired, authority)), "alert: CertificateExpired"
    )
    known = shown(authority.sign("client"), authority)
    assert_works(server, pairs.client(server, security=known))


@secure
def test_a_client_without_tls_is_refused(pairs: Pairs, logged: Callable[[str], str]) -> None:
    server = pairs.server()
    assert_refused(pairs.client(server, security=None), "TLS is spoken here")
    logged("is closed: the other side does not speak TLS")
    assert_works(server, pairs.client(server))


@plain
def test_a_server_without_tls_is_refused(
    pairs: Pairs, authority: Authority, logged: Callable[[str], str]
) -> None:
    server = pairs.server()
    assert_refused(pairs.client(server, security=trusting(authority)), "does not speak TLS")
    logged("is closed: the other side speaks TLS, and this one has no SecurityOptions")
    assert_works(server, pairs.client(server))


def test_a_known_server_is_waited_for(authority: Authority, other_ca: Authority) -> None:
    """Failures of later connections do not end a session, and are reported when it expires."""
    netloc = free_location()
    good = shown(authority.sign("127.0.0.1", file="good"))
    bad = shown(other_ca.sign("127.0.0.1", file="bad"))
    connection = nq.ConnectionOptions(reconnect=(0.01, 0.02), expire_s=600)
    options = nq.CommunicatorOptions(
        netloc=netloc, security=trusting(authority), connection=connection
    )
    client = nq.new("tcp", "client", options)
    given = nq.CommunicatorOptions(netloc=netloc, security=good, connection=connection)
    server = nq.new("tcp", "server", given)
    assert_works(server, client)
    kill(server)
    imposter = nq.new("tcp", "server", dataclasses.replace(given, security=bad))
    future = client.put("for the server")
    time.sleep(0.3)
    assert not future.done()
    assert imposter.peers() == []
    kill(imposter)
    server = nq.new("tcp", "server", given)
    assert server.get(timeout=WAIT_S).data == "for the server"
    future.result(WAIT_S)
    client.close(0)
    server.close(0)


def kill(server: nq.Communicator) -> None:
    """The peer gets no error."""
    server._close(True)
    server._wait_closed(None)


def test_a_disconnected_client_backs_off_and_reports_the_cause(
    authority: Authority,
) -> None:
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                received.append(time.monotonic())
                accepted.recv(1)
                accepted.close()

        threading.Thread(target=accept, daemon=True).start()
        # A slow machine may need more time for two connections.
        for expire_s in (1, 5, 25):
            received.clear()
            connection = nq.ConnectionOptions(reconnect=(0.1, 0.4), expire_s=expire_s)
            options = nq.CommunicatorOptions(
                netloc=nq.NetworkLocation(*listener.getsockname()),
                security=trusting(authority),
                connection=connection,
            )
            client = nq.new("tcp", "client", options)
            reason = r"expire_s: the connection ended .* of TLS"
            with pytest.raises(nq.ConnectionError, match=reason):
                client.put("x").result(WAIT_S)
            client.close()
            if len(received) > 1:
                break
        assert len(received) >= 2
        assert all(later - earlier > 0.04 for earlier, later in itertools.pairwise(received))
        listener.shutdown(socket.SHUT_RDWR)


@secure
def test_a_session_resumes_after_another_handshake(pairs: Pairs, tmp_path: Path) -> None:
    server = pairs.server()
    if server.address is None:
        proxy = Proxy(server.options.netloc.host, str(tmp_path / "proxy.sock"))
        netloc = nq.NetworkLocation(proxy.address, 0)
    else:
        proxy = Proxy(server.address)
        netloc = nq.NetworkLocation(*proxy.address)
    client = pairs.client(server, netloc=netloc, reconnect=(0.001, 0.01))
    began: list[Any] = []
    server.on_start(began.append)
    assert_works(server, client)
    proxy.cut_after = 5000
    for number in range(50):
        client.put(number.to_bytes(2) + os.urandom(1000))
        assert server.get(timeout=WAIT_S).data[:2] == number.to_bytes(2)
    proxy.cut_after = 0
    assert_works(server, client)
    assert began == [client.id]
    assert len(proxy.openings) > 3
    # Every connection starts with a handshake record.
    assert set(proxy.openings) == {b"\x16"}
    client.close()
    proxy.close()


@secure
def test_large_messages_both_ways_at_once(pairs: Pairs) -> None:
    size, count = 24 << 20, 2
    server = pairs.server(transport_size=1 << 20)
    client = pairs.client(server, transport_size=1 << 20)
    assert_works(server, client)
    blocks = [bytes([number]) * size for number in range(count)]
    futures = [side.put(block) for block in blocks for side in (server, client)]
    for block in blocks:
        assert server.get(timeout=30).data == block
        assert client.get(timeout=30).data == block
    for future in futures:
        future.result(WAIT_S)


def test_sending_pauses_while_the_peer_does_not_read(authority: Authority) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(port=0),
        security=shown(files),
        connection=nq.ConnectionOptions(transport_size=1 << 20),
    )
    with nq.new("tcp", "server", options) as server:
        netloc = nq.NetworkLocation(*server.address)  # type: ignore[misc]
        there = nq.CommunicatorOptions(netloc=netloc, security=trusting(authority))
        client = nq.new("tcp", "client", there)
        futures = [client.put(os.urandom(1 << 20)) for _ in range(20)]
        futures[0].result(WAIT_S)
        time.sleep(0.2)
        assert sum(future.done() for future in futures) < 5
        for _ in futures:
            server.get(timeout=WAIT_S)
        futures[-1].result(WAIT_S)
        client.close()


@secure
def test_stalled_handshakes_delay_no_other_connection(pairs: Pairs, engine: str) -> None:
    server = pairs.server(handshake_s=1.0, engine=engine)
    before = sockets()
    # A part of a record of 16,000 bytes; and a whole ClientHello, which the server answers with a
    # signature.
    began = b"\x16\x03\x01\x3e\x80\x01\x00\x3e\x7c\x03\x03" + bytes(3000)
    hello = client_hello(pairs)
    stalled = []
    for number in range(200):
        one = socket.socket(socket.AF_INET if server.address else socket.AF_UNIX)
        one.settimeout(WAIT_S)
        one.connect(server.address or server.options.netloc.host)
        one.sendall(hello if number % 4 == 0 else began[: 1 + number % len(began)])
        stalled.append(one)
    client = pairs.client(server, engine=engine)
    assert_works(server, client)
    client.close()
    for one in stalled:
        while one.recv(65536):
            pass
        one.close()
    assert_eventually(lambda: sockets() <= before)


def test_handshakes_take_little_memory(engine: str, authority: Authority) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    options = nq.CommunicatorOptions(
        engine=engine,  # type: ignore[arg-type]
        netloc=nq.NetworkLocation(port=0),
        security=shown(files),
        connection=nq.ConnectionOptions(handshakes=50),
    )
    # A handshake message of 16 MiB, in an endless series of records.
    record = b"\x16\x03\x03\x40\x00" + bytes(1 << 14)
    long = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes((1 << 14) - 4) + record * 100
    with nq.new("tcp", "server", options) as server:
        before = resident_bytes()
        raw_connections = []
        for _ in range(200):
            one = socket.create_connection(server.address)  # type: ignore[arg-type]
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.sendall(long)
            raw_connections.append(one)
        netloc = nq.NetworkLocation(*server.address)  # type: ignore[misc]
        there = nq.CommunicatorOptions(netloc=netloc, security=trusting(authority))
        with nq.new("tcp", "client", there) as client:
            assert_works(server, client)
        assert resident_bytes() - before < 20 << 20
        for one in raw_connections:
            one.close()


def test_a_key_may_have_a_password(authority: Authority) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    netloc = nq.NetworkLocation(port=0)

    def server(password: str | bytes | None) -> nq.Communicator:
        security = nq.SecurityOptions(files.encrypted_key, files.certificate, password=password)
        options = nq.CommunicatorOptions(netloc=netloc, security=security)
        assert password is None or str(password) not in repr(options)
        return nq.new("tcp", "server", options)

    with server(Files.PASSWORD) as made:
        there = nq.CommunicatorOptions(
            netloc=nq.NetworkLocation(*made.address),  # type: ignore[misc]
            security=nq.SecurityOptions(
                files.encrypted_key,
                files.certificate,
                authority.path,
                password=Files.PASSWORD.encode(),
            ),
        )
        with nq.new("tcp", "client", there) as client:
            assert_works(made, client)
    with pytest.raises(ValueError, match="password"):
        server(None)
    with pytest.raises(ValueError, match="password"):
        server("wrong")


def test_invalid_options_are_rejected(authority: Authority, tmp_path: Path) -> None:
    files = authority.sign("localhost")
    other = authority.sign("other")
    (tmp_path / "empty").write_text("")
    bad = {
        "a server needs a key and a certificate": nq.SecurityOptions(authority=authority.path),
        "certificate": nq.SecurityOptions(certificate=files.certificate, authority=authority.path),
        "another certificate": nq.SecurityOptions(other.key, files.certificate),
        "empty": nq.SecurityOptions(files.key, tmp_path / "empty"),
    }
    for purpose in ("server", "client"):
        for reason, security in bad.items():
            if purpose == "server" or security.certificate:
                options = nq.CommunicatorOptions(
                    netloc=nq.NetworkLocation(port=0), security=security
                )
                with pytest.raises(ValueError, match=reason):
                    nq.new("tcp", purpose, options)
    for given, error, reason in (
        (nq.SecurityOptions(authority=tmp_path / "none"), FileNotFoundError, "none"),
        (nq.SecurityOptions(authority=tmp_path / "empty"), ValueError, "empty"),
        (trusting(authority, name="no name!"), ValueError, "no name"),
        (trusting(authority, password="x"), ValueError, "a key for the password"),
    ):
        with pytest.raises(error, match=reason):
            nq.new("tcp", "client", nq.CommunicatorOptions(security=given))


def test_the_system_store_is_trusted_by_default(authority: Authority, other_ca: Authority) -> None:
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(port=0),
        security=shown(authority.sign("localhost", "127.0.0.1")),
    )
    program = """
import sys
from ucall import queue as nq
there = nq.CommunicatorOptions(
    netloc=nq.NetworkLocation("127.0.0.1", int(sys.argv[1])), security=nq.SecurityOptions()
)
with nq.new("tcp", "client", there) as client:
    try:
        client.put("x").result(60)
    except nq.ConnectionError as error:
        print(error)
"""
    with nq.new("tcp", "server", options) as server:
        port = str(server.address[1])  # type: ignore[index]
        for store, output in ((authority.path, ""), (other_ca.path, "UnknownIssuer")):
            environment = {**os.environ, "SSL_CERT_FILE": str(store), "SSL_CERT_DIR": "/nowhere"}
            command = [sys.executable, "-c", program, port]
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60, check=True
            )
            assert (output in run.stdout) and bool(output) == bool(run.stdout), run.stdout


def test_files_are_read_again_when_they_change(
    authority: Authority, other_ca: Authority, tmp_path: Path, logged: Callable[[str], str]
) -> None:
    def put(files: Files) -> None:
        for source, name in ((files.key, "key"), (files.certificate, "certificate")):
            (tmp_path / "new").write_bytes(source.read_bytes())
            (tmp_path / "new").rename(tmp_path / name)

    put(authority.sign("localhost", "127.0.0.1"))
    security = nq.SecurityOptions(tmp_path / "key", tmp_path / "certificate")
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=security)
    with nq.new("tcp", "server", options) as server:
        netloc = nq.NetworkLocation(*server.address)  # type: ignore[misc]

        def try_it(trusted: Authority) -> None:
            there = nq.CommunicatorOptions(netloc=netloc, security=trusting(trusted))
            with nq.new("tcp", "client", there) as client:
                assert_works(server, client)

        try_it(authority)
        put(other_ca.sign("localhost", "127.0.0.1"))
        try_it(other_ca)
        (tmp_path / "key").write_text("nonsense")
        try_it(other_ca)
        logged("the files of TLS have changed and cannot be used: .*key")


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_a_queue_belongs_to_its_certificate(
    protocol: str, authority: Authority, logged: Callable[[str], str]
) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    connection = nq.ConnectionOptions(ack="taken", reconnect=(0.01, 0.05))
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(port=0),
        security=shown(files, authority),
        connection=connection,
    )
    alice, bob = (authority.sign(name) for name in ("alice", "bob"))
    server = nq.new(nq.Protocol(protocol), nq.Purpose.SERVER, options)
    there = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(*server.address),  # type: ignore[misc]
        security=shown(alice, authority),
        connection=connection,
    )
    first = nq.new(nq.Protocol(protocol), nq.Purpose.CLIENT, there)
    first.put("here")
    assert server.get(timeout=WAIT_S).data == "here"
    first._close(True)  # without a close frame
    first.close()
    future = server.put("for alice", there.id)
    stolen = dataclasses.replace(there, security=shown(bob, authority))
    thief = nq.new(nq.Protocol(protocol), nq.Purpose.CLIENT, stolen)
    with pytest.raises(ConnectionError, match="the id is that of a peer with another certificate"):
        thief.get(timeout=WAIT_S)
    thief.close(0)
    logged(f"peer {there.id} is refused: the id is that of a peer with another certificate")
    assert not future.done()
    again = nq.new(nq.Protocol(protocol), nq.Purpose.CLIENT, there)
    assert again.get(timeout=WAIT_S).data == "for alice"
    future.result(WAIT_S)
    again.close()
    server.close()


@pytest.mark.parametrize("protocol", [*nq.Protocol])
def test_options_without_effect_are_rejected(protocol: nq.Protocol, authority: Authority) -> None:
    files = authority.sign("localhost")
    name, password = {"name": "localhost"}, {"password": Files.PASSWORD}
    pair = {"key": files.encrypted_key, "certificate": files.certificate}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("client", {"key": files.key}, "expected a key and a certificate, or neither"),
        ("client", {**pair, "key": None, "authority": authority.path}, "a key for the certificate"),
        ("client", password, "expected a key for the password"),
    ]
    if protocol not in (*BROKERS, "jetstream"):
        cases += [
            ("server", {"authority": authority.path}, "a server needs a key and a certificate"),
            ("server", {**pair, **name}, "name is for clients"),
        ]
    if protocol == nq.Protocol.GRPC:
        cases = [*cases, ("client", {**pair, **password}, "key must not be encrypted")]
    for purpose, given, reason in cases:
        expected = "has no TLS" if protocol == nq.Protocol.SHM else reason
        options = nq.CommunicatorOptions(security=nq.SecurityOptions(**given))
        with pytest.raises(ValueError, match=f"security: .*{expected}"):
            nq.new(protocol, nq.Purpose(purpose), options)


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_the_system_store_is_trusted_without_an_authority(
    protocol: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=shown(files))
    with nq.new(nq.Protocol(protocol), nq.Purpose.SERVER, options) as server:
        netloc = nq.NetworkLocation(*server.address)  # type: ignore[misc]
        there = nq.CommunicatorOptions(netloc=netloc, security=nq.SecurityOptions())
        with nq.new(nq.Protocol(protocol), nq.Purpose.CLIENT, there) as client:
            assert_works(server, client)


@in_asyncio
async def test_asyncio_queues(authority: Authority) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=shown(files))
    async with anq.new(purpose=nq.Purpose.SERVER, options=options) as server:
        netloc = nq.NetworkLocation(*server.address)  # type: ignore[misc]
        there = nq.CommunicatorOptions(netloc=netloc, security=trusting(authority))
        async with anq.new(options=there) as client:
            await asyncio.wait_for(client.put("in"), WAIT_S)
            assert (await asyncio.wait_for(server.get(), WAIT_S)).data == "in"


def test_tls_on_both_engines(engine: str, authority: Authority) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(port=0),
        security=shown(files),
        engine=engine,  # type: ignore[arg-type]
    )
    with nq.new("tcp", "server", options) as server:
        netloc = nq.NetworkLocation(*server.address)  # type: ignore[misc]
        there = dataclasses.replace(
            options, id=nq.CommunicatorOptions().id, netloc=netloc, security=trusting(authority)
        )
        with nq.new("tcp", "client", there) as client:
            assert_works(server, client)
            for block in [os.urandom(size) for size in (0, 1, 16_383, 16_384, 300_000, 5 << 20)]:
                client.put(block)
                server.put(block)
                assert server.get(timeout=WAIT_S).data == block
                assert client.get(timeout=WAIT_S).data == block
