"""Streams of the clients over each transport, against scripted servers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forking
import pytest
from both_clients import NewClient
from scripted import Peer, Scripted, http_reply, result, scripted
from test_cli import ucall_command
from websocket_peer import frame, read_call, upgrade

import ucall
from harness import eventually, started
from ucall import _core
from ucall.client import Client

#: Far longer than any wait of these tests.
TIMEOUT_S = 30.0
EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n"
)


#: Bodies of events, with what a reader finds in them. `ucall.js` reads the same.
EVENT_BODIES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "events.json").read_text(encoding="utf-8")
)


def event_body(name: str) -> tuple[bytes, list[Any]]:
    """A body of `EVENT_BODIES`, and its items and reply."""
    body, events = EVENT_BODIES["bodies"][name]
    for key, document in EVENT_BODIES["documents"].items():
        body = body.replace(f"<{key}>", document)
        events = [event.replace(f"<{key}>", document) for event in events]
    found = [json.loads(event) for event in events if event.strip()]
    return body.encode(), [it["params"]["value"] if "params" in it else it for it in found]


def item(value: Any, token: Any = 1) -> bytes:
    params = {"token": token, "value": value}
    return json.dumps({"jsonrpc": "2.0", "method": "$/progress", "params": params}).encode()


def error(code: int, message: str, id: Any = 1) -> bytes:
    reply = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
    return json.dumps(reply).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: bytes) -> bytes:
    return chunk(b"data: " + document + b"\n\n")


class Transport:
    """One transport, as a server of streams uses it."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def open(self, peer: Peer) -> None:
        if self.scheme == "ws":
            upgrade(peer)

    def call(self, peer: Peer) -> Any:
        """The next document of the client."""
        if self.scheme == "ws":
            return read_call(peer)
        return json.loads(peer.http_request() if self.scheme == "http" else peer.raw_request())

    def begin(self, peer: Peer) -> None:
        if self.scheme == "http":
            peer.send(EVENTS)

    def send(self, peer: Peer, document: bytes) -> None:
        """Sends an item or a reply."""
        forms = {"ws": frame, "tcp": lambda line: line + b"\n", "http": event}
        peer.send(forms[self.scheme](document))

    def end(self, peer: Peer) -> None:
        if self.scheme == "http":
            peer.send(b"0\r\n\r\n")

    def uri(self, server: Scripted) -> str:
        return f"{self.scheme}://127.0.0.1:{server.port}"


@pytest.fixture(params=["http", "tcp", "ws"])
def wire(request: pytest.FixtureRequest) -> Transport:
    return Transport(request.param)


Items = tuple[list[Any], Any]
Read = Callable[..., Items]


@pytest.fixture
def read(new_client: NewClient) -> Read:
    """Reads the items of the stream ``generate``, and its result."""

    def read(uri: str, **options: Any) -> Items:
        with new_client(uri, **{"timeout": TIMEOUT_S, **options}) as client:
            stream, items = client.stream.generate(prompt="hi"), []
            try:
                for token in stream:
                    items.append(token)
            except ucall.RPCError as failed:
                return items, failed
            return items, stream.result

    return read


@contextmanager
def answering(wire: Transport, *documents: bytes) -> Iterator[Scripted]:
    """A server that replies to a call with these documents, and waits for the client to leave."""

    def script(peer: Peer) -> None:
        wire.open(peer)
        call = wire.call(peer)
        server.calls.append((call, getattr(peer, "head", b"")))  # type: ignore[attr-defined]
        wire.begin(peer)
        for document in documents:
            wire.send(peer, document)
        wire.end(peer)
        wire.call(peer)

    with scripted(script) as server:
        server.calls = []  # type: ignore[attr-defined]
        yield server


def test_items_come_before_the_result(wire: Transport, read: Read) -> None:
    with answering(wire, item("a"), item(None), item({"b": [1]}), result("end")) as server:
        assert read(wire.uri(server)) == (["a", None, {"b": [1]}], "end")
    [(call, head)] = server.calls  # type: ignore[attr-defined]
    expected = {"jsonrpc": "2.0", "method": "generate", "params": {"prompt": "hi"}, "id": 1}
    if wire.scheme == "http":
        assert b"\r\nAccept: text/event-stream\r\n" in head
        assert b"Timeout" not in head, "the timeout is not that of the whole stream"
    else:
        expected["_meta"] = {"progressToken": 1}
    assert call == expected


