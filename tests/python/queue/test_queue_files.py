"""The files of queues: relative paths, and a read that does not end."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
from certificates import Authority
from pairs import free_location

from harness import eventually
from ucall import queue as nq

WAIT_S = 60


@pytest.mark.parametrize("protocol", ["unix", "shm"])
def test_a_client_finds_a_relative_path_after_a_change_of_the_directory(
    protocol: nq.Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    relative = nq.CommunicatorOptions(netloc=nq.NetworkLocation("./a.sock"))
    with nq.new(protocol, nq.Purpose.CLIENT, relative) as client:
        monkeypatch.chdir("other")
        absolute = nq.CommunicatorOptions(netloc=nq.NetworkLocation(str(tmp_path / "a.sock")))
        with nq.new(protocol, nq.Purpose.SERVER, absolute) as server:
            client.put("x")
            assert server.get(timeout=20).data == "x"


def test_a_relative_certificate_is_read_again_after_a_change_of_the_directory(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "of-other").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").write_bytes(Authority(tmp_path / "of-other").path.read_bytes())
    netloc, trusted = free_location(), nq.SecurityOptions(authority="ca.pem")
    with nq.new(options=nq.CommunicatorOptions(netloc=netloc, security=trusted)) as client:
        monkeypatch.chdir("other")
        Path("new.pem").write_bytes(authority.path.read_bytes())
        Path("new.pem").rename(tmp_path / "ca.pem")
        files = authority.sign("localhost", "127.0.0.1")
        own = nq.SecurityOptions(files.key, files.certificate)
        options = nq.CommunicatorOptions(netloc=netloc, security=own)
        with nq.new(nq.Protocol.TCP, nq.Purpose.SERVER, options) as server:
            client.put("x")
            assert server.get(timeout=20).data == "x"


def test_close_does_not_wait_for_a_read(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(authority.path.read_bytes())
    trusted = nq.SecurityOptions(authority=file)
    client = nq.new(options=nq.CommunicatorOptions(netloc=free_location(), security=trusted))
    # The client's thread reads it for the next connection. It ends when its writer closes it.
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").rename(file)
    writers: list[int] = []

    def is_read() -> bool:
        with contextlib.suppress(OSError):
            writers.append(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    with nq.new(
        purpose=nq.Purpose.SERVER, options=nq.CommunicatorOptions(netloc=client.options.netloc)
    ):
        assert eventually(is_read)
        closing = threading.Thread(target=client.close, args=(0.1,))
        closing.start()
        closing.join(WAIT_S)
        is_closed = not closing.is_alive()
        os.close(writers[0])
        assert is_closed
