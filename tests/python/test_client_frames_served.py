"""Clients that send binary parts to real servers, over each transport."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy
import pytest
from both_clients import NewClient
from certificates import Authority, Files, authority, files
from serving import Serve

import ucall
from harness import HOST
from ucall.types.arrays import decode_array

__all__ = ["authority", "files"]

SMALL = numpy.arange(6, dtype="float32").reshape(2, 3)
LARGE = numpy.arange(30_000, dtype="int64").reshape(3, -1)


def same(value: numpy.ndarray) -> numpy.ndarray:
    return value


def given(value: Any) -> Any:
    """What a function without annotations gets."""
    return {"type": type(value).__name__, "value": value}


def marked(value: dict[str, int]) -> dict[str, Any]:
    """Data of a caller, which looks like the place of a part, beside an array."""
    return {"value": value, "array": SMALL}


async def later(value: numpy.ndarray) -> numpy.ndarray:
    return numpy.asarray(value + 1)


def check(client: Any) -> None:
    for array in LARGE, SMALL, LARGE.T, LARGE[:, ::2], numpy.array(3.0), numpy.empty((0, 3)):
        assert numpy.array_equal(client.same(array).numpy, array)
        assert numpy.array_equal(client.later(value=array).numpy, array + 1)
    assert client.given(b"abc").json == {"type": "bytes", "value": "YWJj"}
    assert client.given({"$part": 0}).json == {"type": "dict", "value": {"$part": 0}}
    beside = client.marked({"$part": 0}).json
    assert beside["value"] == {"$part": 0}
    assert numpy.array_equal(decode_array(base64.b64decode(beside["array"])), SMALL)
    with pytest.raises(ucall.RPCError, match="expected array"):
        _ = client.same(b"abc").json
    with client.batch() as batch:
        first, second = batch.same(LARGE), batch.same(SMALL)
    assert numpy.array_equal(first.numpy, LARGE)
    assert numpy.array_equal(second.numpy, SMALL)
    client.notify("same", LARGE)
    assert client.same(SMALL).numpy.shape == (2, 3)


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_each_transport(serve: Serve, new_client: NewClient, scheme: str) -> None:
    server = serve(same, given, marked, later)
    with new_client(f"{scheme}://{HOST}:{server.port}") as client:
        check(client)
        assert state_of(client) == "yes"


@pytest.mark.parametrize("scheme", ["https", "tcps", "wss"])
def test_tls(
    serve_once: Serve, new_client: NewClient, scheme: str, authority: Authority, files: Files
) -> None:
    server = serve_once(
        same, given, marked, later, ssl_certfile=files.certificate, ssl_keyfile=files.key
    )
    with new_client(f"{scheme}://localhost:{server.port}", verify=authority.path) as client:
        check(client)
        assert state_of(client) == "yes"


@pytest.mark.parametrize("scheme", ["unix", "tcp+unix", "ws+unix"])
def test_a_unix_socket(
    serve_once: Serve, new_client: NewClient, scheme: str, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    serve_once(same, given, marked, later, uds=str(path))
    with new_client(f"{scheme}://{path}") as client:
        check(client)
        assert state_of(client) == "yes"


@pytest.mark.parametrize("is_balanced", [False, True])
def test_a_call_with_too_many_parts_is_json(
    serve_once: Serve, new_client: NewClient, is_balanced: bool
) -> None:
    server = serve_once(given, max_parts=2)
    uri = f"{HOST}:{server.port}"
    with new_client([uri] if is_balanced else uri) as client:
        for count in 1, 1, 3, 3, 3, 1:
            assert client.given([b"abc"] * count).json["value"] == ["YWJj"] * count


def test_several_servers_and_udp(serve_once: Serve, new_client: NewClient) -> None:
    servers = [serve_once(same, given, marked, later) for _ in range(2)]
    with new_client([f"{HOST}:{it.port}" for it in servers]) as client:
        check(client)
    udp = serve_once(same, udp_port=0)
    with new_client(f"udp://{HOST}:{udp.udp_port}") as client:
        assert numpy.array_equal(client.same(SMALL).numpy, SMALL)


def state_of(client: Any) -> str:
    """What a client knows of its server."""
    target = client._target
    state: str = getattr(target, "_target", target).frames.state
    return state
