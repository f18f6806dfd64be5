"""The client and servers with unusual replies, in unusual pieces, at unusual times."""

from __future__ import annotations

import json
import pickle
import select
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from both_clients import NewClient
from scripted import Peer, Script, Scripted, answering, http_reply, result, scripted
from test_client_streams import Transport

import ucall
from harness import eventually
from ucall import _core
from ucall._cli.progress import ProgressObserver
from ucall._client.blocking import run
from ucall._client.inbox import Router
from ucall._client.link import Link
from ucall._client.sockets import Deadline
from ucall.client import Client


def refuse(value: object) -> object:
    raise TypeError(value)


def once(reply: bytes) -> Script:
    """A script that reads one request and sends these bytes."""

    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(reply)

    return script


def read(pieces: Iterable[bytes], http: bool, bytes_max: int = 1 << 20) -> list[_core.Reply]:
    """The replies in a connection's bytes."""
    reader = _core.ReplyReader(http=http, reply_bytes_max=bytes_max)
    replies = [reply for piece in pieces for reply in reader.feed(piece)]
    last = reader.end()
    return [*replies, last] if last else replies


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = result("a" * 20)
GOOD = {
    "length": http_reply(BODY),
    "chunks": CHUNKED
    + b"5\r\n"
    + BODY[:5]
    + b"\r\n%x;x=y\r\n" % len(BODY[5:])
    + BODY[5:]
    + b"\r\n0\r\nX: y\r\n\r\n",
    "close": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY,
    "http10": b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
    "http10 length": http_reply(BODY, version="1.0"),
    "informational": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"
    + http_reply(BODY),
    "no reason": b"HTTP/1.1 200\r\ncontent-length:   %d\r\n\r\n" % len(BODY) + BODY,
    "white space": http_reply(b" \r\n" + BODY + b"\r\n"),
    "status 500": http_reply(BODY, status="500 Oops"),
}


@pytest.mark.parametrize("name", GOOD)
def test_http_replies_at_every_split(name: str) -> None:
    text = GOOD[name]
    for cut in range(len(text) + 1):
        [reply] = read([text[:cut], text[cut:]], http=True)
        assert reply.result() == "a" * 20
    [reply] = read([text[at : at + 1] for at in range(len(text))], http=True)
    assert reply.result() == "a" * 20


def test_raw_replies_at_every_split() -> None:
    text = b"  " + result({"a}": ['"]', 1]}) + b"\n" + result(2, id="x") + b"[" + result(3) + b"]"
    for cut in range(len(text) + 1):
        first, second, third = read([text[:cut], text[cut:]], http=False)
        assert (first.result(), second.id, third.split()[0].result()) == ({"a}": ['"]', 1]}, "x", 3)
    assert len(read([text[at : at + 1] for at in range(len(text))], http=False)) == 3


@pytest.mark.parametrize(
    ("text", "reusable"),
    [
        (http_reply(BODY), True),
        (http_reply(BODY, "Connection: close"), False),
        (http_reply(BODY, "Connection: x, Close"), False),
        (http_reply(BODY, version="1.0"), False),
        (http_reply(BODY, "Connection: keep-alive", version="1.0"), True),
        (http_reply(BODY) + b"more", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", True),
    ],
)
def test_connection_reuse(text: bytes, reusable: bool) -> None:
    reader = _core.ReplyReader(http=True, reply_bytes_max=1 << 20)
    assert len(reader.feed(text)) == 1
    assert reader.is_reusable == reusable


LENGTHS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2,2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        LENGTHS,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA" + b"a" * 40_000,
        CHUNKED + b"0x5\r\n",
        CHUNKED + b"5\r\nabcdefg\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
        http_reply(b"<html>hello</html>"),
        http_reply(b"{}"),
        http_reply(b"5"),
        http_reply(b'{"result":1}{"result":2}'),
        http_reply(b'{"id":1,"result":1,"error":{}}'),
        http_reply(b'{"id":1,"result":1,"method":"m"}'),
        http_reply(b'{"id":1,"error":null}'),
        http_reply(b'{"result":"\xff"}'),
        http_reply(b'{"result":' + b"[" * 200 + b"]" * 200 + b"}"),
    ],
)
def test_malformed_http_replies(text: bytes) -> None:
    with pytest.raises(ucall.ConnectionError):
        read([text], http=True)


