"""Parsing of the client's addresses."""

from __future__ import annotations

import pytest

from ucall._client.address import Address, secure_uri


@pytest.mark.parametrize(
    ("uri", "port", "name", "host_header"),
    [
        ("127.0.0.1", None, "127.0.0.1:8545", "127.0.0.1:8545"),
        ("127.0.0.1", 80, "127.0.0.1:80", "127.0.0.1"),
        ("localhost:9", None, "localhost:9", "localhost:9"),
        ("localhost:9", 9, "localhost:9", "localhost:9"),
        ("0.0.0.0", 9, "127.0.0.1:9", "127.0.0.1:9"),
        ("[::]", 9, "[::1]:9", "[::1]:9"),
        ("::1", None, "[::1]:8545", "[::1]:8545"),
        ("[::1]:9", None, "[::1]:9", "[::1]:9"),
        ("http://example.com", None, "example.com:80", "example.com"),
        ("http://example.com:8545/", None, "example.com:8545", "example.com:8545"),
        ("HTTPS://example.com", None, "example.com:443", "example.com"),
        ("https://example.com", 8545, "example.com:8545", "example.com:8545"),
        ("tcp://example.com", None, "example.com:8545", "example.com"),
    ],
)
def test_host_and_port(uri: str, port: int | None, name: str, host_header: str) -> None:
    address = Address(uri, port)
    assert address.name == name
    assert address.host_header == host_header


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("http://a", "/"),
        ("http://a/", "/"),
        ("http://a/b/c?d=e", "/b/c?d=e"),
        ("http://a?d", "/?d"),
    ],
)
def test_path(uri: str, path: str) -> None:
    assert Address(uri).path == path


@pytest.mark.parametrize(
    ("uri", "port"),
    [
        ("", None),
        ("ftp://a", None),
        ("://a", None),
        ("http://", None),
        ("http://user:secret@a", None),
        ("a:b", None),
        ("a:123456", None),
        ("a:0", None),
        ("a", 65536),
        ("a:1", 2),
        ("[::1", 2),
        ("[::1]x", 2),
        ("a b", None),
        ("http://a/b c", None),
        ("http://a/b\r\nX: y", None),
        ("http://a\r\n", None),
        ("http://a/#b", None),
        ("http://a/é", None),
        ("tcp://a/b", None),
    ],
)
def test_refused(uri: str, port: int | None) -> None:
    with pytest.raises(ValueError):
        Address(uri, port)


@pytest.mark.parametrize(
    ("uri", "port", "secure"),
    [
        ("a", None, "https://a:8545/"),
        ("a:9/b", 9, "https://a:9/b"),
        ("::1", 9, "https://[::1]:9/"),
        ("HTTP://a/b", None, "https://a/b"),
        ("https://a", 9, "https://a"),
        ("tcp://a", None, "tcps://a"),
        ("wss://a", None, "wss://a"),
        ("dns://a", None, "dns+https://a:8545/"),
        ("dns://a:9", None, "dns+https://a:9/"),
        ("dns+http://a", None, "dns+https://a"),
        ("dns+tcps://a", None, "dns+tcps://a"),
        ("nats://a:4222,b:4222/group", None, "nats+https://a:4222,b:4222/group"),
        ("dns+https://[::1]:9", 9, "dns+https://[::1]:9"),
        ("nats+ws://a:4222/group", None, "nats+wss://a:4222/group"),
    ],
)
def test_the_same_server_under_tls(uri: str, port: int | None, secure: str) -> None:
    assert secure_uri(uri, port) == secure


@pytest.mark.parametrize(
    "uri", ["udp://a", "dns+udp://a", "nats+udp://a/b", "unix:///a", "tcp+unix:///a", "ftp://a"]
)
def test_protocols_without_tls_are_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="has no TLS; expected https://, wss:// or tcps://"):
        secure_uri(uri, None)
