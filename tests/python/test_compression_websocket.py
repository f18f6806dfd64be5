"""Compressed messages of a WebSocket, with the client of `websockets`."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Serve
from websockets.exceptions import ConnectionClosed
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.sync.client import ClientConnection, connect

import ucall
from harness import HOST, request
from ucall.client import Client


def echo(value: Any) -> Any:
    return value


async def later(value: Any) -> Any:
    return value


def numbers(count: int) -> Iterator[list[int]]:
    for number in range(count):
        yield [number] * 100


def connected(server: ucall.Server, **options: Any) -> ClientConnection:
    factory = ClientPerMessageDeflateFactory(**options)
    url = f"ws://{HOST}:{server.port}"
    return connect(url, extensions=[factory], compression=None, max_size=None)


def result(client: ClientConnection, method: str, params: Any) -> Any:
    client.send(request(method, params).decode())
    return json.loads(client.recv())["result"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"client_max_window_bits": True, "server_max_window_bits": 9},
        {"client_max_window_bits": 9, "client_no_context_takeover": True},
        {"server_no_context_takeover": True, "server_max_window_bits": 15},
    ],
    ids=str,
)
def test_calls(serve: Serve, options: dict[str, Any]) -> None:
    server = serve(echo, later, compression_min_bytes=100, compression_max_bytes=1_000_000)
    with connected(server, **options) as client:
        [extension] = client.protocol.extensions
        assert extension.name == "permessage-deflate"
        for value in ("", "x" * 200, " ".join(map(str, range(60_000))), "é" * 5_000):
            for method in ("echo", "later"):
                assert result(client, method, [value]) == value
        text = request("echo", ["y" * 5_000]).decode()
        client.send(iter([text[:10], text[10:2_000], text[2_000:]]))
        client.ping().wait(60)
        assert json.loads(client.recv())["result"] == "y" * 5_000


def test_a_server_declines_by_default(serve: Serve) -> None:
    with connected(serve(echo)) as client:
        assert client.protocol.extensions == []
        assert result(client, "echo", ["x" * 5_000]) == "x" * 5_000


def test_clients_without_the_extension(serve: Serve) -> None:
    server = serve(echo, numbers, compression_min_bytes=100)
    with Client(f"ws://{HOST}:{server.port}") as client:
        assert client.echo("x" * 5_000).json == "x" * 5_000
        assert list(client.stream.numbers(3)) == [[number] * 100 for number in range(3)]


def close_code(client: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed) as closed:
        client.recv()
    return closed.value.rcvd.code if closed.value.rcvd else None


@pytest.mark.parametrize("length", [1_000_000, 20_000_000])
def test_a_message_that_expands_too_much(serve: Serve, length: int) -> None:
    server = serve(echo, compression_min_bytes=100)
    with connected(server) as client:
        client.send(request("echo", ["x" * length]).decode())
        assert close_code(client) == 1009
    with connected(server) as client:
        assert result(client, "echo", [1]) == 1


def test_others_are_served_while_a_message_is_decoded(serve: Serve) -> None:
    """Each turn decodes a piece: calls that arrive meanwhile are answered before the message is."""
    limits = {"max_body_bytes": 1 << 28, "max_body_ratio": 1 << 30, "max_held_bytes": 1 << 30}
    server = serve(echo, compression_min_bytes=100, **limits)
    with connected(server) as bomb, Client(port=server.port) as other:
        ends: list[Any] = []

        def send() -> None:
            bomb.send(" " * 16_000_000)
            ends.append(json.loads(bomb.recv())["error"]["code"])

        sender = threading.Thread(target=send)
        sender.start()
        answered = 0
        while not ends:
            assert other.echo(1).json == 1
            answered += 1
        sender.join()
    assert ends == [-32700] and answered >= 10


def test_a_message_that_is_not_whole(serve: Serve) -> None:
    server = serve(echo, compression_min_bytes=100)
    for cut in (1, 3, 20):
        with connected(server) as client:
            text = request("echo", [" ".join(map(str, range(100)))])
            encoder = zlib.compressobj(wbits=-15)
            payload = encoder.compress(text) + encoder.flush(zlib.Z_SYNC_FLUSH)
            payload = payload.removesuffix(b"\x00\x00\xff\xff")[:-cut]
            # A frame whose mask changes nothing.
            client.socket.sendall(b"\xc1\xfe" + len(payload).to_bytes(2) + bytes(4) + payload)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1007