@pytest.mark.parametrize("text", [b"hello", b"HTTP/1.1 200 OK\r\n", b'{"a" 1}', b"5", b'"x"'])
def test_malformed_raw_replies(text: bytes) -> None:
    with pytest.raises(ucall.ConnectionError):
        read([text], http=False)


@pytest.mark.parametrize("name", ["length", "chunks", "informational"])
def test_truncated_replies(name: str) -> None:
    for cut in range(1, len(GOOD[name]) - 1):
        with pytest.raises(ucall.ConnectionError, match="within its reply"):
            assert read([GOOD[name][:cut]], http=True) == []
            raise ucall.ConnectionError("between two: within its reply")


def test_sizes_at_the_limit() -> None:
    body = result("x")
    assert len(read([http_reply(body)], True, len(body))) == 1
    chunks = CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    close = b"HTTP/1.1 200 OK\r\n\r\n" + body
    for text, http in [(http_reply(body), True), (chunks, True), (close, True), (body, False)]:
        assert len(read([text], http, len(body))) == 1
        with pytest.raises(ucall.ConnectionError, match="max_reply_bytes"):
            read([text], http, len(body) - 1)
    huge = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"
    with pytest.raises(ucall.ConnectionError, match="max_reply_bytes"):
        read([huge], http=True)


def test_html_pages_instead_of_replies(new_client: NewClient) -> None:
    page = http_reply(b"<h1>Not here</h1>", status="404 Not Found")
    expected = "HTTP status 404 Not Found: <h1>Not"
    with scripted(once(page)) as server, pytest.raises(ucall.HTTPError, match=expected) as raised:
        new_client(port=server.port).sum(1, 2)
    assert raised.value.status == 404
    empty = http_reply(b"", status="401 Unauthorized")
    with scripted(once(empty)) as server, pytest.raises(ucall.HTTPError, match="401 Unauthorized"):
        new_client(port=server.port).sum(1, 2)


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_a_redirect_says_where_it_leads(scheme: str, new_client: NewClient) -> None:
    to = "https://example.org/rpc"
    page = http_reply(b"<h1>Moved</h1>", f"location: {to} ", status="308 Permanent Redirect")
    with (
        scripted(once(page)) as server,
        pytest.raises(ucall.HTTPError) as raised,
        new_client(f"{scheme}://127.0.0.1:{server.port}") as client,
    ):
        client.sum(1, 2)
    error = pickle.loads(pickle.dumps(raised.value))
    assert str(error) == (
        f"HTTP status 308 Permanent Redirect: the server redirects to {to}; clients follow no "
        "redirects: use that URI"
    )
    assert (error.status, error.location, error.text) == (308, to, "<h1>Moved</h1>")
    assert error.may_have_run is (scheme == "http")
    plain = http_reply(b"none", "Location: /elsewhere", status="404 Not Found")
    with scripted(once(plain)) as server, pytest.raises(ucall.HTTPError, match=r"Found: none$"):
        new_client(port=server.port).sum(1, 2)


@pytest.mark.parametrize("status", ["204 No Content", "200 OK"])
def test_a_status_without_a_reply_says_so(status: str, new_client: NewClient) -> None:
    expected = f"^HTTP status {status[:3]} without a reply, .*check that the address and its path"
    with scripted(once(http_reply(b"", status=status))) as server:
        client = new_client(port=server.port)
        with pytest.raises(ucall.ConnectionError, match=expected):
            client.sum(1, 2)
        client.notify("sum", 1, 2)


def test_an_error_with_a_status_is_an_error_of_the_call(new_client: NewClient) -> None:
    body = b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"bad"},"id":null}'
    reply = http_reply(body, status="400 Bad Request")
    with scripted(once(reply)) as server, pytest.raises(ucall.RPCError, match="bad"):
        new_client(port=server.port).sum(1, 2).raise_for_status()


