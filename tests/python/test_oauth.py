"""``ucall.auth.oauth``: which access tokens are valid, and what a server tells other callers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from functions import whoami
from hypothesis import given, settings
from hypothesis import strategies as st
from issuing import AUDIENCE, Issuer, jwk_of
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

import ucall
import ucall.auth
from harness import HOST, Wire, http, request
from ucall._oauth.key_set import KeySet
from ucall._oauth.tokens import ALGORITHMS, RefusedToken, TokenChecker

Serve = Callable[..., ucall.Server]
VECTORS = json.loads((Path(__file__).parent / "wycheproof_jws.json").read_text())["groups"]
WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def checker(issuer: Issuer) -> TokenChecker:
    keys = KeySet(None, issuer.documents["/keys"]["keys"])
    return TokenChecker(issuer.name, [AUDIENCE], ALGORITHMS, keys)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def checker_of(*jwks: dict[str, Any]) -> TokenChecker:
    return TokenChecker("https://i", [AUDIENCE], ALGORITHMS, KeySet(None, list(jwks)))


def signed(key: Any, algorithm: str, **headers: Any) -> str:
    claims = {"iss": "https://i", "aud": AUDIENCE, "sub": "bob", "exp": time.time() + 600}
    return jwt.encode(claims, key, algorithm, headers=headers)


VALID: list[dict[str, Any]] = [
    {},
    {"aud": ["https://other.example", AUDIENCE]},
    {"headers": {"typ": "JWT"}},
    {"headers": {"typ": None}},
    {"headers": {"typ": "application/AT+jwt"}},
    {"headers": {"kid": None}},
    {"nbf": -1, "iat": 5},
    {"nonce": "only ID tokens of other types are refused"},
]

#: What is wrong, in the reason for the log.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"exp": -60}, "expired"),
    ({"exp": None}, "exp"),
    ({"exp": "soon"}, "exp"),
    ({"nbf": 600}, "not yet valid"),
    ({"iat": 600}, "not yet valid"),
    ({"aud": "https://other.example"}, "Audience"),
    ({"aud": [AUDIENCE + "/"]}, "Audience"),
    ({"aud": None}, "aud"),
    ({"aud": {}}, "aud"),
    ({"iss": "https://other.example"}, "issuer"),
    ({"iss": None}, "iss"),
    ({"sub": None}, "sub"),
    ({"sub": 7}, "Subject"),
    ({"scope": 7}, "scopes"),
    ({"headers": {"typ": "dpop+jwt"}}, "type"),
    ({"headers": {"typ": 7}}, "type"),
    ({"headers": {"typ": "JWT"}, "nonce": "n"}, "ID token"),
    ({"cnf": {"jkt": "x"}}, "bound"),
    ({"headers": {"kid": "other"}}, "unknown"),
    ({"headers": {"crit": ["exp"], "exp": 1}}, "critical"),
    ({"key": "another"}, "Signature"),
]


@pytest.mark.parametrize("changes", VALID, ids=str)
def test_a_valid_token_is_its_subject(
    issuer: Issuer, checker: TokenChecker, changes: dict[str, Any]
) -> None:
    found = checker.check(issuer.token(scope="a b:c", **changes))
    assert (found.subject, found.scopes) == ("alice", {"a", "b:c"})
    assert found.claims["iss"] == issuer.name


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=str)
def test_other_tokens_are_refused(
    issuer: Issuer, checker: TokenChecker, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedToken, match=f"(?i){reason}"):
        checker.check(issuer.token(**changes))


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({}, set()),
        ({"scp": ["a", "b", 7]}, {"a", "b"}),
        ({"scp": "a"}, {"a"}),
        ({"scope": ""}, set()),
    ],
)
def test_scopes_of_other_issuers(
    issuer: Issuer, checker: TokenChecker, claims: dict[str, Any], scopes: set[str]
) -> None:
    assert checker.check(issuer.token(**claims)).scopes == scopes


def test_no_algorithm_but_those_of_the_key_verifies(issuer: Issuer, checker: TokenChecker) -> None:
    header, payload, signature = issuer.token().split(".")
    pem = issuer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for named in ("none", "None", "nOnE", "HS256", "ES384", "RS256", "EdDSA", None, 7, ["ES256"]):
        changed = b64(json.dumps({"alg": named, "kid": issuer.kid}).encode())
        text = f"{changed}.{payload}"
        mac = b64(hmac.digest(pem, text.encode(), hashlib.sha256))
        for proof in ("", signature, mac):
            with pytest.raises(RefusedToken):
                checker.check(f"{text}.{proof}")
    assert checker.check(f"{header}.{payload}.{signature}").subject == "alice"


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")
def test_keys_of_all_kinds() -> None:
    small = rsa.generate_private_key(65_537, 1024)
    large = rsa.generate_private_key(65_537, 2048)
    edwards = ed25519.Ed25519PrivateKey.generate()
    curve = ec.generate_private_key(ec.SECP384R1())
    rsa_jwk = RSAAlgorithm.to_jwk(large.public_key(), as_dict=True)
    okp_jwk = OKPAlgorithm.to_jwk(edwards.public_key(), as_dict=True)
    one = checker_of(rsa_jwk, okp_jwk, jwk_of(curve, "c"))
    for key, algorithm in (
        (large, "RS256"),
        (large, "PS384"),
        (edwards, "EdDSA"),
        (curve, "ES384"),
    ):
        assert one.check(signed(key, algorithm)).subject == "bob"
    small_jwk = RSAAlgorithm.to_jwk(small.public_key(), as_dict=True)
    valid = signed(large, "RS256")
    for jwks, token, reason in (
        ([small_jwk], signed(small, "RS256"), "1024 bits"),
        ([rsa_jwk, {**rsa_jwk, "kid": "2"}], valid, "2 keys"),
        ([{**rsa_jwk, "alg": "PS256"}], valid, "unknown"),
        ([{**rsa_jwk, "use": "enc"}], valid, "unknown"),
        ([{**rsa_jwk, "key_ops": ["encrypt"]}], valid, "unknown"),
        ([{**rsa_jwk, "n": "A"}], valid, "invalid|bits"),
        ([{**rsa_jwk, "n": 7}], valid, "invalid"),
        ([{"kty": "oct", "k": b64(b"x" * 64)}], signed("x" * 64, "HS256"), "algorithm"),
    ):
        with pytest.raises(RefusedToken, match=reason):
            checker_of(*jwks).check(token)


def test_signatures_of_wycheproof() -> None:
    count = 0
    for group in VECTORS:
        one = checker_of(group["jwk"])
        for vector in group["tests"]:
            count += 1
            with pytest.raises(RefusedToken) as refused:
                one.check(vector["jws"])
            # What they sign is no token, so that a signature is valid if the claims are at fault.
            is_signed = re.match("Invalid payload string", str(refused.value)) is not None
            assert is_signed == (vector["result"] == "valid"), vector
    assert count == 80


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_no_text_is_more_than_refused(issuer: Issuer, checker: TokenChecker, data: Any) -> None:
    token = issuer.token()
    parts = token.split(".")
    for at in (0, 1):
        if data.draw(st.booleans()):
            value = data.draw(st.one_of(st.binary(max_size=8), st.text(max_size=8)))
            members = {"alg": value, "kid": value, "crit": [value], "exp": value, "sub": value}
            name = data.draw(st.sampled_from([*members, "whole"]))
            whole = json.loads(base64.urlsafe_b64decode(parts[at] + "=="))
            whole[name] = repr(value) if isinstance(value, bytes) else members.get(name, value)
            parts[at] = b64(value if isinstance(value, bytes) else json.dumps(whole).encode())
    cut = data.draw(st.integers(0, 3))
    changed = ".".join([*parts[:cut], data.draw(st.text(max_size=3)), *parts[cut:]])
    with pytest.raises(RefusedToken):
        checker.check(changed)


def test_a_cached_token_expires(
    issuer: Issuer, checker: TokenChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = issuer.token()
    known = checker.check(token)
    assert checker.check(token) is known
    monkeypatch.setattr("ucall._oauth.tokens.time", SimpleNamespace(time=lambda: time.time() + 700))
    # It is checked again, by the clock of the library.
    assert checker.check(token) is not known


def guarded(issuer: Issuer, **options: Any) -> Any:
    return ucall.auth.oauth(issuer.name, AUDIENCE, **options)


def test_functions_see_whom_a_token_stands_for(serve: Serve, issuer: Issuer) -> None:
    seen: list[ucall.auth.AccessToken] = []

    def note(ctx: ucall.Context) -> str:
        seen.append(ctx.user)
        return str(ctx.user.subject)

    server = serve(note, auth=guarded(issuer))
    with Wire(server.port) as wire:
        bearer = f"Authorization: Bearer {issuer.token(scope='a')}"
        for header in (bearer, bearer.replace("Bearer", "bearer ")):
            wire.send(http(request("note", []), header))
            assert json.loads(wire.reply()[2])["result"] == "alice"
        assert seen[0] is seen[1]
        assert seen[0].scopes == {"a"} and seen[0].claims["aud"] == AUDIENCE


@pytest.mark.parametrize(
    ("options", "headers", "origin"),
    [
        ({}, [], f"http://{HOST}"),
        ({}, ["Forwarded: proto=https;host=evil.example"], f"http://{HOST}"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, ["X-Forwarded-Proto: https"], f"http://{HOST}"),
        ({"trusted_proxies": [HOST]}, ["X-Forwarded-Proto: https"], f"https://{HOST}"),
        (
            {"trusted_proxies": [HOST]},
            ["X-Forwarded-Proto: http, https", "X-Forwarded-Host: evil.example, a.example:8443"],
            "https://a.example:8443",
        ),
        (
            {"trusted_proxies": [HOST]},
            ["Forwarded: for=1.1.1.1;host=evil.example, for=2.2.2.2;host=a.example;proto=https"],
            "https://a.example",
        ),
        ({"trusted_proxies": [HOST]}, ['Forwarded: host="a\\"b";proto=gopher'], f"http://{HOST}"),
    ],
    ids=str,
)
def test_callers_without_a_token_learn_where_to_get_one(
    serve: Serve, issuer: Issuer, options: Any, headers: list[str], origin: str
) -> None:
    server = serve(whoami, auth=guarded(issuer), **options)
    server.add(whoami, "read", scopes=["files:read"])
    expected = {
        "authorization_servers": [issuer.name],
        "scopes_supported": ["files:read"],
        "bearer_methods_supported": ["header"],
    }
    for path in ("", "/mcp"):
        with Wire(server.port) as wire:
            wire.send(http(request("whoami"), *headers, target=path or "/"))
            if not path:
                status, head, _ = wire.reply()
                line = f'\r\nWWW-Authenticate: Bearer resource_metadata="{origin}{WELL_KNOWN}"\r\n'
                assert status == 401 and line.encode() in head
        with Wire(server.port) as wire:
            wire.send(http(b"", *headers, method="GET", target=WELL_KNOWN + path))
            status, head, body = wire.reply()
            assert status == 200 and b"\r\nContent-Type: application/json\r\n" in head
            assert json.loads(body) == {"resource": origin + path, **expected}


def test_a_server_may_name_its_own_address(serve: Serve, issuer: Issuer) -> None:
    address = "https://api.example.com/app/mcp"
    server = serve(whoami, auth=guarded(issuer, resource=address, scopes=["base"]))
    url = f"http://{HOST}:{server.port}"
    for path in ("", "/mcp", "/app/mcp"):
        document = httpx.get(url + WELL_KNOWN + path).json()
        assert document["resource"] == address and document["scopes_supported"] == ["base"]
    assert httpx.get(f"{url}{WELL_KNOWN}/other").status_code == 404
    metadata = f'resource_metadata="https://api.example.com{WELL_KNOWN}/app/mcp"'
    text = request("whoami")
    for authorization, status, challenge in (
        (None, 401, f'Bearer scope="base", {metadata}'),
        ("Bearer x", 401, f'Bearer error="invalid_token", scope="base", {metadata}'),
        (
            f"Bearer {issuer.token(scope='other')}",
            403,
            f'Bearer error="insufficient_scope", scope="base", {metadata}',
        ),
        (f"Bearer {issuer.token(scope='base other')}", 200, None),
    ):
        headers = {} if authorization is None else {"Authorization": authorization}
        response = httpx.post(url, content=text, headers=headers)
        assert response.status_code == status, response.text
        assert response.headers.get("WWW-Authenticate") == challenge


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_its_library_is_imported_on_demand(missing: str) -> None:
    source = f"""
