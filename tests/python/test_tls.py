"""Servers under TLS: HTTP and raw TCP, certificates of servers and clients, and misuse."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from applications import PID
from both_clients import NewClient
from certificates import Authority, Files, authority, client_hello, files
from functions import add, echo
from serving import Serve
from test_workers import supervising

import ucall
from harness import HOST, Wire, eventually, http, request
from ucall.client import Client, ClientTLS

__all__ = ["authority", "files"]


async def later(value: Any) -> Any:
    await asyncio.sleep(0.001)
    return value


def who(context: ucall.Context) -> dict[str, Any]:
    tls = context.tls
    assert tls is not None
    shown = tls.client_certificate
    certificate = shown and {"subject": shown.subject, "names": shown.names, "der": len(shown.der)}
    return {"version": tls.version, "resumed": tls.is_resumed, "certificate": certificate}


def wrapped(port: int, context: ssl.SSLContext, name: str = "localhost", **how: Any) -> Wire:
    """A wire under Python's TLS."""
    raw = Wire(port).socket
    return Wire(context.wrap_socket(raw, server_hostname=name, **how))


def shown_name(port: int, context: ssl.SSLContext, name: str) -> str:
    """The name of the certificate that a client with this SNI gets."""
    context.check_hostname = False
    with wrapped(port, context, name) as wire:
        certificate: Any = wire.socket.getpeercert()  # type: ignore[attr-defined]
        found: str = certificate["subjectAltName"][0][1]
        return found


@pytest.mark.parametrize("scheme", ["https", "tcps"])
def test_calls_of_our_own_clients(
    serve: Serve, authority: Authority, files: Files, scheme: str, new_client: NewClient
) -> None:
    server = serve(add, echo, later, ssl_certfile=files.certificate, ssl_keyfile=files.key)
    uri = f"{scheme}://localhost:{server.port}"
    large = "x" * 300_000
    with new_client(uri, verify=authority.path) as client:
        assert client.add(1, 2).json == 3
        assert client.echo(large).json == large
        assert [client.later(number).json for number in range(10)] == list(range(10))
        with client.batch() as batch:
            results = [batch.add(number, 1) for number in range(100)]
        assert [result.json for result in results] == list(range(1, 101))
    assert ClientTLS("localhost", server.port, verify=authority.path).add(1, 2).json == 3
    assert ClientTLS(uri, allow_self_signed=True).add(1, 2).json == 3
    plain = uri.replace("s:", ":", 1)
    for each in (plain, f"dns+{plain}", [plain, f"{scheme}://LOCALHOST:{server.port}"]):
        with ClientTLS(each, verify=authority.path) as client:
            assert client.add(1, 2).json == 3
    with pytest.raises(ValueError, match="udp://: has no TLS"):
        ClientTLS("udp://localhost")
    with pytest.raises(ucall.ConnectionError, match="certificate verify failed"):
        ClientTLS(uri).add(1, 2)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_in_pieces(
    serve: Serve, authority: Authority, files: Files, version: ssl.TLSVersion
) -> None:
    server = serve(add, who, ssl_certfile=files.both)
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["http/1.1"])
    with wrapped(server.port, context) as wire:
        assert wire.socket.selected_alpn_protocol() == "http/1.1"  # type: ignore[attr-defined]
        for byte in http(request("add", [1, 2])):
            wire.send(bytes([byte]))
        assert json.loads(wire.reply()[2])["result"] == 3
        wire.send(http(request("who")))
        expected = version.name.replace("_", ".")
        assert json.loads(wire.reply()[2])["result"]["version"] == expected


def test_older_versions_are_refused(serve_once: Serve, files: Files, authority: Authority) -> None:
    server = serve_once(add, ssl_certfile=files.both)
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="ALERT"):
        wrapped(server.port, context)


def test_the_certificate_matches_the_requested_name(serve: Serve, authority: Authority) -> None:
    signed = [authority.sign("a.example"), authority.sign("*.b.example")]
    server = serve(
        add, ssl_certfile=[file.certificate for file in signed], ssl_keyfile=[f.key for f in signed]
    )
    for name, expected in [
        ("a.example", "a.example"),
        ("x.b.example", "*.b.example"),
        ("other.example", "a.example"),
    ]:
        assert shown_name(server.port, authority.context(), name) == expected


