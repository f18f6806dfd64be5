"""The explorer page in headless Chromium: methods, forms, keys and accessibility."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pytest
from explorer_page import OpenPage, Serve, call, enter, expect, field, open_page, outcome, serve
from node import package

import ucall
import ucall.auth

__all__ = ["open_page", "serve"]


def test_methods_are_listed_and_found(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    expect(page).to_have_title("Sample")
    names = page.locator("nav .name")
    expect(names).to_have_count(17)
    field(page, "Search methods").fill("IMAGE small")
    expect(names).to_have_text(["thumbnail"])
    expect(page.get_by_text("1 of 17 methods")).to_be_visible()
    page.get_by_role("link", name="thumbnail").click()
    expect(page.get_by_role("heading", name="thumbnail")).to_be_focused()
    expect(page).to_have_title("thumbnail - Sample")
    page.go_back()
    expect(page.get_by_text("Choose a method")).to_be_visible()
    page.goto(f"{page.url.partition('#')[0]}#50%")
    expect(page.get_by_text("Choose a method")).to_be_visible()


def test_a_type_that_contains_itself_ends_at_another(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#evaluate")
    for place, value in (("left", "2"), ("right", "3.5")):
        page.locator(f'[id="params.tree.{place}.value"]').fill(value)
    page.get_by_role("button", name="Call", exact=True).click()
    expect(outcome(page)).to_contain_text("5.5")


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_a_nested_form_is_filled_and_called(
    serve: Serve, open_page: OpenPage, transport: str
) -> None:
    page = open_page(serve(), "#describe")
    field(page, "Calls over").select_option(transport)
    field(page, "name").fill("Ada")
    field(page, "age").fill("9007199254740993")
    page.get_by_label("Send born").check()
    field(page, "Type of born").select_option("date")
    field(page, "born").fill("1815-12-10")
    page.get_by_label("Send points").check()
    page.get_by_role("button", name="Add to points").click()
    page.get_by_role("button", name="Add to points").click()
    field(page, "x").first.fill("1.5")
    field(page, "x").last.fill("2e3")
    field(page, "y").last.fill("-1")
    page.get_by_label("Send labels").check()
    page.get_by_role("button", name="Add to labels").click()
    field(page, "name").last.fill("a b")
    field(page, "name").last.press("Tab")
    field(page, "a b").fill("7")
    field(page, "colour").select_option("blue")
    page.get_by_label("Send id").check()
    field(page, "id").fill("8")
    call(page)
    expect(outcome(page).get_by_role("status")).to_have_text(re.compile(r"Done, [\d.]+ m?s"))
    text = outcome(page).inner_text()
    for part in ("9007199254740993", "1815-12-10", "1.5", "2000", "a b", '"blue"', '"8"'):
        assert part in text
    page.get_by_role("button", name="Remove points[0]").click()
    call(page)
    expect(outcome(page)).not_to_contain_text("1.5")
    expect(outcome(page)).to_contain_text("2000")


@pytest.mark.parametrize(
    ("method", "fill", "expected"),
    [
        ("sum", {"a": "4"}, "7"),
        ("sum", {"a": "-4", "b": "10"}, "6"),
        ("same", {"value": '{"a": [1, null]}'}, "null"),
        ("same", {"value": "text"}, '"text"'),
        ("same", {"value": "18446744073709551617"}, "18446744073709551617"),
        ("scale", {"values": "[[1, 2], [3, 4]]", "by": "0.5"}, "[[0.5,   1],\n [1.5,   2]]"),
        ("scale", {"values": "[[1, 2]]"}, "array of float64, shape (1, 2), 2 items"),
        ("scale", {"values": "[3]"}, "array of float64, shape (1,), 1 item Download"),
        ("at", {"time": "2026-11-21T12:00:00Z", "unit": "mm"}, '"2026-11-21T12:00:00Z"'),
        ("whoami", {}, "null"),
    ],
)
def test_values_of_each_kind_are_sent(
    serve: Serve, open_page: OpenPage, method: str, fill: dict[str, str], expected: str
) -> None:
    page = open_page(serve(), f"#{method}")
    for name, text in fill.items():
        control = field(page, name)
        if control.evaluate("(it) => it.tagName") == "SELECT":
            control.select_option(text)
        else:
            control.fill(text)
    call(page)
    expect(outcome(page)).to_contain_text(expected)


def test_params_by_position(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#total")
    page.get_by_label("Send numbers").check()
    for number in range(3):
        page.get_by_role("button", name="Add to numbers").click()
        field(page, f"numbers[{number}]").fill(str(number + 1))
    call(page)
    expect(outcome(page)).to_contain_text("6")
    field(page, "numbers[1]").fill("x")
    call(page)
    expect(field(page, "numbers[1]")).to_be_focused()
    expect(page.locator(".problem")).to_have_text("expected int, got str")


def test_a_npy_file_is_sent(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    numpy.save(tmp_path / "array.npy", numpy.arange(3.0))
    page = open_page(serve(), "#scale")
    page.get_by_label("or a .npy file").set_input_files(tmp_path / "array.npy")
    call(page)
    expect(outcome(page)).to_contain_text("[0, 2, 4]")


def test_bytes_are_sent_and_shown(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    page = open_page(serve(), "#reverse")
    field(page, "data").set_input_files(tmp_path / "text")
    call(page)
    expect(outcome(page)).to_contain_text("cba")
    field(page, "data").set_input_files(tmp_path / "binary")
    call(page)
    expect(outcome(page)).to_contain_text("ff fe fd")
    expect(outcome(page)).to_contain_text("256 bytes")


def test_an_error_is_shown_at_its_field(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#describe")
    field(page, "name").fill("Ada")
    field(page, "age").fill("36")
    page.get_by_label("Send points").check()
    page.get_by_role("button", name="Add to points").click()
    field(page, "x").fill("far")
    call(page)
    wrong = field(page, "x")
    expect(wrong).to_be_focused()
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(wrong).to_have_accessible_description(re.compile("expected float, got str"))
    expect(page.get_by_role("alert")).to_contain_text("Invalid params -32602")
    wrong.fill("1")
    field(page, "age").fill("")
    call(page)
    # A missing value is reported at its own field.
    expect(field(page, "age")).to_be_focused()
    expect(field(page, "age")).to_have_accessible_description(re.compile("missing, expected int"))
    expect(wrong).not_to_have_attribute("aria-invalid", "true")


def test_broken_json_is_not_sent(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#same")
    field(page, "value").fill('{"a": ')
    call(page)
    assert field(page, "value").evaluate("(it) => it.validationMessage").startswith("Not JSON")
    expect(outcome(page)).to_be_hidden()


def test_the_only_method_is_open(open_page: OpenPage) -> None:
    server = ucall.Server(port=0, title="One", description="Has one function.")
    server.add(lambda a: a, name="same")
    with server:
        page = open_page(server, expected="WebSocket connection")
        expect(page.get_by_role("heading", name="same")).to_be_visible()
        expect(page.get_by_text("1 method", exact=True)).to_be_visible()
        expect(page.get_by_text("Has one function.")).to_be_visible()
        # What the page would show, and where it comes from.
        expect(page.get_by_text("the docstring of the function would be here")).to_be_visible()
        field(page, "a").fill("[5]")
        page.get_by_role("searchbox").press("Control+Enter")
        expect(outcome(page)).to_contain_text("list of 1 item[5]")
        assert page.locator("form, .outcome, dl").evaluate_all(
            "(all) => all.map((it) => it.tagName)"
        ) == [
            "FORM",
            "SECTION",
            "DL",
        ]


def test_it_reconnects_after_a_restart(serve: Serve, open_page: OpenPage) -> None:
    server = serve()
    page = open_page(server, "#sum", expected="WebSocket connection|ERR_CONNECTION_REFUSED")
    state = page.locator("header").get_by_role("status")
    expect(state).to_have_text("Connected")
    server.stop()
    expect(state).to_have_text("Connection lost, trying again")

    @server(name="a_new_method")
    def added() -> int:
        return 5

    server.start()
    expect(state).to_have_text("Connected")
    expect(page.locator("nav").get_by_text("a_new_method")).to_be_visible()
    field(page, "a").fill("1")
    call(page)
    expect(outcome(page)).to_contain_text("4")


def test_a_bearer_token_is_asked_for(serve: Serve, open_page: OpenPage) -> None:
    server = serve(auth=ucall.auth.bearer({"s3cret": "alice"}))
    page = open_page(server, "#whoami", expected="401")
    expect(field(page, "Header")).to_have_value("Authorization")
    enter(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("The server rejected the key.")
    enter(page, "s3cret")
    for transport in ("websocket", "http"):
        field(page, "Calls over").select_option(transport)
        call(page)
        expect(outcome(page)).to_contain_text('"alice"')
    page.reload()
    call(page)
    expect(outcome(page)).to_contain_text('"alice"')
    stored = page.evaluate("[Object.keys(localStorage), document.cookie, location.href]")
    assert stored[:2] == [[], ""] and "s3cret" not in stored[2]
    page.get_by_role("button", name="Forget the key").click()
    expect(field(page, "Key")).to_have_value("")


def test_an_api_key_is_sent_over_http(serve: Serve, open_page: OpenPage) -> None:
    server = serve(auth=ucall.auth.api_key({"k3y": "bob"}, header="X-Our-Key"))
    page = open_page(server, "#whoami", expected="401")
    expect(field(page, "Header")).to_have_value("X-Our-Key")
    enter(page, "k3y")
    expect(field(page, "Calls over")).to_be_disabled()
    expect(field(page, "Calls over")).to_have_value("http")
    call(page)
    expect(outcome(page)).to_contain_text('"bob"')


def test_it_is_used_by_keyboard(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    expect(page.get_by_text("17 methods")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("adds two")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="sum")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("2")
    page.keyboard.press("Control+Enter")
    expect(outcome(page)).to_contain_text("5")
    field(page, "a").fill("3")
    # Wherever the focus is, and a link opens no other page.
    page.get_by_role("link", name="sum").press("Control+Enter")
    expect(outcome(page)).to_contain_text("6")
    assert len(page.context.pages) == 1


SCREENS = [("light", 1000), ("dark", 1000), ("light", 360)]


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_axe_finds_nothing_serious(
    serve: Serve, open_page: OpenPage, scheme: str, width: int
) -> None:
    axe = (package("axe-core") / "axe.min.js").read_text()
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    page = open_page(serve(), **options)

    def check() -> None:
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert found["passes"]
        violations = [(it["id"], it["impact"], it["nodes"]) for it in found["violations"]]
        assert [it for it in violations if it[1] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    check()
    for method in ("describe", "thumbnail", "scale", "same", "ticks"):
        page.goto(f"{page.url.partition('#')[0]}#{method}")
        expect(page.get_by_role("heading", name=method)).to_be_visible()
        for include in page.get_by_role("checkbox").all():
            include.check()
        page.locator("summary", has_text="The call as a program").click()
        call(page)
        expect(outcome(page)).to_contain_text("items" if method == "ticks" else "Failed")
        check()
    results = {
        "same": {"value": '{"list": [{"a": 1}], "text": "' + "long " * 100 + '"}'},
        "scale": {"values": str(numpy.eye(30).tolist())},
        "gradient": {"height": "30", "width": "2000"},
        "records": {"count": "30"},
    }
    for method, values in results.items():
        page.goto(f"{page.url.partition('#')[0]}#{method}")
        for name, text in values.items():
            field(page, name).fill(text)
        call(page)
        expect(outcome(page)).to_contain_text("Done")
        outcome(page).locator("summary", has_text="Request and reply").click()
        expect(outcome(page).get_by_role("region", name="Reply")).to_be_visible()
        check()


def test_axe_finds_nothing_serious_in_the_form_of_the_key(
    serve: Serve, open_page: OpenPage
) -> None:
    axe = (package("axe-core") / "axe.min.js").read_text()
    page = open_page(serve(auth=lambda ctx: None), expected="401")
    enter(page, "wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    page.evaluate(axe)
    assert page.evaluate("axe.run()")["violations"] == []