@pytest.mark.parametrize(
    "body",
    [result(5, id=2), result(5, id="1"), result(5, id=None), result(5, id=[1]), b"[]"],
)
def test_replies_with_another_id_are_refused(body: bytes, new_client: NewClient) -> None:
    with scripted(answering(lambda _: body)) as server:
        client = new_client(port=server.port)
        for _ in range(2):
            with pytest.raises(ucall.ConnectionError, match="another request"):
                client({"method": "sum", "id": 1})
        assert server.accepted == 2


@pytest.mark.parametrize(
    "error",
    [b"7", b'"no"', b"{}", b'{"code":"x","message":5}', b'{"code":1.5,"message":null}', b"[1]"],
)
def test_errors_of_any_shape_are_rpc_errors(error: bytes, new_client: NewClient) -> None:
    with scripted(answering(lambda _: b'{"id":1,"error":' + error + b"}")) as server:
        response = new_client(port=server.port).sum(1, 2)
        with pytest.raises(ucall.RPCError):
            response.raise_for_status()
        assert response.error is not None


def test_a_batch_is_answered_by_ids_whatever_else_is_in_it(new_client: NewClient) -> None:
    odd = [b'{"id":%s,"result":0}' % id for id in (b"[1]", b'{"a":1}', b"null", b'"1"', b"7")]

    def batch(calls: list[dict[str, Any]]) -> bytes:
        replies = [result(call["params"][0], id=call["id"]) for call in reversed(calls)]
        return b"[" + b",".join([*odd, *replies, *odd]) + b"]"

    with scripted(answering(batch)) as server:
        client = new_client(port=server.port)
        with client.batch() as calls:
            responses = [calls.sum(1, 2), calls.sum(3, 4)]
        assert [response.json for response in responses] == [1, 3]
    with scripted(answering(lambda _: b"[" + b",".join(odd) + b"]")) as server:
        calls = new_client(port=server.port).batch()
        calls.sum(1, 2)
        with pytest.raises(ucall.ConnectionError, match="is missing"):
            calls.send()


def test_json_rpc_1_is_understood(new_client: NewClient) -> None:
    with scripted(answering(lambda _: b'{"id":1,"result":5,"error":null}')) as server:
        assert new_client(port=server.port).sum(1, 2).json == 5


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0\r\n\r\n",
        http_reply(b"<html>"),
        http_reply(result(1, "other")),
        http_reply(b"gone", status="503 Service Unavailable"),
        http_reply(result(1))[:-5],
    ],
)
def test_a_connection_with_a_malformed_reply_is_closed(reply: bytes, new_client: NewClient) -> None:
    with scripted(once(reply)) as server:
        client = new_client(port=server.port)
        for number in (1, 2):
            with pytest.raises(ucall.ConnectionError):
                client.echo(1)
            assert server.accepted == number


def test_replies_may_end_with_the_connection(new_client: NewClient) -> None:
    def closing(peer: Peer) -> None:
        request = json.loads(peer.http_request())
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + result(5, request["id"]))

    with scripted(closing) as server:
        client = new_client(port=server.port)
        assert [client.echo(1).json for _ in range(2)] == [5, 5]


def wait_for_ends(server: Scripted, count: int) -> None:
    assert eventually(lambda: server.ended == count)


def test_a_connection_closed_by_the_server_while_idle(new_client: NewClient) -> None:
    with scripted(once(http_reply(result(1, id="x")))) as server:
        client = new_client(port=server.port).with_options(id="x")
        for number in range(5):
            assert client.sum(1, 2).json == 1
            assert server.accepted == number + 1
            wait_for_ends(server, number + 1)


