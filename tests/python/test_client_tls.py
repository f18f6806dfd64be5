"""The client over TLS, with Python's own HTTPS server."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
import trustme
from both_clients import NewClient
from certificates import Authority, Files, authority, files
from scripted import Peer, http_reply, result, scripted

import ucall

__all__ = ["authority", "files"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": request["params"]}
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if request["method"] == "close":
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    accepted = 0

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection = super().get_request()
        self.accepted += 1
        return connection

    def handle_error(self, request: Any, address: Any) -> None:
        pass


def serving_context(files: Files) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.both)
    return context


@contextmanager
def serving(context: ssl.SSLContext) -> Iterator[Server]:
    with Server(context) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def context(files: Files) -> ssl.SSLContext:
    return serving_context(files)


@pytest.fixture
def server(context: ssl.SSLContext) -> Iterator[Server]:
    with serving(context) as server:
        yield server


@pytest.fixture
def demanding(context: ssl.SSLContext, authority: Authority, server: Server) -> Server:
    """The server, which now demands a certificate of its clients."""
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    return server


@pytest.fixture
def trusted(authority: Authority) -> Path:
    return authority.path


@pytest.fixture(scope="session")
def mine(authority: Authority) -> Files:
    """A client's certificate."""
    return authority.sign("client")


def uri(server: Server, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{server.server_address[1]}"


def test_a_server_of_a_trusted_authority(
    server: Server, trusted: Path, new_client: NewClient
) -> None:
    for verify in (trusted, str(trusted), ssl.create_default_context(cafile=trusted)):
        with new_client(uri(server), verify=verify) as client:
            assert client.echo(1, 2).json == [1, 2]
            assert client.echo("x" * 3_000_000).json == ["x" * 3_000_000]
    assert server.accepted == 3
    assert new_client(uri(server, "localhost"), verify=trusted).echo(1).json == [1]


def test_untrusted_servers_are_refused(
    server: Server, tmp_path: Path, new_client: NewClient
) -> None:
    with pytest.raises(ucall.ConnectionError, match="certificate verify failed"):
        new_client(uri(server)).echo(1)
    assert new_client(uri(server), verify=False).echo(1).json == [1]
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with pytest.raises(ucall.ConnectionError, match="name its authority by verify="):
        new_client(uri(server), verify=other).echo(1)


def test_another_name_is_refused(authority: Authority, new_client: NewClient) -> None:
    context = serving_context(authority.sign("example.com"))
    with serving(context) as server, pytest.raises(ucall.ConnectionError) as raised:
        new_client(uri(server), verify=authority.path).echo(1)
    # Its authority is known: naming it would not help.
    assert "not valid for" in str(raised.value) and "verify=" not in str(raised.value)


def test_a_clients_certificate(
    demanding: Server, trusted: Path, mine: Files, new_client: NewClient
) -> None:
    for cert in (mine.both, (mine.certificate, mine.key)):
        assert new_client(uri(demanding), verify=trusted, cert=cert).echo(1).json == [1]
    with pytest.raises(ucall.ConnectionError):
        new_client(uri(demanding), verify=trusted).echo(1)


def test_a_connection_closed_while_idle_is_replaced(
    server: Server, trusted: Path, new_client: NewClient
) -> None:
    client = new_client(uri(server), verify=trusted)
    for _ in range(3):
        assert client.call("close", 1).json == [1]
        threading.Event().wait(0.1)
    assert server.accepted == 3


def test_missing_files_are_named(tmp_path: Path, new_client: NewClient) -> None:
    with pytest.raises(OSError):
        new_client("https://localhost", verify=tmp_path / "absent.pem")
    with pytest.raises(OSError):
        new_client("https://localhost", cert=tmp_path / "absent.pem")


def test_a_plaintext_server_is_reported(trusted: Path, new_client: NewClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]
        with pytest.raises(ucall.TimeoutError):
            new_client("https://127.0.0.1", port, timeout=0.1, verify=trusted).echo(1)


def command(server: Server, *options: str | Path) -> tuple[int, str, str]:
    """`ucall echo --positional 1 OPTIONS`: its exit status and output."""
    arguments = ["echo", "--uri", uri(server), *map(str, options), "--positional", "1"]
    done = forking.run([*forking.UCALL, *arguments], text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_command_line(server: Server, trusted: Path, tmp_path: Path) -> None:
    answered = (0, "[1]\n", "")
    assert command(server, "--cacert", trusted) == answered
    assert command(server, "-k") == command(server, "--insecure") == answered
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    for options in ([], ["--cacert", other]):
        status, out, line = command(server, *options)
        assert (status, out, line.count("\n")) == (3, "", 1)
        assert "certificate verify failed" in line


def test_the_command_line_with_a_certificate(demanding: Server, trusted: Path, mine: Files) -> None:
    apart = ["--cert", mine.certificate, "--key", mine.key]
    assert command(demanding, "--cacert", trusted, "--cert", mine.both)[:2] == (0, "[1]\n")
    assert command(demanding, "-k", *apart)[:2] == (0, "[1]\n")
    status, out, line = command(demanding, "--cacert", trusted)
    assert (status, out, line.count("\n")) == (3, "", 1)


def test_wrong_usage_of_the_command_line(server: Server, trusted: Path, tmp_path: Path) -> None:
    key_alone = tmp_path / "empty.pem"
    key_alone.write_text("")
    plain = ["--uri", "http://127.0.0.1"]
    for options, complaint in [
        (["--cacert", "absent.pem"], "--cacert: absent.pem: No such file or directory"),
        (["--cacert", tmp_path], "Is a directory"),
        (["--cacert", key_alone], "--cacert, --cert or --key: "),
        (["--cert", key_alone], "--cacert, --cert or --key: "),
        (["--key", trusted], "--key: expected --cert too"),
        (["-k", "--cacert", trusted], "not allowed with argument"),
        ([*plain, "-k"], "--insecure: expected a URI with https:// or tcps://"),
        ([*plain, "--cacert", trusted], "--cacert: expected a URI with https:// or tcps://"),
    ]:
        status, out, line = command(server, *options)
        assert (status, out, line.count("\n")) == (2, "", 1), options
        assert line.startswith("ucall: ") and complaint in line, options


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux keeps records back until all are there"
)
def test_bytes_after_a_reply_answer_no_other_call(
    context: ssl.SSLContext, trusted: Path, new_client: NewClient
) -> None:
    has_come = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        plain = peer.socket
        peer.socket = context.wrap_socket(plain, server_side=True)
        peer.http_request()
        # The second record comes with the first, which alone is the reply.
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        peer.send(http_reply(result("asked for", id="x")), http_reply(result("not", id="x")))
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        peer.wait_delivered()
        has_come.release()
        peer.http_request()

    with scripted(script) as server:
        client = new_client("https://localhost", server.port, verify=trusted).with_options(id="x")
        for calls in range(1, 4):
            assert client.sum(1, 2).json == "asked for"
            assert has_come.acquire(timeout=60)
            assert server.accepted == calls
