"""The interface and behaviour that programs written for net-queue use."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from broker import BROKERS, tls_broker
from certificates import Authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pairs import Pairs, free_location

from ucall import queue as nq

if TYPE_CHECKING:
    from typing import assert_type

WAIT_S = 60
TLS_PROTOCOLS = [it for it in nq.Protocol if it not in ("shm", "jetstream")]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A key and its certificate, which claims to be an authority's, as `openssl req -x509` makes.

    Both sides of net-queue are given these two files.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, text = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = folder / "key.pem", folder / "cert.pem"
    files[0].write_bytes(key.private_bytes(pem, text, serialization.NoEncryption()))
    files[1].write_bytes(certificate.public_bytes(pem))
    return files


def exchange(server: nq.Communicator, client: nq.Communicator) -> None:
    with server, client:
        client.put("in").result(WAIT_S)
        assert server.get(timeout=WAIT_S) == nq.Message(client.id, "in")
        server.put("out").result(WAIT_S)
        assert client.get(timeout=WAIT_S) == nq.Message(server.id, "out")
        # The client closes with the server, which waits for it.
        closing = threading.Thread(target=client.close)
        closing.start()
        server.close()
        closing.join(WAIT_S)
        assert not closing.is_alive()


def exchange_over_tls(
    protocol: nq.Protocol, folder: Path, server: nq.SecurityOptions, client: nq.SecurityOptions
) -> None:
    """Over MQTT and NATS the broker is the TLS server, and both sides are its clients."""
    netloc = nq.NetworkLocation(port=0)
    if protocol == "unix":
        netloc = nq.NetworkLocation(str(folder / "queue.sock"))
    if protocol in BROKERS:
        with tls_broker(protocol, server.key, server.certificate) as broker:
            options = nq.CommunicatorOptions(
                netloc=nq.NetworkLocation(port=broker.port), security=client
            )
            there = nq.CommunicatorOptions(netloc=options.netloc, security=client)
            exchange(nq.new(protocol, nq.Purpose.SERVER, options), nq.new(protocol, options=there))
        return
    options = nq.CommunicatorOptions(netloc=netloc, security=server)
    made = nq.new(protocol, nq.Purpose.SERVER, options)
    address = nq.NetworkLocation(*made.address) if made.address else netloc
    there = nq.CommunicatorOptions(netloc=address, security=client)
    exchange(made, nq.new(protocol, options=there))


@pytest.mark.parametrize("protocol", TLS_PROTOCOLS)
def test_a_certificate_without_a_key_is_what_a_client_trusts(
    protocol: nq.Protocol, authority: Authority, tmp_path: Path
) -> None:
    files = authority.sign("localhost", "127.0.0.1")
    shown = nq.SecurityOptions(files.key, files.certificate)
    trusting = nq.SecurityOptions(certificate=authority.path)
    exchange_over_tls(protocol, tmp_path, shown, trusting)


@pytest.mark.parametrize("with_key", [False, True], ids=["certificate", "key and certificate"])
@pytest.mark.parametrize("protocol", TLS_PROTOCOLS)
def test_both_sides_may_have_the_same_self_signed_certificate(
    protocol: nq.Protocol, with_key: bool, tmp_path: Path
) -> None:
    key, certificate = self_signed(tmp_path)
    shown = nq.SecurityOptions(key, certificate)
    trusting = nq.SecurityOptions(key if with_key else None, certificate)
    exchange_over_tls(protocol, tmp_path, shown, trusting)


@pytest.mark.parametrize("protocol", ["tcp", "grpc"])
def test_a_client_does_not_trust_the_authority_of_its_own_certificate(
    protocol: str, authority: Authority, tmp_path: Path
) -> None:
    theirs = authority.sign("localhost", "127.0.0.1", file="theirs")
    mine = authority.sign("localhost", "127.0.0.1", file="mine")
    chain = tmp_path / "chain.pem"
    chain.write_text(mine.certificate.read_text() + authority.path.read_text())
    options = nq.CommunicatorOptions(
        netloc=nq.NetworkLocation(port=0),
        security=nq.SecurityOptions(theirs.key, theirs.certificate),
    )
    with nq.new(nq.Protocol(protocol), nq.Purpose.SERVER, options) as server:
        assert server.address is not None
        there = nq.CommunicatorOptions(
            netloc=nq.NetworkLocation(*server.address),
            security=nq.SecurityOptions(mine.key, chain),
            connection=nq.ConnectionOptions(expire_s=1),
        )
        client = nq.new(nq.Protocol(protocol), options=there)
        with pytest.raises(nq.ConnectionError):
            client.put("in").result(WAIT_S)
        client.close(0)
        assert server.peers() == []


@pytest.mark.parametrize("protocol", TLS_PROTOCOLS)
def test_contradicting_files_are_refused(protocol: nq.Protocol, authority: Authority) -> None:
    files = authority.sign("localhost")
    both = nq.SecurityOptions(certificate=files.certificate, authority=authority.path)
    with pytest.raises(ValueError, match="security: expected a key for the certificate"):
        nq.new(protocol, options=nq.CommunicatorOptions(security=both))
    if protocol not in BROKERS:
        half = nq.CommunicatorOptions(
            netloc=nq.NetworkLocation(port=0),
            security=nq.SecurityOptions(certificate=files.certificate),
        )
        with pytest.raises(ValueError, match="a server needs a key and a certificate"):
            nq.new(protocol, nq.Purpose.SERVER, half)


def test_all_classes_exist_without_a_further_import() -> None:
    """And no library of a transport is imported before the transport is used."""
    program = """
