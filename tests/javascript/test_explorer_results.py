"""Results on the explorer page: trees, arrays, images, streams, and what was sent."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy
import PIL.Image
import pytest
from explorer_page import OpenPage, Serve, call, expect, field, open_page, outcome, serve

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
    shown = outcome(page).locator("figure code").inner_text().strip("[]").split(", ")
    assert [complex(it) if "j" in it else it for it in shown] == [
        complex(it) if "c" in dtype else it.removesuffix(".0") for it in items
    ]


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
