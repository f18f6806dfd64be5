"""Clients that accept compressed replies, and compress their requests."""

from __future__ import annotations

import functools
import gzip
import json
import pickle
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import forking
import httpx
import numpy
import part_frames
import pytest
from both_clients import NewClient
from scripted import Peer, http_reply, result, scripted
from serving import Serve
from test_compression import ENCODERS

import ucall
from ucall import Compression
from ucall._client.base import REPLY_BYTES_MAX
from ucall.client import Client

#: Compressed from this length on.
LENGTHS = Compression(min_bytes=200, max_bytes=1_000_000)
#: Text that becomes a third as long.
TEXT = " ".join(map(str, range(20_000)))
#: More than a client reads by default.
BOMB_BYTES = REPLY_BYTES_MAX + 1


@functools.cache
def bomb(coding: str) -> bytes:
    text = b" " * BOMB_BYTES
    return gzip.compress(text, 1) if coding == "gzip" else ENCODERS[coding](text)


def size(text: str) -> int:
    return len(text)


def repeat(text: str, count: int) -> str:
    return text * count


def numbers(count: int) -> Iterator[list[int]]:
    for number in range(count):
        yield [number] * 100


def same(value: numpy.ndarray) -> numpy.ndarray:
    return value


def compressing(serve: Serve) -> ucall.Server:
    return serve(size, repeat, numbers, same, compression_min_bytes=200)


def headers_of(head: bytes) -> dict[str, str]:
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (it.partition(": ") for it in lines)}


class Recorder:
    """A script that records requests, and passes them to a server, or refuses those in a coding."""

    def __init__(self, url: str, status: str | None = None) -> None:
        self.url, self.status = url, status
        #: Refuses requests that are not compressed.
        self.plain_status: str | None = None
        self.codings: list[str | None] = []
        self.accepted: list[str | None] = []

    def __call__(self, peer: Peer) -> None:
        while True:
            body = peer.http_request()
            headers = headers_of(peer.head)
            coding = headers.get("content-encoding")
            self.codings.append(coding)
            self.accepted.append(headers.get("accept-encoding"))
            if status := self.status if coding else self.plain_status:
                peer.send(http_reply(b"", "Connection: close", status=status))
                return
            kept = {"accept": headers.get("accept", "*/*"), "accept-encoding": "identity"}
            kept["content-type"] = headers["content-type"]
            kept |= {"content-encoding": coding} if coding else {}
            reply = httpx.post(self.url, content=body, headers=kept)
            kind = f"Content-Type: {reply.headers['content-type']}" if reply.content else "X: y"
            peer.send(http_reply(reply.content, kind))


def test_calls_streams_and_arrays(serve: Serve, new_client: NewClient) -> None:
    server = compressing(serve)
    url = f"http://127.0.0.1:{server.port}"
    array = numpy.arange(60_000, dtype="float64")
    with new_client(url, compression=LENGTHS) as client:
        for _ in range(2):
            assert client.repeat("ab", 50_000).json == "ab" * 50_000
            assert client.size(TEXT).json == len(TEXT)
            assert client.size("short").json == 5
            assert numpy.array_equal(client.same(array).numpy, array)
            assert numpy.array_equal(client.same(array[:10]).numpy, array[:10])
        with client.batch() as batch:
            sizes = [batch.size(TEXT[:length]) for length in (1, 5_000)]
        assert [it.json for it in sizes] == [1, 5_000]
        client.notify("size", TEXT)
        stream = client.stream.numbers(50)
        assert list(stream) == [[number] * 100 for number in range(50)]
        with pytest.raises(ucall.RPCError, match="expected str"):
            _ = client.size(list(range(5_000))).json
        client.close()


def test_which_requests_are_compressed(serve: Serve, new_client: NewClient) -> None:
    recorder = Recorder(f"http://127.0.0.1:{compressing(serve).port}")
    lengths = Compression(min_bytes=200, max_bytes=50_000)

    def call_of(length: int) -> str:
        """A text with which a request has this length."""
        return TEXT[: length - len(b'{"jsonrpc":"2.0","method":"size","params":[""],"id":7}')]

    with scripted(recorder) as relay, new_client(port=relay.port, compression=lengths) as client:
        seven = client.with_options(id=7)
        for length in (199, 200, 50_000, 50_001):
            text = call_of(length)
            assert seven.size(text).json == len(text)
        assert recorder.codings == [None, "zstd", "zstd", None]
        assert set(recorder.accepted) == {"zstd, gzip"}
        # It would expand more than servers allow, or is not text.
        recorder.codings.clear()
        assert client.size("x" * 49_000).json == 49_000
        assert numpy.array_equal(client.same(numpy.zeros(900)).numpy, numpy.zeros(900))
        assert list(client.stream.numbers(2)) == [[0] * 100, [1] * 100]
        with client.batch() as batch:
            long = batch.size(TEXT[:4_000])
        assert long.json == 4_000
        assert recorder.codings[0] is None and recorder.codings[-2:] == [None, "zstd"]


