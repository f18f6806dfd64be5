"""Results on the explorer page: trees, arrays, images, streams, and what was sent."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy
import PIL.Image
import pytest
from explorer_page import OpenPage, Serve, call, enter, expect, field, open_page, outcome, serve

import ucall.auth

__all__ = ["open_page", "serve"]


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
    text = outcome(page).locator("figure pre").inner_text()
    shown = [it.strip() for it in re.sub(r"[\[\]]", "", text).split(",")]
    assert [complex(it) if "j" in it else it for it in shown] == [
        complex(it) if "c" in dtype else it.removesuffix(".0") for it in items
    ]


def test_a_large_array_is_shown_by_its_edges(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#scale")
    for shape in ((1000,), (100, 100), (9, 9, 9)):
        values = numpy.arange(numpy.prod(shape)).reshape(shape)
        field(page, "values").fill(str(values.tolist()))
        call(page)
        expect(outcome(page)).to_contain_text(str(shape))
        text = outcome(page).locator("figure pre").inner_text()
        shown = re.findall(r"\d+", text)
        assert shown[0] == "0" and len(shown) <= 150 and "…" in text
        assert shown[-1] == str(2 * values.size - 2) or len(shown) == 150
    lines = outcome(page).locator("figure pre").inner_text().split("\n")
    assert lines[0].startswith("[[[   0,    2,    4, …,   12,   14,   16],"), lines[0]


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((0,), r"\[\]"),
        ((2, 0), r"\[\[\],\n \[\]\]"),
        ((10**6, 0), r"\[(\[\],\n ){3}…(,\n \[\]){3}\]"),
        ((9, 9, 9, 9, 0), r"(?s)\[{5}\].*…\]"),
    ],
)
def test_an_array_without_items_is_shown_by_its_edges(
    serve: Serve, open_page: OpenPage, tmp_path: Path, shape: tuple[int, ...], shown: str
) -> None:
    numpy.save(tmp_path / "array.npy", numpy.empty(shape))
    page = open_page(serve(), "#same")
    text = base64.b64encode((tmp_path / "array.npy").read_bytes()).decode()
    field(page, "value").fill(text)
    call(page)
    expect(outcome(page)).to_contain_text("0 items")
    text = outcome(page).locator("figure pre").inner_text()
    assert re.fullmatch(shown, text) and text.count("[]") <= 150


def test_an_array_of_pixels_is_a_picture(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#gradient")
    for height, width, step in ((30, 40, 1), (7, 40, 0), (16, 100_000, 25)):
        field(page, "height").fill(str(height))
        field(page, "width").fill(str(width))
        call(page)
        expect(outcome(page)).to_contain_text(f"array of uint8, shape ({height}, {width}, 3)")
        picture = page.get_by_role("img", name=f"Result: {width} × {height} pixels")
        if not step:
            # So small an array is rather numbers.
            expect(picture).to_be_hidden()
            continue
        shown = picture.evaluate(
            """(it) => {
                const { data } = it.getContext("2d").getImageData(2, 0, 1, 1);
                return [it.width, it.height, ...data];
            }"""
        )
        assert shown == [-(-width // step), -(-height // step), 0, 2 * step, 0, 255]


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (9, 9), }",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({'1, ' * 65}), }}",
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<1f8', 'fortran_order': False, 'shape': (8,), }",
    ],
    ids=["cut", "dimensions", "structured", "dtype"],
)
def test_an_array_that_cannot_be_read_is_bytes(
    serve: Serve, open_page: OpenPage, header: str
) -> None:
    page = open_page(serve(), "#same")
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    data = head + bytes(8)
    field(page, "value").fill(base64.b64encode(data + bytes(-len(data) % 3)).decode())
    call(page)
    expect(outcome(page)).to_contain_text("93 4e 55 4d 50 59")


def test_a_nested_result_opens(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#same")
    value = '{"deep": {"list": [1, 2, 3], "text": "one\\ntwo"}, "many": ' + str([*range(250)]) + "}"
    field(page, "value").fill(value)
    call(page)
    closed = outcome(page).locator("summary", has_text="list of 3 items")
    expect(closed).to_contain_text("[1, 2, 3]")
    closed.click()
    expect(closed).not_to_contain_text("[1, 2, 3]")
    expect(outcome(page)).to_contain_text("2: 3")
    many = outcome(page).locator("summary", has_text="list of 250 items")
    expect(many).to_contain_text("…")
    many.click()
    expect(outcome(page).get_by_text("99: 99")).to_be_visible()
    expect(outcome(page).get_by_text("100: 100")).to_be_hidden()
    page.get_by_role("button", name="Show more of 250").click()
    expect(outcome(page).get_by_text("100: 100")).to_be_visible()


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
    expect(log).to_contain_text("Not shown: 100 earlier items.")
    assert log.locator("pre").inner_text().split() == words[100:]


def test_objects_of_a_stream_are_lines_that_open(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(), "#records")
    field(page, "count").fill("40")
    call(page)
    expect(outcome(page).get_by_role("status")).to_have_text(re.compile("Done, 40 items"))
    items = page.get_by_role("log", name="Items").locator("ol > li")
    expect(items).to_have_count(40)
    line = '{number: 39, user: {name: "user 39", tags: ["a", "b"]}}'
    expect(items.last).to_have_text(f"object of 2 members{line}")
    # The newest are in view, each on a line.
    expect(items.last).to_be_in_viewport()
    assert items.last.bounding_box()["height"] < 2 * field(page, "count").bounding_box()["height"]
    items.last.locator("summary").click()
    expect(items.last.locator("li").first).to_have_text("number: 39")
    expect(items.last.get_by_text(line, exact=True)).to_be_hidden()


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_what_was_sent_is_shown_and_copied(
    serve: Serve, open_page: OpenPage, transport: str
) -> None:
    server = serve(auth=ucall.auth.bearer(["s3cret"]))
    page = open_page(server, "#describe", expected="401")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    enter(page, "s3cret")
    field(page, "Calls over").select_option(transport)
    field(page, "name").fill("Ada" * 5_000)
    field(page, "age").fill("36")
    call(page)
    outcome(page).locator("summary", has_text="Request and reply").click()

    def region(name: str) -> Any:
        return outcome(page).get_by_role("region", name=name, exact=True)

    def copied(name: str) -> str:
        page.get_by_role("button", name=f"Copy {name}", exact=True).click()
        expect(page.get_by_role("button", name=f"Copied {name}", exact=True)).to_be_focused()
        text: str = page.evaluate("navigator.clipboard.readText()")
        return text

    expect(region("Request")).to_contain_text('{"jsonrpc":"2.0","method":"describe"')
    expect(region("Reply")).to_contain_text('{"jsonrpc":"2.0","id":')
    expect(region("Reply")).to_contain_text("The first 10,000 of 15,")
    assert len(region("Reply").locator("pre").inner_text()) == 10_000
    reply = json.loads(copied("reply"))
    assert json.loads(copied("request"))["id"] == reply["id"]
    assert json.loads(copied("result")) == reply["result"]
    if transport == "http":
        expect(region("Headers")).to_contain_text("200 OK\n")
        assert "content-type: application/json" in copied("headers")
    else:
        expect(outcome(page)).to_contain_text("Replies over a WebSocket have no headers.")
    assert "s3cret" not in outcome(page).inner_text()
    # A page over plain HTTP of another host has no clipboard.
    page.evaluate("navigator.clipboard.writeText = undefined")
    field(page, "name").fill("Bob")
    call(page)
    expect(region("Request")).to_contain_text("Bob")
    assert json.loads(copied("result"))["user"]["name"] == "Bob"


def test_the_reply_of_a_failed_call_is_shown(serve: Serve, open_page: OpenPage) -> None:
    page = open_page(serve(max_body_bytes=2_000), "#same", expected="413")
    field(page, "Calls over").select_option("http")
    for value, status in (("1", "200 OK"), ("x" * 3_000, "413")):
        field(page, "value").fill(value)
        call(page)
        expect(outcome(page)).to_contain_text("Done" if status == "200 OK" else "Failed")
        if status == "200 OK":
            outcome(page).locator("summary", has_text="Request and reply").click()
        headers = outcome(page).get_by_role("region", name="Headers", exact=True)
        expect(headers).to_contain_text(status)
