"""Servers in C under TLS."""

import ssl
import time

import pytest
import trustme

import harness
from harness import Client, StartError, serving

PROGRAM = harness.PROGRAMS / "tls.c"


class Files:
    """An authority with the files of a server and a client, in PEM."""

    def __init__(self, folder):
        self.authority = trustme.CA()
        self.folder = folder
        self.root = self.write("root.pem", self.authority.cert_pem)
        middle = self.authority.create_child_ca()
        server = middle.issue_cert("localhost")
        own, between = server.cert_chain_pems
        self.key = self.write("server.key", server.private_key_pem)
        self.certificates = [self.write("own.pem", own), self.write("between.pem", between)]
        self.client = self.write(
            "client.pem", self.authority.issue_cert("alice").private_key_and_cert_chain_pem
        )

    def write(self, name, blob):
        path = self.folder / name
        blob.write_to_path(path)
        return path

    def flags(self, *more):
        chain = [word for path in self.certificates for word in ("--certificate", path)]
        return [*chain, "--key", self.key, *more]

    def context(self, client=None):
        context = ssl.create_default_context(cafile=self.root)
        if client:
            context.load_cert_chain(client)
        return context


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def secured(port, context):
    """A client under TLS."""
    return Client(port, context=context, name="localhost")


def command(built, engine, flags):
    return [built(PROGRAM), "--engine", engine, *flags]


def test_calls_and_a_chain_of_several_files(built, engine, files):
    with serving(command(built, engine, files.flags())) as server:
        with secured(server.port, files.context()) as client:
            assert client.socket.version() == "TLSv1.3"
            for number in range(100):
                assert client.call("sum", {"a": number, "b": 1}) == number + 1
        with Client(server.port) as plain:
            plain.submit("sum", {"a": 1, "b": 2})
            assert "TLS" in str(plain.message()["error"])


def test_a_stopping_server_sends_close_notify(built, engine, files):
    """Python's TLS raises if a connection ends without a close_notify alert."""
    how = {"server_hostname": "localhost", "suppress_ragged_eofs": False}
    with (
        serving(command(built, engine, files.flags())) as server,
        Client(server.port) as client,
        files.context().wrap_socket(client.socket, **how) as secure,
    ):
        secure.sendall(b'{"jsonrpc":"2.0","method":"sum","params":{"a":1,"b":2},"id":1}')
        assert b'"result":3' in secure.recv(1000)
        server.process.terminate()
        assert secure.recv(1) == b""
        # A second signal would kill the program.
        assert server.wait() == 0


def test_required_client_certificates(built, engine, files):
    flags = files.flags("--authorities", files.root)
    with serving(command(built, engine, flags)) as server:
        with secured(server.port, files.context(files.client)) as client:
            assert client.call("sum", {"a": 1, "b": 2}) == 3
        with pytest.raises(OSError), secured(server.port, files.context()) as client:
            client.call("sum", {"a": 1, "b": 2})


def test_new_files_are_read(built, engine, files):
    with (
        serving(command(built, engine, files.flags())) as server,
        secured(server.port, files.context()) as client,
    ):
        assert client.call("sum", {"a": 1, "b": 2}) == 3
        renewed = files.authority.issue_cert("localhost", "renewed.example")
        files.write("server.key", renewed.private_key_pem)
        files.write("own.pem", renewed.cert_chain_pems[0])
        harness.wait_until(lambda: "renewed.example" in names(server.port, files))
        assert client.call("sum", {"a": 1, "b": 2}) == 3


def names(port, files):
    with secured(port, files.context()) as client:
        return [name for _, name in client.socket.getpeercert()["subjectAltName"]]


def test_a_stalled_handshake_is_closed(built, engine, files):
    flags = files.flags("--handshake-ms", "500")
    with serving(command(built, engine, flags)) as server, Client(server.port) as silent:
        started = time.monotonic()
        assert silent.socket.recv(1) == b""
        # The default is ten seconds.
        assert 0.4 < time.monotonic() - started < 9


def test_unusable_files_are_errors(built, files):
    absent = files.folder / "absent.pem"
    for flags, told in [
        (["--certificate", absent], "absent.pem"),
        (["--certificate", files.certificates[0]], "own.pem: expected a private key"),
        (["--certificate", files.root, "--key", files.key], "belongs to another certificate"),
    ]:
        with pytest.raises(StartError, match=told):
            harness.Server(command(built, "posix", flags))
