"""Paths of routes with params in them, and results that are sent as JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from typing import Any

import numpy
import pytest
from routing import WAYS, http_client
from serving import Serve

import ucall
from harness import HOST, Wire, http
from ucall import HttpRequest, HttpResponse


def _get(path: str) -> bytes:
    return http(b"", target=path, method="GET")


def _params(request: HttpRequest) -> dict[str, str]:
    return request.path_params


async def _params_later(request: HttpRequest) -> dict[str, str]:
    await asyncio.sleep(0)
    return request.path_params


@pytest.mark.parametrize("way", WAYS)
def test_a_path_has_params(serve: Serve, way: str) -> None:
    server = serve()
    function = _params_later if way == "async" else _params
    server.http("/notes/{name}/parts/{part}", threads=way == "threads")(function)
    server.http("/plain")(_params)
    with http_client(server) as client:
        reply = client.get("/notes/a%20b/parts/%C3%A9?q=1")
        assert reply.headers["content-type"] == "application/json"
        assert reply.json() == {"name": "a b", "part": "é"}
        assert client.get("/plain").json() == {}
        for missing in ["/notes/a/parts", "/notes/a/parts/", "/notes//parts/b", "/notes/a/b/c/d"]:
            assert client.get(missing).status_code == 404


#: The texts of a segment, each with its param, or None where the request is refused.
SEGMENTS = {
    "%2F": "/",
    "..%2f..%2Fetc%2Fpasswd": "../../etc/passwd",
    "%2e%2E": "..",
    "..": "..",
    "a+b": "a+b",
    "{name}": "{name}",
    "%00": None,
    "a%00b": None,
    "%": None,
    "%2": None,
    "%zz": None,
    "%FF": None,
    "%C0%AF": None,
    "%ED%A0%80": None,
    "x" * 8_000: "x" * 8_000,
}


@pytest.mark.parametrize("segment", SEGMENTS)
def test_hostile_params(serve: Serve, segment: str) -> None:
    server = serve()
    server.http("/notes/{name}")(_params)
    with Wire(server.port) as wire:
        wire.send(_get(f"/notes/{segment}") + _get("/notes/next"))
        status, _, body = wire.reply()
        if (name := SEGMENTS[segment]) is None:
            expected = b"params.name: expected UTF-8 without NUL, percent-encoded"
            assert status == 400 and b"-32602" in body and expected in body
        else:
            assert (status, body) == (200, b'{"name":"%s"}' % name.encode())
        assert wire.reply()[2] == b'{"name":"next"}'


def test_exact_paths_come_first_then_params_then_beginnings(serve: Serve) -> None:
    server = serve()
    paths = ["/a/*", "/a/{x}", "/a/b", "/a/{x}/c", "/*"]
    for path in paths:
        server.http(path)(lambda request, path=path: path)
    with http_client(server) as client:
        for path, route in [
            ("/a/b", "/a/b"),
            ("/a/x", "/a/{x}"),
            ("/a/b/c", "/a/{x}/c"),
            ("/a/b/d", "/a/*"),
            ("/a/", "/a/*"),
            ("/b", "/*"),
        ]:
            assert client.get(path).text == route


def test_methods_of_a_path_with_params(serve: Serve) -> None:
    server = serve()
    server.http("/notes/{name}")(_params)
    server.http("/notes/{name}", methods=["PUT", "DELETE"])(lambda request: "changed")
    with http_client(server) as client:
        assert client.put("/notes/a").text == "changed"
        wrong = client.patch("/notes/a")
        assert (wrong.status_code, wrong.headers["allow"]) == (
            405,
            "GET, HEAD, PUT, DELETE, OPTIONS",
        )
        assert client.head("/notes/a").status_code == 200
        assert client.options("/notes/a").headers["allow"] == wrong.headers["allow"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/{x}", None),
        ("/{y}", "'/{y}' and '/{x}' mean some of the same paths"),
        ("/a/{x}", None),
        ("/{x}/b", "'/{x}/b' and '/a/{x}' mean some of the same paths"),
        ("/b/{x}", None),
        ("/b/{x}/c", None),
        ("/b/c/{x}", "'/b/c/{x}' and '/b/{x}/c' mean some of the same paths"),
        ("/a/b", None),
        ("/{x}/{x}", "expected another name for each param"),
        ("/{x}/*", "expected params or a '*' at the end, not both"),
        ("/{x}.json", "a whole segment, such as '{name}', got '{x}.json'"),
        ("/{}", "a whole segment"),
        ("/{x", "a whole segment"),
        ("/x}", "a whole segment"),
        ("/{1}", "a whole segment"),
        ("/{x:path}", "a whole segment"),
    ],
)
def test_paths_that_are_refused(path: str, problem: str | None) -> None:
    server = ucall.Server(port=0)
    for known in ["/{x}", "/a/{x}", "/b/{x}/c"]:
        server.http(known)(_params)
    if problem is None:
        server.http(path, methods=["PUT"])(_params)
        return
    with pytest.raises(ValueError) as refused:
        server.http(path, methods=["PUT"])(_params)
    assert problem in str(refused.value)


@dataclasses.dataclass
class Note:
    name: str
    at: datetime.date


@pytest.mark.parametrize("way", WAYS)
def test_results_are_json(serve: Serve, way: str) -> None:
    note = Note("a", datetime.date(2026, 11, 30))
    json_of_note = '{"name":"a","at":"2026-11-30"}'
    results: dict[str, tuple[Any, str]] = {
        "dict": ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'),
        "list": ([], "[]"),
        "tuple": ((1, True), "[1,true]"),
        "int": (3, "3"),
        "dataclass": (note, json_of_note),
        "array": (numpy.array([1, 2], "u1"), "[1,2]"),
        "response": (HttpResponse({"error": note}, 404), f'{{"error":{json_of_note}}}'),
    }
    server = serve()

    @server
    def same(name: str) -> Any:
        return results[name][0]

    for name, (result, _) in results.items():

        async def later(request: HttpRequest, result: Any = result) -> Any:
            await asyncio.sleep(0)
            return result

        function = later if way == "async" else lambda request, result=result: result
        server.http(f"/{name}", threads=way == "threads")(function)
    with http_client(server) as client:
        for name, (_, text) in results.items():
            reply = client.get(f"/{name}")
            assert reply.headers["content-type"] == "application/json"
            assert reply.headers["content-length"] == str(len(text.encode()))
            assert reply.text == text
            if name != "response":  # As of a function at its path.
                assert client.post("/same", json={"name": name}).text == text
            assert reply.status_code == (404 if name == "response" else 200)
            assert client.head(f"/{name}").content == b""


def test_results_that_json_lacks(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(max_reply_bytes=1_000)
    results = {"nan": [float("nan")], "object": {"a": object()}, "long": ["x" * 1_000]}
    for name, result in results.items():
        server.http(f"/{name}")(lambda request, result=result: result)
    with http_client(server) as client:
        for name in results:
            reply = client.get(f"/{name}")
            assert reply.status_code == 500 and reply.json()["error"]["code"] == -32603
            assert f"/{name}" in caplog.text
        assert "max_reply_bytes" in client.get("/long").text


def test_a_type_of_the_program_is_json(serve: Serve) -> None:
    class Celsius:
        degrees = 21

    server = serve()
    server.register_type(Celsius, lambda it: {"celsius": it.degrees}, lambda it: Celsius())
    server.http("/now")(lambda request: [Celsius()])
    with http_client(server) as client:
        assert client.get("/now").json() == [{"celsius": 21}]


def test_repeated_headers_of_a_request(serve: Serve) -> None:
    server = serve()
    server.http("/")(lambda request: [list(it) for it in request.header_list])
    with Wire(server.port) as wire:
        lines = f"Host: {HOST}\r\nX-A: 1\r\nCookie: c=1\r\nx-a:  2 \r\nCOOKIE: d=2\r\nX-B: \xe9"
        wire.send(f"GET / HTTP/1.1\r\n{lines}\r\n\r\n".encode("latin-1"))
        expected = '[["host","%s"],["x-a","1"],["cookie","c=1"],["x-a","2"],["cookie","d=2"],'
        assert wire.reply()[2].decode() == expected % HOST + '["x-b","é"]]'
