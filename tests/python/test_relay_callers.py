"""What one caller sends through a relay harms no other caller."""

from __future__ import annotations

import json
from collections.abc import Callable

from relaying import relay
from scripted import Peer, scripted

from harness import Wire, http

__all__ = ["relay"]

SMUGGLED = b'[\n{"jsonrpc":"2.0","id":0,"method":"admin.stop"}\r\n]'
CALL = b'{"jsonrpc":"2.0","method":"up.f",\n"params":%s%s}'
META = b'"_meta":{\n"progressToken":1,\r"tracestate":"a","traceparent":"a\\u000ab"}'


def test_line_breaks_are_not_passed_to_servers_that_read_lines(
    relay: Callable[..., Wire],
) -> None:
    methods: list[str] = []

    def lines(peer: Peer) -> None:
        while True:
            call = json.loads(peer.raw_request())
            methods.append(call["method"])
            if "id" in call:
                peer.send(b'{"jsonrpc":"2.0","id":%d,"result":1}\n' % call["id"])

    named = b'{"a":%s}' % SMUGGLED
    forms = [CALL % (it, b',\n"id":1') for it in (SMUGGLED, named)]
    with scripted(lines) as upstream:
        for options in ({}, {"params": {"b": "\n"}}):
            wire = relay(upstream, **options)
            notification = CALL % (named, b"")
            wire.send(http(forms[-1]) + http(b"[%s]" % b",".join([*forms, notification])))
            assert json.loads(wire.reply()[2])["result"] == 1
            is_error = ["error" in reply for reply in json.loads(wire.reply()[2])]
            assert sorted(is_error) == [False, bool(options)]
            with Wire(wire.socket.getpeername()[1]) as raw:
                raw.send(notification + CALL % (named, b',"id":2,\n' + META))
                assert json.loads(raw.line())["result"] == 1
        assert set(methods) == {"up.f"} and len(methods) == 6 + 5
