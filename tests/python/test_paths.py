"""``Server(path=…)``: where calls are, and what belongs to them."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import forking
import httpx
import pytest
from functions import add
from serving import Serve

import ucall
import ucall.auth
from harness import Wire, http, request
from ucall.aio import Client as AsyncClient
from ucall.client import Client

SUM = request("add", [2, 3])
HTML = {"Accept": "text/html"}


def statuses(server: ucall.Server, *requests: tuple[str, str]) -> list[int]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        return [
            client.request(
                method, path, content=SUM if method == "POST" else None, headers=HTML
            ).status_code
            for method, path in requests
        ]


def test_calls_are_at_the_path_alone(serve: Serve) -> None:
    server = serve(add, path="/api/rpc")
    with Wire(server.port) as wire:
        for target in ("/api/rpc", "/api/rpc?a=b", "http://localhost/api/rpc", "/api/rpc"):
            # More often than a head takes to be recognized by comparison.
            for _ in range(3):
                wire.send(http(SUM, target=target))
                assert json.loads(wire.reply()[2])["result"] == 5
    for target in ("/", "/ws", "/api", "/api/rpc/", "/api/rpcs", "/API/RPC", "//api/rpc"):
        with Wire(server.port) as wire:
            wire.send(http(SUM, target=target))
            assert wire.reply()[0] == 404, target
    with Wire(server.port) as wire:
        head = "POST /api/rpc HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire.send(f"{head}{len(SUM):x}\r\n".encode() + SUM + b"\r\n0\r\n\r\n")
        assert json.loads(wire.reply()[2])["result"] == 5
        text = SUM[:-1] + b" " * 400_000 + b"}"
        wire.send(http(text, target="/api/rpc"))
        assert json.loads(wire.reply()[2])["result"] == 5
        assert wire.socket.fileno() >= 0
    with Wire(server.port) as wire:
        assert wire.result("add", [2, 3]) == 5, "raw documents have no path"


def test_what_belongs_to_calls_is_below_the_path(serve: Serve) -> None:
    server = serve(add, path="/api/rpc", mcp=True, metrics=True)
    below = ("openrpc.json", "ucall.js")
    assert statuses(server, *(("GET", f"/api/rpc/{it}") for it in below)) == [200, 200]
    assert statuses(server, *(("GET", f"/{it}") for it in below)) == [404, 404]
    assert statuses(server, ("GET", "/api/rpc"), ("GET", "/")) == [200, 404]
    assert statuses(server, ("POST", "/api/rpc/mcp"), ("POST", "/mcp")) == [400, 404]
    watched = ("/healthz", "/readyz", "/metrics")
    assert statuses(server, *(("GET", it) for it in watched)) == [200] * 3
    url = f"http://127.0.0.1:{server.port}"
    body = {"a": 2, "b": 3}
    assert httpx.post(f"{url}/api/rpc/add", json=body).json() == 5
    assert httpx.post(f"{url}/add", json=body).status_code == 404
    reply = httpx.get(f"{url}/api/rpc")
    assert (reply.status_code, reply.headers["Allow"]) == (405, "POST, OPTIONS")
    assert httpx.options(f"{url}/api/rpc").headers["Allow"] == "GET, HEAD, POST, OPTIONS"


def test_several_paths(serve: Serve) -> None:
    server = serve(add, path=["/", "/v1/rpc"])
    for base in ("", "/v1/rpc"):
        uri = f"127.0.0.1:{server.port}{base}"
        for scheme in ("http", "ws"):
            with Client(f"{scheme}://{uri}") as client:
                assert client.call("add", 2, 3).json == 5
        assert httpx.get(f"http://{uri}/openrpc.json").status_code == 200
        assert httpx.post(f"http://{uri}/add", json=[2, 3]).json() == 5
    with Client(f"ws://127.0.0.1:{server.port}/ws") as client:
        assert client.call("add", 2, 3).json == 5


def test_the_root_is_the_program_s(serve: Serve) -> None:
    server = serve(add, path="/api/rpc")

    @server.http("/", methods=["GET", "POST"])
    def page(request: ucall.HttpRequest) -> str:
        return f"{request.method} {len(request.body)}"

    url = f"http://127.0.0.1:{server.port}"
    assert httpx.get(url).text == "GET 0" and httpx.post(url, content=b"abc").text == "POST 3"
    with pytest.raises(ValueError, match="POST /api/rpc is for JSON-RPC"):
        server.http("/api/rpc", methods=["POST"])(page)
    server.http("/api/rpc")(page)
    assert httpx.get(f"{url}/api/rpc").text == "GET 0", "in place of the explorer"


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_clients_take_the_path_in_their_address(serve: Serve, scheme: str) -> None:
    server = serve(add, path="/api/rpc")
    uri = f"{scheme}://127.0.0.1:{server.port}/api/rpc"
    with Client(uri) as client:
        assert [client.call("add", it, 3).json for it in range(5)] == [3, 4, 5, 6, 7]

    async def call() -> Any:
        async with AsyncClient(uri) as client:
            return (await client.call("add", 2, 3)).json

    assert asyncio.run(call()) == 5
    with pytest.raises((ucall.HTTPError, ucall.ConnectionError)):
        Client(uri.removesuffix("/api/rpc")).call("add", 2, 3).json  # noqa: B018


def test_the_command_takes_the_path_in_its_address(serve_once: Serve) -> None:
    server = serve_once(add, path="/api/rpc")
    uri = f"http://127.0.0.1:{server.port}/api/rpc"
    command = [sys.executable, "-m", "ucall.cli", "--uri", uri, "add", "a=2", "b=3"]
    ran = forking.run(command, text=True)
    assert (ran.stdout, ran.returncode) == ("5\n", 0), ran.stderr


def test_auth_streams_and_refusals_at_a_path(serve: Serve) -> None:
    server = serve(add, path="/api/rpc", auth=ucall.auth.bearer(["s3cret"]))

    def letters() -> Any:
        yield from "ab"

    server.add(letters, auth=False)
    with Wire(server.port) as wire:
        wire.send(http(SUM, target="/api/rpc"))
        assert wire.reply()[0] == 401
        wire.send(http(SUM, "Authorization: Bearer s3cret", target="/api/rpc"))
        assert json.loads(wire.reply()[2])["result"] == 5
    headers = {"Accept": "text/event-stream"}
    url = f"http://127.0.0.1:{server.port}/api/rpc"
    reply = httpx.post(url, content=request("letters"), headers=headers)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.text.count("data:") == 3


def test_metadata_of_a_protected_resource_is_that_of_the_path(serve_once: Serve) -> None:
    pytest.importorskip("jwt")
    jwks = {"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "A" * 43}]}
    auth = ucall.auth.oauth("https://issuer.example", "audience", jwks=jwks)
    server = serve_once(add, path="/api/rpc", auth=auth)
    url = f"http://127.0.0.1:{server.port}"
    challenge = httpx.post(f"{url}/api/rpc", content=SUM).headers["WWW-Authenticate"]
    metadata = f"{url}/.well-known/oauth-protected-resource/api/rpc"
    assert f'resource_metadata="{metadata}"' in challenge
    assert httpx.get(metadata).json()["resource"] == f"{url}/api/rpc"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "path: expected one such as '/api/rpc', got ''"),
        ("api", "got 'api'"),
        ("/api/", "got '/api/'"),
        ("//api", "got '//api'"),
        ("/a b", "got '/a b'"),
        ("/a?b", "got '/a?b'"),
        ("/a%20b", "got '/a%20b'"),
        ("/files/*", "got '/files/*'"),
        ("/healthz", "path: /healthz is for those who watch the server"),
        ([], "path: expected at least one"),
    ],
)
def test_paths_that_no_server_has(path: Any, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        ucall.Server(port=0, path=path)
    assert problem in str(refused.value)


def test_a_path_is_a_str() -> None:
    with pytest.raises(TypeError, match="path: expected a str, or several; got int"):
        ucall.Server(port=0, path=[7])  # type: ignore[list-item]
