"""``ucall.auth.oauth``: how a server finds its issuer's keys, and when it reads them again."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from functions import whoami
from issuing import AUDIENCE, METADATA, Issuer

import ucall
import ucall.auth
from harness import HOST, Wire, eventually, free_port, http, request
from ucall._oauth import key_set
from ucall._oauth.issuer import Issuer as IssuerReader
from ucall._oauth.key_set import MIN_INTERVAL_S, KeySet

Serve = Callable[..., ucall.Server]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer("/tenant") as issuer:
        yield issuer


def status_of(server: ucall.Server, token: str) -> int:
    with Wire(server.port) as wire:
        wire.send(http(request("whoami"), f"Authorization: Bearer {token}"))
        status, head, _ = wire.reply()
    assert (status == 503) == (b"\r\nRetry-After: 1\r\n" in head)
    return status


def test_metadata_is_found_at_all_of_its_places(issuer: Issuer) -> None:
    metadata = issuer.documents.pop(f"{METADATA}/tenant")
    places = [
        f"{METADATA}/tenant",
        "/.well-known/openid-configuration/tenant",
        "/tenant/.well-known/openid-configuration",
    ]
    for count, place in enumerate(places):
        issuer.documents = {"/keys": issuer.documents["/keys"], place: metadata}
        issuer.paths.clear()
        keys = IssuerReader(issuer.name, None).read_keys()
        assert [key["kid"] for key in keys] == ["first"]
        assert issuer.paths == [*places[: count + 1], "/keys"]


@pytest.mark.parametrize(
    ("path", "document", "error", "problem"),
    [
        (f"{METADATA}/tenant", 404, ConnectionError, "has no metadata: .* status 404; "),
        (f"{METADATA}/tenant", 302, ConnectionError, "status 302"),
        (f"{METADATA}/tenant", {"issuer": "https://evil"}, ValueError, "is of 'https://evil'"),
        (f"{METADATA}/tenant", b"<html>", ValueError, "is no JSON"),
        (f"{METADATA}/tenant", [], ValueError, "expected a JSON object"),
        (f"{METADATA}/tenant", b"[" * 100_000, ValueError, "expected a JSON object"),
        (f"{METADATA}/tenant", b" " * ((1 << 20) + 1), ValueError, "longer than 1048576 bytes"),
        ("/keys", 500, ConnectionError, "/keys has status 500"),
        ("/keys", {"keys": {}}, ValueError, "is no set of keys"),
    ],
)
def test_a_server_without_its_issuer_does_not_start(
    issuer: Issuer, path: str, document: Any, error: type[Exception], problem: str
) -> None:
    issuer.documents[path] = document
    server = ucall.Server(port=0, auth=ucall.auth.oauth(issuer.name, AUDIENCE))
    with pytest.raises(error, match=problem):
        server.run(max_cycles=1)
    # An issuer that is back is enough.
    issuer.documents[f"{METADATA}/tenant"] = {
        "issuer": issuer.name,
        "jwks_uri": issuer.origin + "/keys",
    }
    issuer.rotate("second")
    with server:
        assert status_of(server, issuer.token()) == 200


def test_an_issuer_that_is_away_is_named() -> None:
    issuer = f"http://{HOST}:{free_port()}"
    server = ucall.Server(port=0, auth=ucall.auth.oauth(issuer, AUDIENCE))
    with pytest.raises(ConnectionError, match=f"issuer: cannot read {issuer}/.*refused"):
        server.run(max_cycles=1)


def test_keys_may_be_given(serve_once: Serve, issuer: Issuer) -> None:
    for jwks in (issuer.documents["/keys"], f"{issuer.origin}/keys"):
        server = serve_once(whoami, auth=ucall.auth.oauth(issuer.name, AUDIENCE, jwks=jwks))
        assert status_of(server, issuer.token()) == 200
        assert status_of(server, issuer.token(headers={"kid": "other"})) in (401, 503)
    assert set(issuer.paths) == {"/keys"}


def test_hostile_tokens_cause_one_reading(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    auth = ucall.auth.oauth(issuer.name, AUDIENCE)
    monkeypatch.setattr(auth._key_set, "_clock", lambda: clock.now)
    server = serve(whoami, auth=auth)
    refused = functools.partial(status_of, server)
    for number in range(20):
        assert refused(issuer.token(headers={"kid": f"hostile {number}"})) == 401
    assert issuer.readings == 1
    for later in (2, 3):
        clock.now += MIN_INTERVAL_S
        with issuer.answering:
            for number in range(20):
                # The keys are being read: the token may be valid.
                assert refused(issuer.token(headers={"kid": f"hostile {number}"})) == 503
            assert refused(issuer.token()) == 200
        assert eventually(lambda: refused(issuer.token(headers={"kid": "hostile"})) == 401)
        assert issuer.readings == later


def test_a_rotated_key_is_found_and_the_old_one_ends(
    serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    auth = ucall.auth.oauth(issuer.name, AUDIENCE)
    monkeypatch.setattr(auth._key_set, "_clock", lambda: clock.now)
    server = serve(whoami, auth=auth)
    old = issuer.token()
    assert status_of(server, old) == 200
    issuer.rotate("second")
    clock.now += MIN_INTERVAL_S
    assert eventually(lambda: status_of(server, issuer.token()) == 200)
    # Its check was cached.
    assert status_of(server, old) == 401
    assert issuer.readings == 2


def test_keys_are_read_again_by_their_age(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    keys = KeySet(IssuerReader(issuer.name, None).read_keys, [], max_age_s=0.01)
    with caplog.at_level(logging.WARNING, "ucall"):
        keys.start()
        known = keys.keys
        assert eventually(lambda: issuer.readings >= 3)
        assert keys.keys is known, "the same keys, so that what was checked stays"
        published = issuer.documents.pop("/keys")
        assert eventually(lambda: "the old keys stay: " in caplog.text)
        assert keys.keys is known
        # They may have moved.
        metadata = issuer.documents[f"{METADATA}/tenant"]
        metadata["jwks_uri"] = 5
        assert eventually(lambda: "expected a str, got int" in caplog.text)
        metadata["jwks_uri"] = f"{issuer.origin}/moved"
        issuer.documents["/moved"] = {"keys": [*published["keys"], {"kty": "oct"}]}
        assert eventually(lambda: len(keys.keys.jwks) == 2)
    keys.stop()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_keys_for_itself(issuer: Issuer) -> None:
    keys = KeySet(IssuerReader(issuer.name, None).read_keys, [], max_age_s=1e6)
    keys.start()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert keys.keys.jwks and not keys.refresh()
            keys.start()
            status = 0
        os._exit(status)
    keys.stop()
    assert os.waitpid(child, 0)[1] == 0
    assert issuer.readings == 2


def test_servers_share_keys_and_leave_no_thread(issuer: Issuer) -> None:
    import threading

    def threads() -> list[threading.Thread]:
        return [it for it in threading.enumerate() if it.name == "ucall-oauth-keys"]

    before = threads()
    auth = ucall.auth.oauth(issuer.name, AUDIENCE)
    one, other = (ucall.Server(port=0, auth=auth) for _ in range(2))
    for server in (one, other):
        server.add(whoami)
    with one:
        with other:
            assert issuer.readings == 1 and len(threads()) == len(before) + 1
        assert status_of(one, issuer.token()) == 200
    assert eventually(lambda: threads() == before)
    with one:
        assert status_of(one, issuer.token()) == 200
    assert issuer.readings == 2
    assert key_set.MAX_AGE_S > MIN_INTERVAL_S
