"""The request of the benchmark, and the check of its reply.

`bench/wrk/load.lua` makes the same bytes.
"""

import http.client
import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path

EXPECTED_RESULT = 76


def body(batch: int) -> bytes:
    """One call, or with `batch` above 0 a batch of `batch` calls with ids from 1."""
    call = '{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":%d}'
    calls = ",".join(call % call_id for call_id in range(1, max(batch, 1) + 1))
    return (f"[{calls}]" if batch else calls).encode()


def post(
    body: bytes,
    content_type: str = "application/json",
    path: str = "/",
    host: str = "127.0.0.1",
    **more: str,
) -> bytes:
    """An HTTP request. Names of further headers have _ for -."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Type: {content_type}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in more.items()),
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def call(method: str, *params: object, **members: object) -> bytes:
    """A request of JSON-RPC, its members in the order of the specification's examples."""
    sent = {"jsonrpc": "2.0", "method": method, "params": params, "id": 1, **members}
    return json.dumps(sent, separators=(",", ":")).encode()


def http_request(batch: int) -> bytes:
    return post(body(batch))


def write(path: Path, requests: Iterable[bytes]) -> Path:
    """Writes a file for `bench/load --requests`: each request after a line with its length."""
    path.write_bytes(b"".join(b"%d\n%b" % (len(it), it) for it in requests))
    return path


def connect(port: int, seconds: float = 30) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def expected_reply(batch: int) -> object:
    results = [
        {"jsonrpc": "2.0", "id": call_id, "result": EXPECTED_RESULT}
        for call_id in range(1, max(batch, 1) + 1)
    ]
    return results if batch else results[0]


def reply_bytes(batch: int, is_raw: bool) -> bytes:
    """The floor's reply, with the same headers as ucall's. The date is constant: the floor does not
    format it."""
    content = json.dumps(expected_reply(batch), separators=(",", ":")).encode()
    if is_raw:
        return content + b"\n"
    head = (
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/json\r\n"
        "Date: Sat, 21 Nov 2026 21:00:00 GMT\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class WrongReplyError(Exception):
    """The server's reply was not the expected one."""


def check_reply(status: int, content: bytes, expected: object) -> None:
    if status != http.client.OK or json.loads(content) != expected:
        raise WrongReplyError(f"not the expected reply: status {status}, {content[:200]!r}")


def exchange_on(connection: socket.socket, sent: bytes) -> tuple[int, bytes]:
    """Sends a request. Returns the status and the body of the reply."""
    connection.sendall(sent)
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def exchange(port: int, sent: bytes, seconds: float = 10) -> tuple[int, bytes]:
    """The same on a connection of its own."""
    with connect(port, seconds) as connection:
        return exchange_on(connection, sent)


def check_call(port: int, sent: bytes, expected: object) -> None:
    """Sends a request on a connection of its own, and checks the reply."""
    check_reply(*exchange(port, sent), expected)


def probe_until_ready(port: int, batch: int, deadline_seconds: float) -> None:
    """Calls, again while the connection is refused, and checks the reply."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        try:
            check_call(port, http_request(batch), expected_reply(batch))
            return
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
