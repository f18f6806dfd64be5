"""An application of FastAPI as it is, mounted, and moved function by function."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient as FastApiClient

import ucall
from harness import eventually
from ucall.client import Client

REPOSITORY = Path(__file__).parents[2]
SHOP = REPOSITORY / "examples" / "shop"
PAGE = REPOSITORY / "docs" / "coming-from-fastapi.md"

#: The codes of ucall's own errors, as statuses of HTTP.
STATUSES = {-32602: 422, -32004: 403}

#: Calls a function of the shop, as the caller with a token. Returns the result, or the status of an
#: error.
Call = Callable[..., Any]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SHOP / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def over_http(client: httpx.Client) -> Call:
    """Calls by the paths of the application."""

    def call(function: str, token: str | None = None, **params: Any) -> Any:
        name = params.get("name")
        method, path, body = {
            "version": ("GET", "/version", None),
            "items.find": ("GET", f"/items/{name}", None),
            "items.buy": ("POST", f"/items/{name}/buy", None),
            "admin.add": ("POST", "/admin/add", params.get("item")),
        }[function]
        reply = client.request(method, path, json=body, headers=headers(token))
        return reply.json() if reply.status_code == 200 else reply.status_code

    return call


def over_json_rpc(make: Callable[[dict[str, str]], Client]) -> Call:
    """Calls the functions."""

    def call(function: str, token: str | None = None, **params: Any) -> Any:
        with make(headers(token)) as client:
            try:
                reply = client.call(function, **params)
            except ucall.HTTPError as error:
                return error.status
            return STATUSES.get(reply.error.code, reply.error.code) if reply.error else reply.json

    return call


@pytest.fixture(params=["fastapi", "mounted", "moved"])
def shop(request: pytest.FixtureRequest) -> Iterator[tuple[ModuleType, Call]]:
    """The module of a shop that runs, and what calls it."""
    if request.param == "moved":
        module = load("with_ucall")
        with module.server:
            port = module.server.port
            yield module, over_json_rpc(lambda headers: Client(port=port, headers=headers))
        return
    module = load("with_fastapi")
    if request.param == "fastapi":
        with FastApiClient(module.app) as client:
            yield module, over_http(client)
        return
    server = ucall.Server(port=0)
    server.mount("/", module.app)
    with server, httpx.Client(base_url=f"http://localhost:{server.port}") as client:
        yield module, over_http(client)


def test_anyone_reads_the_version(shop: tuple[ModuleType, Call]) -> None:
    _, call = shop
    assert call("version") == "1.2.3"
    assert call("version", "wrong") == "1.2.3"


def test_an_item_is_found_and_bought_once(shop: tuple[ModuleType, Call]) -> None:
    module, call = shop
    lamp = {"name": "lamp", "price": 20.0}
    assert call("items.find", "s3cret", name="lamp") == lamp
    assert call("items.find", "s3cret", name="sofa") == 404
    assert call("items.buy", "s3cret", name="lamp") == lamp
    assert call("items.buy", "t0ken", name="lamp") == 409
    assert eventually(lambda: module.mails == ["ada: lamp"])


def test_callers_are_authenticated(shop: tuple[ModuleType, Call]) -> None:
    _, call = shop
    for token in (None, "wrong"):
        assert call("items.find", token, name="lamp") == 401
        assert call("items.buy", token, name="lamp") == 401
        assert call("admin.add", token, item={"name": "sofa", "price": 1}) == 401
    assert call("items.find", "s3cret", name="lamp")["price"] == 20


def test_only_an_admin_adds_items(shop: tuple[ModuleType, Call]) -> None:
    _, call = shop
    sofa = {"name": "sofa", "price": 300.0}
    assert call("admin.add", "s3cret", item=sofa) == 403
    assert call("admin.add", "t0ken", item=sofa) == 2
    assert call("items.find", "s3cret", name="sofa") == sofa
    assert call("admin.add", "t0ken", item={"name": "", "price": 1}) == 422
    assert call("admin.add", "t0ken", item={"name": "sofa", "price": -1}) == 422


def test_the_middleware_sees_all_calls(shop: tuple[ModuleType, Call]) -> None:
    module, call = shop
    call("version")
    call("items.find", "s3cret", name="lamp")
    call("items.find", "s3cret", name="sofa")
    assert len(module.seen) == 3


def test_the_moved_shop_has_no_more_lines_and_the_page_says_how_many() -> None:
    before, after = (
        sum(bool(line.strip()) for line in (SHOP / f"{name}.py").read_text().splitlines())
        for name in ("with_fastapi", "with_ucall")
    )
    assert after <= before
    text = " ".join(PAGE.read_text().split())
    assert re.search(rf"\b{before} lines\b.*\b{after} lines\b", text)
