"""The example of the README, called with curl, nc and common HTTP clients."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
from programs import require
from serving import NO_URING

from harness import HOST, program

# Word for word, except the port.
EXAMPLE = """
from {module} import Server
server = Server(port=0)
@server
def sum(a: int, b: int):
    return a + b
server.on_startup(lambda: print(server.port))
server.run()
"""
CALL = {"method": "sum", "params": {"a": 2, "b": 3}, "jsonrpc": "2.0", "id": 0}
REPLY = {"jsonrpc": "2.0", "id": 0, "result": 5}


#: Each client calls one of the servers, as other tests do.
pytestmark = pytest.mark.one_of("port")


@pytest.fixture(scope="module", params=["ucall", "ucall.posix", "ucall.uring"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "ucall.uring" and NO_URING:
        pytest.skip(NO_URING)
    with program(EXAMPLE.format(module=request.param)) as process:
        yield int(process.stdout.readline())


def _run(*command: str, input: str = "") -> str:
    require(command[0])
    done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl(port: int) -> None:
    url = f"http://{HOST}:{port}"
    assert json.loads(_run("curl", "-sS", url, "-d", json.dumps(CALL))) == REPLY
    chunked = ["-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue"]
    assert json.loads(_run("curl", "-sS", url, "-d", json.dumps(CALL), *chunked)) == REPLY
    assert json.loads(_run("curl", "-sS", "--http1.0", url, "-d", json.dumps(CALL))) == REPLY


def test_nc(port: int) -> None:
    reply = _run("nc", "-N", HOST, str(port), input=json.dumps(CALL) * 2)
    assert [json.loads(line) for line in reply.splitlines()] == [REPLY] * 2


def test_http_client_keeps_its_connection_over_1_000_calls(port: int) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.connect()
    # Without a connection it would reconnect.
    connection.auto_open = 0
    for number in range(1_000):
        call = {**CALL, "params": {"a": number, "b": 1}, "id": number}
        connection.request("POST", "/", json.dumps(call))
        reply: Any = json.loads(connection.getresponse().read())
        assert (reply["id"], reply["result"]) == (number, number + 1)
    connection.close()


def test_requests(port: int) -> None:
    with requests.Session() as session:
        for _ in range(3):
            assert session.post(f"http://{HOST}:{port}", json=CALL).json() == REPLY
        batch = session.post(f"http://{HOST}:{port}/", json=[CALL] * 100)
        assert batch.json() == [REPLY] * 100


def test_httpx(port: int) -> None:
    with httpx.Client() as client:
        for _ in range(3):
            assert client.post(f"http://{HOST}:{port}", json=CALL).json() == REPLY

        def pieces() -> Iterator[bytes]:
            for byte in json.dumps(CALL).encode():
                yield bytes([byte])

        assert client.post(f"http://{HOST}:{port}", content=pieces()).json() == REPLY
