"""Mounted applications of ASGI, by its specification: ``server.mount``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from functions import sum
from mounting import mounted, sends
from routing import http_client

import ucall
import ucall.posix
import ucall.uring
from harness import HOST, Wire, eventually, http

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

START = {"type": "http.response.start", "status": 200, "headers": [(b"x-one", b"1")]}


def _part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Scopes:
    """An application that keeps its scopes and messages, and answers with the body."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError("no lifespan")
        self.seen.append(scope)
        message = await receive()
        self.messages.append(message)
        await send(START)
        await send(_part(message["body"]))
        self.messages.append(await receive())


def test_the_scope_of_a_request(engine: str) -> None:
    app = Scopes()
    with mounted(engine, app) as server, http_client(server) as client:
        headers = [("X-Twice", "1"), ("X-Twice", "2")]
        reply = client.post("/a%20b/%C3%A9?q=%20&r", content=b"body", headers=headers)
        assert (reply.status_code, reply.content, reply.headers["x-one"]) == (200, b"body", "1")
        assert reply.headers["content-length"] == "4"
        [scope] = app.seen
        given = scope.pop("headers")
        assert [value for name, value in given if name == b"x-twice"] == [b"1", b"2"]
        assert all(type(name) is type(value) is bytes for name, value in given)
        client_host, client_port = scope.pop("client")
        assert (client_host, type(client_port)) == (HOST, int)
        assert scope == {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/a b/é",
            "raw_path": b"/a%20b/%C3%A9",
            "query_string": b"q=%20&r",
            "root_path": "",
            "server": (HOST, server.port),
            "state": {},
            "extensions": {},
        }
    asked, after = app.messages
    assert asked == {"type": "http.request", "body": b"body", "more_body": False}
    assert after == {"type": "http.disconnect"}


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "PROPFIND", "DELETE"])
def test_all_methods(engine: str, method: str) -> None:
    app = Scopes()
    with mounted(engine, app) as server, http_client(server) as client:
        assert client.request(method, "/x").status_code == 200
        assert client.request(method, "/").status_code == 200 or method == "OPTIONS"
    assert app.seen[0]["method"] == method


