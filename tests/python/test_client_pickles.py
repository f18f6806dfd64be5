"""Pickled clients: the address and the options, and connections of their own."""

from __future__ import annotations

import pickle
import ssl
import sys
from typing import Any

import forking
import pytest
from both_clients import Blocking, NewClient
from serving import Serve

import ucall
from ucall import aio
from ucall.client import Client, ClientTLS


def peer(ctx: ucall.Context, token: str | None = None) -> list[Any]:
    """The connection of the caller, and what its options send."""
    assert isinstance(ctx.peer, tuple)
    return [ctx.peer[1], token, ctx.headers.get("x-key"), ctx.headers.get("x-call")]


def count(to: int) -> Any:
    yield from range(to)


def pickled(client: Any) -> Any:
    """The same client in another process, as far as it can tell."""
    if isinstance(client, Blocking):
        return Blocking(pickled(client._target), client._in)
    return pickle.loads(pickle.dumps(client))


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws", "udp", "several"])
def test_a_pickled_client_has_its_options_and_connections_of_its_own(
    serve_once: Serve, scheme: str, new_client: NewClient
) -> None:
    server = serve_once(peer, count, udp=True)
    port = server.udp_port if scheme == "udp" else server.port
    uri: Any = f"{scheme}://127.0.0.1:{port}"
    options: dict[str, Any] = {"max_reply_bytes": 4096}
    changes: dict[str, Any] = {"timeout": 7}
    if scheme in ("http", "ws", "several"):
        options["headers"] = {"X-Key": "secret"}
    if scheme in ("http", "several"):
        changes["headers"] = {"X-Call": "mine"}
    if scheme == "several":
        uri = [f"http://127.0.0.1:{port}"]
        changes |= {"idempotent": True, "key": 5}
    if scheme != "udp":
        changes["id"] = "seven"
    with new_client(uri, **options) as client:
        changed = client.with_options(**changes)
        stream = client.stream.count(3) if scheme != "udp" else None
        before = changed.peer(token="a")
        for other in pickled(changed), pickled(pickled(changed)):
            response = other.peer(token="a")
            assert response.json[1:] == before.json[1:] and response.json[0] != before.json[0]
            assert response.id == "seven" or scheme == "udp"
            ours, theirs = changed._options, other._options
            for name in ("timeout", "headers", "id", "idempotent", "key"):
                assert getattr(theirs, name, None) == getattr(ours, name, None)
            if scheme != "udp":
                with pytest.raises(ucall.ConnectionError, match="max_reply_bytes"):
                    other.peer(token="b" * 5000)
            other.close()
        assert stream is None or [*stream] == [0, 1, 2]
        assert changed.peer(token="a").json[1:] == before.json[1:]


def test_a_client_goes_to_a_new_process(serve_once: Serve) -> None:
    server = serve_once(peer)
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).peer('a').json)"
    with Client(port=server.port, headers={"X-Key": "secret"}) as client:
        done = forking.run([sys.executable, "-c", program], input=pickle.dumps(client))
    assert b"'a', 'secret', None]" in done.stdout, done.stderr
    # As the argument of a pool's `map`.
    assert pickle.loads(pickle.dumps(client.peer))("a").json[1] == "a"


class Derived(Client):
    """A client with a constructor and attributes of its own."""

    def __init__(self, token: str, port: int) -> None:
        super().__init__(port=port, headers={"X-Key": token})
        self.token = token


def test_derived_clients_keep_their_attributes(serve_once: Serve) -> None:
    server = serve_once(peer)
    other = pickled(Derived("secret", server.port))
    assert type(other) is Derived and other.token == "secret"
    assert other.peer().json[2] == "secret"
    secure = pickled(ClientTLS("localhost", allow_self_signed=True))
    assert (type(secure), str(secure._target)) == (ClientTLS, "https://localhost:8545")
    assert secure._pool._tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("kind", [Client, aio.Client])
def test_a_context_of_tls_cannot_be_pickled(kind: type[Any]) -> None:
    client = kind("https://localhost", verify=ssl.create_default_context())
    with pytest.raises(TypeError, match=r"^verify: an ssl\.SSLContext cannot be pickled"):
        pickle.dumps(client)
