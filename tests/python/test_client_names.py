"""The names that `dir` has of a client, which interactive shells complete."""

from __future__ import annotations

import itertools
import pickle
import rlcompleter
from typing import Any

import pytest
from both_clients import Blocking, NewClient
from described import described, method
from serving import Serve

from ucall._client.names import described_methods
from ucall.client import Client


def total(values: list[int]) -> int:
    return sum(values)


def completed(client: Any, text: str) -> list[str]:
    """What the prompt of Python inserts for a TAB."""
    completer = rlcompleter.Completer({"client": client})
    found = (completer.complete(text, at) for at in itertools.count())
    return [word for word in itertools.takewhile(bool, found) if word]


def names(value: Any) -> set[str]:
    return set(dir(value._target if isinstance(value, Blocking) else value))


def test_names_are_known_once_the_server_has_described_them(
    serve_once: Serve, new_client: NewClient
) -> None:
    server = serve_once(total)
    for name in ("math.add", "math.deep.sub", "two words", "class", "_hidden", "Größe"):
        server.add(total, name)
    client = new_client("127.0.0.1", server.port)
    assert "total" not in names(client) and "call" in names(client)
    assert "discover" in names(client.rpc)
    assert server.stats()["bytes_received"] == 0
    client.rpc.discover()
    assert {"total", "math", "Größe", "rpc", "call"} <= names(client)
    assert not {"two words", "class", "_hidden", "math.add"} & names(client)
    assert {"add", "deep"} <= names(client.math)
    assert "sub" in names(client.math.deep) and "total" not in names(client.math)
    assert {"total", "math"} <= names(client.stream)
    assert "total" in names(client.with_options(timeout=5))
    assert "total" not in names(new_client("127.0.0.1", server.port))


def test_a_tab_completes_methods(serve_once: Serve) -> None:
    server = serve_once(total)
    server.add(total, "math.add")
    with Client("127.0.0.1", server.port) as client:
        client.rpc.discover()
        assert completed(client, "client.tot") == ["client.total("]
        assert completed(client, "client.math.a") == ["client.math.add("]
        assert "total" not in dir(pickle.loads(pickle.dumps(client)))


@pytest.mark.parametrize(
    "description",
    [None, [], {}, {"methods": None}, {"methods": [1, {}, {"name": 2}, {"name": None}]}],
)
def test_other_descriptions_have_no_names(description: Any) -> None:
    assert described_methods(description) == []


def test_a_long_description_is_not_read_for_names() -> None:
    document = {"methods": [method("total"), method("x" * (1 << 20))]}
    with described(document) as peer, Client("127.0.0.1", peer.port) as client:
        client.rpc.discover()
        assert "total" not in dir(client)


def test_a_failed_discovery_leaves_no_names(serve_once: Serve) -> None:
    server = serve_once(total, describe=False)
    with Client("127.0.0.1", server.port) as client:
        assert client.rpc.discover().error is not None
        assert "total" not in dir(client)
