"""The official SDK gets a token for a server, and another one when a tool needs more scopes."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from conftest import CLIENTS, HERE
from issuing import METADATA, Issuer

import ucall
import ucall.auth
from harness import HOST, free_port


def authorize(issuer: Issuer) -> list[dict[str, str]]:
    """Has an issuer give a token to every client that asks. Returns what they will ask for."""
    asked: list[dict[str, str]] = []
    codes: dict[str, dict[str, str]] = {}

    def grant(query: str) -> int:
        asked.append(dict(parse_qsl(query)))
        code = secrets.token_hex()
        codes[code] = asked[-1]
        answer = urlencode({"code": code, "state": asked[-1]["state"]})
        issuer.location = f"{asked[-1]['redirect_uri']}?{answer}"
        return 302

    def give(body: str) -> Any:
        form = dict(parse_qsl(body))
        scope = codes.pop(form["code"])["scope"]
        token = issuer.token(aud=form["resource"], scope=scope)
        return {"access_token": token, "token_type": "Bearer", "expires_in": 600, "scope": scope}

    def register(body: str) -> Any:
        return {**json.loads(body), "client_id": "test"}

    routes = {"authorization": grant, "token": give, "registration": register}
    for name, route in routes.items():
        issuer.documents[f"/{name}"] = route
        issuer.documents[METADATA][f"{name}_endpoint"] = f"{issuer.origin}/{name}"
    issuer.documents[METADATA] |= {
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
    }
    return asked


def read(ctx: ucall.Context) -> str:
    return f"{ctx.user.subject}: {sorted(ctx.user.scopes)}"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_gets_the_scopes_that_its_tools_need(python: Path, mode: str) -> None:
    with Issuer() as issuer:
        asked = authorize(issuer)
        port = free_port()
        url = f"http://{HOST}:{port}/mcp"
        auth = ucall.auth.oauth(issuer.name, url, scopes=["base"])
        server = ucall.Server(port=port, auth=auth, mcp=True)
        server.add(read)
        server.add(read, "write", scopes=["files:write"])
        command = [str(python), str(HERE / "clients/python_oauth.py"), mode, url]
        with server:
            done = subprocess.run(command, capture_output=True, text=True, cwd=CLIENTS, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    first, more = "alice: ['base']", "alice: ['base', 'files:write']"
    assert json.loads(done.stdout) == [first, more, more]
    assert [it["scope"] for it in asked] == ["base", "base files:write"]
    assert [it["resource"] for it in asked] == [url, url]