import sys
sys.modules[{missing!r}] = None
import ucall, ucall.auth
ucall.Server(port=0, auth=ucall.auth.bearer(["key"]))
print([name for name in sys.modules if name.startswith("ucall._oauth")])
ucall.auth.oauth("https://issuer.example", "audience")
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "['ucall._oauth', 'ucall._oauth.access_token']\n"
    remedy = "oauth needs PyJWT, which is not installed: pip install 'pyjwt[crypto]'"
    assert done.stderr.endswith(f"ImportError: {remedy}\n")


@pytest.mark.parametrize(
    "options",
    [
        {"issuer": "http://issuer.example"},
        {"issuer": "https://"},
        {"issuer": 7},
        {"audience": []},
        {"audience": ""},
        {"algorithms": "ES256"},
        {"algorithms": []},
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"scopes": "a"},
        {"scopes": ["a b"]},
        {"scopes": ['"']},
        {"resource": "api.example.com"},
        {"resource": 'https://a.example/"'},
        {"jwks": "http://issuer.example/keys"},
        {"jwks": {}},
        {"jwks": {"keys": []}},
    ],
    ids=str,
)
def test_invalid_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
        ucall.auth.oauth(**{"issuer": "https://i", "audience": "a", **options})


def test_tools_need_their_scopes(serve: Serve, issuer: Issuer) -> None:
    server = serve(whoami, auth=guarded(issuer, scopes=["base"]), mcp=True)

    async def remove(path: str) -> str:
        return path

    server.add(remove, scopes=["files:write", "files:read"])
    url = f"http://{HOST}:{server.port}/mcp"
    text = request("tools/call", {"name": "remove", "arguments": {"path": "a"}})
    metadata = f'resource_metadata="http://{HOST}:{server.port}{WELL_KNOWN}/mcp"'
    lacking = f'Bearer error="insufficient_scope", scope="base files:read files:write", {metadata}'
    for scopes, status, challenge in (
        (None, 401, f'Bearer scope="base", {metadata}'),
        ("base files:write", 403, lacking),
        ("base files:write files:read", 200, None),
    ):
        headers = {"Accept": "application/json, text/event-stream"}
        if scopes is not None:
            headers["Authorization"] = f"Bearer {issuer.token(scope=scopes)}"
        response = httpx.post(url, content=text, headers=headers)
        assert response.status_code == status, response.text
        assert response.headers.get("WWW-Authenticate") == challenge
    assert response.json()["result"]["content"] == [{"type": "text", "text": "a"}]
    # One refusal leaves an array the results of the other calls.
    headers = {"Authorization": f"Bearer {issuer.token(scope='base')}"}
    batch = b"[" + request("ping", {}, 2) + b"," + text + b"]"
    response = httpx.post(url, content=batch, headers=headers)
    assert (response.status_code, response.json()[0]["result"]) == (200, {})


def test_a_challenge_is_of_its_own_request(serve: Serve, issuer: Issuer) -> None:
    server = serve(whoami, auth=guarded(issuer), trusted_proxies=[HOST])
    with Wire(server.port) as wire:
        wire.send(http(request("whoami"), "X-Forwarded-Host: one.example"))
        assert b"http://one.example/" in wire.reply()[1]
    with Wire(server.port) as wire:
        # The upgrade to WebSocket names no address.
        lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines.append("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        wire.send(http(b"", *lines, method="GET").replace(b"Content-Length: 0\r\n", b""))
        status, head, _ = wire.reply()
        assert status == 401 and b"\r\nWWW-Authenticate: Bearer\r\n" in head
