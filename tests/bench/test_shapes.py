"""The requests of real clients: valid HTTP, the same call, lengths that change."""

import json

import h11
import pytest

from bench.harness import shapes


def parsed(request: bytes) -> tuple[dict[bytes, bytes], bytes]:
    server = h11.Connection(h11.SERVER)
    server.receive_data(request)
    head, data, end = server.next_event(), server.next_event(), server.next_event()
    assert isinstance(end, h11.EndOfMessage) and server.trailing_data == (b"", False)
    return dict(head.headers), bytes(data.data)


@pytest.mark.parametrize("client", shapes.CLIENTS)
def test_each_request_is_whole_and_has_its_own_call(client):
    found = [parsed(request) for request in shapes.requests(client)]
    assert [json.loads(body) for _, body in found] == shapes.calls()
    assert len({headers[b"content-length"] for headers, _ in found}) > 10


@pytest.mark.parametrize("client", shapes.CLIENTS)
def test_the_first_request_is_the_recorded_one(client):
    assert shapes.requests(client)[0] == shapes.recorded(client)


def test_the_browser_sends_what_browsers_send():
    headers, _ = parsed(shapes.recorded("chromium"))
    assert len(headers) >= 15 and {b"origin", b"cookie", b"sec-fetch-mode"} <= headers.keys()
