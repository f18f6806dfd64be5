"""Relayed calls to servers of other libraries, over HTTP."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import programs
import pytest

import ucall
from ucall.client import Client

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / ".bench/conformance/json-rpc-2.0"
#: The server of jsonrpsee of bench/peers, in tests/conformance/rust.
JSONRPSEE = ROOT / ".bench/conformance/rust/debug/jsonrpsee"
#: A node of Ethereum for tests, of 300 MB.
HARDHAT = ROOT / ".bench/hardhat/node_modules/hardhat"

# The library has no transport of its own; this one sends chunks, as node does without a length.
SERVER = """
const {JSONRPCServer} = require(process.argv[1]);
const server = new JSONRPCServer();
server.addMethod("eth_blockNumber", () => "0x0");
server.addMethod("eth_chainId", () => "0x7a69");
require("http").createServer(async (request, response) => {
    let text = "";
    for await (const chunk of request) text += chunk;
    const reply = await server.receiveJSON(text);
    response.writeHead(reply ? 200 : 204, {"Content-Type": "application/json"});
    if (reply) response.write(JSON.stringify(reply));
    response.end();
}).listen(0, "127.0.0.1", function () {
    console.log(`Started HTTP at http://127.0.0.1:${this.address().port}/`);
});
"""
CONFIG = "module.exports = {networks: {hardhat: {chainId: 31337}}};"


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[str]:
    """Runs a server during the block, and returns the address that it prints."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "http://" in line)
        yield "http://" + line.split("http://")[1].strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(params=["json-rpc-2.0", "hardhat"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    node = programs.require("node")
    if request.param == "json-rpc-2.0":
        if not (LIBRARY / "package.json").exists():
            pytest.skip("make test-conformance gets json-rpc-2.0, by npm")
        with running([node, "-e", SERVER, str(LIBRARY)]) as found:
            yield found
        return
    if not HARDHAT.exists():
        pytest.skip("npm install --prefix .bench/hardhat hardhat@2 gets hardhat")
    config = HARDHAT.parent.parent / "hardhat.config.js"
    config.write_text(CONFIG)
    cli = HARDHAT / "internal/cli/bootstrap.js"
    command = [node, str(cli), "--config", str(config), "node", "--port", "0"]
    with running(command, cwd=config.parent) as found:
        yield found


def test_calls_reach_a_server_of_another_library(address: str) -> None:
    server = ucall.Server(port=0)
    server.relay("eth_*", to=address)
    server.start()
    client = Client(f"http://127.0.0.1:{server.port}")
    try:
        for _ in range(20):
            assert client.eth_chainId().json == "0x7a69"
        assert client.eth_blockNumber().json == "0x0"
        client.notify("eth_blockNumber")
        with pytest.raises(ucall.RPCError) as caught:
            _ = client.eth_none().json
        assert caught.value.code in (-32601, -32004)
        assert client.eth_chainId().json == "0x7a69"
    finally:
        server.stop()


@pytest.fixture
def jsonrpsee() -> Iterator[str]:
    if not JSONRPSEE.exists():
        pytest.skip("make test-conformance builds a server of jsonrpsee, by cargo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([JSONRPSEE, str(port)])
    try:
        while not is_listening(port):
            assert process.poll() is None
            time.sleep(0.005)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_calls_reach_a_server_of_jsonrpsee(jsonrpsee: str) -> None:
    server = ucall.Server(port=0)
    server.relay("math.*", to=jsonrpsee, rename={"math.*": "*"})
    server.start()
    client = Client(f"http://127.0.0.1:{server.port}")
    try:
        assert client.math.sum(a=2, b=3).json == 5
        with ThreadPoolExecutor(20) as callers:
            sums = callers.map(lambda n: client.math.sum(a=n, b=n).json, range(200))
            assert list(sums) == [2 * n for n in range(200)]
        client.notify("math.sum", a=1, b=2)
        for method, params, code in [("sum", {"a": 1}, -32602), ("none", {}, -32601)]:
            with pytest.raises(ucall.RPCError) as caught:
                _ = client.call(f"math.{method}", **params).json
            assert caught.value.code == code
        assert client.math.sum(a=2, b=3).json == 5
    finally:
        server.stop()
