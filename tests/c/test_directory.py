"""Servers in C that fork and change their directory after the start, as daemon(3) does."""

import pytest
from test_tls import Files, names, secured

import harness
from harness import Client, serving

PROGRAM = harness.PROGRAMS / "directory.c"


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def command(built, engine, elsewhere):
    return lambda what: [built(PROGRAM), engine, what, elsewhere]


def test_a_store_stays_in_the_directory_where_it_was_added(command, tmp_path, elsewhere):
    with serving(command("store"), cwd=tmp_path) as server, Client(server.port) as client:
        assert client.call("kv.put", {"key": "a", "value": 1}) == 1
    assert not list(elsewhere.iterdir())


def test_the_file_of_a_unix_socket_is_removed(command, tmp_path):
    path = tmp_path / "sum.sock"
    with serving(command("unix"), cwd=tmp_path), Client(path) as client:
        assert client.call("sum", {"a": 1, "b": 2}) == 3
    assert not path.exists()


def test_renewed_certificates_are_read(command, tmp_path):
    files = Files(tmp_path)
    with serving(command("tls"), cwd=tmp_path) as server:
        with secured(server.port, files.context(files.client)) as client:
            assert client.call("sum", {"a": 1, "b": 2}) == 3
        renewed = files.authority.issue_cert("localhost", "renewed.example")
        files.write("server.key", renewed.private_key_pem)
        files.write("own.pem", renewed.cert_chain_pems[0])
        harness.wait_until(lambda: "renewed.example" in names(server.port, files))
