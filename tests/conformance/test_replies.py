"""Replies pass httplint without a finding, and h11 parses each as complete."""

from __future__ import annotations

import json

import h11
import pytest
from httplint import HttpResponseLinter, levels
from limits import LimitedServer, call, post

#: Requests, and the status of their replies.
REQUESTS = {
    "a call": (post(call("echo", value=[1])), 200),
    "a stream of events": (post(call("each", values=[1, "é"]), "Accept: text/event-stream"), 200),
    "a stream of lines": (post(call("each", values=[1, "é"]), "Accept: application/x-ndjson"), 200),
    "a call that fails": (post(call("nothing")), 200),
    "a notification": (post(call("echo").replace(b',"id":1', b"")), 204),
    "what is no JSON": (post(b"{"), 200),
    "OPTIONS": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 204),
    "a preflight": (
        b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        b"Access-Control-Request-Method: POST\r\n\r\n",
        204,
    ),
    "GET": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "HEAD": (b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "another path": (post(b"").replace(b" / ", b" /x "), 404),
    "another host": (post(b"").replace(b"localhost", b"evil.example"), 403),
    "no host": (b"POST / HTTP/1.1\r\n\r\n", 400),
    "a long body": (post(b"").replace(b": 0", b": 99999999999"), 413),
    "an unknown expectation": (post(b"", "Expect: x"), 417),
    "many headers": (post(b"", *["X: x"] * 100), 431),
    "an unknown coding": (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        501,
    ),
    "another version": (b"POST / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
}


#: Findings that are ignored. The first is about caching replies to GET, and replies to POST are not
#: cached. The others repeat the status.
NO_FAULTS = {"FRESHNESS_HEURISTIC", "STATUS_BAD_REQUEST", "STATUS_VERSION_NOT_SUPPORTED"}


def _reply(peer: LimitedServer, data: bytes) -> tuple[h11.Response, bytes]:
    """The reply as h11 parses it."""
    connection = h11.Connection(h11.CLIENT)
    method = data.split()[0].decode()
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "localhost")]))
    connection.send(h11.EndOfMessage())
    body, response = b"", None
    with peer.wires(1) as [wire]:
        wire.send(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                wire.more()
                connection.receive_data(bytes(wire.received))
                wire.received.clear()
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                assert isinstance(event, h11.EndOfMessage) and response
                return response, body


@pytest.mark.parametrize("name", REQUESTS)
def test_reply_is_well_formed(name: str, peer: LimitedServer) -> None:
    data, status = REQUESTS[name]
    response, body = _reply(peer, data)
    assert response.status_code == status
    linter = HttpResponseLinter(no_content=name == "HEAD")
    linter.process_response_topline(b"1.1", str(status).encode(), response.reason)
    linter.process_headers(response.headers.raw_items())
    linter.feed_content(body)
    linter.finish_content(True)
    found = (note for note in linter.notes if note.level in (levels.BAD, levels.WARN))
    faults = {type(note).__name__ for note in found}
    assert faults <= NO_FAULTS


@pytest.mark.parametrize("name", ["a stream of events", "a stream of lines"])
def test_h11_reads_the_items_of_a_stream(name: str, peer: LimitedServer) -> None:
    _, body = _reply(peer, REQUESTS[name][0])
    messages = [
        json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n") if line
    ]
    values = [message["params"]["value"] for message in messages[:-1]]
    assert (values, messages[-1]) == ([1, "é"], {"jsonrpc": "2.0", "id": 1, "result": None})
