"""Params as one text of JSON, and the members of types, on the explorer page."""

from __future__ import annotations

import dataclasses
import enum
import json

import pydantic
import pytest
from explorer_page import OpenPage, Serve, call, expect, field, open_page, outcome, serve
from typing_extensions import TypeAliasType

import ucall

__all__ = ["open_page", "serve"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Item:
    colour: Colour
    prices: dict[str, float]
    parts: list[Item]


@dataclasses.dataclass
class Order:
    items: list[Item]
    gift: Item | None = None


Json = TypeAliasType("Json", "list[Json] | dict[str, Json] | int")  # type: ignore[misc]


class Document(pydantic.BaseModel):
    body: Json = pydantic.Field(description="Any JSON.")


def test_params_are_typed_as_json(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#describe")
    field(page, "name").fill("Ada")
    field(page, "age").fill("36")
    page.get_by_role("button", name="Params as JSON").click()
    text = field(page, "params")
    shown = json.loads(text.input_value())
    assert shown == {"user": {"name": "Ada", "age": 36}}
    shown["user"] |= {"age": 9007199254740993, "points": [{"x": 1.5}, {"x": 2, "y": 7}]}
    text.fill(json.dumps(shown))
    call(page)
    expect(outcome(page)).to_contain_text("9007199254740993")
    page.locator("summary", has_text="The call as a program").click()
    expect(page.get_by_role("region", name="curl")).to_contain_text("9007199254740993")
    # The fields have what was typed.
    page.get_by_role("button", name="Params as fields").click()
    expect(field(page, "age")).to_have_value("9007199254740993")
    expect(field(page, "y").last).to_have_value("7")
    field(page, "name").fill("Grace")
    page.get_by_role("button", name="Params as JSON").click()
    assert json.loads(text.input_value())["user"]["name"] == "Grace"


def test_json_is_sent_as_it_is_typed(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#sum")
    page.get_by_role("button", name="Params as JSON").click()
    text = field(page, "params")
    for broken in ("", "7", '{"a": '):
        text.fill(broken)
        call(page)
        assert text.evaluate("(it) => it.validationMessage")
        expect(outcome(page)).to_be_hidden()
    for wrong, error in (
        ('{"a": "2"}', "params.a: expected int, got str"),
        ('{"a": 1, "c": 2}', "params.c: unexpected"),
        ("[1, 2, 3]", "at most 2"),
    ):
        text.fill(wrong)
        call(page)
        expect(page.get_by_role("alert")).to_contain_text(error)
    text.fill("[4, 5]")
    call(page)
    expect(outcome(page)).to_contain_text("9")
    page.get_by_role("button", name="Params as fields").click()
    expect(field(page, "b")).to_have_value("5")


def test_json_of_further_params(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#total")
    page.get_by_role("button", name="Params as JSON").click()
    field(page, "params").fill("[1, 2, 3]")
    call(page)
    expect(outcome(page)).to_contain_text("6")
    page.get_by_role("button", name="Params as fields").click()
    expect(field(page, "numbers[2]")).to_have_value("3")


@pytest.mark.parametrize("name", ["buy", "bought"])
def test_the_members_of_a_result_are_shown(open_page: OpenPage, name: str) -> None:
    server = ucall.Server(port=0, title="Shop")

    @server
    def buy() -> list[Order]:
        return []

    @server
    def bought() -> Order | None:
        return None

    with server:
        page = open_page(server, f"#{name}", expected="WebSocket connection")
        shown = page.locator("dl")
        expect(shown).to_contain_text("list of Order" if name == "buy" else "Order | null")
        expect(shown).not_to_contain_text("colour")
        shown.get_by_text("list of Item").click()
        expect(shown).to_contain_text('colour: Colour, "blue" | "red"')
        expect(shown).to_contain_text("prices: object of number")
        # It contains itself.
        for _ in range(3):
            shown.get_by_text("list of Item").last.click()
        expect(shown.locator(".key", has_text="colour")).to_have_count(4)


def test_a_type_of_lists_may_contain_itself(open_page: OpenPage) -> None:
    server = ucall.Server(port=0, title="Documents")

    @server
    def same(document: Document) -> Document:
        return document

    with server:
        page = open_page(server, expected="WebSocket connection")
        body = page.get_by_role("group", name="body")
        expect(body).to_contain_text("list of Json | object of Json")
        expect(page.locator("dl")).to_contain_text("Any JSON.")
        page.get_by_role("button", name="Params as JSON").click()
        field(page, "params").fill('{"document": {"body": [[1], {"a": [2]}]}}')
        call(page)
        expect(outcome(page)).to_contain_text("a: ")
