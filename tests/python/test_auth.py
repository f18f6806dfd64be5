"""Authentication: ``Server(auth=…)``."""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Authority, Files, authority, files
from functions import whoami

import ucall
import ucall.auth
from harness import HOST, Wire, http, request
from ucall.client import Client

__all__ = ["authority", "files"]

Serve = Callable[..., ucall.Server]
CALL = request("whoami", [])
ALICE = "Authorization: Bearer s3cret"


async def whoami_later(ctx: ucall.Context) -> Any:
    return ctx.user


def tokens() -> ucall.auth.Keys:
    return ucall.auth.bearer({"s3cret": "alice", "other": "bob"})


def _result(wire: Wire) -> Any:
    status, _, body = wire.reply()
    assert status == 200
    return json.loads(body)["result"]


def test_a_known_token_names_its_user(serve: Serve) -> None:
    server = serve(whoami, whoami_later, auth=tokens())
    with Wire(server.port) as wire:
        for header, user in ((ALICE, "alice"), ("authorization: bearer  other", "bob")):
            wire.send(http(CALL, header))
            assert _result(wire) == user
        wire.send(http(request("whoami_later", []), ALICE))
        assert _result(wire) == "alice"
        batch = b"[" + CALL + b"," + request("whoami_later", []) + b"]"
        wire.send(http(batch, ALICE))
        assert [reply["result"] for reply in json.loads(wire.reply()[2])] == ["alice"] * 2


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Bearer"],
        ["Authorization: Bearer wrong"],
        ["Authorization: Basic s3cret"],
        ["Authorization: s3cret"],
        [ALICE, ALICE],
        ["Authorization: Bearer s3cret\xe9"],
    ],
)
def test_unauthorized_requests_are_refused_before_their_body(
    serve: Serve, headers: list[str]
) -> None:
    server = serve(whoami, auth=tokens())
    with Wire(server.port) as wire:
        lines = ["POST / HTTP/1.1", "Host: localhost", "Content-Length: 1000", *headers, "", ""]
        wire.send("\r\n".join(lines).encode("latin-1"))
        status, head, _ = wire.reply()
        assert status == 401 and b"\r\nWWW-Authenticate: Bearer\r\n" in head
        assert wire.rest() == b""


@pytest.mark.parametrize(
    "value",
    [
        "Bearer first",
        "bearer   first ",
        "Bearer second",
        "Bearer none",
        "Bearer first, Bearer first",
        "Basic first",
        "first",
        "Bearer",
        "Bearer f\xefrst",
        "Bearer \xa0",
        "",
    ],
)
def test_keys_find_the_same_user_with_the_interpreter_and_without(serve: Serve, value: str) -> None:
    users = {"first": "1", "second": False, "f\xefrst": "3"}
    keys = ucall.auth.bearer(users)
    context: Any = SimpleNamespace(headers={"authorization": value})
    expected = {"first": "1", "f\xefrst": "3"}.get(value.partition(" ")[2].strip())
    found = keys(context)
    assert found == (expected if value.lower().startswith("bearer ") else None)
    for auth in (keys, lambda ctx: keys(ctx)):
        server = serve(whoami, auth=auth)
        with Wire(server.port) as wire:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n"
            head = head % value.encode("latin-1")
            wire.send(head + b"Content-Length: %d\r\n\r\n%s" % (len(CALL), CALL))
            status, _, body = wire.reply()
            assert status == (401 if found is None else 200)
            assert found is None or json.loads(body)["result"] == found


def test_users_are_not_shared_between_requests(serve: Serve) -> None:
    server = serve(whoami, auth=tokens())
    with Wire(server.port) as wire:
        other = http(CALL, "Authorization: Bearer other")
        wire.send(http(CALL, ALICE) + other + http(CALL))
        assert [_result(wire), _result(wire)] == ["alice", "bob"]
        assert wire.reply()[0] == 401


def test_a_late_body_belongs_to_the_user_of_its_head(serve: Serve) -> None:
    asked: list[dict[str, str]] = []

    def auth(ctx: ucall.Context) -> str | None:
        asked.append(ctx.headers)
        assert (ctx.method, ctx.id, ctx.user) == ("", None, None)
        return ctx.headers.get("x-user")

    server = serve(whoami, auth=auth)
    with Wire(server.port) as wire:
        whole = http(CALL, "X-User: eve")
        chunks = f"{len(CALL):x}\r\n".encode() + CALL + b"\r\n0\r\n\r\n"
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-User: eve\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
        for data in (whole, chunked):
            for cut in (10, data.index(b"\r\n\r\n") + 4, len(data) - 5):
                wire.send(data[:cut])
                time.sleep(0.02)
                wire.send(data[cut:])
                assert _result(wire) == "eve"
    assert len(asked) == 6


