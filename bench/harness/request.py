"""The request of the benchmark, and the check of its reply.

`bench/wrk/load.lua` makes the same bytes.
"""

import http.client
import json
import socket
import time
from dataclasses import dataclass

EXPECTED_RESULT = 76


def call(call_id: int) -> str:
    return f'{{"jsonrpc":"2.0","method":"sum","params":{{"a":55,"b":21}},"id":{call_id}}}'


def body(batch: int) -> bytes:
    """One call, or with `batch` above 0 a batch of `batch` calls with ids from 1."""
    if batch == 0:
        return call(1).encode()
    return f"[{','.join(call(call_id) for call_id in range(1, batch + 1))}]".encode()


def http_request(batch: int) -> bytes:
    return http_post(body(batch))


def http_post(content: bytes) -> bytes:
    head = (
        "POST / HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


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


class WrongReplyError(Exception):
    """The server's reply was not the expected one."""


def checked_reply(status: int, content: bytes, batch: int) -> bytes:
    """The reply's body; raises if it is not the expected one."""
    if status != http.client.OK:
        raise WrongReplyError(f"HTTP status {status}: {content[:200]!r}")
    if json.loads(content) != expected_reply(batch):
        raise WrongReplyError(f"not the expected reply: {content[:200]!r}")
    return content


@dataclass(frozen=True)
class Reply:
    """The body of a right reply, and the reply's bytes with its head."""

    body: bytes
    whole_bytes: int


def head_bytes(response: http.client.HTTPResponse) -> int:
    status_line = f"HTTP/1.1 {response.status} {response.reason}\r\n"
    fields = "".join(f"{name}: {value}\r\n" for name, value in response.getheaders())
    return len(status_line + fields + "\r\n")


def probe(port: int, batch: int) -> Reply:
    """Sends the request once and returns a right reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(http_request(batch))
        response = http.client.HTTPResponse(connection)
        response.begin()
        content = checked_reply(response.status, response.read(), batch)
        return Reply(content, head_bytes(response) + len(content))


def check_sum(port: int, sent: bytes, call: dict) -> None:
    """Sends this request, and raises if its reply is not the call's sum."""
    expected = {"jsonrpc": "2.0", "id": call["id"], "result": sum(call["params"].values())}
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        response = http.client.HTTPResponse(connection)
        response.begin()
        content = response.read()
    if response.status != http.client.OK or json.loads(content) != expected:
        raise WrongReplyError(f"{call}: status {response.status}, {content[:200]!r}")


def probe_until_ready(port: int, batch: int, deadline_seconds: float) -> Reply:
    """Like `probe`, and retries while the connection is refused."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        try:
            return probe(port, batch)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
