"""The explorer page in headless Chromium, for its tests."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import explored
import pytest

import ucall

api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
expect = api.expect

#: Long enough for a busy machine.
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)

OpenPage = Callable[..., Any]
Serve = Callable[..., ucall.Server]


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


def enter(page: Any, key: str) -> None:
    field(page, "Key").fill(key)
    page.get_by_role("button", name="Show the methods").click()
