"""HTTP routes: ``server.http``."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import trustme
from functions import sum
from routing import WAYS, http_client
from serving import Serve

import ucall
import ucall.auth
from harness import HOST, Wire, eventually, http, request
from ucall import HttpRequest, HttpResponse

GET = f"GET %s HTTP/1.1\r\nHost: {HOST}\r\n\r\n"


def _get(path: str) -> bytes:
    return (GET % path).encode()


def _add(server: ucall.Server, way: str, path: str, function: Any, **options: Any) -> None:
    """Adds a plain function as it is, to run in a thread, or as an async one."""

    async def later(request: HttpRequest) -> Any:
        await asyncio.sleep(0)
        return function(request)

    served = later if way == "async" else function
    server.http(path, threads=way == "threads", **options)(served)


@pytest.mark.parametrize("way", WAYS)
def test_a_route_gets_its_request(serve: Serve, way: str) -> None:
    seen: list[HttpRequest] = []

    def answer(request: HttpRequest) -> bytes:
        seen.append(request)
        return request.body

    server = serve(sum)
    _add(server, way, "/a/*", answer, methods=["get", "PUT"])
    with http_client(server) as client:
        headers = [("X-One", "1"), ("X-One", "2")]
        reply = client.put("/a/b%20c?d=%20&e", content=b"\x00body", headers=headers)
        assert (reply.status_code, reply.content) == (200, b"\x00body")
        assert reply.headers["content-type"] == "application/octet-stream"
        assert client.get("/a/").content == b""
        assert client.post("/", content=b"1").json()["error"]["code"] == -32600
    put, get = seen
    assert (put.method, put.path, put.query) == ("PUT", "/a/b%20c", "d=%20&e")
    assert (put.headers["x-one"], put.body) == ("1, 2", b"\x00body")
    assert isinstance(put.peer, tuple) and put.peer[0] == HOST and put.user is None
    assert (get.method, get.path, get.query, get.body) == ("GET", "/a/", "", b"")
    assert repr(get) == "<ucall.HttpRequest GET /a/>"


@pytest.mark.parametrize("way", WAYS)
def test_bodies_and_responses(serve: Serve, way: str) -> None:
    server = serve()
    text, binary = "text/plain; charset=utf-8", "application/octet-stream"
    html, latin = "text/html; charset=utf-8", "text/html; charset=latin-1"
    results = {
        "/text": ("é", 200, text, "é".encode()),
        "/bytes": (b"\xff", 200, binary, b"\xff"),
        "/empty": ("", 200, text, b""),
        "/chosen": (HttpResponse("{}", 201, "application/json"), 201, "application/json", b"{}"),
        "/page": (HttpResponse("é", 200, "text/html"), 200, html, "é".encode()),
        "/latin": (HttpResponse("e", 200, latin), 200, latin, b"e"),
        "/file": (HttpResponse(b"e", 200, "text/html"), 200, "text/html", b"e"),
        "/code": (HttpResponse(status=299), 299, binary, b""),
        "/none": (HttpResponse(status=204), 204, None, b""),
        "/status": (HttpResponse("x", HTTPStatus.NOT_FOUND), 404, text, b"x"),
    }
    for path, (result, *_) in results.items():
        _add(server, way, path, lambda request, result=result: result)
    with http_client(server) as client:
        for path, (_, status, content_type, body) in results.items():
            for method in ("GET", "HEAD"):
                reply = client.request(method, path)
                assert reply.status_code == status
                assert reply.headers.get("content-type") == content_type
                assert reply.content == (body if method == "GET" else b"")
                if status != 204:
                    assert reply.headers["content-length"] == str(len(body))
                assert "date" in reply.headers


def _set_later() -> HttpResponse:
    response = HttpResponse("é")
    response.content_type = "text/html"
    return response


async def _yielded_later(*parts: bytes | str) -> AsyncIterator[bytes | str]:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    ("make", "sent"),
    [
        (lambda: HttpResponse("e", 200, "text/a; CHARSET=latin-1"), "text/a; CHARSET=latin-1"),
        (lambda: HttpResponse("e", 200, 'text/a;charset="a;b"'), 'text/a;charset="a;b"'),
        (lambda: HttpResponse("e", 200, "text/html; "), "text/html; charset=utf-8"),
        (lambda: HttpResponse("e", 200, "Text/HTML"), "Text/HTML; charset=utf-8"),
        (
            lambda: HttpResponse("e", 200, 'text/a; profile="b; charset=c"'),
            'text/a; profile="b; charset=c"; charset=utf-8',
        ),
        (_set_later, "text/html; charset=utf-8"),
        (lambda: HttpResponse(iter(["é", b""]), 200, "text/csv"), "text/csv; charset=utf-8"),
        (lambda: HttpResponse(iter([b"", "é"]), 200, "text/csv"), "text/csv"),
        (lambda: HttpResponse(_yielded_later("é"), 200, "text/csv"), "text/csv; charset=utf-8"),
        (lambda: HttpResponse(_yielded_later(b"e"), 200, "text/csv"), "text/csv"),
        (lambda: HttpResponse("{}", 200, "application/json"), "application/json"),
    ],
)
def test_texts_have_one_charset(serve: Serve, make: Callable[[], HttpResponse], sent: str) -> None:
    server = serve()

    @server.http("/a")
    async def answer(request: ucall.HttpRequest) -> HttpResponse:
        return make()

    with http_client(server) as client:
        assert client.get("/a").headers["content-type"] == sent


def test_headers_of_a_response(serve: Serve) -> None:
    server = serve()
    headers = {"X-A": "b", "Cache-Control": "no-store", "X-Latin": "é"}
    server.http("/a")(lambda request: HttpResponse("", headers=headers))
    with http_client(server) as client:
        reply = client.get("/a")
        assert all(reply.headers[name] == value for name, value in headers.items())


@pytest.mark.parametrize(
    "headers",
    [
        {"Set-Cookie": ["a=1", "b=2", "a=1"], "X": "y"},
        [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X", "y"), ("Set-Cookie", "a=1")],
    ],
)
def test_repeated_headers(serve: Serve, headers: Any) -> None:
    server = serve()
    server.http("/")(
        lambda request: HttpResponse(request.headers.get("cookie", ""), 200, None, headers)
    )
    with http_client(server) as client:
        reply = client.get("/", headers=[("Cookie", "c=3"), ("Cookie", "d=4"), ("COOKIE", "e=5")])
    assert reply.headers.get_list("set-cookie") == ["a=1", "b=2", "a=1"]
    assert (reply.headers["x"], reply.text) == ("y", "c=3; d=4; e=5")


def test_what_a_route_may_return(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    results = {"buffer": bytearray(b"ab"), "view": memoryview(b"ab"), "none": None}
    for path, result in results.items():
        server.http(f"/{path}")(lambda request, result=result: result)
    with http_client(server) as client:
        replies = {path: client.get(f"/{path}") for path in results}
    assert [replies[path].content for path in ("buffer", "view")] == [b"ab", b"ab"]
    assert replies["none"].status_code == 500
    assert "got None: return ucall.HttpResponse(status=204)" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"headers": {"A": ["b", "c\r\nd: e"]}}, "headers: A: expected printable Latin-1"),
        ({"headers": [("A", "b"), ("A", 1)]}, "headers: A: expected str, got int"),
        ({"body": None}, "body: expected bytes, str, an iterator or a value of JSON, got None"),
        ({"status": 100}, "status: expected 200 to 599, got 100"),
        ({"status": "200"}, "status: expected 200 to 599, got '200'"),
        ({"body": "x", "status": 204}, "body: expected none, as status 204 has no body"),
        ({"body": {}, "status": 304}, "body: expected none, as status 304 has no body"),
        ({"content_type": "a\r\nb: c"}, "content_type: expected printable Latin-1"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers: a: expected printable Latin-1"),
        ({"headers": {"a": "\n"}}, "headers: a: expected printable Latin-1"),
        ({"headers": {"a": "€"}}, "headers: a: expected printable Latin-1"),
        ({"headers": {"a": 1}}, "headers: a: expected str, got int"),
        ({"headers": {"a: b\r\n": "c"}}, "headers: expected the name of a header"),
        ({"headers": {"": "c"}}, "headers: expected the name of a header"),
        ({"headers": {1: "c"}}, "headers: expected the name of a header, got 1"),
        ({"headers": {"content-type": "a"}}, "give it as content_type"),
        *(
            ({"headers": {name: "a"}}, f"headers: {name} cannot be set: the server writes it")
            for name in [
                "Access-Control-Allow-Origin",
                "CONNECTION",
                "Content-Length",
                "date",
                "Transfer-Encoding",
                "upgrade",
            ]
        ),
    ],
)
def test_invalid_responses(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        HttpResponse(**arguments)
    assert problem in str(refused.value)


def test_a_response_that_was_changed_is_checked_again(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def split(request: HttpRequest) -> HttpResponse:
        response = HttpResponse("x")
        response.headers["A"] = "b\r\nSet-Cookie: c"
        return response

    server = serve()
    server.http("/split")(split)
    with http_client(server) as client:
        reply = client.get("/split")
        assert reply.status_code == 500 and "set-cookie" not in reply.headers
    assert "printable Latin-1" in caplog.text


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("health", {}, "path: expected one such as '/health'"),
        ("", {}, "path: expected"),
        ("/a b", {}, "path: expected"),
        ("/é", {}, "path: expected"),
        ("/a?b", {}, "path: expected"),
        ("/*/a", {}, "path: expected"),
        ("/a**", {}, "path: expected"),
        ("/a", {"methods": "GET"}, "methods: expected a list of names, such as ['GET']"),
        ("/a", {"methods": []}, "methods: expected some of GET, POST, PUT, PATCH, DELETE"),
        ("/a", {"methods": ["HEAD"]}, "methods: expected some of GET"),
        ("/", {"methods": ["POST"]}, "POST / is for JSON-RPC"),
        ("/a", {"threads": 3}, "/a: threads: expected True or False"),
    ],
)
def test_invalid_routes(path: str, options: dict[str, Any], problem: str) -> None:
    server = ucall.Server(port=0)
    with pytest.raises((TypeError, ValueError)) as refused:
        server.http(path, **options)(lambda request: "")
    assert problem in str(refused.value)


def test_a_path_and_method_have_one_function() -> None:
    server = ucall.Server(port=0)

    def first(request: HttpRequest) -> str:
        return ""

    async def later(request: HttpRequest) -> str:
        return ""

    assert server.http("/a", methods=["GET", "POST"])(first) is first
    server.http("/a")(first)
    server.http("/b")(later)
    with pytest.raises(ValueError, match="POST /a is already answered by <function"):
        server.http("/a", methods=["PUT", "POST"])(later)
    with pytest.raises(TypeError, match="/c: expected a function, got int"):
        server.http("/c")(3)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="/c: is async"):
        server.http("/c", threads=True)(later)


def test_other_methods_and_paths(serve: Serve) -> None:
    server = serve()
    server.http("/", methods=["GET"])(lambda request: "page")
    server.http("/a", methods=["PUT", "DELETE"])(lambda request: "a")
    server.http("/a/*")(lambda request: "below")
    with http_client(server) as client:
        assert client.get("/").text == "page"
        assert client.delete("/a").text == "a" and client.get("/a/b/c").text == "below"
        for method, path, status, allow in [
            ("GET", "/a", 405, "PUT, DELETE, OPTIONS"),
            ("PUT", "/", 405, "GET, HEAD, POST, OPTIONS"),
            ("BREW", "/a/", 405, "GET, HEAD, OPTIONS"),
            ("GET", "/b", 404, None),
            ("OPTIONS", "/a/b", 204, "GET, HEAD, OPTIONS"),
        ]:
            reply = client.request(method, path)
            assert (reply.status_code, reply.headers.get("allow")) == (status, allow)


@pytest.mark.parametrize("way", WAYS)
def test_errors(serve: Serve, caplog: pytest.LogCaptureFixture, way: str) -> None:
    codes = {-32602: 400, -32004: 403, -32003: 503, -32002: 503, -32001: 504, 7: 500}

    def fail(request: HttpRequest) -> Any:
        if request.query:
            raise ucall.RPCError(int(request.query), "no", {"why": 1})
        raise KeyError("secret")

    server = serve()
    _add(server, way, "/fail", fail)
    _add(server, way, "/wrong", lambda request: None)
    with http_client(server) as client:
        for code, status in codes.items():
            reply = client.get(f"/fail?{code}")
            error = {"code": code, "message": "no", "data": {"why": 1}}
            assert (reply.status_code, reply.json()) == (status, {"error": error})
            assert reply.headers["content-type"] == "application/json"
        for path, log in (("/fail", "secret"), ("/wrong", "/wrong: expected a response")):
            reply = client.get(path)
            error = {"code": -32603, "message": "Internal error"}
            assert (reply.status_code, reply.json()) == (500, {"error": error})
            assert log in caplog.text
        assert client.head("/fail").content == b""


@pytest.mark.parametrize("way", WAYS)
def test_auth_and_its_exceptions(serve: Serve, way: str) -> None:
    server = serve(auth=ucall.auth.bearer({"s3cret": "alice"}))
    _add(server, way, "/user", lambda request: str(request.user), methods=["GET", "PUT"])
    _add(server, way, "/public", lambda request: str(request.user), auth=False)
    with http_client(server) as client:
        known = {"Authorization": "Bearer s3cret"}
        for _ in range(2):
            assert client.get("/user").status_code == 401
            assert client.get("/user", headers=known).text == "alice"
            assert client.get("/public", headers=known).text == "None"
            assert client.get("/public").text == "None"
            body = iter([b"chunked"])
            assert client.put("/user", headers=known, content=body).text == "alice"
        refused = client.put("/user", content=b"x" * 100)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_browsers(serve: Serve) -> None:
    server = serve(allow_origins=["https://app.example"])
    server.http("/a", methods=["GET", "PUT"])(lambda request: "a")
    with http_client(server) as client:
        named = {"Origin": "https://app.example"}
        reply = client.get("/a", headers=named)
        assert reply.headers["access-control-allow-origin"] == named["Origin"]
        assert reply.headers["vary"] == "Origin"
        asked = {**named, "Access-Control-Request-Method": "PUT"}
        preflight = client.options("/a", headers=asked)
        assert preflight.status_code == 204
        methods = preflight.headers["access-control-allow-methods"]
        assert methods == "GET, HEAD, PUT, OPTIONS"
        # A page that may call may read that it called wrongly.
        for wrong in (client.get("/b", headers=named), client.post("/a", headers=named)):
            assert wrong.status_code in (404, 405)
            assert wrong.headers["access-control-allow-origin"] == named["Origin"]
        assert client.get("/a", headers={"Origin": "https://evil.example"}).status_code == 403
        assert client.get("/a", headers={"Host": "evil.example"}).status_code == 403


def test_limits(serve: Serve) -> None:
    release = threading.Event()
    server = serve(max_body_bytes=9, max_reply_bytes=1_000, max_running_calls=1, max_threads=1)
    server.http("/size", methods=["GET", "PUT"])(lambda request: "x" * int(request.query or 0))
    server.http("/wait", threads=True)(lambda request: str(release.wait()))
    with http_client(server) as client:
        assert client.put("/size", content=b"x" * 10).status_code == 413
        assert client.get("/size?20").text == "x" * 20
        large = client.get("/size?1000")
        assert large.status_code == 500 and "max_reply_bytes" in large.text
    with Wire(server.port) as wire:
        wire.send(_get("/wait"))
        with http_client(server) as client:
            assert eventually(lambda: client.get("/size").status_code == 503)
        release.set()
        assert wire.reply()[0] == 200


@pytest.mark.parametrize("way", ["async", "threads"])
def test_a_deadline(serve: Serve, way: str) -> None:
    release = threading.Event()

    async def wait_later(request: HttpRequest) -> str:
        await asyncio.sleep(3000)
        return ""

    server = serve(timeout_ms=50)
    function = wait_later if way == "async" else lambda request: str(release.wait())
    server.http("/wait", threads=way == "threads")(function)
    with http_client(server) as client:
        reply = client.get("/wait")
        assert reply.status_code == 504 and reply.json()["error"]["code"] == -32001
    release.set()


def test_pipelined_among_calls_as_h11_reads_it(serve: Serve) -> None:
    async def later(request: HttpRequest) -> str:
        await asyncio.sleep(0.01)
        return request.query

    async def parts(request: HttpRequest) -> AsyncIterator[bytes]:
        for letter in request.query:
            await asyncio.sleep(0)
            yield letter.encode()

    server = serve(sum)
    server.http("/later")(later)
    server.http("/parts")(parts)
    server.http("/now")(lambda request: request.query)
    call = http(request("sum", [2, 3]))
    targets = [f"/{name}?{number}xyz" for number in range(8) for name in ("later", "parts", "now")]
    with Wire(server.port) as wire:
        wire.send(b"".join(call + _get(target) for target in targets))
        reader = h11.Connection(h11.CLIENT)
        for target in targets:
            assert json.loads(_read(reader, wire, "POST"))["result"] == 5
            assert _read(reader, wire, "GET") == target.partition("?")[2].encode()


def _read(reader: h11.Connection, wire: Wire, method: str) -> bytes:
    """The body of the next response."""
    reader.send(h11.Request(method=method, target="/", headers=[("Host", HOST)]))
    reader.send(h11.EndOfMessage())
    body = b""
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            reader.receive_data(wire.socket.recv(1 << 16))
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    reader.start_next_cycle()
    return body


def test_under_tls(serve: Serve, tmp_path: Path) -> None:
    authority, path = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server = serve(ssl_certfile=path)

    def parts(request: HttpRequest) -> Iterator[bytes]:
        for _ in range(50):
            yield request.body

    server.http("/parts", methods=["PUT"])(parts)
    with httpx.Client(base_url=f"https://{HOST}:{server.port}", verify=context) as client:
        body = b"x" * 100_000
        assert client.put("/parts", content=body).content == body * 50


def test_the_client_for_browsers(serve: Serve) -> None:
    server = serve(auth=ucall.auth.bearer({"s3cret": "alice"}))
    with http_client(server) as client:
        reply = client.get("/ucall.js")
        assert reply.status_code == 200 and "export" in reply.text
        assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
        assert client.head("/ucall.js").content == b""
        assert client.post("/ucall.js").status_code == 405


def test_a_route_of_the_program_replaces_the_client_for_browsers(serve: Serve) -> None:
    server = serve()
    server.http("/ucall.js")(lambda request: "mine")
    with http_client(server) as client:
        assert client.get("/ucall.js").text == "mine"


def test_a_drain_finishes_responses(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    release = threading.Event()

    async def later(request: HttpRequest) -> str:
        while not release.is_set():
            await asyncio.sleep(0.001)
        return "done"

    server = ucall.Server(port=0)
    server.http("/later")(later)
    server.start()
    with Wire(server.port) as wire:
        wire.send(_get("/later"))
        with http_client(server) as client:
            client.get("/health")
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        release.set()
        status, _, body = wire.reply()
        assert (status, body) == (200, b"done")
        stopper.join()
    assert caplog.text == ""