def test_an_error_comes_after_the_items(wire: Transport, read: Read) -> None:
    with answering(wire, item("a"), error(7, "out of paper")) as server:
        items, failed = read(wire.uri(server))
    assert (items, failed.code, failed.message) == (["a"], 7, "out of paper")


def test_a_server_may_collect_the_items(wire: Transport, read: Read) -> None:
    def script(peer: Peer) -> None:
        wire.open(peer)
        wire.call(peer)
        text = result(["a", "b"])
        peer.send(http_reply(text)) if wire.scheme == "http" else wire.send(peer, text)
        wire.call(peer)

    with scripted(script) as server:
        assert read(wire.uri(server)) == ([], ["a", "b"])


def test_an_error_instead_of_a_stream(read: Read) -> None:
    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(b"no", status="401 Unauthorized"))

    with scripted(script) as server, pytest.raises(ucall.HTTPError) as raised:
        read(f"http://127.0.0.1:{server.port}")
    assert (raised.value.status, raised.value.text) == (401, "no")


def test_leaving_a_loop_cancels(wire: Transport, new_client: NewClient) -> None:
    cancelled: list[Any] = []
    ended = threading.Event()

    def script(peer: Peer) -> None:
        wire.open(peer)
        id = wire.call(peer)["id"]
        wire.begin(peer)
        wire.send(peer, item("a", id))
        try:
            cancelled.append(wire.call(peer))
        except EOFError:
            cancelled.append("closed")
        ended.set()
        wire.call(peer)

    with scripted(script) as server, new_client(wire.uri(server)) as client:
        stream = client.stream.generate()
        for token in stream:
            assert token == "a"
            break
        ended.wait()
        assert list(stream) == []
        with pytest.raises(RuntimeError, match="the stream has not ended"):
            _ = stream.result
    cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}
    assert cancelled == ["closed" if wire.scheme == "http" else cancel]


def test_a_stream_that_is_dropped_or_closed_is_cancelled() -> None:
    wire, ids = Transport("ws"), []

    def script(peer: Peer) -> None:
        wire.open(peer)
        while True:
            call = wire.call(peer)
            if call["method"] == "$/cancelRequest":
                ids.append(call["params"]["id"])
            elif call["method"] == "ids":
                wire.send(peer, result(ids, call["id"]))

    with scripted(script) as server, Client(wire.uri(server)) as client:
        client.stream.generate()
        client.stream.generate().close()
        with client.stream.generate():
            pass
        assert client.ids().json == [1, 2, 3]


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_forked_child_that_leaves_a_loop_cancels_nothing(scheme: str) -> None:
    wire, methods = Transport(scheme), []

    def script(peer: Peer) -> None:
        wire.open(peer)
        id = wire.call(peer)["id"]
        wire.send(peer, item("a", id))
        call = wire.call(peer)
        methods.append(call["method"])
        wire.send(peer, item("b", id))
        wire.send(peer, result(None, call.get("id")))
        wire.send(peer, result("end", id))
        wire.call(peer)

    with scripted(script) as server:
        source = f"""
import os, sys
from ucall.client import Client
client = Client({wire.uri(server)!r}, timeout={TIMEOUT_S})
items = []
for token in client.stream.generate():
    items.append(token)
    if token == "a":
        child = os.fork()
        if child == 0:
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        list(client.stream.after())
print(items)
"""
        done = forking.run([sys.executable, "-c", source])
        assert (done.stdout, methods) == (b"['a', 'b']\n", ["after"]), done.stderr


def test_with_progress(wire: Transport, new_client: NewClient) -> None:
    with answering(wire, item(1), item(2), result("end")) as server:
        items: list[Any] = []
        with new_client(wire.uri(server)) as client:
            assert client.with_progress(items.append).generate().json == "end"
        with new_client(wire.uri(server)) as client:
            assert client.with_progress(items.append).call("generate").json == "end"
        assert items == [1, 2, 1, 2]