def test_a_408_while_idle_is_not_a_reply(new_client: NewClient) -> None:
    is_idle, is_late = threading.Semaphore(0), threading.Semaphore(0)

    def timing_out(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(result(1, id="x")))
        is_idle.acquire()
        peer.send(http_reply(b"", "Connection: close", status="408 Request Timeout"))
        peer.wait_delivered()
        is_late.release()
        peer.http_request()

    with scripted(timing_out) as server:
        client = new_client(port=server.port).with_options(id="x")
        for _ in range(3):
            assert client.sum(1, 2).json == 1
            is_idle.release()
            assert is_late.acquire(timeout=60)


@pytest.mark.parametrize("uri", ["http://127.0.0.1", "tcp://127.0.0.1"])
@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_call_that_may_have_run_is_not_retried(
    uri: str, end: str, is_second: bool, new_client: NewClient
) -> None:
    seen = []

    def dropping(peer: Peer) -> None:
        take = peer.http_request if uri.startswith("http") else peer.raw_request
        if is_second:
            take()
            body = result(1, id="x")
            peer.send(http_reply(body) if uri.startswith("http") else body + b"\n")
        seen.append(take())
        if end == "reset":
            peer.reset()

    with scripted(dropping) as server:
        client = new_client(uri, server.port).with_options(id="x")
        if is_second:
            assert client.sum(1, 2).json == 1
        with pytest.raises(ucall.ConnectionError):
            client.sum(1, 2)
        assert len(seen) == 1
        assert server.accepted == 1


def test_an_early_reply_is_accepted(new_client: NewClient) -> None:
    def replying_early(peer: Peer) -> None:
        peer.socket.recv(100)
        peer.send(http_reply(b"too much", "Connection: close", status="413 Content Too Large"))
        has_received.wait(60)

    has_received = threading.Event()
    with scripted(replying_early) as server, pytest.raises(ucall.HTTPError, match="too much"):
        new_client(port=server.port).echo("x" * 20_000_000)
    has_received.set()


def test_a_peer_that_reads_nothing_times_out(new_client: NewClient) -> None:
    is_over = threading.Event()
    with scripted(lambda peer: is_over.wait() and None) as server:
        for uri in ("http://127.0.0.1", "tcp://127.0.0.1"):
            with pytest.raises(ucall.TimeoutError):
                new_client(uri, server.port, timeout=0.1).echo("x" * 20_000_000)
        is_over.set()


def test_a_trickling_reply_times_out(new_client: NewClient) -> None:
    def trickling(peer: Peer) -> None:
        peer.http_request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        # Waits until the client has closed.
        while True:
            peer.send(b" ")
            time.sleep(0.02)

    with scripted(trickling) as server:
        start = time.monotonic()
        with pytest.raises(ucall.TimeoutError):
            new_client(port=server.port, timeout=0.2).echo("x")
        assert time.monotonic() - start > 0.15


def test_the_request_as_sent(new_client: NewClient) -> None:
    heads = []

    def noting(peer: Peer) -> None:
        body = peer.http_request()
        heads.append((peer.head, body))
        peer.send(http_reply(result(1)))

    with scripted(noting) as server:
        client = new_client(
            f"http://127.0.0.1:{server.port}/rpc?x=1", headers={"Authorization": "Bearer a"}
        )
        client.with_options(headers={"authorization": "Bearer b", "X-Y": " z "}).sum(1, 2)
        head, body = heads[0]
        assert head.decode().split("\r\n") == [
            "POST /rpc?x=1 HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            "Content-Type: application/json",
            f"User-Agent: ucall/{ucall.__version__}",
            "authorization: Bearer b",
            "X-Y: z",
            "Ucall-Timeout-Ms: 60000",
            f"Content-Length: {len(body)}",
        ]
        assert body == b'{"jsonrpc":"2.0","method":"sum","params":[1,2],"id":1}'


@pytest.mark.parametrize(
    "headers",
    [
        {"A": "b\r\nC: d"},
        {"A\r\n": "b"},
        {"": "b"},
        {"A b": "c"},
        {"A": "\0"},
        {"A": "€"},
        {"Content-Length": "5"},
        {"Host": "x"},
    ],
)
def test_invalid_headers_are_rejected(headers: dict[str, str], new_client: NewClient) -> None:
    with pytest.raises(ValueError, match="headers"):
        new_client(headers=headers)


