"""The explorer page in headless Chromium."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import explored
import numpy
import PIL.Image
import pytest
from node import package

import ucall
import ucall.auth

api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
expect = api.expect

#: Long enough for a busy machine.
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)

OpenPage = Callable[..., Any]


@pytest.fixture
def serve() -> Iterator[Callable[..., ucall.Server]]:
    """Starts a server with the functions of `explored`, and stops it after the test."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> ucall.Server:
            server = ucall.Server(
                port=0, title="Sample", version="1.2.3", **ucall.options.arguments(options)
            )
            explored.add_to(server)
            return stack.enter_context(server)

        yield start


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Opens the page of a server; the test fails on errors in the console, but for those of the
    network that it expects, and on requests to other servers."""
    contexts = []
    problems: list[str] = []

    def open_(server: ucall.Server, path: str = "", expected: str = "$^", **options: Any) -> Any:
        context = browser.new_context(**options)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        origin = f"127.0.0.1:{server.port}/"

        def note(message: Any) -> None:
            if message.type in ("error", "warning") and not re.search(expected, message.text):
                problems.append(message.text)

        def check(request: Any) -> None:
            if not request.url.startswith((f"http://{origin}", "data:", "blob:")):
                problems.append(request.url)

        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check)
        page.goto(f"http://{origin}{path}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def call(page: Any) -> None:
    page.get_by_role("button", name="Call", exact=True).click()


def outcome(page: Any) -> Any:
    return page.get_by_role("region", name="Result")


def field(page: Any, name: str) -> Any:
    return page.get_by_label(name, exact=True)


Serve = Callable[..., ucall.Server]


def test_methods_are_listed_and_found(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve())
    expect(page).to_have_title("Sample")
    names = page.locator("nav .name")
    expect(names).to_have_count(15)
    field(page, "Search methods").fill("IMAGE small")
    expect(names).to_have_text(["thumbnail"])
    expect(page.get_by_text("1 of 15 methods")).to_be_visible()
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
        ("scale", {"values": "[[1, 2], [3, 4]]", "by": "0.5"}, "[0.5, 1, 1.5, 2]"),
        ("scale", {"values": "[[1, 2]]"}, "array of float64, shape (1, 2), 2 items"),
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


def test_an_uploaded_image_comes_back(serve: Serve, open_page: OpenPage, tmp_path: Path) -> None:
    PIL.Image.new("RGB", (40, 30), "orange").save(tmp_path / "photo.png")
    page = open_page(serve(), "#thumbnail")
    field(page, "photo").set_input_files(tmp_path / "photo.png")
    expect(page.get_by_role("img", name="photo.png")).to_be_visible()
    field(page, "size").fill("8")
    call(page)
    picture = page.get_by_role("img", name="Result: PNG 8 × 8")
    expect(picture).to_be_visible()
    assert picture.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [8, 8]
    with page.expect_download() as download:
        outcome(page).get_by_role("link", name="Download").click()
    assert PIL.Image.open(download.value.path()).getpixel((0, 0)) == (255, 165, 0)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8", "|u1", "<i8", "|b1", "<c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_shown(
    serve: Serve, open_page: OpenPage, tmp_path: Path, dtype: str, order: Any
) -> None:
    array = numpy.asarray(numpy.arange(6).reshape(2, 3), dtype=dtype, order=order)
    numpy.save(tmp_path / "array.npy", array)
    page = open_page(serve(), "#same")
    text = base64.b64encode((tmp_path / "array.npy").read_bytes()).decode()
    field(page, "value").fill(text)
    call(page)
    expect(outcome(page)).to_contain_text(f"array of {array.dtype.name}")
    expect(outcome(page)).to_contain_text("shape (2, 3), 6 items")
    items = [str(it).strip("()").lower() for it in array.ravel().tolist()]
    shown = outcome(page).locator("figure code").inner_text().strip("[]").split(", ")
    assert [complex(it) if "j" in it else it for it in shown] == [
        complex(it) if "c" in dtype else it.removesuffix(".0") for it in items
    ]


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


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_a_stream_is_watched_and_stopped(serve: Serve, open_page: OpenPage, transport: str) -> None:
    page = open_page(serve(), "#ticks")
    field(page, "Calls over").select_option(transport)
    call(page)
    log = page.get_by_role("log", name="Items")
    expect(log.get_by_text("12", exact=True)).to_be_visible()
    expect(outcome(page)).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    status = outcome(page).get_by_role("status")
    expect(status).to_have_text(re.compile(r"Stopped, \d+ items, "))
    page.goto(f"{page.url.partition('#')[0]}#endings")
    # The server's generator ends soon after.
    for _ in range(1000):
        call(page)
        expect(outcome(page)).to_contain_text("Done")
        if "1" in outcome(page).locator("code").inner_text():
            break
    expect(outcome(page).locator("code")).to_have_text("1")


def test_text_of_a_stream_is_joined(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#generate")
    field(page, "prompt").fill("one two three")
    field(page, "prompt").press("Control+Enter")
    expect(page.get_by_role("log")).to_have_text("one two three ")
    expect(outcome(page).get_by_role("status")).to_have_text(re.compile("Done, 3 items"))


def test_the_newest_thousand_items_are_shown(serve: Serve, open_page: OpenPage) -> None:
    words = [f"w{number}" for number in range(1_100)]
    page = open_page(serve(), "#generate")
    field(page, "prompt").fill(" ".join(words))
    field(page, "prompt").press("Control+Enter")
    expect(outcome(page).get_by_role("status")).to_have_text(re.compile("Done, 1,100 items"))
    log = page.get_by_role("log", name="Items")
    expect(log).to_contain_text("100 earlier items are not shown.")
    assert log.locator("pre").inner_text().split() == words[100:]


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


def enter(page: Any, key: str) -> None:
    field(page, "Key").fill(key)
    page.get_by_role("button", name="Show the methods").click()


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
    expect(page.get_by_text("15 methods")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("adds two")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="sum")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("2")
    page.keyboard.press("Control+Enter")
    expect(outcome(page)).to_contain_text("5")


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


def test_axe_finds_nothing_serious_in_the_form_of_the_key(
    serve: Serve, open_page: OpenPage
) -> None:
    axe = (package("axe-core") / "axe.min.js").read_text()
    page = open_page(serve(auth=lambda ctx: None), expected="401")
    enter(page, "wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    page.evaluate(axe)
    assert page.evaluate("axe.run()")["violations"] == []


def snippets(page: Any) -> dict[str, str]:
    page.locator("summary", has_text="The call as a program").click()
    return {
        name: page.get_by_role("region", name=name, exact=True).locator("pre").inner_text()
        for name in ("curl", "Python", "ucall", "JavaScript")
    }


def run_shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "UCALL_KEY": "s3cret"}
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(
        shell, capture_output=True, text=True, check=True, cwd=folder, env=environment, timeout=120
    )
    return done.stdout


def run_python(program: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UCALL_KEY", "s3cret")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(program, "snippet", "exec"), {})
    return output.getvalue()


@pytest.mark.parametrize("method", ["describe", "reverse", "generate", "label", "health"])
def test_the_programs_make_the_same_call(
    serve: Serve,
    open_page: OpenPage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    name = "it's a file"
    (tmp_path / name).write_bytes(b"abc")
    server = serve(auth=ucall.auth.bearer(["s3cret"]))
    page = open_page(server, f"#{method}", expected="401")
    enter(page, "s3cret")
    if method == "reverse":
        field(page, "data").set_input_files(tmp_path / name)
        expect(page.get_by_text(f"{name} is sent.")).to_be_visible()
        expected = "Y2Jh"
    elif method == "label":
        expect(page.get_by_label("Send constructor")).not_to_be_checked()
        field(page, "text").fill("007")
        field(page, "data").set_input_files(tmp_path / name)
        field(page, "color").fill("5")
        expected = "007 3 5 none"
    elif method == "health":
        expected = "deep False"
    elif method == "generate":
        field(page, "prompt").fill("it's me")
        expected = "me "
    else:
        field(page, "name").fill("true")
        field(page, "age").fill("36")
        page.get_by_label("Send points").check()
        page.get_by_label("Send points").uncheck()
        page.get_by_label("Send id").check()
        field(page, "id").fill("@it \"is\" $HOME\n'quoted'")
        expected = "$HOME"
    texts = snippets(page)
    assert all("s3cret" not in text for text in texts.values())
    assert expected in run_shell(texts["curl"], tmp_path)
    assert expected in run_shell(texts["ucall"], tmp_path)
    assert expected in run_python(texts["Python"], monkeypatch, tmp_path)
    body = texts["JavaScript"].partition("\n")[2].replace("console.log", "log")
    lines = page.context.new_page()
    origin = page.url.partition("#")[0]
    lines.route(f"{origin}empty", lambda it: it.fulfill(body="", content_type="text/html"))
    lines.route(f"{origin}{name.replace(' ', '%20')}", lambda it: it.fulfill(body="abc"))
    lines.goto(f"{origin}empty")
    program = f"""async () => {{
        const {{ Client }} = await import("/ucall.js");
        const UCALL_KEY = "s3cret", output = [], log = (it) => output.push(JSON.stringify(it));
        {body}
        return output.join();
    }}"""
    assert expected in lines.evaluate(program)
