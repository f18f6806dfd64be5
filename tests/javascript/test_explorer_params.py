"""Params as one text of JSON, and the members of types, on the explorer page."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Literal

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


UserId = TypeAliasType("UserId", int)


class Users(pydantic.BaseModel):
    ids: list[UserId]
    chosen: list[UserId | Literal["all", "me"]]
    colours: dict[str, Colour]


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


def test_names_of_types_without_members_are_not_shown(open_page: OpenPage) -> None:
    server = ucall.Server(port=0, title="Users")

    @server
    def find(users: Users) -> Users:
        return users

    with server:
        page = open_page(server, expected="WebSocket connection")
        shown = page.locator("dl")
        expect(shown).to_contain_text("ids: list of integer")
        expect(shown).to_contain_text('chosen: list of (integer | "all" | "me")')
        expect(shown).to_contain_text('colours: object of ("red" | "blue")')
        expect(page.get_by_role("group", name="ids")).to_contain_text("list of integer")


def test_typed_numbers_are_sent_as_they_are_written(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#same")
    page.get_by_role("button", name="Params as JSON").click()
    numbers = "[1.0, 0.12345678901234567890, 1e400, -0, 1.5]"
    field(page, "params").fill(f'{{"value": {numbers}}}')
    page.locator("summary", has_text="The call as a program").click()
    sent = numbers.replace(" ", "")
    expect(page.get_by_role("region", name="curl")).to_contain_text(f'{{"value":{sent}}}')
    page.get_by_role("button", name="Params as fields").click()
    expect(field(page, "value")).to_have_value(sent)


def test_typed_numbers_are_found_in_unions(open_page: OpenPage) -> None:
    server = ucall.Server(port=0, title="Keys")

    @server
    def find(key: str | int) -> None: ...

    with server:
        page = open_page(server, expected="WebSocket connection")
        page.get_by_role("button", name="Params as JSON").click()
        field(page, "params").fill('{"key": 9007199254740993}')
        page.get_by_role("button", name="Params as fields").click()
        expect(field(page, "Type of key").locator(":checked")).to_have_text("integer")
        expect(field(page, "key")).to_have_value("9007199254740993")


def test_a_text_without_fields_stays(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#sum")
    page.get_by_role("button", name="Params as JSON").click()
    text, as_fields = field(page, "params"), page.get_by_role("button", name="Params as fields")
    for refused, reason in (
        ('{"a": ', "no JSON"),
        ("7", "no JSON"),
        ('{"a": 1, "c": 2}', "no field"),
        ("[1, 2, 3]", "no field"),
    ):
        text.fill(refused)
        expect(as_fields).to_be_disabled()
        expect(as_fields).to_have_attribute("title", re.compile(reason))
    for fitting in ('{"a": 1}', "[1, 2]"):
        text.fill(fitting)
        expect(as_fields).to_be_enabled()


def test_a_file_is_not_shown_as_text(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#reverse")
    as_json = page.get_by_role("button", name="Params as JSON")
    expect(as_json).to_be_enabled()
    chosen = {"name": "a.bin", "mimeType": "application/octet-stream", "buffer": b"abc"}
    field(page, "data").set_input_files(chosen)
    expect(as_json).to_be_disabled()
    expect(as_json).to_have_attribute("title", "A chosen file is not shown as text")
    field(page, "data").set_input_files([])
    expect(as_json).to_be_enabled()