def test_an_exception_of_the_callback_cancels(new_client: NewClient) -> None:
    with (
        answering(Transport("tcp"), item(1)) as server,
        new_client(Transport("tcp").uri(server)) as client,
    ):

        def callback(value: Any) -> None:
            raise LookupError(value)

        with pytest.raises(LookupError):
            client.with_progress(callback).generate()


def test_the_timeout_holds_for_each_item(wire: Transport, read: Read) -> None:
    left = threading.Event()

    def script(peer: Peer) -> None:
        wire.open(peer)
        wire.call(peer)
        wire.begin(peer)
        wire.send(peer, item("a"))
        left.wait()

    with scripted(script) as server:
        with pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.3 s"):
            read(wire.uri(server), timeout=0.3)
        left.set()


def test_a_stream_that_pauses_is_late(read: Read) -> None:
    """Comments between events are no items, and do not extend the time for one."""
    left = threading.Event()

    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(EVENTS, event(item("a")))
        while not left.wait(0.01):
            peer.send(chunk(b": \n\n"))

    with scripted(script) as server:
        with pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.3 s"):
            read(f"http://127.0.0.1:{server.port}", timeout=0.3)
        left.set()


TOO_LARGE = "larger than max_reply_bytes (4096 bytes)"
BAD_EVENTS = {
    "another token": (event(item("a", 2)), "an event that is no item of this stream"),
    "no item": (
        event(b'{"jsonrpc":"2.0","method":"a"}'),
        "an event that is no item of this stream",
    ),
    "another id": (event(result(1, 2)), "replied to another request"),
    "no reply": (event(item("a")) + b"0\r\n\r\n", "events without a reply at their end"),
    "half an event": (chunk(b"data: {"), "closed the connection within its reply"),
    "no JSON": (event(b"no JSON"), 'not JSON-RPC: "no JSON"'),
    "a large event": (event(item("x" * 5000)), TOO_LARGE),
    "a large part": (chunk(b"data: " + b"x" * 5000), TOO_LARGE),
    "many lines": (chunk(b"data: {\n" * 3000), TOO_LARGE),
    "a long line": (chunk(b"x" * 5000), TOO_LARGE),
    "no chunk": (b"no chunk", "not JSON-RPC: HTTP where"),
}


@pytest.mark.parametrize(("body", "message"), BAD_EVENTS.values(), ids=BAD_EVENTS)
def test_bad_events_are_errors(read: Read, body: bytes, message: str) -> None:
    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(EVENTS + body)

    with scripted(script) as server, pytest.raises(ucall.ConnectionError) as raised:
        read(f"http://127.0.0.1:{server.port}", max_reply_bytes=4096)
    assert message in str(raised.value)


def test_an_event_after_the_reply_is_an_error() -> None:
    reader = _core.ReplyReader(http=True, reply_bytes_max=1000, events=True)
    [reply] = reader.feed(EVENTS + event(result(5)) + event(result(6)))
    assert isinstance(reply, _core.Reply) and reply.result() == 5
    with pytest.raises(ucall.ConnectionError, match="an event after the reply"):
        reader.feed(b"0")


def documents(pieces: list[bytes]) -> list[Any]:
    reader = _core.ReplyReader(http=True, reply_bytes_max=1000, events=True)
    found = [message for piece in pieces for message in reader.feed(piece)]
    assert reader.is_reusable
    return [
        message.data() if isinstance(message, _core.Reply) else message.value for message in found
    ]


@pytest.mark.parametrize("name", EVENT_BODIES["bodies"])
def test_events_are_those_of_the_standard(name: str) -> None:
    body, events = event_body(name)
    text = EVENTS + chunk(body[:30]) + chunk(body[30:]) + b"0\r\n\r\n"
    for cut in range(len(text) + 1):
        assert documents([text[:cut], text[cut:]]) == events
    assert documents([text[at : at + 1] for at in range(len(text))]) == events
    for framing in b"Connection: close", b"Content-Length: %d" % len(body):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n"
        reader = _core.ReplyReader(http=True, reply_bytes_max=1000, events=True)
        assert len(reader.feed(head) + reader.feed(body)) == len(events)
        assert reader.end() is None


