"""The address of a server and its protocol, parsed from a URI."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ucall._core import FrameSupport
from ucall.errors import HTTPError

if TYPE_CHECKING:
    import socket

    from ucall._core import CodingSupport

__all__ = ["DEFAULT_PORT", "Address", "Addresses", "secure_uri"]

DEFAULT_PORT = 8545

#: Whether it is HTTP, whether it is encrypted, and the port, by scheme.
_SCHEMES = {
    "": (True, False, DEFAULT_PORT),
    "http": (True, False, 80),
    "https": (True, True, 443),
    "tcp": (False, False, DEFAULT_PORT),
    "tcps": (False, True, DEFAULT_PORT),
    "udp": (False, False, DEFAULT_PORT),
    "ws": (False, False, 80),
    "wss": (False, True, 443),
}

#: The scheme of the same protocol under TLS.
_SECURE = {
    "": "https",
    "http": "https",
    "https": "https",
    "tcp": "tcps",
    "tcps": "tcps",
    "ws": "wss",
    "wss": "wss",
}

#: Whether it is HTTP, by the scheme of Unix sockets.
_UNIX = {"unix": True, "http+unix": True, "tcp+unix": False, "ws+unix": False}

_WEBSOCKET = {"ws", "wss", "ws+unix"}

#: Wildcard addresses, and the loopback address to connect to instead.
_WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Address:
    """A server's address.

    Args:
        uri: ``"host"``, ``"host:port"``, or with a scheme in front: ``http://``, ``https://``,
            ``tcp://`` (raw TCP), ``tcps://`` (raw TCP under TLS), ``ws://`` or ``wss://``
            (WebSocket), ``udp://``. All but raw TCP and UDP may have a path. ``unix:///path`` is
            HTTP over a Unix socket, ``tcp+unix:///path`` raw documents and ``ws+unix:///path``
            WebSocket over one.
        port: The port if the URI has none. By default that of the scheme, or 8545.

    Raises:
        ValueError: The URI is invalid, or has another port.
    """

    __slots__ = (
        "codings",
        "connector",
        "frames",
        "host",
        "ip",
        "is_http",
        "is_secure",
        "is_trusted",
        "path",
        "port",
        "scheme",
        "socket_path",
        "trusts_shared_memory",
    )

    def __init__(self, uri: str, port: int | None = None) -> None:
        scheme, found, rest = uri.partition("://")
        scheme, rest = (scheme.lower(), rest) if found else ("", uri)
        self.socket_path: str | None = None
        #: Makes connections to a server in this process, in place of the host.
        self.connector: Callable[[], socket.socket] | None = None
        #: One of the IP addresses of the host, if connections should be made to that one.
        self.ip: str | None = None
        #: Whether headers may go there.
        self.is_trusted = True
        #: What is known of the server and frames; ``None`` if calls are never frames.
        self.frames: FrameSupport | None = None if scheme == "udp" else FrameSupport()
        #: Which requests are compressed, and that replies may be; ``None`` if neither is.
        self.codings: CodingSupport | None = None
        #: Whether the server is trusted with memory that is shared with it; ``None`` without any.
        self.trusts_shared_memory: bool | None = None
        if scheme in _UNIX:
            return self._parse_unix(uri, scheme, rest, port)
        if scheme not in _SCHEMES or (found and not scheme):
            raise ValueError(
                f"{uri!r}: expected http://, https://, ws://, wss://, tcp://, tcps://, udp:// "
                "or unix://"
            )
        self.scheme = scheme or "http"
        self.is_http, self.is_secure, default_port = _SCHEMES[scheme]
        authority, self.path = _split_path(uri, rest, self.has_headers)
        host, given_port = _split_port(uri, authority)
        if port is not None and given_port is not None and port != given_port:
            raise ValueError(f"{uri!r}: has a port other than {port}")
        self.port = (
            given_port if given_port is not None else port if port is not None else default_port
        )
        if not 0 < self.port < 65536:
            raise ValueError(f"port: expected 1 to 65535, got {self.port}")
        self.host = _WILDCARD_HOSTS.get(host, host)

    def _parse_unix(self, uri: str, scheme: str, path: str, port: int | None) -> None:
        if not path.startswith("/") or "\0" in path or port is not None:
            raise ValueError(
                f"{uri!r}: expected the path of a socket from the root on, and no port"
            )
        self.scheme, self.is_http, self.is_secure = scheme, _UNIX[scheme], False
        self.host, self.port, self.path, self.socket_path = "localhost", 0, "/", path

    def at(self, ip: str) -> Address:
        """The same server at one of its IP addresses. Host headers and certificates keep the
        name."""
        other = copy.copy(self)
        other.ip = ip
        other.frames = FrameSupport()  # It may be another server.
        other.codings = None if self.codings is None else self.codings.anew()
        return other

    def refuses_coding(self, error: Exception) -> bool:
        """Whether a call may have failed because it was compressed, so that it is sent again as it
        is. Nothing of it was run."""
        codings = self.codings
        if codings is None or not isinstance(error, HTTPError) or not error._was_compressed:
            return False
        return codings.refuse(error.status)

    @property
    def connect_host(self) -> str:
        """The host to connect to."""
        return self.host if self.ip is None else self.ip

    @property
    def is_websocket(self) -> bool:
        """Whether its connections are WebSockets."""
        return self.scheme in _WEBSOCKET

    @property
    def is_udp(self) -> bool:
        """Whether calls go in datagrams."""
        return self.scheme == "udp"

    @property
    def has_headers(self) -> bool:
        """Whether its protocol is HTTP, or begins with an upgrade over HTTP."""
        return self.is_http or self.is_websocket

    @property
    def name(self) -> str:
        """``host:port``, or the path of a Unix socket."""
        if self.socket_path is not None:
            return self.socket_path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def host_header(self) -> str:
        """The value of the header Host: without the port if it is the scheme's default."""
        if self.socket_path is not None:
            return self.host
        name = self.name
        is_default_port = self.port == _SCHEMES[self.scheme][2]
        return name.rpartition(":")[0] if is_default_port else name

    def __str__(self) -> str:
        at = "" if self.ip is None else f" at {self.ip}"
        return f"{self.scheme}://{self.name}{self.path if self.path != '/' else ''}{at}"


