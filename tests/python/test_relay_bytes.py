"""Relayed calls pass params, ids, results and the data of errors on byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relaying import (
    BREAKS,
    EXAMPLES,
    IDS,
    SPACE,
    containers,
    echo,
    read_call,
    relay,
    reply,
    values,
)
from scripted import Peer, scripted

from harness import Wire, http, request

__all__ = ["relay"]

CALL = '{"jsonrpc":"2.0","method":"up.f","params":%s,"id":%s}'
RESULT = '{"jsonrpc":"2.0","id":%s,"result":%s}'
ERROR = '{"jsonrpc":"2.0","id":%s,"error":{"code":-7,"message":"no","data":%s}}'

many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def test_params_come_through_byte_for_byte(relay: Callable[..., Wire]) -> None:
    with scripted(echo) as upstream:
        wire = relay(upstream)

        @many
        @given(st.lists(st.tuples(containers(values(SPACE), SPACE), IDS), min_size=1, max_size=5))
        def check(calls: list[tuple[str, str]]) -> None:
            wire.send("".join(CALL % call for call in calls).encode())
            lines = [wire.line().decode() for _ in calls]
            assert lines == [RESULT % (id, params) for params, id in calls]

        check()


def answering(peer: Peer) -> None:
    """Replies with the member of the params: `{"result":…}` or `{"data":…}` of an error."""
    while True:
        call = read_call(peer)
        kind, _, rest = call["params"].partition(b":")
        if kind == b'{"result"':
            peer.send(reply(call, rest[:-1]))
        else:
            error = b'{"code":-7,"message":"no","data":%s}' % rest[:-1]
            peer.send(b'{"jsonrpc":"2.0","error":%s,"id":%s}' % (error, call["id"]))


def outcomes(space: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str, str]]]:
    """Calls: whether they have a result or data, its text, and their ids."""
    kinds = st.sampled_from(["result", "data"])
    return st.lists(st.tuples(kinds, values(space), IDS), min_size=1, max_size=4)


def texts(calls: list[tuple[str, str, str]]) -> tuple[list[str], list[str]]:
    """The texts of calls, and those of their replies."""
    sent = [CALL % (f'{{"{kind}":{text}}}', id) for kind, text, id in calls]
    forms = {"result": RESULT, "data": ERROR}
    return sent, [forms[kind] % (id, text) for kind, text, id in calls]


def test_results_and_data_come_back_byte_for_byte(relay: Callable[..., Wire]) -> None:
    with scripted(answering) as upstream:
        wire = relay(upstream)

        @many
        @given(outcomes(SPACE))
        def check(calls: list[tuple[str, str, str]]) -> None:
            sent, expected = texts(calls)
            wire.send("".join(sent).encode())
            assert [wire.line().decode() for _ in calls] == expected

        check()


@pytest.mark.parametrize("is_batch", [False, True])
def test_over_http_line_breaks_come_back_too(relay: Callable[..., Wire], is_batch: bool) -> None:
    # The upstream reads lines, so it is told what to send by the number of a text.
    known: list[str] = []

    def script(peer: Peer) -> None:
        while True:
            call = read_call(peer)
            kind, number = json.loads(call["params"])
            text = known[number].encode()
            if kind == "result":
                peer.send(reply(call, text))
            else:
                error = b'{"code":-7,"message":"no","data":%s}' % text
                peer.send(b'{"jsonrpc":"2.0","error":%s,"id":%s}' % (error, call["id"]))

    with scripted(script) as upstream:
        wire = relay(upstream)

        @many
        @given(outcomes(BREAKS))
        def check(calls: list[tuple[str, str, str]]) -> None:
            known[:] = [text for _, text, _ in calls]
            expected = texts(calls)[1]
            sent = [CALL % (f'["{it[0]}",{n}]', it[2]) for n, it in enumerate(calls)]
            if is_batch:
                sent, expected = [f"[{','.join(sent)}]"], [f"[{','.join(expected)}]"]
            wire.send(b"".join(http(text.encode()) for text in sent))
            assert [wire.reply()[2].decode() for _ in sent] == expected

        check()


def test_over_raw_tcp_line_breaks_become_spaces(relay: Callable[..., Wire]) -> None:
    def script(peer: Peer) -> None:
        peer.send(reply(read_call(peer), b'[1,\r\n"\\n"]'))

    with scripted(script) as upstream:
        wire = relay(upstream)
        wire.send(request("up.f"))
        assert wire.line() == b'{"jsonrpc":"2.0","id":1,"result":[1,  "\\n"]}'

    def failing(peer: Peer) -> None:
        error = b'{"code":-7,"message":"no","data":[1,\n2]}'
        peer.send(b'{"jsonrpc":"2.0","error":%s,"id":%s}' % (error, read_call(peer)["id"]))

    with scripted(failing) as upstream:
        found: Any = relay(upstream).error("up.f")
        assert found["data"] == [1, 2]
