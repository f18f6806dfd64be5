"""Relayed calls to upstreams over TLS."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Files, authority, files
from relaying import unavailable
from scripted import Peer, scripted
from serving import Serve

import ucall
from harness import Wire, free_port, request

__all__ = ["authority", "files"]

SCHEMES = pytest.mark.parametrize("scheme", ["tls", "https"])


def subject(ctx: ucall.Context) -> str | None:
    """The subject of the caller's certificate."""
    certificate = ctx.tls and ctx.tls.client_certificate
    return certificate.subject if certificate else None


def echo(text: str) -> str:
    return text


def upstream_of(serve: Serve, files: Files, **options: Any) -> int:
    server = serve(ssl_certfile=files.certificate, ssl_keyfile=files.key, **options)
    server.add(subject, name="up.subject")
    server.add(echo, name="up.echo")
    return server.port


@contextmanager
def relaying(serve: Serve, address: str, **options: Any) -> Iterator[Wire]:
    server = serve()
    server.relay("up.*", to=address, **options)
    with Wire(server.port) as wire:
        yield wire


@SCHEMES
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_calls_reach_a_server_over_tls(
    serve: Serve, authority: Authority, files: Files, scheme: str, host: str
) -> None:
    address = f"{scheme}://{host}:{upstream_of(serve, files)}"
    with relaying(serve, address, ssl_ca_certs=authority.path) as wire:
        assert wire.result("up.subject") is None
        for length in (1, 100_000, 1_000_000):
            assert wire.result("up.echo", ["x" * length]) == "x" * length
        wire.send(b"".join(request("up.echo", [str(n)], id=n) for n in range(50)))
        replies = [wire.line() for _ in range(50)]
        assert len(set(replies)) == 50


@SCHEMES
def test_a_relay_shows_its_certificate(
    serve: Serve, authority: Authority, files: Files, scheme: str
) -> None:
    own = authority.sign("relay.example", common_name="relay")
    port = upstream_of(serve, files, ssl_ca_certs=authority.path)
    address = f"{scheme}://localhost:{port}"
    options = {
        "ssl_ca_certs": authority.path,
        "ssl_certfile": own.certificate,
        "ssl_keyfile": own.key,
    }
    with relaying(serve, address, **options) as wire:
        found = wire.result("up.subject")
        assert found is not None and "CN=relay" in found
    with relaying(serve, address, ssl_ca_certs=authority.path) as wire:
        assert "TLS has failed" in unavailable(wire, "up.subject")["reason"]


@SCHEMES
def test_another_server_gets_no_call(
    serve: Serve, authority: Authority, files: Files, tmp_path: Path, scheme: str
) -> None:
    other = authority.sign("other.example")
    port = upstream_of(serve, other)
    with relaying(serve, f"{scheme}://localhost:{port}", ssl_ca_certs=authority.path) as wire:
        data = unavailable(wire, "up.subject")
        assert data["sent"] is False and "not valid for name" in data["reason"], data
    stranger = Authority(tmp_path)
    port = upstream_of(serve, files)
    with relaying(serve, f"{scheme}://localhost:{port}", ssl_ca_certs=stranger.path) as wire:
        data = unavailable(wire, "up.subject")
        assert data["sent"] is False and "TLS has failed" in data["reason"], data
    expired = authority.sign("localhost", file="expired", valid_days=(-9, -2))
    port = upstream_of(serve, expired)
    with relaying(serve, f"{scheme}://localhost:{port}", ssl_ca_certs=authority.path) as wire:
        data = unavailable(wire, "up.subject")
        assert data["sent"] is False and "expired" in data["reason"], data


def test_a_server_without_tls_gets_no_call(serve: Serve, authority: Authority) -> None:
    def plaintext(peer: Peer) -> None:
        peer.socket.recv(1)
        peer.send(b'{"id":0,"result":1}\n')

    with scripted(plaintext) as upstream:
        address = f"tls://127.0.0.1:{upstream.port}"
        with relaying(serve, address, ssl_ca_certs=authority.path) as wire:
            data = unavailable(wire, "up.f")
            assert data["sent"] is False and "TLS has failed" in data["reason"], data


def answer_and_close(context: ssl.SSLContext, connection: socket.socket) -> None:
    """Answers one call, and ends TLS in the same packet. The socket stays open."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context.wrap_bio(incoming, outgoing, server_side=True)

    def completed(step: Callable[[], object]) -> None:
        while True:
            try:
                step()
                return
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))

    completed(secure.do_handshake)
    completed(lambda: secure.read(9999))
    secure.write(b'{"id":0,"result":1}')
    with suppress(ssl.SSLWantReadError):
        secure.unwrap()
    connection.sendall(outgoing.read())


def test_the_end_of_tls_ends_the_connection(
    serve: Serve, authority: Authority, files: Files
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    def script(peer: Peer) -> None:
        answer_and_close(context, peer.socket)
        assert hold.wait(60)

    hold = threading.Event()
    with scripted(script) as upstream:
        address = f"tls://127.0.0.1:{upstream.port}"
        with relaying(serve, address, ssl_ca_certs=authority.path, timeout_ms=20_000) as wire:
            assert [wire.result("up.f") for _ in range(3)] == [1, 1, 1]
        assert upstream.accepted == 3
        hold.set()


def test_wrong_options_are_refused(authority: Authority, files: Files) -> None:
    server = ucall.Server(port=0)
    secure, plain = f"tls://127.0.0.1:{free_port()}", "tcp://127.0.0.1:1"
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (plain, {"ssl_ca_certs": authority.path}, "ssl_ca_certs: expected an upstream with TLS"),
        (plain, {"ssl_certfile": files.certificate}, "ssl_certfile: expected an upstream with TLS"),
        (secure, {"ssl_keyfile": files.key}, "ssl_certfile: expected a certificate"),
        (secure, {"ssl_ca_certs": files.key}, "expected a certificate in PEM"),
        (secure, {"ssl_certfile": files.certificate}, "expected a private key in PEM"),
        ("tls://127.0.0.1", {}, "to: expected an upstream such as"),
        ("tls://127.0.0.1:1/path", {}, "to: expected an upstream such as"),
    ]
    for address, options, message in wrong:
        with pytest.raises(ValueError, match=re.escape(message)):
            server.relay("up.*", to=address, **options)
    with pytest.raises(FileNotFoundError, match="missing"):
        server.relay("up.*", to=secure, ssl_ca_certs="missing.pem")
