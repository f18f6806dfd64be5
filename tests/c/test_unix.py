"""Servers in C on Unix sockets, called with cURL and over the raw protocol."""

import json
import os
import signal
import stat
import subprocess

import pytest
from programs import require

import harness
from harness import Client, StartError, serving

PROGRAM = harness.PROGRAMS / "unix.c"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sum.sock"


@pytest.fixture
def command(built, engine, path):
    return [built(PROGRAM), "--path", path, "--engine", engine]


def curl(path, *options):
    request = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 2, "b": 3}, "id": 1}
    done = [require("curl"), "--silent", "--show-error", "--max-time", 20, "--unix-socket", path]
    told = harness.run([*done, *options, "--data", json.dumps(request), "http://localhost/"])
    return json.loads(told)


def mode_of(path):
    found = path.lstat()
    assert stat.S_ISSOCK(found.st_mode)
    return stat.S_IMODE(found.st_mode)


def test_curl_and_raw_streams_call_it_and_its_file_is_removed(command, path):
    with serving(command):
        assert curl(path) == {"jsonrpc": "2.0", "id": 1, "result": 5}
        assert curl(path, "--http1.0")["result"] == 5
        with Client(path) as client:
            for number in range(1000):
                assert client.call("sum", {"a": number, "b": 1}) == number + 1
            assert client.error_of("sum", {"a": 1})["code"] == -32602
            assert curl(path)["result"] == 5
    assert not path.exists()


@pytest.mark.parametrize("flags, mode", [([], 0o600), (["--mode", "660"], 0o660)])
def test_its_file_has_the_requested_mode(command, path, flags, mode):
    # A umask that would remove permissions of the group and of others.
    with serving([*command, *flags], preexec_fn=lambda: os.umask(0o027)):
        assert mode_of(path) == mode


def test_all_threads_serve_one_file(command, path):
    with serving([*command, "--threads", 3]):
        clients = [Client(path) for _ in range(24)]
        for number, client in enumerate(clients * 20):
            assert client.call("sum", {"a": number, "b": 1}) == number + 1
        for client in clients:
            client.close()
    assert not path.exists()


def test_a_path_in_use_is_an_error_and_stays_with_its_server(command, path):
    with serving(command):
        with pytest.raises(StartError, match=f"{path}: it is in use: another process listens"):
            harness.Server(command)
        assert curl(path)["result"] == 5
    path.write_text("precious")
    with pytest.raises(StartError, match=f"{path}: the file is not a socket"):
        harness.Server(command)
    assert path.read_text() == "precious"


def test_an_impossible_path_is_an_error(built, engine, tmp_path):
    for path in (tmp_path / "nowhere" / "sum.sock", tmp_path / ("x" * 120)):
        with pytest.raises(StartError, match=f"cannot listen on {path}: "):
            harness.Server([built(PROGRAM), "--path", path, "--engine", engine])


def test_an_empty_path_is_refused(built, engine):
    expected = 'hostname "unix:": expected the path of a socket, as in unix:/run/app.sock, got none'
    with pytest.raises(StartError, match=expected):
        harness.Server([built(PROGRAM), "--path", "", "--engine", engine])


def test_the_file_of_a_killed_server_is_replaced(command, path):
    server = harness.Server(command)
    server.process.send_signal(signal.SIGKILL)
    server.wait()
    assert path.exists()
    wait_until_refused(path)
    with serving(command):
        assert curl(path)["result"] == 5
    assert not path.exists()


def wait_until_refused(path):
    """The kernel releases a ring and its descriptors a little after its process has ended."""

    def is_refused():
        try:
            Client(path).close()
        except ConnectionRefusedError:
            return True
        return False

    harness.wait_until(is_refused)


def test_clean_under_valgrind(built, path):
    command = [*harness.valgrind(), built(PROGRAM), "--path", path, "--engine", "posix"]
    with serving(command):
        assert curl(path)["result"] == 5
        done = subprocess.run([built(PROGRAM), "--path", path], capture_output=True, text=True)
        assert done.returncode == 1 and "in use" in done.stderr
