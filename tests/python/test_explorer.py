"""The page at ``GET /``, as HTTP clients see it. `tests/javascript` has its tests in a browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import ucall
import ucall.auth
from ucall._routes import explorer
from ucall.client import Client

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def url(server: ucall.Server) -> str:
    return f"http://127.0.0.1:{server.port}/"


def test_only_browsers_get_the_page() -> None:
    with ucall.Server(port=0) as server:
        page = httpx.get(url(server), headers=BROWSER)
        assert page.status_code == 200 and page.text.startswith("<!doctype html>")
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert page.headers["Vary"] == "Accept, Accept-Encoding"
        other = httpx.get(url(server))
        assert other.status_code == 405 and other.headers["Allow"] == "POST, OPTIONS"
        head = httpx.head(url(server), headers=BROWSER)
        assert head.status_code == 200 and not head.content
        reply = httpx.post(url(server), headers=BROWSER, content='{"jsonrpc":"2.0"}')
        assert reply.json()["error"]["code"] == -32600


def test_calls_do_not_wait_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request imports and compresses, which takes a tenth of a second."""
    has_begun, is_answered, page = threading.Event(), threading.Event(), explorer._page

    def late() -> explorer._Page:
        has_begun.set()
        assert is_answered.wait(60)
        return page()

    monkeypatch.setattr(explorer, "_page", late)
    server = ucall.Server(port=0)
    server.add(lambda: 1, name="one")
    with server, ThreadPoolExecutor() as pool:
        first = pool.submit(httpx.get, url(server), headers=BROWSER, timeout=60)
        assert has_begun.wait(60)
        with Client(port=server.port) as client:
            assert client.one().json == 1
        is_answered.set()
        assert first.result().status_code == 200


def test_the_page_is_compressed_and_cached() -> None:
    with ucall.Server(port=0) as server:
        whole = httpx.get(url(server), headers={**BROWSER, "Accept-Encoding": "identity"})
        assert "Content-Encoding" not in whole.headers
        with httpx.stream("GET", url(server), headers=BROWSER) as response:
            compressed = b"".join(response.iter_raw())
        assert response.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(compressed) == whole.content and len(compressed) <= 100_000
        known = {**BROWSER, "If-None-Match": response.headers["ETag"]}
        assert httpx.get(url(server), headers=known).status_code == 304


def test_other_clients_learn_the_other_methods() -> None:
    """Caches keep a 405, so it says what it depends on."""
    server = ucall.Server(port=0)
    server.http("/", methods=["PUT"])(lambda request: "put")
    with server:
        for accepted in ("*/*", "text/html;q=0, */*", "text/htmlx"):
            other = httpx.get(url(server), headers={"Accept": accepted})
            assert other.status_code == 405 and other.headers["Vary"] == "Accept"
            assert other.headers["Allow"] == "POST, PUT, OPTIONS"


def test_the_policy_allows_only_the_page_itself() -> None:
    with ucall.Server(port=0) as server:
        page = httpx.get(url(server), headers=BROWSER)
        policy = page.headers["Content-Security-Policy"]
        sources = dict(part.split(" ", 1) for part in policy.split("; "))
        own = f"127.0.0.1:{server.port}"
        assert sources.pop("connect-src") == f"'self' ws://{own} wss://{own}"
        for tag in ("script", "style"):
            (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page.text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert sources.pop(f"{tag}-src") == f"'sha256-{digest}'"
        assert sources.pop("img-src") == "data: blob:"
        # `default-src` covers none of the others.
        forbidden = ("default-src", "base-uri", "form-action", "frame-ancestors")
        assert sources == dict.fromkeys(forbidden, "'none'")


def test_a_host_of_another_form_adds_no_source() -> None:
    with ucall.Server(port=0) as server:
        for host in (f"[::1]:{server.port}", f"localhost:{server.port}"):
            page = httpx.get(url(server), headers={**BROWSER, "Host": host})
            policy = page.headers["Content-Security-Policy"]
            assert ("ws:" in policy) == host.startswith("localhost")


def test_the_page_is_public_and_the_document_is_not() -> None:
    with ucall.Server(port=0, auth=ucall.auth.bearer(["s3cret"])) as server:
        assert httpx.get(url(server), headers=BROWSER).status_code == 200
        assert httpx.get(url(server) + "openrpc.json").status_code == 401
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        assert httpx.get(url(server), headers=upgrade).status_code == 401


def test_a_server_that_describes_nothing_has_no_page() -> None:
    with ucall.Server(port=0, describe=False) as server:
        refused = httpx.get(url(server), headers=BROWSER)
        assert refused.status_code == 405 and "GET" not in refused.headers["Allow"]


def test_a_route_of_the_program_replaces_the_page() -> None:
    server = ucall.Server(port=0)

    @server.http("/")
    def home(request: ucall.HttpRequest) -> str:
        return "home"

    with server:
        assert httpx.get(url(server), headers=BROWSER).text == "home"