def test_a_head_request_has_no_body(engine: str) -> None:
    app = sends(START, _part(b"12345"))
    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(f"HEAD /a HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() * 2)
        assert [wire.reply(has_body=False)[0] for _ in range(2)] == [200, 200]
        wire.end()
        assert wire.rest() == b""


def get(path: str = "/a", version: str = "1.1") -> bytes:
    return f"GET {path} HTTP/{version}\r\nHost: {HOST}\r\n\r\n".encode()


LENGTH = {**START, "headers": [(b"content-length", b"4")]}
RESPONSES = {
    "whole": ([START, _part(b"abcd")], "content-length: 4", b"abcd"),
    "with a length": ([LENGTH, _part(b"abcd")], "content-length: 4", b"abcd"),
    "in parts with a length": (
        [LENGTH, _part(b"ab", True), _part(b"cd", True), _part(b"")],
        "content-length: 4",
        b"abcd",
    ),
    "in chunks": (
        [START, _part(b"ab", True), _part(b"", True), _part(b"cd")],
        "Transfer-Encoding: chunked",
        b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n",
    ),
    "empty": ([START, {"type": "http.response.body"}], "content-length: 0", b""),
}


@pytest.mark.parametrize("form", RESPONSES)
@pytest.mark.parametrize("waits", [False, True])
def test_the_framing_of_a_response(engine: str, form: str, waits: bool) -> None:
    messages, framing, body = RESPONSES[form]
    if form == "in chunks" and not waits:
        # All parts are there before the head is sent.
        framing, body = "content-length: 4", b"abcd"
    inner = sends(*messages)

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        async def send_later(message: dict[str, Any]) -> None:
            await asyncio.sleep(0.001 if waits else 0)
            await send(message)

        await inner(scope, receive, send_later if waits else send)

    with mounted(engine, app) as server, Wire(server.port) as wire:
        for _ in range(2):
            wire.send(get())
            head = wire.take_to(b"\r\n\r\n").decode()
            assert head.startswith("HTTP/1.1 200 OK\r\n")
            assert f"\r\n{framing}\r\n" in head
            assert wire.take(len(body)) == body
        wire.send(get(version="1.0"))
        head, _, rest = wire.rest().partition(b"\r\n\r\n")
        assert rest == b"abcd"[: 4 * (form != "empty")]
        assert b"chunked" not in head


def test_a_status_without_a_body(engine: str) -> None:
    start = {"type": "http.response.start", "status": 204}
    with mounted(engine, sends(start, _part(b""))) as server, Wire(server.port) as wire:
        wire.send(get())
        status, head, _ = wire.reply()
        assert (status, b"ength" in head, b"chunked" in head) == (204, False, False)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("size", [64 << 10, (64 << 10) + 1, 20 << 20])
def test_a_large_response(engine: str, waits: bool, size: int) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if waits:
            await asyncio.sleep(0)
        await send(START)
        await send(_part(bytes(size)))

    with mounted(engine, app) as server, http_client(server) as client:
        assert client.get("/a").content == bytes(size)


def test_a_slow_client_makes_send_wait(engine: str) -> None:
    part, sent, has_read = bytes(64 << 10), 0, threading.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(START)
        while not has_read.is_set():
            await send(_part(part, True))
            sent += 1
        await send(_part(b"end"))

    with mounted(engine, app) as server, Wire(server.port, buffer_bytes=64 << 10) as wire:
        wire.send(get())
        wire.take_to(b"\r\n\r\n")
        seen = [-1]

        def rests() -> bool:
            seen.append(sent)
            return seen[-1] == seen[-2] > 0

        assert eventually(lambda: all(rests() for _ in range(100)))
        assert sent * len(part) < 32 << 20
        has_read.set()
        assert wire.take_to(b"3\r\nend\r\n0\r\n\r\n").endswith(b"0\r\n\r\n")


class Left:
    """Notes what becomes of a request whose client leaves."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.ends: list[str] = []

    async def waits(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        self.has_begun.set()
        self.ends.append((await receive())["type"])
        try:
            await send(START)
        except OSError:
            self.ends.append("OSError")
            raise

    async def sends(self, scope: Any, receive: Receive, send: Send) -> None:
        await send(START)
        try:
            while True:
                await send(_part(bytes(1024), True))
                self.has_begun.set()
                await asyncio.sleep(0)
        except OSError:
            self.ends.append((await receive())["type"])
            self.ends.append((await receive())["type"])
            self.ends.append("OSError")
            raise

    async def goes_on(self, scope: Any, receive: Receive, send: Send) -> None:
        self.has_begun.set()
        for task in [asyncio.create_task(receive()) for _ in range(2)]:  # type: ignore[arg-type]
            await task
        await asyncio.sleep(0.01)
        self.ends.append("returned")


@pytest.mark.parametrize(
    ("way", "ends"),
    [
        ("waits", ["http.disconnect", "OSError"]),
        ("sends", ["http.disconnect", "http.disconnect", "OSError"]),
        ("goes_on", ["returned"]),
    ],
)
def test_a_client_that_leaves(
    engine: str, caplog: pytest.LogCaptureFixture, way: str, ends: list[str]
) -> None:
    left = Left()
    app = getattr(left, way)
    with mounted(engine, lifeless(app)) as server:
        with Wire(server.port) as wire:
            wire.send(get())
            assert left.has_begun.wait(60)
            wire.reset()
        assert eventually(lambda: left.ends == ends)
        with http_client(server) as client:
            assert client.get("/healthz").status_code == 200
    assert [it for it in caplog.records if it.levelname == "ERROR"] == []


def lifeless(app: Any) -> Any:
    """An application that refuses the lifespan."""

    async def checked(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise ValueError("no lifespan")
        await app(scope, receive, send)

    return checked


def test_an_application_that_never_answers(engine: str) -> None:
    ends: list[str] = []

    @lifeless
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    with mounted(engine, app, timeout_ms=50) as server, http_client(server) as client:
        reply = client.get("/a")
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, -32001)
        assert eventually(lambda: ends == ["cancelled"])


FAULTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "nothing": ([], "returned before it had sent its whole response"),
    "a head alone": ([START], "returned before it had sent its whole response"),
    "a body first": ([_part(b"")], "the response has not begun"),
    "two heads": ([START, START], "the response has begun"),
    "a status of no response": ([{**START, "status": 101}], "status: expected an int"),
    "no status": ([{"type": "http.response.start"}], "status: expected an int"),
    "text": ([START, {**_part(b""), "body": "text"}], "body: expected bytes, got str"),
    "text as a header": ([{**START, "headers": [("a", b"b")]}], "expected pairs of bytes, got str"),
    "a header of three": ([{**START, "headers": [(b"a", b"b", b"c")]}], "expected pairs"),
    "no name": ([{**START, "headers": [(b"", b"b")]}], "is no name of a header"),
    "a name with a space": ([{**START, "headers": [(b"a b", b"b")]}], "is no name of a header"),
    "a line break": ([{**START, "headers": [(b"a", b"b\r\nc: d")]}], "a line break or a NUL"),
    "a wrong length": ([{**START, "headers": [(b"content-length", b"-1")]}], "expected one number"),
    "a body that is too short": ([LENGTH, _part(b"abc")], "shorter than its content-length"),
    "a body that is too long": ([LENGTH, _part(b"abcde")], "longer than its content-length"),
    "another type": ([{"type": "http.other"}], "got http.other"),
    "no type": ([{}], "got one without a type"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("waits", [False, True])
def test_faults_before_the_head_is_sent(
    engine: str, caplog: pytest.LogCaptureFixture, fault: str, waits: bool
) -> None:
    messages, problem = FAULTS[fault]
    inner = sends(*messages)

    @lifeless
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if waits:
            await asyncio.sleep(0)
        await inner(scope, receive, send)

    with mounted(engine, app, sum) as server, Wire(server.port) as wire:
        wire.send(get())
        assert wire.reply()[0] == 500
        # The connection is as before.
        wire.send(http(b'{"jsonrpc":"2.0","method":"sum","params":[1,2],"id":1}'))
        assert wire.reply()[2].endswith(b'"result":3}')
    [record] = [it for it in caplog.records if it.levelname == "ERROR"]
    assert problem in (record.exc_text or "") or problem in record.getMessage()


LATE: dict[str, list[dict[str, Any]]] = {
    "an exception": [START, _part(b"ab", True), {}],
    "the end": [START, _part(b"ab", True)],
    "a body that is too short": [LENGTH, _part(b"ab", True), _part(b"c")],
    "a body that is too long": [LENGTH, _part(b"ab", True), _part(b"cde")],
}


@pytest.mark.parametrize("fault", LATE)
def test_faults_after_the_head_is_sent(
    engine: str, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    @lifeless
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        for message in LATE[fault]:
            await send(message)
            await asyncio.sleep(0.001)

    with mounted(engine, app) as server, Wire(server.port) as wire:
        wire.send(get())
        _, body = wire.rest().split(b"\r\n\r\n", 1)
        assert body == (b"ab" if fault.startswith("a body") else b"2\r\nab\r\n")
    assert [it.levelname for it in caplog.records].count("ERROR") == 1


@pytest.mark.parametrize("waits", [False, True])
def test_messages_after_the_response(
    engine: str, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    errors: list[str] = []

    @lifeless
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if waits:
            await asyncio.sleep(0)
        await send(START)
        await send(_part(b"one"))
        for message in [START, _part(b"two")]:
            try:
                await send(message)
            except RuntimeError as error:
                errors.append(str(error).partition(": ")[2])
        raise KeyError("late")

    with mounted(engine, app) as server, Wire(server.port) as wire:
        for _ in range(2):
            wire.send(get())
            assert wire.reply()[2] == b"one"
        assert eventually(lambda: len(errors) == 4)
    assert errors[:2] == ["the response has begun", "the response is complete"]
    late = [it for it in caplog.records if it.levelname == "ERROR"]
    assert len(late) == 2
    assert all("/, after its response, raised" in it.getMessage() for it in late)


@pytest.mark.parametrize("waits", [False, True])
def test_work_after_the_response_holds_up_no_request(engine: str, waits: bool) -> None:
    released, ends = threading.Event(), []

    @lifeless
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if waits:
            await asyncio.sleep(0)
        await send(START)
        await send(_part(b"one"))
        while not released.is_set():
            await asyncio.sleep(0.001)
        ends.append("done")

    with mounted(engine, app) as server:
        with Wire(server.port) as wire:
            for _ in range(3):
                wire.send(get())
                assert wire.reply()[2] == b"one"
        assert ends == []
        threading.Timer(0.05, released.set).start()
    # The drain has waited.
    assert ends == ["done"] * 3


def test_requests_run_beside_each_other(engine: str) -> None:
    both = asyncio.Event()
    count = 0

    @lifeless
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        nonlocal count
        count += 1
        if count == 2:
            both.set()
        await both.wait()
        await send(START)
        await send(_part(scope["path"].encode()))

    with mounted(engine, app) as server, Wire(server.port) as one, Wire(server.port) as two:
        one.send(get("/1"))
        two.send(get("/2"))
        assert (one.reply()[2], two.reply()[2]) == (b"/1", b"/2")


def test_calls_and_routes_come_first(engine: str) -> None:
    app = Scopes()

    def check(ctx: ucall.Context) -> str | None:
        return "ada" if ctx.headers.get("x-key") == "1" else None

    with mounted(engine, app, sum, auth=check) as server, http_client(server) as client:

        @server.http("/mine", methods=["GET", "POST"])
        def mine(request: ucall.HttpRequest) -> str:
            return "mine"

        key = {"X-Key": "1"}
        call = {"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": 1}
        assert client.post("/", json=call).status_code == 401
        assert client.post("/", json=call, headers=key).json()["result"] == 3
        assert client.post("/sum", json=[1, 2]).status_code == 401
        assert client.post("/sum", json=[1, 2], headers=key).json() == 3
        assert client.get("/mine").status_code == 401
        assert client.get("/mine", headers=key).text == "mine"
        assert client.get("/healthz").status_code == 200
        assert app.seen == []
        # The application authenticates its own requests.
        assert client.get("/", headers={"Accept": "text/html"}).headers["x-one"] == "1"
        assert client.get("/sum").headers["x-one"] == "1"
        assert client.put("/mine").headers["x-one"] == "1"
        assert client.post("/else").headers["x-one"] == "1"
    assert [scope["path"] for scope in app.seen] == ["/", "/sum", "/mine", "/else"]


def test_rules_for_browsers(engine: str) -> None:
    app = Scopes()
    with mounted(engine, app, sum) as server, http_client(server) as client:
        foreign = {"Origin": "https://elsewhere.example"}
        # The application decides about foreign pages, the server about calls and names of hosts.
        assert client.post("/a", headers=foreign).status_code == 200
        assert client.options("/a", headers=foreign).status_code == 200
        assert client.post("/", headers=foreign).status_code == 403
        assert client.post("/sum", headers=foreign, json=[1, 2]).status_code == 403
        assert client.options("/", headers=foreign).status_code == 403
        assert client.get("/a", headers={"Host": "rebound.example"}).status_code == 403
    assert len(app.seen) == 2


def test_several_applications(engine: str) -> None:
    one, two = Scopes(), Scopes()
    kind = ucall.posix.Server if engine == "posix" else ucall.uring.Server
    server = kind(port=0)
    server.mount("/a/", one)
    server.mount("/a/b", two)
    with server, http_client(server) as client:
        paths = ["/a", "/a/", "/a/c?x", "/a/b", "/a/b/c", "/a/bc", "/ab", "/"]
        statuses = [client.get(path).status_code for path in paths]
        assert statuses == [200] * 6 + [404, 405]
    roots = [(scope["root_path"], scope["path"]) for scope in one.seen]
    assert roots == [("/a", "/a"), ("/a", "/a/"), ("/a", "/a/c"), ("/a", "/a/bc")]
    assert [(it["root_path"], it["path"]) for it in two.seen] == [
        ("/a/b", "/a/b"),
        ("/a/b", "/a/b/c"),
    ]


def test_an_own_page_at_the_root_stays(engine: str) -> None:
    app = Scopes()
    kind = ucall.posix.Server if engine == "posix" else ucall.uring.Server
    server = kind(port=0)

    @server.http("/")
    def page(request: ucall.HttpRequest) -> str:
        return "page"

    server.mount("/", app)
    with server, http_client(server) as client:
        assert client.get("/").text == "page"
        assert client.get("/a").headers["x-one"] == "1"


@pytest.mark.parametrize(
    ("path", "app", "error"),
    [
        ("app", print, ValueError),
        ("/app*", print, ValueError),
        ("/app?x", print, ValueError),
        ("//app", print, ValueError),
        ("/é", print, ValueError),
        ("/app", None, TypeError),
    ],
)
def test_invalid_mounts(path: str, app: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="expected"):
        ucall.Server().mount(path, app)


def test_when_and_where_an_application_may_be_mounted() -> None:
    server = ucall.Server(port=0)
    server.mount("/app", sends())
    with pytest.raises(ValueError, match="has an application already"):
        server.mount("/app/", sends())
    with server, pytest.raises(RuntimeError, match="a server that does not run yet"):
        server.mount("/other", sends())


def test_behind_a_trusted_proxy(engine: str) -> None:
    app = Scopes()
    headers = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    for proxies in [[HOST], []]:
        with mounted(engine, app, trusted_proxies=proxies) as server, http_client(server) as client:
            client.get("/a", headers=headers)
    trusted, other = app.seen
    assert (trusted["scheme"], trusted["client"]) == ("https", ("192.0.2.7", 0))
    assert (other["scheme"], other["client"][0]) == ("http", HOST)


def test_limits(engine: str) -> None:
    app = Scopes()
    limits = {"max_body_bytes": 8, "max_running_calls": 1}
    with mounted(engine, app, **limits) as server, http_client(server) as client:
        assert client.post("/a", content=bytes(8)).status_code == 200
        assert client.post("/a", content=bytes(9)).status_code == 413
