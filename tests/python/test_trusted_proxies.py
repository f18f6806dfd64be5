"""``Server(trusted_proxies=…)``: the client's address behind proxies."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from proxies import haproxy, nginx

import ucall
from harness import HOST, Wire, free_port, http, listening_port, request
from ucall.client import Client

Serve = Callable[..., ucall.Server]
CALL = request("peer", [])
FOR = "X-Forwarded-For: 198.51.100.1"


def peer(ctx: ucall.Context) -> Any:
    return ctx.peer


async def later(ctx: ucall.Context) -> Any:
    return ctx.peer


def _peer(wire: Wire, *headers: str, method: str = "peer") -> Any:
    wire.send(http(request(method, []), *headers))
    return json.loads(wire.reply()[2])["result"]


CASES = [
    ([FOR], ["198.51.100.1", 0]),
    (["X-Forwarded-For: 203.0.113.9, 198.51.100.1:4711"], ["198.51.100.1", 4711]),
    (["X-Forwarded-For: 2001:db8::1, 10.1.2.3"], ["2001:db8::1", 0]),
    (['Forwarded: for="[2001:db8::1]:4711";proto=https'], ["2001:db8::1", 4711]),
    (["Forwarded: for=203.0.113.9, for=198.51.100.1"], ["198.51.100.1", 0]),
    (["Forwarded: for=198.51.100.1", FOR], ["198.51.100.1", 0]),
    (["Forwarded: for=203.0.113.9", FOR], None),
    (["X-Forwarded-For: unknown"], None),
    (["Forwarded: for=_hidden"], None),
    (["X-Forwarded-For: 198.51.100.1, <script>"], None),
    (["X-Forwarded-For: <script>, 198.51.100.1"], ["198.51.100.1", 0]),
    (['Forwarded: for="198.51.100.1'], None),
]


@pytest.mark.parametrize("method", ["peer", "later"])
def test_a_trusted_proxy_names_the_client(serve: Serve, method: str) -> None:
    server = serve(peer, later, trusted_proxies=[HOST, "10.0.0.0/8"])
    with Wire(server.port) as wire:
        proxy = list(wire.socket.getsockname())
        for headers, client in CASES:
            assert _peer(wire, *headers, method=method) == client, headers
            # The next request of the connection may be another client's.
            assert _peer(wire, method=method) == proxy
        batch = b"[" + CALL + b"," + request("later", []) + b"]"
        wire.send(http(batch, FOR))
        assert [it["result"][0] for it in json.loads(wire.reply()[2])] == ["198.51.100.1"] * 2


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8", "127.0.0.2", "unix:", "::1"]])
def test_headers_of_other_peers_are_ignored(serve: Serve, trusted: list[str]) -> None:
    with Wire(serve(peer, trusted_proxies=trusted).port) as wire:
        own = list(wire.socket.getsockname())
        for headers, _ in CASES:
            assert _peer(wire, *headers) == own


def test_raw_tcp_has_the_address_of_the_socket(serve: Serve) -> None:
    with Wire(serve(peer, trusted_proxies=[HOST]).port) as wire:
        assert wire.result("peer", []) == list(wire.socket.getsockname())


def test_a_body_that_arrives_later_or_in_chunks(serve: Serve) -> None:
    with Wire(serve(peer, trusted_proxies=[HOST]).port) as wire:
        sent = http(CALL, FOR)
        for cut in range(1, len(sent)):
            wire.send(sent[:cut])
            wire.send(sent[cut:])
            assert json.loads(wire.reply()[2])["result"] == ["198.51.100.1", 0]
        head = f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{FOR}\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire.send(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(CALL), CALL))
        assert json.loads(wire.reply()[2])["result"] == ["198.51.100.1", 0]


def test_auth_and_routes_get_the_client(serve: Serve) -> None:
    def auth(ctx: ucall.Context) -> Any:
        return ctx.peer and ctx.peer[0] == "198.51.100.1" and ctx.peer

    def user(ctx: ucall.Context) -> Any:
        return ctx.user

    server = serve(user, auth=auth, trusted_proxies=[HOST])

    @server.http("/peer")
    def route(request: ucall.HttpRequest) -> str:
        return repr(request.peer)

    with Wire(server.port) as wire:
        assert _peer(wire, FOR, method="user") == ["198.51.100.1", 0]
        wire.send(http(b"", FOR, target="/peer", method="GET"))
        assert wire.reply()[2] == b"('198.51.100.1', 0)"
        wire.send(http(CALL, "X-Forwarded-For: 198.51.100.1, 198.51.100.2"))
        assert wire.reply()[0] == 401


def test_a_websocket_keeps_the_client_of_its_upgrade(serve: Serve) -> None:
    server = serve(peer, later, trusted_proxies=[HOST])
    for value, client in (("198.51.100.1", ["198.51.100.1", 0]), ("unknown", None)):
        uri = f"ws://{HOST}:{server.port}"
        with Client(uri, headers={"X-Forwarded-For": value}) as caller:
            for _ in range(2):
                assert caller.peer().json == client
                assert caller.later().json == client


def test_processes_on_a_unix_socket_are_trusted_by_name(serve: Serve, tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(ctx: ucall.Context) -> None:
        seen.append(ctx.peer)

    for trusted, client in (([], ucall.Process), (["unix:"], tuple)):
        path = tmp_path / f"{len(trusted)}.sock"
        serve(look, uds=path, trusted_proxies=trusted)
        with Wire(path) as caller:
            caller.send(http(request("look", []), FOR))
            assert caller.reply()[0] == 200
        assert isinstance(seen.pop(), client)


def test_ipv6_proxies(serve: Serve) -> None:
    try:
        server = serve(peer, host="::1", trusted_proxies=["::/127"])
    except OSError:
        pytest.skip("no IPv6")
    with socket.create_connection(("::1", server.port)) as caller:
        caller.sendall(http(CALL, FOR))
        assert b'"result":["198.51.100.1",0]' in caller.recv(1000)


SCRIPT = """
import json, sys
import ucall

