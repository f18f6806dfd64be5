"""WebSocket with clients that others wrote: `websockets`, and Node's own."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
import trustme
from functions import echo, sum, whoami
from proxies import nginx
from serving import Serve
from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect, unix_connect
from websockets.typing import Subprotocol

import ucall
import ucall.auth
from harness import HOST, eventually, free_port, in_asyncio, program, request

JSONRPC = Subprotocol("jsonrpc")


def _result(socket: ClientConnection, method: str, params: Any) -> Any:
    socket.send(request(method, params).decode())
    return json.loads(socket.recv())["result"]


def _close_code(socket: ClientConnection) -> int | None:
    """The code of the Close frame that the server sends next."""
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv()
    return closed.value.rcvd.code if closed.value.rcvd else None


@pytest.mark.parametrize("path", ["/", "/ws", "/ws?query"])
def test_calls(serve: Serve, path: str) -> None:
    server = serve(sum, echo)
    url = f"ws://{HOST}:{server.port}{path}"
    with connect(url, subprotocols=[JSONRPC], max_size=None) as socket:
        # The client offers permessage-deflate, which the server declines.
        assert (socket.subprotocol, socket.protocol.extensions) == (JSONRPC, [])
        assert _result(socket, "sum", [2, 3]) == 5
        socket.send(request("sum", [3, 4]))
        assert json.loads(socket.recv())["result"] == 7
        socket.send(b"[" + request("sum", [1, 1]) + b"," + request("sum", [2, 2]) + b"]")
        assert [reply["result"] for reply in json.loads(socket.recv())] == [2, 4]
        socket.send(request("sum", [1, 1], ...).decode())
        socket.send("no JSON")
        assert json.loads(socket.recv())["error"]["code"] == -32700
        socket.ping().wait(60)
        for length in 0, 100, 1_000, 100_000:
            text = "é" * length
            assert _result(socket, "echo", [text]) == text
    assert (socket.close_code, socket.close_reason) == (1000, "")


def test_fragments_in_both_forms(serve: Serve) -> None:
    server = serve(echo)
    with connect(f"ws://{HOST}:{server.port}") as socket:
        text = request("echo", ["κόσμε"]).decode()
        socket.send(iter(text))
        assert json.loads(socket.recv())["result"] == "κόσμε"
        data = text.encode()
        socket.send(data[at : at + 7] for at in range(0, len(data), 7))
        assert json.loads(socket.recv())["result"] == "κόσμε"


def test_replies_come_as_they_finish(serve: Serve) -> None:
    held: list[asyncio.Future[str]] = []

    async def hold() -> str:
        held.append(asyncio.get_running_loop().create_future())
        return await held[-1]

    def release() -> None:
        for future in reversed(held):
            future.set_result("released")

    server = serve(hold, release, sum)
    with connect(f"ws://{HOST}:{server.port}") as socket:
        for id in 1, 2:
            socket.send(request("hold", id=id).decode())
        assert _result(socket, "sum", [2, 3]) == 5
        socket.send(request("release", id=3).decode())
        replies = [json.loads(socket.recv()) for _ in range(3)]
        assert replies[0]["id"] == 3
        assert [reply["result"] for reply in replies[1:]] == ["released"] * 2


def test_many_clients_at_once(serve: Serve) -> None:
    server = serve(sum)

    async def client(number: int) -> list[int]:
        async with connect_async(f"ws://{HOST}:{server.port}") as socket:
            for id in range(20):
                await socket.send(request("sum", [number, id], id).decode())
            return [json.loads(await socket.recv())["result"] for _ in range(20)]

    async def clients() -> list[list[int]]:
        return await asyncio.gather(*map(client, range(50)))

    expected = [[number + id for id in range(20)] for number in range(50)]
    assert asyncio.run(clients()) == expected


def test_what_the_server_refuses_has_its_close_code(serve: Serve) -> None:
    server = serve(sum)
    for message, code in [(b"\1\2", 1003), (b"", 1003)]:
        with connect(f"ws://{HOST}:{server.port}") as socket:
            socket.send(message)
            assert _close_code(socket) == code
    with connect(f"ws://{HOST}:{server.port}") as socket:
        socket.send(b"\xff", text=True)
        assert _close_code(socket) == 1007
    with connect(f"ws://{HOST}:{server.port}") as socket:
        socket.close(4000, "enough")
        assert socket.close_code == 4000


def test_origins_are_checked_at_the_upgrade(serve: Serve) -> None:
    server = serve(sum, allow_origins=["https://named.example"])
    url = f"ws://{HOST}:{server.port}/ws"
    for origin in f"http://{HOST}:{server.port}", "https://named.example":
        with connect(url, origin=origin) as socket:  # type: ignore[arg-type]
            assert _result(socket, "sum", [2, 3]) == 5
    for headers in {"Origin": "https://foreign.example"}, {"Origin": "null"}:
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=headers)
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("way", ["header", "subprotocol"])
def test_callers_are_authenticated_at_the_upgrade(serve: Serve, way: str) -> None:
    server = serve(whoami, auth=ucall.auth.bearer({"s3cret~?>": "alice"}))

    def connected(token: str) -> ClientConnection:
        url = f"ws://{HOST}:{server.port}"
        if way == "header":
            return connect(url, additional_headers={"Authorization": f"Bearer {token}"})
        text = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
        offers = [JSONRPC, Subprotocol(f"bearer.{text}")]
        return connect(url, subprotocols=offers)

    with connected("s3cret~?>") as socket:
        assert socket.subprotocol == (JSONRPC if way == "subprotocol" else None)
        assert _result(socket, "whoami", []) == _result(socket, "whoami", []) == "alice"
    with pytest.raises(InvalidStatus) as refused:
        connected("other")
    assert refused.value.response.status_code == 401


@in_asyncio
async def test_under_tls(serve: Serve, tmp_path: Path) -> None:
    authority, path = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server = serve(sum, echo, ssl_certfile=path)
    text = "x" * 300_000
    # `websockets.sync` reads and writes in two threads, which `ssl` bears since 3.13.1 only.
    async with connect_async(f"wss://{HOST}:{server.port}", ssl=context) as socket:
        for method, params, result in (("sum", [2, 3], 5), ("echo", [text], text)):
            await socket.send(request(method, params).decode())
            assert json.loads(await socket.recv())["result"] == result


def test_over_a_unix_socket(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with program(UNIX, engine, str(path)) as process:
        assert process.stdout.readline() == "listens\n"
        with unix_connect(str(path), "ws://localhost/ws") as socket:
            assert _result(socket, "sum", [2, 3]) == 5


def test_through_nginx(serve: Serve, tmp_path: Path) -> None:
    server, port = serve(sum, echo), free_port()
    configuration = f"""
        server {{
            listen {HOST}:{port};
            location / {{
                proxy_pass http://{HOST}:{server.port};
                proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade;
                proxy_set_header Connection "upgrade";
            }}
        }}"""
    with nginx(tmp_path, configuration, port), connect(f"ws://{HOST}:{port}/ws") as socket:
        assert _result(socket, "sum", [2, 3]) == 5
        text = "x" * 200_000
        assert _result(socket, "echo", [text]) == text


UNIX = """
import importlib, sys, threading
server = importlib.import_module("ucall." + sys.argv[1]).Server(uds=sys.argv[2])

