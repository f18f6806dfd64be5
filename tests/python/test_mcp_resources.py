"""Resources and resource templates of MCP: docs/mcp.md."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any

import pytest
from mcp_offers import NEWEST, OLDER, Offers

import ucall
from ucall._mcp.templates import Template


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


def shop() -> Offers:
    offers = Offers()

    @offers.resource("shop://name", title="Name", mime_type="text/x-name")
    def name() -> str:
        """The shop's name.

        It never changes.
        """
        return "Zoë's"

    @offers.resource("shop://logo")
    def logo() -> bytes:
        return b"\x89PNG"

    @offers.resource("shop://stock")
    def stock() -> dict[str, Any]:
        return {"pears": 3, "raw": b"\0"}

    @offers.resource("shop://items/{item}/price", name="price")
    def price_of(item: str, currency: str = "EUR") -> str:
        return f"{item}: 3 {currency}"

    @offers.resource("shop://log/{level}/{count}")
    def log(level: Level, count: int, ctx: ucall.Context) -> list[Any]:
        return [level.name, count, ctx.method]

    return offers


def test_resources_are_listed() -> None:
    offers = shop()
    listed = offers.call("resources/list")
    assert listed["resources"] == [
        {
            "uri": "shop://name",
            "name": "name",
            "title": "Name",
            "description": "The shop's name.\n\nIt never changes.",
            "mimeType": "text/x-name",
        },
        {"uri": "shop://logo", "name": "logo"},
        {"uri": "shop://stock", "name": "stock"},
    ]
    assert [listed[it] for it in ("resultType", "ttlMs", "cacheScope")] == ["complete", 0, "public"]
    templates = offers.call("resources/templates/list")
    assert templates["resourceTemplates"][0] == {
        "uriTemplate": "shop://items/{item}/price",
        "name": "price",
    }
    assert offers.call("resources/list", OLDER).keys() == {"resources"}
    assert "resources" in offers.registry.capabilities


@pytest.mark.parametrize(
    ("uri", "content"),
    [
        ("shop://name", {"mimeType": "text/x-name", "text": "Zoë's"}),
        ("shop://logo", {"mimeType": "application/octet-stream", "blob": "iVBORw=="}),
        ("shop://stock", {"mimeType": "application/json", "text": '{"pears": 3, "raw": "AA=="}'}),
        ("shop://items/a%20b/price", {"mimeType": "text/plain", "text": "a b: 3 EUR"}),
        ("shop://items/a%2Fb/price", {"mimeType": "text/plain", "text": "a/b: 3 EUR"}),
        (
            "shop://log/high/-3",
            {"mimeType": "application/json", "text": '["HIGH", -3, "resources/read"]'},
        ),
    ],
)
def test_contents(uri: str, content: dict[str, str]) -> None:
    offers = shop()
    assert offers.call("resources/read", uri=uri)["contents"] == [{"uri": uri, **content}]
    assert offers.call("resources/read", OLDER, uri=uri) == {"contents": [{"uri": uri, **content}]}


@pytest.mark.parametrize(
    "uri",
    [
        "shop://nothing",
        "shop://items//price",
        "shop://items/a/b/price",
        "shop://items/pear/price/",
        "SHOP://name",
        # Values that lead out of a directory.
        "shop://items/../price",
        "shop://items/%2E%2e/price",
        "shop://items/a%2F..%2F..%2Fb/price",
        "shop://items/a%5C..%5Cb/price",
        "shop://items/%2Fetc%2Fpasswd/price",
        "shop://items/%5C%5Chost%5Cshare/price",
        "shop://items/c%3A%5Cboot.ini/price",
        "shop://items/a%00/price",
    ],
)
def test_unknown_resources(uri: str) -> None:
    offers = shop()
    for version in (NEWEST, OLDER, ""):
        with pytest.raises(ucall.RPCError) as raised:
            offers.call("resources/read", version, uri=uri)
        assert (raised.value.code, raised.value.data) == (-32602, {"uri": uri})


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("n://{a}-{b}", "n://x-y-z", {"a": "x-y", "b": "z"}),
        ("n://{a}.{b}.md", "n://x.y.md.md", {"a": "x.y", "b": "md"}),
        ("n://{a}{b}/{c}", "n://xyz/1%2D2", {"a": "xy", "b": "z", "c": "1-2"}),
        ("n://{a}-{b}", "n://-x", None),
        # By trying all ways, these would take hours.
        ("n://x{a}-{b}-{c}", f"n://{'-' * 100_000}", None),
        ("n://{a}-{b}-{c}", f"n://{'-' * 100_000}/", None),
    ],
)
def test_variables_share_a_segment(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert Template(template).match(uri) == values


@pytest.mark.parametrize(
    ("params", "data"),
    [
        ({}, "uri: expected a string, got None"),
        ({"uri": 3}, "uri: expected a string, got int"),
        (
            {"uri": "shop://log/up/x"},
            "uri.level: expected one of 'low', 'high', got 'up'\n"
            "uri.count: expected an integer, got 'x'",
        ),
    ],
)
def test_wrong_params(params: dict[str, Any], data: str) -> None:
    with pytest.raises(ucall.RPCError) as raised:
        shop().call("resources/read", **params)
    assert (raised.value.code, raised.value.data) == (-32602, data)


def test_numbers_are_those_of_json_or_near() -> None:
    offers = Offers()
    offers.resource("n://{value}")(double)
    for text, number in (("2.5", "5.0"), ("-1e1", "-20.0"), (".5", "1.0"), ("+3.", "6.0")):
        assert offers.call("resources/read", uri=f"n://{text}")["contents"][0]["text"] == number
    for text in ("nan", "inf", "1e999", "1_0", "%201", "\N{ARABIC-INDIC DIGIT ONE}", "1e"):
        with pytest.raises(ucall.RPCError) as raised:
            offers.call("resources/read", uri=f"n://{text}")
        assert "uri.value: expected a number, got " in raised.value.data


def double(value: float) -> float:
    return 2 * value


def test_long_lists_have_pages() -> None:
    offers = Offers()
    for number in range(2001):
        offers.resource(f"n://{number}")(test_long_lists_have_pages)
    sizes, params = [], {}
    while True:
        page = offers.call("resources/list", **params)
        sizes.append(len(page["resources"]))
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert sizes == [1000, 1000, 1]
    for cursor in ("x", "bm8=", 3, "\N{SNOWMAN}"):
        with pytest.raises(ucall.RPCError, match="Invalid params"):
            offers.call("resources/list", cursor=cursor)


def test_functions_run_as_they_are() -> None:
    offers, own = Offers(), threading.get_ident()

    @offers.resource("n://plain")
    def plain() -> bool:
        return threading.get_ident() == own

    assert (offers.mode("resources/read"), offers.loops) == ("inline", [])

    @offers.resource("n://thread", threads=True)
    def thread() -> bool:
        return threading.get_ident() == own

    @offers.resource("n://task")
    async def task() -> bool:
        return threading.get_ident() == own

    assert (offers.mode("resources/read"), offers.loops) == ("task", [True])
    for uri, is_own in (("n://plain", "true"), ("n://thread", "false"), ("n://task", "true")):
        assert offers.call("resources/read", uri=uri)["contents"][0]["text"] == is_own

    threaded = Offers(threads=True)
    threaded.resource("n://thread")(thread)
    assert threaded.mode("resources/read") == "thread"
    assert threaded.call("resources/read", uri="n://thread")["contents"][0]["text"] == "false"


def test_what_depends_on_the_caller_is_private() -> None:
    offers = Offers(is_private=True)

    @offers.resource("me://name")
    def me(ctx: ucall.Context) -> str:
        return str(ctx.user)

    result = offers.call("resources/read", user="ann", uri="me://name")
    assert (result["contents"][0]["text"], result["cacheScope"]) == ("ann", "private")


def nothing() -> str:
    return ""


def one(a: str) -> str:
    return a


def of_bytes(a: bytes) -> str:
    return ""


def optional(a: str | None) -> str:
    return ""


def rest(*a: str) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "uri", "error"),
    [
        (nothing, "name", "uri: expected a URI"),
        (nothing, "a b://c", "uri: expected a URI"),
        (nothing, "s://{a", "uri: expected a URI"),
        (one, "s://{+a}", "level 1"),
        (one, "s://{a,b}", "level 1"),
        (one, "s://{a}/{a}", "is there twice"),
        (nothing, "s://{a}", "nothing: has no parameter 'a'"),
        (one, "s://x", "one: parameter 'a': is not in 's://x'"),
        (of_bytes, "s://{a}", "of_bytes: parameter 'a': bytes cannot be served: expected str"),
        (optional, "s://{a}", "give it a default"),
        (rest, "s://{a}", "without a name of its own"),
        (lambda: "", "s://x", "has no name"),
    ],
)
def test_what_cannot_be_a_resource(function: Callable[..., Any], uri: str, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error.replace("+", r"\+")):
        Offers().resource(uri)(function)


def test_a_uri_has_one_function() -> None:
    offers = Offers()

    def define(text: str) -> None:
        @offers.resource("s://x")
        def defined() -> str:
            return text

    define("old")
    define("new")
    assert offers.call("resources/read", uri="s://x")["contents"][0]["text"] == "new"
    with pytest.raises(ValueError, match="'s://x' is already the URI of"):
        offers.resource("s://x")(nothing)
    with pytest.raises(TypeError, match="there is no argument 'b'"):
        offers.resource("s://y/{a}", complete={"b": ["x"]})(one)
    with pytest.raises(TypeError, match="is a generator"):
        offers.resource("s://z")(generator)


def generator() -> Any:
    yield ""