options = {"access_log": "json"} | json.loads(sys.argv[1])
server = ucall.Server(port=0, **ucall.options.arguments(options))

@server
def nothing() -> None: ...

server.run()
"""


@contextmanager
def _logged(**options: Any) -> Iterator[Any]:
    arguments = [sys.executable, "-c", SCRIPT, json.dumps(options)]
    with forking.Python(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_the_access_log_has_the_client() -> None:
    with _logged(trusted_proxies=[HOST]) as process:
        with Wire(listening_port(process)) as wire:
            proxy = ":".join(map(str, wire.socket.getsockname()))
            sent = [FOR], ["X-Forwarded-For: [2001:db8::1]:80"], ["Forwarded: for=unknown"], []
            for headers in sent:
                wire.send(http(request("nothing"), *headers))
                wire.reply()
        peers = [json.loads(process.stdout.readline())["peer"] for _ in sent]
    assert peers == ["198.51.100.1", "[2001:db8::1]:80", None, proxy]


@contextmanager
def _nginx(folder: Path, server: int, port: int) -> Iterator[None]:
    configuration = f"""
        server {{
            listen {HOST}:{port};
            location / {{
                proxy_pass http://{HOST}:{server};
                proxy_http_version 1.1;
                proxy_set_header Host localhost;
                proxy_set_header Forwarded "";
                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            }}
        }}
    """
    with nginx(folder, configuration, port):
        yield


@contextmanager
def _haproxy(folder: Path, server: int, port: int) -> Iterator[None]:
    configuration = f"""
defaults
    mode http
    timeout connect 60s
    timeout client 60s
    timeout server 60s
frontend web
    bind {HOST}:{port}
    http-request set-header Host localhost
    http-request del-header Forwarded
    option forwardfor
    default_backend app
backend app
    server app {HOST}:{server}
"""
    with haproxy(folder, configuration, port):
        yield


@pytest.mark.parametrize("proxy", [_nginx, _haproxy])
def test_behind_a_proxy_a_client_cannot_choose_its_address(
    serve_once: Serve, tmp_path: Path, proxy: Callable[..., Any]
) -> None:
    # The client's address is trusted as well, so what it claims is believed: it is a proxy itself.
    near, far = (serve_once(peer, trusted_proxies=[HOST, *more]) for more in ([], ["127.0.0.2"]))
    for server, believed in ((near, False), (far, True)):
        port = free_port()
        folder = tmp_path / str(believed)
        folder.mkdir()
        with proxy(folder, server.port, port):
            sender = socket.create_connection((HOST, port), source_address=("127.0.0.2", 0))
            with Wire(port) as wire:
                wire.socket.close()
                wire.socket = sender
                assert _peer(wire) == ["127.0.0.2", 0]
                spoofed = _peer(wire, FOR, "Forwarded: for=203.0.113.9")
                assert spoofed == (["198.51.100.1", 0] if believed else ["127.0.0.2", 0])


def test_what_is_no_network_is_rejected() -> None:
    for entry in ("*", "localhost", "10.0.0.1/8"):
        with pytest.raises(ValueError, match=r"trusted_proxies: .* is not like 10\.0\.0\.1, "):
            ucall.Server(port=0, trusted_proxies=[entry])
    with pytest.raises(TypeError, match="trusted_proxies: expected a list"):
        ucall.Server(port=0, trusted_proxies="10.0.0.1")