@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
@pytest.mark.parametrize("coding", ENCODERS)
def test_replies_are_decoded(new_client: NewClient, coding: str, framing: str) -> None:
    def script(peer: Peer) -> None:
        id = json.loads(peer.http_request())["id"]
        body, header = ENCODERS[coding](result("x" * 90_000, id)), f"Content-Encoding: {coding}"
        if framing == "length":
            return peer.send(http_reply(body, header))
        head = f"HTTP/1.1 200 OK\r\n{header}\r\n".encode()
        if framing == "close":
            return peer.send(head + b"\r\n" + body)
        peer.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 1_000):
            piece = body[at : at + 1_000]
            peer.send(b"%x\r\n" % len(piece) + piece + b"\r\n")
        return peer.send(b"0\r\n\r\n")

    with scripted(script) as server:
        with new_client(port=server.port, compression=LENGTHS) as client:
            assert client.f().json == "x" * 90_000
        with (
            new_client(port=server.port) as client,
            pytest.raises(ucall.ConnectionError, match="the request does not accept"),
        ):
            client.f()


def replying(body: bytes, coding: str) -> Any:
    def script(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(body, f"Content-Encoding: {coding}"))

    return script


@pytest.mark.parametrize(
    ("coding", "body", "problem"),
    [
        ("gzip", lambda: bomb("gzip"), "max_reply_bytes"),
        ("zstd", lambda: bomb("zstd"), "max_reply_bytes"),
        ("gzip", gzip.compress(result(1))[:-1], "no whole data"),
        ("zstd", result(1), "no whole data"),
        ("zstd", b"\x28\xb5\x2f\xfd\x00\x71" + b"\x01\x00\x00", "more than 8 MiB"),
        ("br", result(1), "the request does not accept"),
        ("gzip, gzip", result(1), "the request does not accept"),
    ],
    ids=["bomb-gzip", "bomb-zstd", "cut", "no-zstd", "window", "br", "two"],
)
def test_hostile_replies(
    new_client: NewClient, coding: str, body: bytes | Callable[[], bytes], problem: str
) -> None:
    body = body() if callable(body) else body
    with (
        scripted(replying(body, coding)) as server,
        new_client(port=server.port, compression=LENGTHS) as client,
        pytest.raises(ucall.ConnectionError, match=problem),
    ):
        client.f()


def test_the_last_length_of_a_reply(new_client: NewClient) -> None:
    text = result("x" * 99_900)
    for limit, is_read in ((len(text), True), (len(text) - 1, False)):
        script = replying(gzip.compress(text), "gzip")
        options = {"compression": LENGTHS, "max_reply_bytes": limit}
        with scripted(script) as server, new_client(port=server.port, **options) as client:
            if is_read:
                assert client.with_options(id=1).f().json == "x" * 99_900
            else:
                with pytest.raises(ucall.ConnectionError, match="max_reply_bytes"):
                    client.f()


def test_a_stream_that_expands_without_an_end(new_client: NewClient) -> None:
    """Comments, which no limit of an item counts."""
    body = gzip.compress(b": \n" * 5_000_000)
    script = replying(body, "gzip\r\nContent-Type: text/event-stream")
    options = {"compression": LENGTHS, "max_reply_bytes": 1_000_000}
    with (
        scripted(script) as server,
        new_client(port=server.port, **options) as client,
        pytest.raises(ucall.ConnectionError, match="max_reply_bytes"),
    ):
        list(client.stream.f())


@pytest.mark.parametrize("status", ["415 Unsupported Media Type", "413 Content Too Large"])
def test_a_refused_request_is_sent_again(serve: Serve, new_client: NewClient, status: str) -> None:
    url = f"http://127.0.0.1:{compressing(serve).port}"
    is_remembered = status.startswith("415")
    calls: list[Any] = [
        lambda client: client.size(TEXT).json,
        lambda client: client.notify("size", TEXT),
    ]
    for call in calls:
        recorder = Recorder(url, status)
        with scripted(recorder) as relay:
            for uri in (f"http://127.0.0.1:{relay.port}", [f"http://127.0.0.1:{relay.port}"]):
                recorder.codings.clear()
                with new_client(uri, compression=LENGTHS) as client:
                    assert call(client) in (len(TEXT), None)
                    assert recorder.codings[0] == "zstd" and recorder.codings[-1] is None
                    recorder.codings.clear()
                    call(client)
                    assert (recorder.codings == [None]) == is_remembered


@pytest.mark.parametrize("kind", ["call", "notification", "batch", "stream"])
@pytest.mark.parametrize("status", ["413 Content Too Large", "415 Unsupported Media Type"])
def test_a_request_that_was_not_compressed_is_not_sent_again(
    serve: Serve, new_client: NewClient, status: str, kind: str
) -> None:
    """Though others to the address were, and its 415 says nothing of the coding."""
    recorder = Recorder(f"http://127.0.0.1:{compressing(serve).port}")

    def send(client: Any, text: str) -> None:
        if kind == "call":
            assert client.size(text).json == len(text)
        elif kind == "notification":
            client.notify("size", text)
        elif kind == "batch":
            with client.batch() as batch:
                batch.size(text)
        else:
            list(client.stream.numbers(len(text)))

    with scripted(recorder) as relay:
        uri = f"http://127.0.0.1:{relay.port}"
        for uris in (uri, [uri]) if kind != "stream" else (uri,):
            with new_client(uris, compression=LENGTHS) as client:
                assert client.size(TEXT).json == len(TEXT)
                recorder.codings.clear()
                recorder.plain_status = status
                with pytest.raises(ucall.HTTPError, match=status):
                    send(client, "short")
                assert recorder.codings == [None]
                recorder.plain_status = None
                assert client.size(TEXT).json == len(TEXT)
                assert recorder.codings == [None, "zstd"]