def test_raw_connections_are_authenticated_once(serve: Serve) -> None:
    asked: list[Any] = []

    def auth(ctx: ucall.Context) -> str | None:
        asked.append(ctx.peer)
        assert ctx.headers == {}
        return "local" if ctx.peer and ctx.peer[0] == "127.0.0.1" else None

    server = serve(whoami, auth=auth)
    with Wire(server.port) as wire:
        address = wire.socket.getsockname()
        assert [wire.result("whoami") for _ in range(3)] == ["local"] * 3
        # In pieces too.
        wire.send(CALL[:10])
        time.sleep(0.02)
        wire.send(CALL[10:])
        assert json.loads(wire.line())["result"] == "local"
    assert asked == [address]


def test_unauthorized_raw_connections_are_refused_at_the_first_byte(serve: Serve) -> None:
    server = serve(whoami, auth=tokens())
    with Wire(server.port) as wire:
        wire.send(b"{")
        assert json.loads(wire.line())["error"] == {"code": -32004, "message": "Unauthorized"}
        assert wire.rest() == b""


@pytest.mark.parametrize("nobody", [None, False, NotImplemented, PermissionError("not you")])
def test_refusals_by_value_and_exception(serve: Serve, nobody: Any) -> None:
    def auth(ctx: ucall.Context) -> Any:
        if isinstance(nobody, Exception):
            raise nobody
        return nobody

    server = serve(whoami, auth=auth)
    with Wire(server.port) as wire:
        wire.send(http(CALL))
        status, _, body = wire.reply()
        assert status == 401 and b"not you" not in body


def test_a_false_comparison_of_arrays_is_a_refusal(serve: Serve) -> None:
    numpy = pytest.importorskip("numpy")
    known = numpy.array([1, 2])
    server = serve(whoami, auth=lambda ctx: (known == numpy.array([1, 3])).all())
    with Wire(server.port) as wire:
        wire.send(http(CALL))
        assert wire.reply()[0] == 401


@pytest.mark.parametrize("somebody", [0, "", {"name": "eve"}, True])
def test_any_other_result_is_the_user(serve: Serve, somebody: Any) -> None:
    with Wire(serve(whoami, auth=lambda ctx: somebody).port) as wire:
        assert wire.result("whoami") == somebody


@pytest.mark.parametrize(("somebody", "lines"), [(0, 1), ("", 1), ("eve", 0), (True, 0)])
def test_a_falsy_user_is_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture, somebody: Any, lines: int
) -> None:
    server = serve(whoami, auth=lambda ctx: somebody)
    with Wire(server.port) as wire:
        for _ in range(3):
            wire.send(http(CALL))
            assert _result(wire) == somebody
    warned = [it for it in caplog.records if "falsy value" in it.getMessage()]
    assert len(warned) == lines
    assert all(type(somebody).__name__ in it.getMessage() for it in warned)


@pytest.mark.parametrize(
    ("scheme", "transport"), [("http", "http"), ("tcp", "tcp"), ("ws", "websocket")]
)
@pytest.mark.parametrize("tls", [False, True])
def test_no_request_can_claim_another_transport(
    serve: Serve, authority: Authority, files: Files, scheme: str, transport: str, tls: bool
) -> None:
    origins: list[Any] = []

    def origin(ctx: ucall.Context) -> list[Any]:
        return [ctx.transport, ctx.broker, ctx.headers.get("ucall-broker")]

    async def later(ctx: ucall.Context) -> list[Any]:
        return origin(ctx)

    def auth(ctx: ucall.Context) -> bool:
        origins.append(origin(ctx))
        return True

    given: dict[str, Any] = {"ssl_certfile": files.both} if tls else {}
    server = serve(origin, later, auth=auth, trusted_proxies=[HOST], **given)
    # What the clients of a broker had, behind a proxy that does not know its client.
    forged = {"ucall-BROKER": "nats", "Forwarded": "for=unknown"}
    headers = {} if scheme == "tcp" else forged
    url = f"{scheme}{'s' if tls else ''}://{HOST}:{server.port}"
    with Client(url, headers=headers, verify=authority.path) as client:
        for method in ("origin", "later"):
            assert getattr(client, method)().json == [transport, None, None]
    assert origins and all(it == [transport, None, None] for it in origins)


