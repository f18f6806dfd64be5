"""Many clients at once, each of which checks that every reply is its own."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# A load: the method, and a function from (client, number) to the params and the expected reply.
Load = Callable[[int, int], tuple[str, object, object]]
CHUNK = 25


def sums(client: int, number: int) -> tuple[str, object, object]:
    a, b = client * 1_000_003, number * 7 - 11
    return "sum", {"a": a, "b": b}, a + b


def echoes(client: int, number: int) -> tuple[str, object, object]:
    content = {"client": client, "text": f'é\n"{number}"', "list": [number, None, 1.5]}
    return "echo", {"content": content}, content


def sessions(client: int, number: int) -> tuple[str, object, object]:
    user, session = client * 31, number
    return "validate_session", {"user_id": user, "session_id": session}, (user ^ session) % 23 == 0


def slow_sums(client: int, number: int) -> tuple[str, object, object]:
    return "slow_sum", {"a": client, "b": number, "milliseconds": number % 2}, client + number


def stored(client: int, number: int) -> tuple[str, object, object]:
    """Every second call reads the value that the call before has written."""
    key, value = f"{client}/{number // 2}", [client, number // 2, "ü"]
    if number % 2:
        return "get", {"key": key}, value
    return "set", {"key": key, "value": value}, True


def run(port: int, loads: list[Load], clients: int, calls: int) -> int:
    """Makes the calls, half of the clients over HTTP; returns the number of replies."""
    with ThreadPoolExecutor(clients) as pool:
        each = [calls // clients + (client < calls % clients) for client in range(clients)]
        work = [
            pool.submit(one_client, port, loads[client % len(loads)], client, count)
            for client, count in enumerate(each)
        ]
        return sum(done.result() for done in work)


def one_client(port: int, load: Load, client: int, calls: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        stream = connection.makefile("rb")
        http = client % 2 == 0
        for start in range(0, calls, CHUNK):
            numbers = range(start, min(start + CHUNK, calls))
            expected, requests = {}, []
            for number in numbers:
                method, params, expected[f"{client}-{number}"] = load(client, number)
                requests.append(request(method, params, f"{client}-{number}", http))
            # A raw connection replies as calls finish, so calls that depend on another go alone.
            if load is stored:
                replies = [one(connection, stream, text, http) for text in requests]
            else:
                connection.sendall(b"".join(requests))
                replies = [receive(stream, http) for _ in requests]
            for reply in replies:
                assert reply["result"] == expected.pop(reply["id"]), reply
            assert not expected
    return calls


def one(connection: socket.socket, stream, text: bytes, http: bool) -> dict:
    connection.sendall(text)
    return receive(stream, http)


def request(method: str, params: object, identity: str, http: bool, more: bytes = b"") -> bytes:
    """An HTTP call; `more` are further headers."""
    call = {"jsonrpc": "2.0", "method": method, "params": params, "id": identity}
    body = json.dumps(call).encode()
    if not http:
        return body + b"\n"
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + more + b"\r\n" + body


def receive(stream, http: bool) -> dict:
    if not http:
        return json.loads(stream.readline())
    assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
    length = 0
    while (line := stream.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return json.loads(stream.read(length))
