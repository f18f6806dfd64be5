"""Servers that relay calls to scripted upstreams, and JSON texts to relay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from scripted import Scripted
from serving import Serve

from harness import Wire


def address(upstream: Scripted) -> str:
    return f"tcp://127.0.0.1:{upstream.port}"


@pytest.fixture
def relay(serve: Serve) -> Iterator[Callable[..., Wire]]:
    """A connection to a server, on each engine, that relays ``up.*``."""
    wires: list[Wire] = []

    def relay(*upstreams: Scripted | str, **options: Any) -> Wire:
        server = serve()
        names = [it if isinstance(it, str) else address(it) for it in upstreams]
        server.relay("up.*", to=names, **options)
        wires.append(Wire(server.port))
        return wires[-1]

    yield relay
    for wire in wires:
        wire.socket.close()


def unavailable(wire: Wire, method: str = "up.f") -> dict[str, Any]:
    """The data of the error of a call whose upstream is unavailable."""
    error = wire.error(method)
    assert (error["code"], error["message"]) == (-32005, "Upstream unavailable"), error
    data: dict[str, Any] = error["data"]
    return data


SPACE = st.sampled_from(["", "", " ", "\t "])
NUMBERS = ["0", "-0", "1.0", "1e2", "1E+2", "-1.50e-7", "123456789012345678901234567890", "1e999"]
STRINGS = ['""', '"\\u00e9\\/\\n"', '"é€😀"', '"\\ud83d\\ude00"', '"}{]["', '"\\\\"', '"\\""']
SCALARS = st.sampled_from([*NUMBERS, *STRINGS, "true", "false", "null"]) | st.text(
    st.characters(codec="utf-8")
).map(lambda text: json.dumps(text, ensure_ascii=False))


def spaced(brackets: str) -> Callable[[list[str]], st.SearchStrategy[str]]:
    def spaced(items: list[str]) -> st.SearchStrategy[str]:
        parts = [brackets[0], *", ".join(items).split(" "), brackets[1]]
        return SPACE.map(lambda space: parts[0] + space + ",".join(items) + space + parts[-1])

    return spaced


def containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(st.sampled_from(STRINGS), SPACE, values).map(
        lambda it: f"{it[0]}{it[1]}:{it[1]}{it[2]}"
    )
    return st.lists(values, max_size=4).flatmap(spaced("[]")) | st.lists(
        members, max_size=4
    ).flatmap(spaced("{}"))


VALUES = st.recursive(SCALARS, containers, max_leaves=8)
IDS = st.sampled_from([*NUMBERS, *STRINGS, "null", f'"{"i" * 1022}"'])