import sys
import ucall.queue as nq
for protocol in nq.Protocol:
    for purpose in nq.Purpose:
        made = getattr(getattr(nq, protocol), purpose).Communicator
        base = nq.StoredQueue if protocol == "jetstream" else nq.Communicator
        assert issubclass(made, base) and made.is_server is (purpose == "server")
assert not {"grpc", "asyncio", "numpy"} & set(sys.modules)
print(nq.tcp.client.Communicator.__module__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "ucall.queue.tcp.client\n")


if TYPE_CHECKING:
    # mypy knows the classes.
    assert_type(nq.tcp.client.Communicator(), nq.tcp.client.Communicator)
    assert_type(nq.grpc.server.Communicator.is_server, bool)
    made: nq.Communicator = nq.unix.server.Communicator(nq.CommunicatorOptions())
    made = nq.shm.client.Communicator()
    made = nq.mqtt.client.Communicator()


def test_the_base_class_names_what_makes_communicators() -> None:
    with pytest.raises(TypeError, match=r"no transport: use ucall\.queue\.new\(.*tcp\.client"):
        nq.Communicator()


@pytest.mark.parametrize("protocol", [*nq.Protocol])
@pytest.mark.parametrize("workers", [0, 2])
def test_other_numbers_of_workers_are_refused(protocol: nq.Protocol, workers: int) -> None:
    options = nq.CommunicatorOptions(workers=workers)
    with pytest.raises(ValueError, match=f"workers: expected 1, got {workers}: .* one thread"):
        nq.new(protocol, options=options)


def raised_by(call: Callable[[], object]) -> nq.ConnectionError:
    with pytest.raises(nq.ConnectionError) as caught:
        call()
    assert isinstance(caught.value, ConnectionError)
    # net-queue has the id as the first argument.
    assert caught.value.args[0] == caught.value.peer
    return caught.value


def test_errors_of_a_closed_server_carry_its_id(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    client.put("in").result(WAIT_S)
    server.get(timeout=WAIT_S)
    server.close(final=True)
    assert raised_by(lambda: client.get(timeout=WAIT_S)).peer == server.id
    for peers in ((), (server.id,)):
        assert raised_by(client.put("late", *peers).result).peer == server.id
    # The server has closed, whoever of its clients it concerned.
    assert raised_by(lambda: server.get(timeout=WAIT_S)).peer == server.id
    assert raised_by(server.put("late").result).peer == server.id
    assert raised_by(server.put("late", client.id).result).peer == client.id


def test_errors_of_a_closed_client_carry_an_id(pairs: Pairs) -> None:
    server = pairs.server()
    client = pairs.client(server)
    client.put("in").result(WAIT_S)
    client.close()
    assert raised_by(lambda: client.get(timeout=WAIT_S)).peer == server.id
    assert raised_by(client.put("late").result).peer == server.id
    assert server.get(timeout=WAIT_S).peer == client.id
    assert raised_by(server.put("late", client.id).result).peer == client.id


def test_errors_of_a_client_that_never_connected_carry_its_own_id() -> None:
    client = nq.new(options=nq.CommunicatorOptions(netloc=free_location()))
    future = client.put("lost")
    client.close(0)
    assert raised_by(future.result).peer == client.id
    assert raised_by(client.get).peer == client.id
    assert raised_by(client.put("late").result).peer == client.id


def test_messages_compare_unpack_match_and_print() -> None:
    id = uuid.UUID(int=7)
    message = nq.Message(id, "Hello, World!")
    assert str(message) == f"Message(peer={id!r}, data='Hello, World!')"
    assert eval(repr(message), {"UUID": uuid.UUID, "Message": nq.Message}) == message
    peer, data = message
    assert (peer, data) == (id, "Hello, World!")
    match message:
        case nq.Message(peer, data):
            assert (peer, data) == (id, "Hello, World!")
    assert message == nq.Message(id, "Hello, World!", redelivered=True)
    assert message != nq.Message(id, "other") and message != nq.Message(uuid.uuid4(), message.data)
    assert message != (id, "Hello, World!") and (message == "Hello, World!") is False
    assert len({message, nq.Message(id, "Hello, World!"), nq.Message(id, "other")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(nq.Message(id, []))

    class Any:
        def __eq__(self, other: object) -> bool:
            return True

    assert message == Any()


def test_a_server_answers_all_its_clients_and_then_each(pairs: Pairs) -> None:
    """What the test of net-queue's interface does, with three clients at the same time."""
    server = pairs.server()
    clients = [pairs.client(server) for _ in range(3)]
    received: list[tuple[str, str]] = []

    def talk(client: nq.Communicator) -> None:
        client.put("Hello, World!").result(WAIT_S)
        received.extend((str(client.get(timeout=WAIT_S)), it) for it in ["all", "one"])
        client.close()

    threads = [threading.Thread(target=talk, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    found = {server.get(timeout=WAIT_S).peer for _ in clients}
    assert found == {client.id for client in clients}
    server.put("Hello, World!").result(WAIT_S)
    for peer in found:
        server.put("Hello, World!", peer)
    server.close()
    for thread in threads:
        thread.join(WAIT_S)
    printed = f"Message(peer={server.id!r}, data='Hello, World!')"
    assert sorted(received) == sorted([(printed, it) for it in ["all", "one"]] * 3)
    assert all(client.peers() == [] for client in clients)


def test_a_put_of_a_server_without_clients_fails_as_no_message_is_lost_silently(
    pairs: Pairs,
) -> None:
    server = pairs.server()
    assert raised_by(lambda: server.put("to nobody").result(WAIT_S)).peer is None