def test_a_failing_auth_function_rejects_all_calls(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def auth(ctx: ucall.Context) -> str:
        raise RuntimeError("the database is away")

    server = serve(whoami, auth=auth)
    with caplog.at_level(logging.ERROR, "ucall"):
        with Wire(server.port) as wire:
            wire.send(http(CALL))
            status, _, body = wire.reply()
            assert status == 500 and b"database" not in body
        with Wire(server.port) as wire:
            assert wire.error("whoami")["code"] == -32603
    assert "the database is away" in caplog.text


class Awaitable:
    def __await__(self) -> Iterator[None]:
        yield


def in_steps(ctx: ucall.Context) -> Iterator[str]:
    yield "eve"


async def later_in_steps(ctx: ucall.Context) -> AsyncIterator[str]:
    yield "eve"


@pytest.mark.filterwarnings(
    "error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("later", [whoami_later, lambda ctx: Awaitable(), in_steps, later_in_steps])
def test_an_awaitable_auth_result_rejects_all_calls(
    serve: Serve, caplog: pytest.LogCaptureFixture, later: Callable[[ucall.Context], Any]
) -> None:
    server = serve(whoami, auth=lambda ctx: later(ctx))
    with caplog.at_level(logging.ERROR, "ucall"):
        with Wire(server.port) as wire:
            wire.send(http(CALL))
            assert wire.reply()[0] == 500
        with Wire(server.port) as wire:
            assert wire.error("whoami")["code"] == -32603
        gc.collect()
    assert caplog.text.count("auth: expected a user at once") == 2


def test_preflights_are_answered_and_refusals_have_cors_headers(serve: Serve) -> None:
    server = serve(whoami, auth=tokens(), allow_origins=["https://app.example"])
    origin = "Origin: https://app.example"
    with Wire(server.port) as wire:
        wire.send(http(b"", origin, "Access-Control-Request-Method: POST", method="OPTIONS"))
        status, head, _ = wire.reply()
        assert status == 204 and b"Authorization" in head
        wire.send(http(CALL, origin, ALICE))
        assert _result(wire) == "alice"
        wire.send(http(CALL, origin))
        status, head, _ = wire.reply()
        assert status == 401
        assert b"\r\nAccess-Control-Allow-Origin: https://app.example\r\n" in head


def test_api_keys(serve: Serve) -> None:
    server = serve(whoami, auth=ucall.auth.api_key(["key"], header="X-Key"))
    with Wire(server.port) as wire:
        wire.send(http(CALL, "x-key: key"))
        assert _result(wire) is True
        wire.send(http(CALL, "X-API-Key: key"))
        status, head, _ = wire.reply()
        assert status == 401 and b'\r\nWWW-Authenticate: ApiKey header="X-Key"\r\n' in head


@pytest.mark.parametrize("header", ["", "X Key", "X-Key:", "X-Schlüssel", "X-Key\n"])
def test_no_client_can_send_such_a_header(header: str) -> None:
    with pytest.raises(ValueError, match="header: expected the name of an HTTP header"):
        ucall.auth.api_key(["key"], header=header)


def test_clients_send_their_token(serve: Serve) -> None:
    from ucall.client import Client

    server = serve(whoami, auth=tokens())
    url = f"http://127.0.0.1:{server.port}"
    with Client(url, headers={"Authorization": "Bearer s3cret"}) as client:
        assert client.whoami().json == "alice"
    with Client(url) as client, pytest.raises(ucall.HTTPError, match="401"):
        client.whoami()


def test_invalid_auth_functions_are_rejected() -> None:
    async def later(ctx: ucall.Context) -> None: ...

    class Odd:
        challenge = "a\r\nb"

        def __call__(self, ctx: ucall.Context) -> None: ...

    for auth, problem in (
        (later, TypeError),
        (in_steps, TypeError),
        (later_in_steps, TypeError),
        ("key", TypeError),
        (lambda: None, TypeError),
        (lambda ctx, key: None, TypeError),
        (Odd(), ValueError),
    ):
        with pytest.raises(problem, match="auth"):
            ucall.Server(port=0, auth=auth)
    for auth in (lambda ctx, key=1: None, lambda *all: None):
        ucall.Server(port=0, auth=auth)
    for keys in ([], [""], {"": 1}):
        with pytest.raises(ValueError):
            ucall.auth.bearer(keys)
    with pytest.raises(TypeError):
        ucall.auth.bearer("s3cret")