def test_the_last_event_needs_no_further_byte() -> None:
    for end in b"\n\n", b"\r\r", b"\r\n\r":
        reader = _core.ReplyReader(http=True, reply_bytes_max=1000, events=True)
        assert len(reader.feed(EVENTS + chunk(b"data: " + result(5) + end))) == 1


@pytest.mark.parametrize(("media_type", "has_events"), EVENT_BODIES["types"].items())
def test_the_media_type_has_any_case(read: Read, media_type: str, has_events: bool) -> None:
    body, _ = event_body("line feeds")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"

    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(head % (media_type.encode(), len(body)) + body)

    with scripted(script) as server:
        uri = f"http://127.0.0.1:{server.port}"
        if has_events:
            assert read(uri) == (["é€𝄞", 2], 5)
        else:
            with pytest.raises(ucall.ConnectionError, match="not JSON-RPC"):
                read(uri)


def test_items_of_ended_streams_and_second_replies_are_dropped(read: Read) -> None:
    wire = Transport("ws")
    texts = [item("late", 9), result(8, 9), item("a"), result(1), result(2), item("b")]
    with answering(wire, *texts) as server:
        assert read(wire.uri(server)) == (["a"], 1)


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_items_that_wait_are_limited(scheme: str, new_client: NewClient) -> None:
    """While the program waits for something else on the connection."""
    wire, value = Transport(scheme), "x" * 1000
    calls: list[Any] = []

    def script(peer: Peer) -> None:
        wire.open(peer)
        for _ in range(2):
            calls.append(wire.call(peer))
        for _ in range(1000):
            wire.send(peer, item(value, 1))
        wire.send(peer, result("end", calls[1]["id"]))
        while True:
            wire.call(peer)

    items: list[Any] = []
    with (
        scripted(script) as server,
        new_client(wire.uri(server), max_waiting_bytes=524_288) as client,
    ):
        first = client.stream.generate()
        # A stream of asyncio is sent by its loop.
        beginning = started(first._next_item)
        assert eventually(lambda: bool(calls))
        second = client.stream.generate()
        assert list(second) == [] and second.result == "end"
        beginning.result(TIMEOUT_S)
        with pytest.raises(ucall.ConnectionError, match=r"max_waiting_bytes .* \(524288 bytes\)"):
            items.extend(first)
        assert 400 < len(items) < 525
    with pytest.raises(ValueError, match="max_waiting_bytes: expected 524288 or more, got 1"):
        new_client(max_waiting_bytes=1)


def test_the_command_prints_items_as_they_come(wire: Transport) -> None:
    goes_on = threading.Event()

    def script(peer: Peer) -> None:
        wire.open(peer)
        wire.call(peer)
        wire.begin(peer)
        wire.send(peer, item("one"))
        goes_on.wait()
        wire.send(peer, item({"two": 2}))
        wire.send(peer, result(None))
        wire.end(peer)
        wire.call(peer)

    with scripted(script) as server:
        command = [ucall_command(), "generate", "prompt=hi", "--stream", "--uri", wire.uri(server)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b'"one"\n'
            goes_on.set()
            assert process.stdout.read() == b'{"two":2}\n'
        assert process.returncode == 0


def test_the_command_prints_a_result_and_errors(wire: Transport) -> None:
    for last, shown, status in (result(5), b"1\n5\n", 0), (error(7, "out of paper"), b"1\n", 1):
        with answering(wire, item(1), last) as server:
            command = [*forking.UCALL, "generate", "--stream", "--uri", wire.uri(server)]
            done = forking.run(command)
            assert (done.stdout, done.returncode) == (shown, status), done.stderr
    done = forking.run([*forking.UCALL, "a", "--stream", "--notify"])
    assert done.returncode == 2 and b"--stream: not with --notify" in done.stderr