def test_headers_need_http(new_client: NewClient) -> None:
    with pytest.raises(ValueError, match="raw TCP"):
        new_client("tcp://127.0.0.1", headers={"A": "b"})


def test_requests_expose_their_bytes() -> None:
    writer = _core.RequestWriter(b"Content-Length: ", refuse)
    request = writer.call("é", (), None, 1)
    body = '{"jsonrpc":"2.0","method":"é","id":1}'.encode()
    assert bytes(request) == b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert len(request) == len(bytes(request)) and request.data == bytes(request)
    with pytest.raises(TypeError):
        request.data[0] = 1
    raw = _core.RequestWriter(None, refuse).call("a", (1,), {}, None)
    assert bytes(raw) == b'{"jsonrpc":"2.0","method":"a","params":[1]}\n'
    assert raw.is_notification


def test_an_unknown_host_is_reported(new_client: NewClient) -> None:
    with pytest.raises(ucall.ConnectionError, match=r"cannot connect to nobody\.invalid:8545"):
        new_client("nobody.invalid").sum(1, 2)


def test_a_servers_deadline_error_is_a_timeout(new_client: NewClient) -> None:
    error = '{"jsonrpc":"2.0","id":%d,"error":{"message":"Deadline passed","code":-32001}}'

    def refusing(peer: Peer) -> None:
        for id in (1, 2):
            peer.http_request()
            peer.send(http_reply((error % id).encode()))

    with scripted(refusing) as server:
        client = new_client(port=server.port)
        # A close before that is an error as any other: the server has limits of its own.
        assert client.echo().error.code == -32001
        with pytest.raises(ucall.TimeoutError):
            client.with_options(timeout=1e-6).echo()


@pytest.mark.parametrize("scheme", ["http", "tcp", "ws"])
def test_a_late_error_of_the_server_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient, scheme: str
) -> None:
    """A busy machine lets the client go on only when the server's reply is there."""
    error = '{"jsonrpc":"2.0","id":%d,"error":{"code":-32001,"message":"Deadline passed"}}'
    wire = Transport(scheme)

    def script(peer: Peer) -> None:
        wire.open(peer)
        for _ in range(2):
            reply = (error % wire.call(peer)["id"]).encode()
            if scheme == "http":
                peer.send(http_reply(reply))
            else:
                wire.send(peer, reply)
        wire.call(peer)

    # The core checks the deadlines of a synchronous client, unless its bytes are observed.
    observer = ProgressObserver(is_verbose=False, has_bar=False)
    observed = {"_observer": observer} if new_client is Client else {}
    with scripted(script) as server, new_client(wire.uri(server), **observed) as client:
        assert client.same(1).error.code == -32001, "a limit of the server's own"
        monkeypatch.setattr(Deadline, "is_over", lambda deadline: True)
        with pytest.raises(ucall.TimeoutError, match=r"timed out after 50 s"):
            client.with_options(timeout=50).same(2)


def test_a_thread_does_not_wait_for_another_connection_of_the_same_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that sends fails the connection just before another one waits for it."""
    ours, theirs = socket.socketpair()
    link, others = Link(ours, Router([], 1 << 20), 1 << 20, None, None), []

    class Late:
        def __init__(self) -> None:
            self.register = (poll := real()).register
            self._poll = poll.poll

        def poll(self, milliseconds: int) -> Any:
            link.fail(ucall.ConnectionError("the other thread could not send"))
            others.extend(socket.socketpair())
            return self._poll(milliseconds)

    real = select.poll
    monkeypatch.setattr(select, "poll", Late)
    request = _core.RequestWriter(None, refuse).call("a", (), {}, 1)
    inbox = link.start(request, (1,), Deadline(60))
    run(link.wait(inbox, Deadline(5)))
    with pytest.raises(ucall.ConnectionError, match="could not send"):
        inbox.take()
    assert ours.fileno() == -1, "closed by the thread that waited last"
    for other in (theirs, *others):
        other.close()