@server
def sum(a: int, b: int):
    return a + b

server.start()
print("listens", flush=True)
threading.Event().wait()
"""

DRAINED = """
import asyncio, importlib, sys, threading, ucall
server = importlib.import_module("ucall." + sys.argv[1]).Server(
    port=0, timeouts=ucall.Timeouts(drain_timeout_s=3000)
)
released = threading.Event()

@server
async def hold():
    await asyncio.to_thread(released.wait)
    return "held"

def release():
    sys.stdin.readline()
    released.set()

threading.Thread(target=release, daemon=True).start()
server.on_startup(lambda: print(server.port, flush=True))
server.run()
"""


def test_a_drain_closes_with_1001_after_the_replies(engine: str) -> None:
    with program(DRAINED, engine) as process:
        url = f"ws://{HOST}:{int(process.stdout.readline())}"
        with connect(url) as idle, connect(url) as busy:
            idle.ping().wait(60)
            busy.send(request("hold", []).decode())
            busy.ping().wait(60)
            process.send_signal(signal.SIGTERM)
            assert json.loads(idle.recv()) == {"jsonrpc": "2.0", "method": "$/drain"}
            assert _close_code(idle) == 1001
            assert json.loads(busy.recv())["method"] == "$/drain"
            process.stdin.write("\n")
            process.stdin.flush()
            assert json.loads(busy.recv())["result"] == "held"
            assert _close_code(busy) == 1001
        assert process.wait(60) == 0


def test_a_client_that_leaves_cancels_its_calls(serve: Serve) -> None:
    events: list[str] = []

    async def hold() -> None:
        events.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    server = serve(hold)
    for leave in "close", "abort":
        events.clear()
        socket = connect(f"ws://{HOST}:{server.port}")
        socket.send(request("hold", []).decode())
        assert eventually(lambda: events == ["started"])
        if leave == "close":
            socket.close()
        else:
            socket.socket.shutdown(2)
        assert eventually(lambda: events == ["started", "cancelled"])
        socket.close()


def test_a_websocket_is_not_evicted(serve: Serve) -> None:
    server = serve(sum, max_connections=2)
    with connect(f"ws://{HOST}:{server.port}") as first:
        for _ in range(5):
            with connect(f"ws://{HOST}:{server.port}") as socket:
                assert _result(socket, "sum", [2, 3]) == 5
        assert _result(first, "sum", [2, 3]) == 5


def test_a_client_that_reads_nothing_pauses_only_itself(serve: Serve) -> None:
    server = serve(sum, echo, max_output_bytes=100_000)
    text = "x" * 100_000
    url = f"ws://{HOST}:{server.port}"

    async def both() -> None:
        # The client stops reading when one message waits for `recv`.
        async with connect_async(url, max_queue=1) as slow, connect_async(url) as quick:
            sending = asyncio.create_task(send_all(slow))
            for _ in range(100):
                await quick.send(request("sum", [2, 3]).decode())
                assert json.loads(await quick.recv())["result"] == 5
            for _ in range(100):
                assert json.loads(await slow.recv())["result"] == text
            await sending

    async def send_all(slow: AsyncConnection) -> None:
        for _ in range(100):
            await slow.send(request("echo", [text]).decode())

    asyncio.run(both())


@pytest.fixture
def node() -> Iterator[list[str]]:
    found = programs.require("node")
    major = int(subprocess.run([found, "--version"], capture_output=True, text=True).stdout[1:3])
    if major < 20:
        pytest.skip(f"Node {major} has no WebSocket")
    yield [found, *(["--experimental-websocket", "--no-warnings"] if major < 22 else [])]


NODE = """
const [port, protocols] = [process.argv[1], process.argv.slice(2)];
const socket = new WebSocket(`ws://127.0.0.1:${port}/ws`, protocols);
const results = [];
socket.onopen = () => {
    socket.send('{"jsonrpc":"2.0","method":"sum","params":[2,3],"id":1}');
    const call = {jsonrpc: "2.0", method: "echo", params: ["é".repeat(70000)], id: 2};
    socket.send(new TextEncoder().encode(JSON.stringify(call)));
};
socket.onmessage = (event) => {
    const {result} = JSON.parse(event.data);
    results.push(result.length ?? result);
    if (results.length == 2) socket.close(3001, "done");
};
socket.onclose = ({code, wasClean}) =>
    console.log(JSON.stringify([results, code, wasClean, socket.protocol]));
"""


def test_the_websocket_of_node(serve: Serve, node: list[str]) -> None:
    server = serve(sum, echo, auth=ucall.auth.bearer({"s3cret": "alice"}))
    token = base64.urlsafe_b64encode(b"s3cret").decode().rstrip("=")
    command = [*node, "-e", NODE, str(server.port), "jsonrpc", f"bearer.{token}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert json.loads(done.stdout) == [[5, 70_000], 3001, True, "jsonrpc"], done.stderr