class Addresses:
    """The addresses of several servers with the same functions: a list, or those of a name.

    Args:
        uris: The URIs, or ``dns://host:port``: all IP addresses of a host. ``dns+https://`` and
            the like are for other protocols than HTTP. Or ``nats://broker:port/group``: all servers
            of a group, with ``nats+https://`` and the like.
        port: The port of URIs that have none.
        server_hostname: The name in the certificates of the servers of a group.

    Raises:
        ValueError: A URI is invalid, or their protocols differ.
    """

    def __init__(
        self,
        uris: str | Sequence[str],
        port: int | None = None,
        server_hostname: str | None = None,
    ) -> None:
        self.resolves = isinstance(uris, str)
        #: Of servers that are found by NATS.
        self.brokers: list[str] = []
        self.group = ""
        self._server_hostname = server_hostname
        #: See `Address.codings`: for servers that are found later.
        self.codings: CodingSupport | None = None
        if isinstance(uris, str) and _is_group(uris):
            return self._parse_group(uris, port)
        if server_hostname is not None:
            raise ValueError("server_hostname: is for addresses with nats://")
        if isinstance(uris, str):
            scheme, _, rest = uris.partition("://")
            inner = scheme.lower().removeprefix("dns").removeprefix("+")
            uris = [f"{inner}://{rest}" if inner else rest]
        self.list = [Address(uri, port) for uri in uris]
        if not self.list:
            raise ValueError("expected at least one address")
        #: Stands for all where their difference does not matter.
        self.first = self.list[0]
        if len({(it.is_http, it.is_websocket, it.is_secure) for it in self.list}) > 1:
            raise ValueError("expected addresses of one protocol, all with TLS or all without")
        if self.first.is_udp:
            raise ValueError("udp: expected one address; several are for HTTP, WebSocket and TCP")
        if self.resolves and self.first.socket_path is not None:
            raise ValueError("dns: a Unix socket has no host")

    def _parse_group(self, uri: str, port: int | None) -> None:
        from ucall._nats.subjects import parse_group_uri

        self._scheme, self.brokers, self.group = parse_group_uri(uri)
        if port is not None:
            raise ValueError(f"port: servers that are found by NATS have their own, got {port}")
        first = self._address(self._server_hostname or self.group)
        if first.socket_path is not None or first.is_udp:
            raise ValueError("nats: expected direct calls over HTTP, WebSocket or TCP")
        if self._server_hostname is not None and not first.is_secure:
            raise ValueError("server_hostname: expected nats+https://, nats+wss:// or nats+tcps://")
        first.is_trusted = self._server_hostname is not None
        first.frames = None  # It stands for the broker.
        self.list, self.first = [first], first

    def found(self, advertised: str, transports: Sequence[str]) -> Address | None:
        """The address that a server advertises; ``None`` if it does not speak the protocol.

        Raises:
            ValueError: It is invalid.
        """
        if (self._scheme or "http") not in transports:
            return None
        address = self._address(advertised)
        if self._server_hostname is not None:
            address = self._address(f"{self._server_hostname}:{address.port}").at(address.host)
        address.codings = None if self.codings is None else self.codings.anew()
        return address

    def _address(self, authority: str) -> Address:
        return Address(f"{self._scheme}://{authority}" if self._scheme else authority)

    @staticmethod
    def is_several(uri: str | Sequence[str]) -> bool:
        """Whether a client's URI may stand for several servers."""
        if not isinstance(uri, str):
            return True
        scheme = uri.partition("://")[0].lower()
        return scheme == "dns" or scheme.startswith("dns+") or _is_group(uri)

    def __str__(self) -> str:
        if self.group:
            return f"the group {self.group}"
        return f"all of {self.first}" if self.resolves else ", ".join(map(str, self.list))


