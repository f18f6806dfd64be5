"""Peers with other TLS implementations: Python's ssl and OpenSSL, with frames of a queue."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator

import pytest
from certificates import Authority, Files
from frames import ACKNOWLEDGE, BYTES, DATA, END, FINISH, HEADER, HELLO, WELCOME, frame, hello
from programs import require

from ucall import queue as nq

WAIT_S = 60
Frame = tuple[int, int, bytes]


def whole(kind: int, body: bytes, sequence: int = 0, flags: int = 0) -> bytes:
    return frame(kind, len(body), body, sequence, int(kind == DATA), flags)


def read(stream: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        received = stream.recv(length - len(data))
        assert received, "the stream has ended"
        data += received
    return data


def read_frame(stream: socket.socket) -> Frame:
    kind, _flags, _segments, word, sequence, length = HEADER.unpack(read(stream, HEADER.size))
    assert word == b"uclQ"
    return kind, sequence, read(stream, length)


def read_until(stream: socket.socket, wanted: int) -> Frame:
    while True:
        found = read_frame(stream)
        if found[0] == wanted:
            return found


def end_with(stream: socket.socket, communicator: nq.Communicator) -> None:
    """Closes after one message in each direction, and ends the session as its peer would."""
    closing = threading.Thread(target=communicator.close)
    closing.start()
    assert read_until(stream, END)[1] == 2
    stream.sendall(whole(ACKNOWLEDGE, struct.pack("<3Q", 2, 2, 1 << 20)))
    stream.sendall(whole(END, b"", 2))
    # The client sends its close first.
    if communicator.is_server:
        stream.sendall(whole(FINISH, b""))
    assert read_until(stream, FINISH) == (FINISH, 0, b"")
    if not communicator.is_server:
        stream.sendall(whole(FINISH, b""))
    while stream.recv(1 << 16):
        pass
    closing.join(WAIT_S)
    assert not closing.is_alive()


@pytest.fixture(scope="module")
def files(authority: Authority) -> Files:
    return authority.sign("localhost", "127.0.0.1")


@pytest.fixture
def server(authority: Authority, files: Files) -> Iterator[nq.Communicator]:
    """A server that asks for certificates."""
    security = nq.SecurityOptions(files.key, files.certificate, authority.path)
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), security=security)
    made = nq.new("tcp", "server", options)
    yield made
    made.close(0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_python_ssl_as_a_client(
    server: nq.Communicator, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.context(authority.sign("client"))
    context.minimum_version = context.maximum_version = version
    assert server.address is not None
    with (
        socket.create_connection(server.address, timeout=WAIT_S) as connected,
        # An end without close_notify raises.
        context.wrap_socket(
            connected, server_hostname="localhost", suppress_ragged_eofs=False
        ) as stream,
    ):
        stream.sendall(hello(b"c" * 16))
        kind, _, body = read_frame(stream)
        assert (kind, body[8:24]) == (WELCOME, server.id.bytes)
        stream.sendall(whole(DATA, b"from ssl", 1, BYTES))
        assert server.get(timeout=WAIT_S).data == b"from ssl"
        server.put(b"to ssl")
        assert read_until(stream, DATA) == (DATA, 1, b"to ssl")
        end_with(stream, server)


def test_close_notify_is_answered(server: nq.Communicator, authority: Authority) -> None:
    context = authority.context(authority.sign("client"))
    assert server.address is not None
    with socket.create_connection(server.address, timeout=WAIT_S) as connected:
        stream = context.wrap_socket(connected, server_hostname="localhost")
        stream.sendall(hello(b"c" * 16))
        assert read_frame(stream)[0] == WELCOME
        # Waits for the server's close_notify, and raises without it.
        stream.unwrap().close()


def test_python_ssl_as_a_server(authority: Authority, files: Files) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["ucall-queue"])
    mine = authority.sign("client")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        options = nq.CommunicatorOptions(
            netloc=nq.NetworkLocation(*listener.getsockname()),
            security=nq.SecurityOptions(mine.key, mine.certificate, authority.path),
        )
        client = nq.new("tcp", "client", options)
        future = client.put(b"from ucall")
        accepted, _ = listener.accept()
        accepted.settimeout(WAIT_S)
        with context.wrap_socket(accepted, server_side=True, suppress_ragged_eofs=False) as stream:
            assert stream.selected_alpn_protocol() == "ucall-queue"
            kind, _, body = read_frame(stream)
            assert (kind, body[8:24]) == (HELLO, client.id.bytes)
            stream.sendall(hello(b"s" * 16, kind=WELCOME))
            assert read_until(stream, DATA) == (DATA, 1, b"from ucall")
            stream.sendall(whole(ACKNOWLEDGE, struct.pack("<3Q", 1, 1, 1 << 20)))
            future.result(WAIT_S)
            stream.sendall(whole(DATA, b"from ssl", 1, BYTES))
            assert client.get(timeout=WAIT_S).data == b"from ssl"
            end_with(stream, client)


def test_openssl_as_a_client(server: nq.Communicator, authority: Authority) -> None:
    mine = authority.sign("client")
    assert server.address is not None
    command = [
        *(
            require("openssl"),
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-verify_hostname",
            "localhost",
        ),
        *("-connect", "{}:{}".format(*server.address), "-CAfile", str(authority.path)),
        *("-cert", str(mine.certificate), "-key", str(mine.key), "-alpn", "ucall-queue"),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            output = hello(b"o" * 16) + whole(DATA, b"from openssl", 1, BYTES)
            process.stdin.write(output)
            process.stdin.flush()
            assert server.get(timeout=WAIT_S).data == b"from openssl"
            assert process.stdout.read(24)[0] == WELCOME
        finally:
            process.kill()
