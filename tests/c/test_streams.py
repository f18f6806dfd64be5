"""Streams: calls that are replied to in parts."""

import json

import pytest

import harness
from harness import Client, serving, wait_until
from wire import Wire

COUNT = harness.example("stream.c")
STREAM = harness.PROGRAMS / "items.c"
ACCEPTED, NO_ROOM, ENDED = range(3)
LONG_ITEM = json.dumps("x" * 20_000)


@pytest.fixture
def stream(built, engine):
    with serving([built(STREAM), engine]) as server:
        yield server


def send(client: Client, method: str, params: dict, meta: dict) -> None:
    call = {"jsonrpc": "2.0", "method": method, "params": params, "id": "s", "_meta": meta}
    client.send(json.dumps(call).encode() + b"\n")


def open_stream(client: Client, **params) -> None:
    send(client, "open", params, {"progressToken": "t"})


def items_and_reply(client: Client) -> tuple[list, dict]:
    items = []
    while "method" in (message := client.message()):
        assert (message["method"], message["params"]["token"]) == ("$/progress", "t")
        items.append(message["params"]["value"])
    assert message["id"] == "s"
    return items, message


def is_open(client: Client) -> bool:
    """Whether the stream is open; its connection is another one."""
    return client.call("send", {"item": "0"}) == ACCEPTED


@pytest.mark.parametrize("bytes_max", [0, 300])
def test_the_example_counts(built, engine, bytes_max):
    """A limit that few items reach makes the program wait for room again and again."""
    options = ["--port", 0, "--engine", engine, "--stream-bytes", bytes_max]
    with serving([built(COUNT), *options]) as server, Client(server.port) as client:
        for end in 0, 1, 5_000:
            send(client, "count", {"end": end}, {"progressToken": "t"})
            items, reply = items_and_reply(client)
            assert (items, reply["result"]) == (list(range(end)), end)


def test_the_example_waits_for_a_slow_client_and_notices_its_end(built, engine):
    with serving([built(COUNT), "--port", 0, "--engine", engine]) as server:
        clients = [Client(server.port) for _ in range(3)]
        for client in clients:
            send(client, "count", {"end": 300_000}, {"progressToken": "t"})
            assert client.message()["params"]["value"] == 0
        clients.pop().close()
        items, reply = items_and_reply(clients[0])
        assert (items, reply["result"]) == (list(range(1, 300_000)), 300_000)
        clients[0].close()
    # The last one is still open, and the stream without room is released by ucall_free.
    clients[1].close()


@pytest.mark.parametrize(
    ("media_type", "prefix", "suffix"),
    [("text/event-stream", "data: ", "\n\n"), ("application/x-ndjson", "", "\n")],
)
def test_http(built, engine, media_type, prefix, suffix):
    body = json.dumps({"jsonrpc": "2.0", "method": "count", "params": {"end": 3}, "id": 7})
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nAccept: {media_type}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    with (
        serving([built(COUNT), "--port", 0, "--engine", engine]) as server,
        Wire(server.port) as wire,
    ):
        wire.send(request)
        received = wire.take_to(b"\r\n0\r\n\r\n")
    head, chunks = received.decode().split("\r\n\r\n", 1)
    assert f"Content-Type: {media_type}" in head
    texts = [text for text in chunks.split("\r\n")[1::2] if text]
    messages = [json.loads(text.removeprefix(prefix)) for text in texts]
    assert all(text.startswith(prefix) and text.endswith(suffix) for text in texts)
    values = [message["params"]["value"] for message in messages[:-1]]
    assert (values, messages[-1]["result"]) == ([0, 1, 2], 3)


def test_a_client_that_takes_no_items_gets_an_error_or_a_list(stream):
    with Client(stream.port) as client:
        error = client.error_of("open")
        assert (error["code"], "progressToken" in error["data"]) == (-32600, True)
        assert client.call("open", {"collect": True}) == [1, 2]
        assert client.call("nulls") is False


def test_an_overflow_that_does_not_exist_is_refused(stream):
    with Client(stream.port) as client:
        open_stream(client, overflow=4)
        assert client.message()["error"]["code"] == -32603


def test_items_precede_the_reply_and_none_follows(stream):
    with Client(stream.port) as client, Client(stream.port) as other:
        open_stream(client)
        wait_until(lambda: is_open(other))
        assert other.call("send", {"item": '{"a":\r\n[1]}', "times": 2}) == ACCEPTED
        assert other.call("finish", {"reply": 5}) == ENDED
        items, reply = items_and_reply(client)
        assert (items, reply["result"]) == ([0, {"a": [1]}, {"a": [1]}], 5)
        assert other.call("send", {"item": "1"}) == ENDED


