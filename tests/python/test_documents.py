"""The documents that every server answers GET with, as RFC 9110 has them: encodings, conditions."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest

import ucall

PATHS = ["/", "/openrpc.json", "/openapi.json", "/ucall.js"]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with ucall.Server(port=0) as server, httpx.Client() as client:
        client.base_url = httpx.URL(f"http://127.0.0.1:{server.port}")
        # httpx adds no header of its own that the documents depend on.
        del client.headers["accept-encoding"]
        client.headers["accept"] = "text/html"
        yield client


def get(client: httpx.Client, path: str, **headers: str) -> tuple[httpx.Response, bytes]:
    """The response and its body as it was sent."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with client.stream("GET", path, headers=named) as response:
        return response, b"".join(response.iter_raw())


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("br, GZIP ; q=0.5", "gzip"),
        ("x-gzip", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0.0, *", None),
        ("*;q=0, identity", None),
        ("gzip;q=0.4, identity;q=0.5", None),
        ("gzip;q=0.4, *;q=0.5", None),
        ("br", None),
        ("identity;q=0, gzip;q=0.1", "gzip"),
        ("identity;q=0", "406"),
        ("br, *;q=0", "406"),
    ],
)
def test_a_client_gets_the_encoding_that_it_prefers(
    client: httpx.Client, accepted: str | None, coding: str | None
) -> None:
    for path in PATHS:
        plain, whole = get(client, path)
        response, body = get(
            client, path, **{} if accepted is None else {"accept_encoding": accepted}
        )
        assert "Accept-Encoding" in response.headers["vary"]
        if coding == "406":
            assert response.status_code == 406
            continue
        assert response.status_code == 200
        assert response.headers.get("content-encoding") == coding
        assert response.headers["content-type"] == plain.headers["content-type"]
        assert (gzip.decompress(body) if coding else body) == whole


def test_each_encoding_has_its_own_tag(client: httpx.Client) -> None:
    for path in PATHS:
        tags = {it: get(client, path, accept_encoding=it)[0].headers["etag"] for it in ("", "gzip")}
        plain, compressed = tags.values()
        assert plain != compressed and not plain.startswith("W/")
        for name, value, statuses in (
            ("if_none_match", plain, (304, 200)),
            ("if_none_match", f'"a,b" , W/{compressed}', (200, 304)),
            ("if_none_match", f"{plain}, {compressed}", (304, 304)),
            ("if_none_match", "*", (304, 304)),
            ("if_none_match", f'"x{plain[1:]}', (200, 200)),
            ("if_match", plain, (200, 412)),
            ("if_match", f"W/{plain}, W/{compressed}", (412, 412)),
            ("if_match", "*", (200, 200)),
        ):
            for (coding, tag), status in zip(tags.items(), statuses, strict=True):
                sent = {name: value, "accept_encoding": coding}
                response, body = get(client, path, **sent)
                assert response.status_code == status, (path, sent)
                assert response.headers["etag"] == tag
                assert "Accept-Encoding" in response.headers["vary"]
                if status == 304:
                    assert not body and "content-encoding" not in response.headers
                head = {key.replace("_", "-"): it for key, it in sent.items()}
                assert client.head(path, headers=head).status_code == status


def test_a_match_decides_before_a_mismatch(client: httpx.Client) -> None:
    tag = get(client, "/ucall.js")[0].headers["etag"]
    response, _ = get(client, "/ucall.js", if_match='"other"', if_none_match=tag)
    assert response.status_code == 412


def test_a_description_is_current_until_a_function_is_added() -> None:
    with ucall.Server(port=0) as server:
        server.add(lambda: 1, name="first")
        url = f"http://127.0.0.1:{server.port}/openrpc.json"
        known = {"If-None-Match": httpx.get(url).headers["etag"]}
        assert httpx.get(url, headers=known).status_code == 304
        server.add(lambda: 2, name="second")
        methods = httpx.get(url, headers=known).json()["methods"]
        assert [method["name"] for method in methods] == ["first", "second"]
