"""Servers that relay calls to scripted upstreams, and JSON texts to relay."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from scripted import Peer, Scripted
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


CALL = re.compile(
    rb'\{"jsonrpc":"2.0","method":"(?P<method>[^"]*)"(,"params":(?P<params>.*))?'
    rb',"_meta":(?P<meta>\{[^{}]*\})(,"id":(?P<id>\d+))?\}'
)


def read_call(peer: Peer) -> re.Match[bytes]:
    """The next call that a relay sends; it sends no more than one a line."""
    found = CALL.fullmatch(peer.raw_request())
    assert found is not None
    return found


def reply(call: re.Match[bytes], result: bytes | None = None) -> bytes:
    """The reply to a call, by default with its params."""
    result = call["params"] if result is None else result
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (call["id"], result)


def echo(peer: Peer) -> None:
    while True:
        peer.send(reply(read_call(peer)) + b"\n")


def silent(peer: Peer) -> None:
    while True:
        peer.raw_request()


#: Documents that a property test relays; `UCALL_RELAY_EXAMPLES=10000` looks further.
EXAMPLES = int(os.environ.get("UCALL_RELAY_EXAMPLES", "40"))
#: White space between tokens; only the texts of callers over HTTP may have line breaks.
SPACE = st.sampled_from(["", "", " ", "\t "])
BREAKS = st.sampled_from(["", " ", "\n", "\r\n\t"])
NUMBERS = ["0", "-0", "1.0", "1e2", "1E+2", "-1.50e-7", "123456789012345678901234567890", "1e999"]
STRINGS = ['""', '"\\u00e9\\/\\n"', '"é€😀"', '"\\ud83d\\ude00"', '"}{]["', '"\\\\"', '"\\""']
SCALARS = st.sampled_from([*NUMBERS, *STRINGS, "true", "false", "null"]) | st.text(
    st.characters(codec="utf-8")
).map(partial(json.dumps, ensure_ascii=False))


def containers(
    values: st.SearchStrategy[str], space: st.SearchStrategy[str]
) -> st.SearchStrategy[str]:
    """Arrays and objects of values."""
    members = st.tuples(st.sampled_from(STRINGS), space, values).map(_member)
    arrays = st.tuples(st.just("[]"), space, st.lists(values, max_size=4))
    objects = st.tuples(st.just("{}"), space, st.lists(members, max_size=4))
    return (arrays | objects).map(_container)


# No lambdas: hypothesis shows their source, for which CPython 3.11 has no thread-safe parser.
def _member(parts: tuple[str, str, str]) -> str:
    key, space, value = parts
    return f"{key}{space}:{space}{value}"


def _container(parts: tuple[str, str, list[str]]) -> str:
    brackets, space, items = parts
    return brackets[0] + space + ",".join(items) + space + brackets[1]


def values(space: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """All JSON texts, with such white space between tokens."""
    return st.recursive(SCALARS, partial(containers, space=space), max_leaves=8)


IDS = st.sampled_from([*NUMBERS, *STRINGS, "null", f'"{"i" * 1022}"'])