def secure_uri(uri: str, port: int | None) -> str:
    """The URI of the same server or servers under TLS.

    Raises:
        ValueError: The URI is invalid, or its protocol is not used under TLS.
    """
    scheme, found, rest = uri.partition("://")
    several, inner = "", scheme.lower() if found else ""
    if Addresses.is_several(uri):
        several, _, inner = inner.partition("+")
        several += "+"
    if inner not in _SECURE:
        raise ValueError(f"{scheme}://: has no TLS; expected https://, wss:// or tcps://")
    if not inner and not _is_group(uri):
        # The port stays 8545, which is not that of https.
        address = Address(rest if several else uri, port)
        rest = address.name + address.path
    return f"{several}{_SECURE[inner]}://{rest}"


def _is_group(uri: str) -> bool:
    scheme = uri.partition("://")[0].lower()
    return scheme == "nats" or scheme.startswith("nats+")


def _split_path(uri: str, rest: str, has_headers: bool) -> tuple[str, str]:
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if not path.startswith("/"):
        path = "/" + path
    if "#" in path or not (path.isascii() and path.isprintable()) or " " in path:
        raise ValueError(f"{uri!r}: the path has characters that must be percent-encoded")
    if not has_headers and path != "/":
        raise ValueError(f"{uri!r}: raw TCP has no paths")
    return authority, path


def _split_port(uri: str, authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise ValueError(f"{uri!r}: give credentials as a header, Authorization")
    if authority.startswith("["):
        host, closed, rest = authority[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not closed or colon not in ("", ":"):
            raise ValueError(f"{uri!r}: expected ]:port")
    elif authority.count(":") > 1:
        host, colon, port = authority, "", ""
    else:
        host, colon, port = authority.partition(":")
    if not host or not host.isprintable() or any(mark in host for mark in " \\%<>\"'[]"):
        raise ValueError(f"{uri!r}: expected a host")
    if colon and not (port.isascii() and port.isdigit() and len(port) < 6):
        raise ValueError(f"{uri!r}: expected a port of digits, got {port!r}")
    return host, int(port) if colon else None