@pytest.mark.parametrize("item", ["[", "", None])
def test_an_invalid_item_ends_the_stream(stream, item):
    with Client(stream.port) as client, Client(stream.port) as other:
        open_stream(client)
        wait_until(lambda: is_open(other))
        assert other.call("send", {"item": item}) == ENDED
        items, reply = items_and_reply(client)
        assert (items, reply["error"]["code"]) == ([0], -32603)
        assert other.call("finish") == ENDED
    stream.stop()
    assert "invalid JSON" in stream.errors


def test_a_stream_without_reply_gets_an_error(stream):
    with Client(stream.port) as client, Client(stream.port) as other:
        open_stream(client)
        wait_until(lambda: is_open(other))
        assert other.call("finish") == ACCEPTED
        assert items_and_reply(client)[1]["error"]["code"] == -32603


def test_the_limit_on_items_that_wait_for_the_thread(built, engine):
    """`max_stream_bytes`: exactly as many are accepted while the thread is busy."""
    item = json.dumps("x" * 8)
    with (
        serving([built(STREAM), engine, 100]) as server,
        Client(server.port) as client,
        Client(server.port) as other,
    ):
        open_stream(client)
        # All of these are in the same turn. The first is accepted when the stream is open.
        wait_until(lambda: other.call("send", {"item": item, "times": 10}) == ACCEPTED)
        wait_until(lambda: other.call("send", {"item": item, "times": 10}) == ACCEPTED)
        rooms = other.call("room_count")
        assert other.call("send", {"item": item, "times": 11}) == NO_ROOM
        wait_until(lambda: other.call("room_count") == rooms + 1)
        # One that is longer than the limit goes alone.
        assert other.call("send", {"item": json.dumps("y" * 200), "times": 1}) == ACCEPTED
        assert other.call("finish", {"reply": 1}) == ENDED
        assert items_and_reply(client)[0][-1] == "y" * 200


def test_a_slow_client_pauses_its_stream(stream):
    with Client(stream.port) as client, Client(stream.port) as other:
        open_stream(client)
        wait_until(lambda: is_open(other))
        sent = 0
        rooms = other.call("room_count")
        while other.call("send", {"item": LONG_ITEM}) == ACCEPTED:
            sent += 1
        assert other.call("room_count") == rooms
        received = [client.message() for _ in range(sent + 1)]
        assert len(received[-1]["params"]["value"]) == 20_000
        wait_until(lambda: other.call("room_count") == rooms + 1)
        assert other.call("send", {"item": "5"}) == ACCEPTED
        other.call("finish", {"reply": 1})
        items, reply = items_and_reply(client)
        assert (items, reply["result"]) == ([5], 1)


def test_the_newest_items_are_dropped(stream):
    with Client(stream.port) as client, Client(stream.port) as other:
        open_stream(client, overflow=1)
        wait_until(lambda: is_open(other))
        for _ in range(1_000):
            assert other.call("send", {"item": LONG_ITEM}) == ACCEPTED
        assert other.call("finish", {"reply": 1}) == ENDED
        items, reply = items_and_reply(client)
        assert len(items) < 1_000 and reply["result"] == 1


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_stream_without_room_is_cancelled(stream, how):
    with Client(stream.port) as other:
        client = Client(stream.port)
        open_stream(client)
        wait_until(lambda: is_open(other))
        while other.call("send", {"item": LONG_ITEM}) == ACCEPTED:
            pass
        rooms = other.call("room_count")
        if how == "cancel":
            client.notify("$/cancelRequest", {"id": "s"})
        else:
            client.reset()
            client.close()
        # The callback reports the end, too.
        wait_until(lambda: other.call("room_count") == rooms + 1)
        assert other.call("is_cancelled") is True
        assert other.call("send", {"item": "1"}) == ENDED
        if how == "cancel":
            assert items_and_reply(client)[1]["error"]["code"] == -32800
            client.close()
        assert other.call("finish", {"reply": 1}) == ENDED


def test_meta(stream):
    meta = {"progressToken": 5, "traceparent": "00-é\n", "other": [1]}
    expected = {"progressToken": "5", "traceparent": "00-é\n", "other": "[1]", "none": None}
    with Client(stream.port) as client:
        for later in False, True:
            for name, value in expected.items():
                send(client, "meta", {"name": name, "later": later}, meta)
                assert client.message()["result"] == value
            assert client.call("meta", {"name": "progressToken", "later": later}) is None