@pytest.mark.parametrize("password", [Files.PASSWORD, Files.PASSWORD.encode()])
def test_an_encrypted_key(
    serve_once: Serve, authority: Authority, files: Files, password: str | bytes
) -> None:
    server = serve_once(
        add,
        ssl_certfile=files.certificate,
        ssl_keyfile=files.encrypted_key,
        ssl_keyfile_password=password,
    )
    assert ClientTLS("localhost", server.port, verify=authority.path).add(1, 2).json == 3


@pytest.mark.parametrize(
    ("wrong", "raises", "says"),
    [
        ({"ssl_certfile": "absent.pem"}, FileNotFoundError, "absent.pem"),
        ({"ssl_certfile": "empty.pem"}, ValueError, "empty.pem: expected a certificate"),
        ({"ssl_certfile": "crt"}, ValueError, r"localhost\.crt: expected a private key"),
        ({"ssl_certfile": "crt", "ssl_keyfile": "other"}, ValueError, "belongs to another"),
        ({"ssl_certfile": "crt", "ssl_keyfile": "secret"}, ValueError, "needs its password"),
        (
            {"ssl_certfile": "crt", "ssl_keyfile": "secret", "ssl_keyfile_password": "no"},
            ValueError,
            "secret.key: .* with this password",
        ),
        ({"ssl_keyfile": "key"}, ValueError, "ssl_certfile: expected a certificate"),
        ({"ssl_keyfile_password": "no"}, ValueError, "ssl_certfile: expected a certificate"),
        ({"ssl_certfile": []}, ValueError, "tls.certfile: expected at least one file"),
        (
            {"ssl_certfile": "crt", "ssl_keyfile": []},
            ValueError,
            "tls.keyfile: expected at least one file",
        ),
        ({"ssl_certfile": ["both", "both"], "ssl_keyfile": "key"}, ValueError, "for each of 2"),
        ({"ssl_certfile": "both", "ssl_client_auth": "required"}, ValueError, "tls.ca_certs"),
        ({"ssl_certfile": "both", "ssl_client_auth": "perhaps"}, ValueError, "perhaps"),
        (
            {"ssl_certfile": "both", "ssl_ca_certs": "empty.pem"},
            ValueError,
            "empty.pem: expected a certificate",
        ),
    ],
)
def test_invalid_tls_options_are_rejected(
    authority: Authority, files: Files, wrong: dict[str, Any], raises: Any, says: str
) -> None:
    (authority.folder / "empty.pem").write_text("")
    known = {
        "crt": files.certificate,
        "key": files.key,
        "both": files.both,
        "secret": files.encrypted_key,
        "other": authority.sign("other").key,
    }

    def path(word: Any) -> Any:
        if isinstance(word, list):
            return [path(one) for one in word]
        return known.get(word, authority.folder / word)

    files_of = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
    options = {name: path(value) if name in files_of else value for name, value in wrong.items()}
    with pytest.raises(raises, match=says):
        ucall.Server(port=0, **ucall.options.arguments(options)).start()


def test_optional_client_certificates(serve: Serve, authority: Authority, files: Files) -> None:
    alice = authority.sign("alice@example.com", "10.0.0.1", common_name="alice", file="alice")
    server = serve(
        who, ssl_certfile=files.both, ssl_ca_certs=authority.path, ssl_client_auth="optional"
    )
    uri = f"https://localhost:{server.port}"
    with Client(uri, verify=authority.path, cert=(alice.certificate, alice.key)) as client:
        shown = client.who().json["certificate"]
        assert "CN=alice" in shown["subject"]
        assert shown["names"] == ["alice@example.com", "10.0.0.1"]
        assert shown["der"] == len(ssl.PEM_cert_to_DER_cert(alice.certificate.read_text()))
    with Client(uri, verify=authority.path) as client:
        assert client.who().json["certificate"] is None


def test_required_client_certificates(
    serve: Serve, authority: Authority, files: Files, tmp_path: Path
) -> None:
    server = serve(add, ssl_certfile=files.both, ssl_ca_certs=authority.path)
    uri = f"https://localhost:{server.port}"
    alice = authority.sign("alice")
    assert Client(uri, verify=authority.path, cert=alice.both).add(1, 2).json == 3
    stranger = Authority(tmp_path).sign("alice")
    for cert in (None, stranger.both):
        with pytest.raises(ucall.ConnectionError):
            Client(uri, verify=authority.path, cert=cert).add(1, 2)
    assert Client(uri, verify=authority.path, cert=alice.both).add(1, 2).json == 3


