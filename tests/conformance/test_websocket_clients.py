"""WebSocket with clients of other projects: Go's coder/websocket, and h11's upgrade."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import h11
import pytest
from limits import LimitedServer

GO_CLIENT = Path(__file__).resolve().parents[2] / ".bench/conformance/websocket_client"
UPGRADE = [
    ("Host", "localhost"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    # The key of RFC 6455, section 1.3, and its reply.
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
CALL = b'{"jsonrpc":"2.0","method":"echo","params":["h11"],"id":1}'
MASK_OF_ZEROS = b"\0\0\0\0"


def test_go(peer: LimitedServer) -> None:
    if not GO_CLIENT.exists():
        pytest.skip("make test-conformance builds it with Go")
    command = [str(GO_CLIENT), f"ws://127.0.0.1:{peer.port}/ws"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {"calls": 100, "echoed": 70_000, "subprotocol": "jsonrpc", "refused": 1003}


def test_h11_upgrades_after_a_call(peer: LimitedServer) -> None:
    """h11 reads the reply to a call, switches protocols, and leaves the frames to others."""
    client = h11.Connection(h11.CLIENT)
    with socket.create_connection(("127.0.0.1", peer.port), timeout=60) as connection:
        assert _exchange(client, connection, "POST", CALL)[0].status_code == 200
        client.start_next_cycle()
        reply, _ = _exchange(client, connection, "GET", b"")
        assert isinstance(reply, h11.InformationalResponse) and reply.status_code == 101
        assert dict(reply.headers)[b"sec-websocket-accept"] == ACCEPT
        assert client.our_state is client.their_state is h11.SWITCHED_PROTOCOL
        frame = bytes([0x81, 0x80 | len(CALL)]) + MASK_OF_ZEROS + CALL
        connection.sendall(frame)
        text = connection.makefile("rb").read(2 + len(b'{"jsonrpc":"2.0","id":1,"result":"h11"}'))
        assert text[0] == 0x81 and json.loads(text[2:])["result"] == "h11"
    assert client.trailing_data == (b"", False)


def _exchange(
    client: h11.Connection, connection: socket.socket, method: str, body: bytes
) -> tuple[h11.Response | h11.InformationalResponse, bytes]:
    headers = UPGRADE if method == "GET" else [("Host", "localhost")]
    length = [("Content-Length", str(len(body)))] if body else []
    request = h11.Request(method=method, target="/", headers=[*headers, *length])
    for event in (request, *([h11.Data(body)] if body else []), h11.EndOfMessage()):
        connection.sendall(client.send(event) or b"")
    reply, content = None, b""
    while True:
        found = client.next_event()
        if found is h11.NEED_DATA:
            client.receive_data(connection.recv(65536))
        elif isinstance(found, (h11.Response, h11.InformationalResponse)):
            reply = found
        elif isinstance(found, h11.Data):
            content += found.data
        if reply and (found is h11.PAUSED or isinstance(found, h11.EndOfMessage)):
            return reply, content
        if isinstance(found, h11.InformationalResponse):
            return found, content
