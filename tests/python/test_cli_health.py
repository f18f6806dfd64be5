"""``ucall health``: one line and an exit status, for container probes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from certificates import Authority, authority
from serving import Serve

import ucall
from harness import HOST, free_port
from ucall import cli

__all__ = ["authority"]  # A fixture.


@pytest.fixture
def health(capsys: pytest.CaptureFixture[str]) -> Iterator[object]:
    """Runs the command: its status, and what it printed to both outputs."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["health", *arguments])
        return status, *capsys.readouterr()

    yield run


def test_it_reports_life_and_readiness(serve: Serve, health: Any) -> None:
    server = serve()
    is_ready = True
    server.ready(lambda: is_ready)
    for url in (
        f"{HOST}:{server.port}",
        f"http://{HOST}:{server.port}",
        f"tcp://{HOST}:{server.port}",
    ):
        assert health(url) == (0, "ok\n", "")
        assert health(url, "--ready") == (0, "ready\n", "")
    is_ready = False
    port = str(server.port)
    assert health("--ready", "-p", port) == (1, "not ready: <lambda> failed\n", "")
    assert health("-p", port) == (0, "ok\n", "")


def test_without_a_url_it_asks_the_port_of_the_environment(
    serve_once: Serve, health: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve_once()
    monkeypatch.setenv("UCALL_PORT", str(server.port))
    assert health()[0] == 0
    assert health("-p", "1")[0] == health("127.0.0.1:1")[0] == 1
    monkeypatch.setenv("UCALL_PORT", "tcp://10.0.0.1:80")
    assert health("-p", str(server.port))[0] == 0
    assert health()[0] in (0, 1), "asks the default port: no error of usage"


def test_it_speaks_over_unix_sockets_and_tls(
    tmp_path: Path, authority: Authority, health: Any
) -> None:
    path = str(tmp_path / "socket")
    with ucall.Server(uds=path):
        for scheme in ("unix", "http+unix", "tcp+unix"):
            assert health(f"{scheme}://{path}", "--ready") == (0, "ready\n", "")
    files = authority.sign("localhost")
    with ucall.Server(
        port=0, tls=ucall.TLS(certfile=files.certificate, keyfile=files.key)
    ) as server:
        for scheme in ("https", "tcps"):
            url = f"{scheme}://localhost:{server.port}"
            assert health(url, "--cacert", str(authority.path)) == (0, "ok\n", "")
            assert health(url, "-k") == (0, "ok\n", "")
            status, output, errors = health(url)
            assert (status, output) == (1, "") and "certificate verify failed" in errors
            assert errors.endswith("at the command line by --cacert\n")
        status, output, errors = health("-p", str(server.port))
        assert (status, errors) == (1, "") and "this port speaks TLS" in output


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A listener that answers one connection with these bytes and closes it."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connected = listener.accept()[0]
            with connected:
                connected.recv(4096)
                connected.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            b"HTTP/1.1 503 Service Unavailable\r\n\r\nnot ready: a\x1b[2J\nb\n",
            "not ready: a\\x1b[2J",
        ),
        (b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n<html>", "404 Not Found"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-type: Text/HTML\r\n\r\n<html>", "404 Not Found"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nthis port\nb", "400 Bad Request: this port"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "503 Service Unavailable"),
    ],
)
def test_other_answers_are_unhealthy(health: Any, answer: bytes, line: str) -> None:
    with answering(answer) as port:
        assert health("-p", str(port)) == (1, f"{line}\n", "")


def test_it_is_unhealthy_also_for_a_probe_that_reads_no_output() -> None:
    reader, output = os.pipe()
    os.close(reader)
    with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as port:
        command = [sys.executable, "-m", "ucall.cli", "health", "-p", str(port)]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=60)
    os.close(output)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n"])
def test_no_http_answer_is_unhealthy(health: Any, answer: bytes) -> None:
    with answering(answer) as port:
        status, output, errors = health("-p", str(port))
    assert (status, output) == (1, "")
    assert errors == "ucall: the server closed the connection without an answer\n"


def test_no_answer_is_unhealthy_after_the_time_limit(health: Any) -> None:
    status, output, errors = health("-p", str(free_port()))
    assert (status, output) == (1, "") and errors.endswith("Connection refused\n")
    with socket.create_server((HOST, 0)) as silent:
        port = str(silent.getsockname()[1])
        status, output, errors = health("-p", port, "--timeout", "0.05")
    assert (status, output) == (1, "") and errors.count("\n") == 1, errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["ftp://x"],
        [""],
        ["--nothing"],
        ["a", "b"],
        ["--timeout", "0"],
        ["--timeout", "inf"],
        ["--timeout", "1e10"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    done = forking.run([*forking.UCALL, "health", *arguments], text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1


def test_a_function_called_health_can_be_called(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    def health() -> str:
        return "well"

    server = serve(health)
    assert cli.main(["-p", str(server.port), "health"]) == 0
    assert capsys.readouterr().out == '"well"\n'


def test_it_imports_no_client_of_calls() -> None:
    source = (
        "import sys; from ucall._cli import health; "
        "sys.exit(any(name in sys.modules for name in ('ssl', 'asyncio', 'ucall.client')))"
    )
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == 0
