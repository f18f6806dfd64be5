"""Forms in the bodies of routes' requests: ``request.form``."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest
import requests
from routing import WAYS, http_client
from serving import Serve

import ucall
from harness import HOST, Wire, eventually
from ucall import HttpRequest

pytest.importorskip("multipart")

BOUNDARY = "b0"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def described(form: Any) -> dict[str, Any]:
    """The values of a form, as a route answers them."""

    def described_file(it: Any) -> list[Any]:
        return [it.filename, it.content_type, it.size, it.file.read().decode("latin-1")]

    files = {name: [described_file(it) for it in form.files.get_list(name)] for name in form.files}
    return {"texts": {name: form.get_list(name) for name in form}, "files": files}


def add_form(server: ucall.Server, way: str, *, streams: bool = False, **limits: Any) -> list[Any]:
    """Adds a route that answers with its form. Returns the forms."""
    forms: list[Any] = []

    async def later(request: HttpRequest) -> dict[str, Any]:
        forms.append(await request.form(**limits))
        assert await request.form() is forms[-1]
        return described(forms[-1])

    def plain(request: HttpRequest) -> dict[str, Any]:
        forms.append(request.form(**limits))
        assert request.form() is forms[-1]
        return described(forms[-1])

    options: dict[str, Any] = {"methods": ["POST"], "stream_body": streams}
    function: Any = later if way == "async" else plain
    server.http("/form", threads=way == "threads", **options)(function)
    return forms


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streams", [False, True])
def test_a_form_of_httpx(serve: Serve, way: str, streams: bool) -> None:
    if way == "plain" and streams:
        pytest.skip("it would hold up the server")
    server = serve()
    forms = add_form(server, way, streams=streams)
    long = "é" * 100_000
    with http_client(server) as client:
        reply = client.post(
            "/form",
            data={"title": "ä b", "tag": ["1", "2"], "empty": ""},
            files=[
                ("photo", ("a/../b.png", b"\x00\xff", "image/png")),
                ("photo", ("long.txt", long.encode())),
            ],
        )
    assert reply.json() == {
        "texts": {"title": ["ä b"], "tag": ["1", "2"], "empty": [""]},
        "files": {
            "photo": [
                ["a/../b.png", "image/png", 2, "\x00\xff"],
                ["long.txt", "text/plain", 200_000, long.encode().decode("latin-1")],
            ]
        },
    }
    assert eventually(lambda: all(it.file.closed for it in forms[0].files.get_list("photo")))


def test_a_form_of_requests_and_of_curl(serve: Serve, tmp_path: Any) -> None:
    server = serve()
    add_form(server, "async", streams=True)
    file = tmp_path / "a.txt"
    file.write_bytes(b"x" * 300_000)
    url = f"http://{HOST}:{server.port}/form"
    expected = {
        "texts": {"title": ["a=b"]},
        "files": {"file": [["a.txt", "text/plain", 300_000, "x" * 300_000]]},
    }
    with file.open("rb") as content:
        files = {"file": ("a.txt", content, "text/plain")}
        assert requests.post(url, data={"title": "a=b"}, files=files).json() == expected
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    command = ["curl", "-sS", "-F", "title=a=b", "-F", f"file=@{file};type=text/plain", url]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert httpx.Response(200, content=done.stdout).json() == expected


@pytest.mark.parametrize("way", WAYS)
def test_an_urlencoded_form(serve: Serve, way: str) -> None:
    server = serve()
    add_form(server, way, max_text_bytes=40, max_parts=3)
    kind = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    with http_client(server) as client:
        reply = client.post("/form", content="a=1&a=%C3%A9+b&c=", headers=kind)
        assert reply.json() == {"texts": {"a": ["1", "é b"], "c": [""]}, "files": {}}
        assert client.post("/form", content="", headers=kind).json()["texts"] == {}
        for content, problem in [
            ("a=1&b=2&c=3&d=4", "expected at most 3 fields (max_parts)"),
            ("a=" + "x" * 39, "expected at most 40 bytes (max_text_bytes)"),
            ("a=%FF", "expected UTF-8, percent-encoded"),
            (b"a=\xff", "expected UTF-8, percent-encoded"),
        ]:
            reply = client.post("/form", content=content, headers=kind)
            message = reply.json()["error"]["message"]
            assert (reply.status_code, message) == (400, f"form: {problem}")
        assert client.post("/form", content="a=" + "x" * 38, headers=kind).status_code == 200


def part(head: str, content: bytes = b"x") -> bytes:
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n"


FIELD = 'Content-Disposition: form-data; name="a"'
FILE = f'{FIELD}; filename="f"'
END = f"--{BOUNDARY}--\r\n".encode()

#: Bodies of a form whose limits are 4 parts, 100 bytes of a header, 10 of texts and 20 of a file.
HOSTILE = {
    "another boundary": (
        (part(FIELD) + END).replace(b"--b0", b"--c0"),
        "expected valid multipart/form-data: Unexpected end",
    ),
    "nothing": (b"", "expected valid multipart/form-data: Unexpected end"),
    "no end": (part(FIELD), "expected valid multipart/form-data: Unexpected end"),
    "a part without a head": (part("") + END, "expected valid multipart/form-data: Missing"),
    "another disposition": (
        part('Content-Disposition: attachment; name="a"') + END,
        "expected valid multipart/form-data: Invalid Content-Disposition",
    ),
    "no name": (
        part("Content-Disposition: form-data") + END,
        "expected a name in the Content-Disposition of each part",
    ),
    "an empty name": (
        part('Content-Disposition: form-data; name=""') + END,
        "expected a name in the Content-Disposition of each part",
    ),
    "four parts": (part(FIELD) * 4 + END, None),
    "five parts": (part(FIELD) * 5 + END, "expected at most 4 parts (max_parts)"),
    "thousands of parts": (part(FIELD) * 9_000 + END, "expected at most 4 parts (max_parts)"),
    "a header of 100 bytes": (part(f"{FIELD}\r\nX: " + "x" * 97) + END, None),
    "a header of 101 bytes": (
        part(f"{FIELD}\r\nX: " + "x" * 98) + END,
        "expected headers of a part of at most 100 bytes (max_header_bytes), and 8 of them",
    ),
    "a header without an end": (
        f"--{BOUNDARY}\r\n".encode() + b"x" * 100_000,
        "expected headers of a part of at most 100 bytes (max_header_bytes), and 8 of them",
    ),
    "eight headers": (part("\r\n".join([FIELD, *["X: x"] * 7])) + END, None),
    "nine headers": (
        part("\r\n".join([FIELD, *["X: x"] * 8])) + END,
        "expected headers of a part of at most 100 bytes (max_header_bytes), and 8 of them",
    ),
    "texts of 10 bytes": (part(FIELD, b"x" * 5) * 2 + END, None),
    "texts of 11 bytes": (
        part(FIELD, b"x" * 5) + part(FIELD, b"x" * 6) + END,
        "expected at most 10 bytes of texts (max_text_bytes)",
    ),
    "files of 20 bytes": (part(FILE, b"x" * 20) * 2 + END, None),
    "a file of 21 bytes": (
        part(FILE, b"x" * 21) + END,
        "expected at most 20 bytes of a file (max_file_bytes)",
    ),
    "a text that is no UTF-8": (part(FIELD, b"\xff") + END, "a: expected UTF-8"),
    "a NUL in a name": (part('Content-Disposition: form-data; name="\0"') + END, None),
    "an epilogue": (part(FIELD) + END + b"more", None),
}


@pytest.mark.parametrize("sent", HOSTILE)
@pytest.mark.parametrize("streams", [False, True])
def test_hostile_forms(serve: Serve, sent: str, streams: bool) -> None:
    body, problem = HOSTILE[sent]
    server = serve()
    limits = {"max_header_bytes": 100, "max_text_bytes": 10, "max_file_bytes": 20}
    add_form(server, "async", streams=streams, max_parts=4, **limits)
    with http_client(server) as client:
        content = iter([body[at : at + 7] for at in range(0, min(len(body), 700), 7)])
        forms = [body, content] if streams and len(body) < 700 else [body]
        for content_of in forms:
            reply = client.post("/form", content=content_of, headers={"Content-Type": TYPE})
            if problem is None:
                assert reply.status_code == 200, reply.text
            else:
                assert reply.status_code == 400
                assert reply.json()["error"]["message"].startswith(f"form: {problem}")
        ok = client.post("/form", content=part(FIELD) + END, headers={"Content-Type": TYPE})
        assert ok.json()["texts"] == {"a": ["x"]}


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("application/json", "Content-Type: expected multipart/form-data or application/x-www-"),
        ("multipart/mixed; boundary=x", "Content-Type: expected multipart/form-data or"),
        ("multipart/form-data", "Content-Type: expected a boundary of 1 to 70 characters"),
        ("multipart/form-data; boundary=", "Content-Type: expected a boundary of 1 to 70"),
        (f"multipart/form-data; boundary={'x' * 71}", "Content-Type: expected a boundary of 1"),
        (f"multipart/form-data; boundary={'x' * 70}", "expected valid multipart/form-data"),
        ('MULTIPART/Form-Data; Boundary="b0"', None),
    ],
)
def test_content_types(serve: Serve, kind: str, problem: str | None) -> None:
    server = serve()
    add_form(server, "plain")
    with http_client(server) as client:
        reply = client.post("/form", content=part(FIELD) + END, headers={"Content-Type": kind})
        if problem is None:
            assert reply.json()["texts"] == {"a": ["x"]}
        else:
            assert reply.status_code == 400
            assert reply.json()["error"]["message"].startswith(f"form: {problem}")


@pytest.mark.parametrize("way", ["async", "threads"])
def test_files_go_to_the_disk_and_are_removed(serve: Serve, way: str) -> None:
    files: list[Any] = []

    async def later(request: HttpRequest) -> list[int]:
        files.extend((await request.form(spool_bytes=10)).files.get_list("a"))
        return [_links(it) for it in files]

    def plain(request: HttpRequest) -> list[int]:
        files.extend(request.form(spool_bytes=10).files.get_list("a"))
        return [_links(it) for it in files]

    server = serve()
    options: dict[str, Any] = {"methods": ["POST"], "stream_body": True}
    server.http("/form", threads=way == "threads", **options)(later if way == "async" else plain)
    with http_client(server) as client:
        body = part(FILE, b"x" * 10) + part(FILE, b"x" * 11) + END
        reply = client.post("/form", content=body, headers={"Content-Type": TYPE})
        # The first is in memory; the second has no name on the disk.
        assert reply.json() == [-1, 0]
    assert eventually(lambda: all(it.file.closed for it in files))


def _links(file: Any) -> int:
    """The names of a file on the disk; -1 if it is in memory."""
    return os.fstat(file.file.fileno()).st_nlink if file.file._rolled else -1


@pytest.mark.parametrize("way", ["async", "threads"])
def test_a_form_that_is_cut_off_or_refused_leaves_no_file(
    serve: Serve, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucall._routes import forms

    made: list[Any] = []
    begin = forms.FormFile.__init__

    def note(self: Any, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(forms.FormFile, "__init__", note)
    server = serve()
    add_form(server, way, streams=True, spool_bytes=10)
    begun = part(FILE, b"x" * 100_000).removesuffix(b"\r\n")
    head = f"POST /form HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {TYPE}\r\n"
    with Wire(server.port) as wire:
        wire.send(f"{head}Content-Length: 200000\r\n\r\n".encode() + begun)
        assert eventually(lambda: [it.size for it in made] and made[0].size > 90_000)
        wire.reset()
        assert eventually(lambda: made[0].file.closed)
    with http_client(server) as client:
        content = begun + b"\r\n--b0\r\nwrong"
        reply = client.post("/form", content=content, headers={"Content-Type": TYPE})
        assert reply.status_code == 400 and eventually(lambda: made[1].file.closed)


def test_invalid_options(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    add_form(server, "plain", max_parts=0)
    with http_client(server) as client:
        assert client.post("/form", data={"a": "1"}).status_code == 500
    assert "max_parts: expected" in caplog.text


def test_the_import_of_ucall_imports_no_form() -> None:
    code = "import sys, ucall; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    modules = set(done.stdout.split())
    assert not {"multipart", "ucall._routes.forms", "ucall._routes.streaming"} & modules


def test_a_form_that_was_refused_is_not_read_again(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(request: HttpRequest) -> dict[str, Any]:
        with pytest.raises(ucall.RPCError):
            request.form(max_parts=1)
        return described(request.form())

    server = serve()
    server.http("/form", methods=["POST"])(twice)
    with http_client(server) as client:
        body = part(FIELD) * 2 + END
        reply = client.post("/form", content=body, headers={"Content-Type": TYPE})
        assert reply.status_code == 500
    assert "form: its body was not read to the end before" in caplog.text


@pytest.mark.parametrize("way", ["async", "threads"])
def test_what_is_in_memory_counts_as_held(serve: Serve, way: str) -> None:
    release = threading.Event()

    async def later(request: HttpRequest) -> str:
        await request.form()
        while not release.is_set():
            await asyncio.sleep(0.001)
        return "done"

    def plain(request: HttpRequest) -> str:
        request.form()
        release.wait()
        return "done"

    server = serve(max_held_bytes=500_000)
    options: dict[str, Any] = {"methods": ["POST"], "stream_body": True}
    server.http("/form", threads=way == "threads", **options)(later if way == "async" else plain)
    server.http("/now")(lambda request: "now")
    head = f"POST /form HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {TYPE}\r\n"
    body = part(FIELD, b"x" * 600_000) + END
    with Wire(server.port) as wire, http_client(server) as client:
        assert client.get("/now").text == "now"
        wire.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert eventually(lambda: client.get("/now").status_code == 503)
        release.set()
        assert wire.reply()[2] == b"done"
        assert eventually(lambda: client.get("/now").status_code == 200)


def test_concurrent_forms(serve: Serve) -> None:
    server = serve()
    add_form(server, "async", streams=True)

    async def post(client: httpx.AsyncClient, number: int) -> bool:
        file = str(number).encode() * 30_000
        reply = await client.post("/form", data={"n": str(number)}, files={"f": ("f", file)})
        found = reply.json()
        return found["texts"] == {"n": [str(number)]} and found["files"]["f"][0][2] == len(file)

    async def post_all() -> list[bool]:
        url = f"http://{HOST}:{server.port}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return await asyncio.gather(*(post(client, number) for number in range(20)))

    assert all(asyncio.run(post_all()))


@pytest.mark.parametrize("way", WAYS)
def test_contents_in_a_bytearray(serve: Serve, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsers before `multipart` 2 yield those."""
    import multipart

    class Parser(multipart.PushMultipartParser):  # type: ignore[misc]
        def parse(self, chunk: bytes) -> Any:
            for event in super().parse(chunk):
                yield bytearray(event) if isinstance(event, bytes) else event

    monkeypatch.setattr(multipart, "PushMultipartParser", Parser)
    server = serve()
    add_form(server, way)
    with http_client(server) as client:
        reply = client.post("/form", data={"a": "1"}, files={"f": ("n", b"\xff", "x/y")})
    assert reply.json() == {"texts": {"a": ["1"]}, "files": {"f": [["n", "x/y", 1, "\xff"]]}}