def test_an_array_that_is_refused_says_nothing_of_the_coding(
    new_client: NewClient,
) -> None:
    """The server has been replaced by one that takes no frames."""
    array = numpy.arange(30_000, dtype="float64")
    took: list[str] = []
    is_old = threading.Event()

    def script(peer: Peer) -> None:
        while True:
            body = peer.http_request()
            headers = headers_of(peer.head)
            is_frame = headers["content-type"] != "application/json"
            if is_frame and is_old.is_set():
                took.append("refused")
                reply = http_reply(b"", "Connection: close", status="415 Unsupported Media Type")
                return peer.send(reply)
            coding = headers.get("content-encoding")
            took.append(coding or ("frame" if is_frame else "json"))
            id = 1
            if is_frame and not coding:
                document, _ = part_frames.parse(body)
                id = document["id"]
            peer.send(http_reply(result(3, id)))

    with scripted(script) as server:
        uri = f"http://127.0.0.1:{server.port}"
        for uris in (uri, [uri]):
            is_old.clear()
            with new_client(uris, compression=LENGTHS) as made:
                client = made.with_options(id=1)
                assert client.f(array).json == 3
                assert client.f(TEXT).json == 3
                assert took[-2:] == ["frame", "zstd"]
                took.clear()
                is_old.set()
                assert client.f(array).json == 3
                # It was asked, and got JSON, which is compressed as before.
                assert took == ["refused", "refused", "zstd"]
                assert client.f(TEXT).json == 3
                assert took[-1] == "zstd"


def test_a_refused_stream_is_sent_again(serve: Serve, new_client: NewClient) -> None:
    def words(text: str) -> Iterator[int]:
        yield from map(len, text.split()[:3])

    recorder = Recorder(f"http://127.0.0.1:{serve(words).port}", "415 Unsupported Media Type")
    with scripted(recorder) as relay, new_client(port=relay.port, compression=LENGTHS) as client:
        for _ in range(2):
            assert list(client.stream.words(TEXT)) == [1, 1, 1]
    assert recorder.codings == ["zstd", None, None]


def test_an_error_for_another_reason_is_raised(new_client: NewClient) -> None:
    recorder = Recorder("http://127.0.0.1:9", "400 Bad Request")
    with (
        scripted(recorder) as relay,
        new_client(port=relay.port, compression=LENGTHS) as client,
        pytest.raises(ucall.HTTPError, match="400"),
    ):
        client.size(TEXT)
    assert recorder.codings == ["zstd"]


@pytest.mark.parametrize(
    ("uri", "compression", "problem"),
    [
        ("ws://localhost", LENGTHS, "compression: expected http://"),
        ("tcp://localhost", LENGTHS, "compression: expected http://"),
        ("udp://localhost", LENGTHS, "compression: expected http://"),
        ("http://localhost", True, "compression: expected ucall.Compression, got bool"),
        ("http://localhost", Compression(min_bytes=0), "compression.min_bytes: expected an int"),
        ("http://localhost", Compression(min_bytes=9, max_bytes=8), "compression.max_bytes"),
    ],
)
def test_the_option_is_checked(
    new_client: NewClient, uri: str, compression: Any, problem: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        new_client(uri, compression=compression)


def test_copies_of_a_client_keep_the_option(serve: Serve) -> None:
    recorder = Recorder(f"http://127.0.0.1:{compressing(serve).port}")
    with scripted(recorder) as relay:
        client = Client(port=relay.port, compression=LENGTHS)
        copy = pickle.loads(pickle.dumps(client.with_options(timeout=30)))
        assert copy.size(TEXT).json == len(TEXT)
        quiet = client.with_options(headers={"Accept-Encoding": "identity"})
        assert quiet.size(TEXT).json == len(TEXT)
    assert recorder.codings == ["zstd", "zstd"]
    assert recorder.accepted == ["zstd, gzip", "identity"]


def test_the_command(serve: Serve) -> None:
    recorder = Recorder(f"http://127.0.0.1:{compressing(serve).port}")

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return forking.run([*forking.UCALL, *arguments], timeout=20)

    with scripted(recorder) as relay:
        done = run("size", f"text={TEXT}", "--compression", "--port", str(relay.port))
        assert done.stdout == b"%d\n" % len(TEXT), done
        assert recorder.codings == ["zstd"] and recorder.accepted == ["zstd, gzip"]
    refused = run("size", "text=x", "--compression", "--tcp", "--port", "1")
    assert refused.returncode == 2 and b"compression: expected http://" in refused.stderr