@pytest.mark.slow
def test_new_files_are_loaded_without_disconnects(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    old, new = authority.sign("old.example"), authority.sign("new.example")
    both = tmp_path / "both.pem"
    shutil.copy(old.both, both)
    server = serve(add, ssl_certfile=both)
    context = authority.context()

    def shown() -> str:
        return shown_name(server.port, context, "any.example")

    with wrapped(server.port, context, "old.example") as wire:
        assert wire.result("add", [1, 2]) == 3
        shutil.copy(new.both, both)
        assert eventually(lambda: shown() == "new.example")
        with caplog.at_level(logging.WARNING, "ucall"):
            both.write_text("half a file")
            assert eventually(lambda: shown() and "cannot be used" in caplog.text)
        assert shown() == "new.example"
        assert caplog.text.count("cannot be used") == 1
        shutil.copy(old.both, both)
        assert eventually(lambda: shown() == "old.example")
        assert wire.result("add", [1, 2]) == 3


def test_an_expired_certificate_is_served_with_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expired = Authority(tmp_path).sign("localhost", valid_days=(-90, -1))
    with caplog.at_level(logging.WARNING, "ucall"):
        server = serve(add, ssl_certfile=expired.certificate, ssl_keyfile=expired.key)
        assert ClientTLS("localhost", server.port, allow_self_signed=True).add(1, 2).json == 3
    line = f"TLS: {expired.certificate}: the certificate has expired: it was valid until 20"
    assert [it.getMessage()[: len(line)] for it in caplog.records] == [line]


def test_plaintext_to_a_tls_server_is_refused(serve: Serve, files: Files) -> None:
    server = serve(add, ssl_certfile=files.both)
    with Wire(server.port) as wire:
        wire.send(http(request("add", [1, 2])))
        status, head, body = wire.reply()
        assert status == 400 and b"Connection: close" in head
        assert b"https://" in body and wire.rest() == b""
    with Wire(server.port) as wire:
        error = wire.error("add", [1, 2])
        assert error["code"] == -32600 and "TLS" in str(error["data"])
        assert wire.rest() == b""
    with pytest.raises(ucall.HTTPError, match="https://"):
        Client(HOST, server.port).add(1, 2)


def test_tls_to_a_plaintext_server_is_refused(serve: Serve, authority: Authority) -> None:
    server = serve(add)
    with pytest.raises(ucall.ConnectionError, match="does not speak TLS"):
        Client(f"https://{HOST}:{server.port}").add(1, 2)
    with pytest.raises(ssl.SSLError):
        wrapped(server.port, authority.context())
    assert Client(HOST, server.port).add(1, 2).json == 3


def test_200_stalled_handshakes_delay_no_other_connection(
    serve: Serve, authority: Authority, files: Files
) -> None:
    # The first connections wait forever for their rest, so no other advances because they close.
    long_timeout = serve(add, ssl_certfile=files.both, handshake_timeout_s=3000)
    server = serve(add, ssl_certfile=files.both, handshake_timeout_s=1)
    context = authority.context()
    said = client_hello(context)
    for asked in (long_timeout, server):
        stalled = [Wire(asked.port) for _ in range(200)]
        for number, wire in enumerate(stalled):
            wire.send(said[: number * len(said) // 199])
        if asked is long_timeout:
            assert eventually(lambda: long_timeout.stats()["connections"] == 200)
            with wrapped(long_timeout.port, context) as wire:
                for number in range(500):
                    assert wire.result("add", [number, 1]) == number + 1
            for wire in stalled:
                wire.socket.close()
    with wrapped(server.port, context) as wire:
        assert wire.result("add", [1, 2]) == 3
        assert eventually(lambda: server.stats()["connections"] == 1)
        assert all(wire.rest() is not None for wire in stalled[:-1])
        assert wire.result("add", [1, 2]) == 3


def test_malformed_records_are_refused(serve: Serve, authority: Authority, files: Files) -> None:
    server = serve(add, ssl_certfile=files.both)
    for said in (b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b"\x16" * 1000, b"\x16\x03\x01\x00\x00"):
        with Wire(server.port) as wire:
            wire.send(said)
            assert wire.rest()[:1] == b"\x15", "an alert"
    with wrapped(server.port, authority.context()) as good:
        assert good.result("add", [1, 2]) == 3
    assert eventually(lambda: server.stats()["connections"] == 0)


def test_the_own_origin_is_https(serve_once: Serve, authority: Authority, files: Files) -> None:
    server = serve_once(add, ssl_certfile=files.both)
    for scheme, expected in (("https", 200), ("http", 403)):
        with wrapped(server.port, authority.context()) as wire:
            origin = f"Origin: {scheme}://{HOST}"
            wire.send(http(request("add", [1, 2]), origin))
            assert wire.reply()[0] == expected


def test_a_peer_that_reads_nothing_is_paused(
    serve: Serve, authority: Authority, files: Files
) -> None:
    """Replies to a slow reader wait in bounded memory, and arrive in order once it reads."""
    server = serve(echo, ssl_certfile=files.both, max_output_bytes=100_000)
    text = "x" * 50_000
    with wrapped(server.port, authority.context()) as wire:
        wire.socket.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 2_000:
                wire.send(request("echo", [text], sent))
                sent += 1
        held = server.stats()["bytes_sent"]
        assert held < 60_000_000
        wire.socket.settimeout(60)
        for number in range(sent):
            assert json.loads(wire.line())["id"] == number


def resumed(port: int, context: ssl.SSLContext, session: Any) -> tuple[bool, Any]:
    with wrapped(port, context, session=session) as wire:
        assert wire.result("add", [1, 2]) == 3
        secure: Any = wire.socket
        return secure.session_reused, secure.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_resumed(
    serve: Serve, authority: Authority, files: Files, version: ssl.TLSVersion
) -> None:
    server = serve(add, ssl_certfile=files.both)
    context = authority.context()
    context.maximum_version = version
    was_resumed, session = resumed(server.port, context, None)
    assert not was_resumed
    assert resumed(server.port, context, session)[0]


WORKERS = PID.replace("(port=0)", "(port=0, tls=ucall.TLS(certfile=os.environ['CERT']))")


def test_workers_resume_each_others_sessions(
    authority: Authority, files: Files, tmp_path: Path
) -> None:
    (tmp_path / "served.py").write_text(WORKERS)
    environment = {"CERT": str(files.both), "UCALL_WORKERS": "2"}
    command = ["-m", "ucall", "served:server", "--port", "0"]
    with supervising(tmp_path, *command, **environment) as it:
        context = authority.context()
        session: Any = None
        pids: set[int] = set()

        def have_both_served() -> bool:
            nonlocal session
            with wrapped(it.port, context, session=session) as wire:
                pids.add(wire.result("pid"))
                secure: Any = wire.socket
                assert secure.session_reused == (session is not None)
                session = session or secure.session
            return len(pids) == 2

        assert eventually(have_both_served)


@pytest.mark.parametrize("by", ["flags", "environment"])
def test_the_command_line(authority: Authority, files: Files, tmp_path: Path, by: str) -> None:
    (tmp_path / "served.py").write_text(
        "import ucall\nserver = ucall.Server()\nserver.add(lambda a, b: a + b, 'add')\n"
    )
    options = {
        "ssl-certfile": str(files.certificate),
        "ssl-keyfile": str(files.encrypted_key),
        "ssl-keyfile-password": Files.PASSWORD,
        "ssl-ca-certs": str(authority.path),
        "ssl-client-auth": "optional",
        "port": "0",
    }
    flags, environment = [], {}
    for name, value in options.items():
        if by == "flags":
            flags += [f"--{name}", value]
        else:
            environment["UCALL_" + name.upper().replace("-", "_")] = value
    with supervising(tmp_path, "-m", "ucall", "served:server", *flags, **environment) as it:
        assert ClientTLS("localhost", it.port, verify=authority.path).add(1, 2).json == 3


def test_connections_end_with_close_notify(
    serve: Serve, authority: Authority, files: Files
) -> None:
    """Python's TLS raises if a connection ends without close_notify."""
    hasty = serve(add, ssl_certfile=files.both, idle_timeout_s=0.2)

    def is_answered_then_ended() -> bool:
        with suppress(OSError), wrapped(hasty.port, authority.context()) as wire:
            wire.send(request("add", [1, 2]))
            is_answered = bool(wire.line())
            assert wire.rest() == b""
            return is_answered
        return False

    # A slow machine may not finish a call within that time.
    assert eventually(is_answered_then_ended)
    server = serve(add, ssl_certfile=files.both)
    with wrapped(server.port, authority.context()) as wire:
        wire.send(http(request("add", [1, 2]), "Connection: close"))
        assert wire.reply()[0] == 200
        assert wire.rest() == b""


def test_a_drain_and_an_eviction_send_close_notify(
    serve: Serve, authority: Authority, files: Files
) -> None:
    """Idle connections get a close_notify, so the client knows that no attacker cut them."""
    context = authority.context()
    strict = {"suppress_ragged_eofs": False}
    server = serve(add, ssl_certfile=files.both, max_connections=2)
    with ExitStack() as stack:
        wires = [stack.enter_context(wrapped(server.port, context, **strict)) for _ in range(3)]
        idle, *others = wires
        # The longest idle connection was evicted for the third; nothing follows its close_notify.
        assert idle.rest() == b""
        for wire in others:
            assert wire.result("add", [1, 2]) == 3
        with ThreadPoolExecutor() as pool:
            stopped = pool.submit(server.stop)
            assert [wire.rest() for wire in others] == [b"", b""]
            stopped.result(60)


def test_an_immediate_stop_sends_close_notify(
    serve: Serve, authority: Authority, files: Files
) -> None:
    server = serve(add, ssl_certfile=files.both)
    with wrapped(server.port, authority.context(), suppress_ragged_eofs=False) as wire:
        assert wire.result("add", [1, 2]) == 3
        server.stop(at_once=True)
        assert wire.rest() == b""


def test_a_drain_does_not_wait_for_peers_that_do_not_read(
    serve: Serve, authority: Authority, files: Files
) -> None:
    server = serve(echo, ssl_certfile=files.both, drain_timeout_s=1)
    with wrapped(server.port, authority.context()) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request("echo", ["x" * 8_000_000]))
        assert eventually(lambda: server.stats()["calls"] == 1)
        began = time.monotonic()
        server.stop()
        # Not the 30 seconds for a peer that does not read.
        assert time.monotonic() - began < 25


def test_every_handshake_of_a_flood_is_answered(
    serve: Serve, authority: Authority, files: Files
) -> None:
    # The last handshake may take long on a busy machine.
    server = serve(add, ssl_certfile=files.both, handshake_timeout_s=3000)
    context = authority.context()
    flood = []
    with wrapped(server.port, context) as wire:
        assert wire.result("add", [1, 2]) == 3
        for _ in range(100):
            peer = _Handshake(server.port, context)
            flood.append(peer)
        assert eventually(lambda: server.stats()["connections"] == 101)
        for peer in flood:
            peer.say()
        assert wire.result("add", [3, 4]) == 7
        # Each handshake advances, also those of clients that shut down after their last message.
        for number, peer in enumerate(flood):
            peer.finish(request("add", [number, 1]), ends=number % 2 == 0)
            assert json.loads(peer.line())["result"] == number + 1
            peer.socket.close()
        assert eventually(lambda: server.stats()["connections"] == 1)


class _Handshake:
    """A client that performs a handshake step by step."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection((HOST, port), 60)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()

    def say(self) -> None:
        self.socket.sendall(self.outgoing.read())

    def finish(self, data: bytes, ends: bool) -> None:
        """Finishes the handshake, followed by data and optionally the end of the stream."""
        self._reading(self.tls.do_handshake)
        self.tls.write(data)
        self.say()
        if ends:
            self.socket.shutdown(socket.SHUT_WR)

    def line(self) -> bytes:
        return self._reading(lambda: self.tls.read(65536))

    def _reading(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                data = self.socket.recv(65536)
                assert data, "the server has ended it"
                self.incoming.write(data)


def test_a_peer_may_disconnect_during_the_handshake(
    serve: Serve, authority: Authority, files: Files
) -> None:
    server = serve(add, later, ssl_certfile=files.both)
    for _ in range(20):
        wire = wrapped(server.port, authority.context())
        wire.send(request("later", [1]))
        wire.socket.close()
        with socket.create_connection((HOST, server.port)) as raw:
            raw.sendall(b"\x16\x03\x01\x02")
    assert eventually(lambda: server.stats()["connections"] == 0)
    assert ClientTLS("localhost", server.port, verify=authority.path).add(1, 2).json == 3
