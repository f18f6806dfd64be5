"""The site of the documentation in headless Chromium.

`make test-site` checks all pages, and leaves a picture of each in the folder SITE_PICTURES.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from node import ROOT, package

pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")

SITE = ROOT / ".site/html"
PAGES = ["docs/index", "docs/tutorial", "docs/security", "docs/errors"]
#: What Sphinx makes of no page of ours.
GENERATED = {"index.html", "genindex.html", "py-modindex.html", "search.html"}
PICTURES = os.environ.get("SITE_PICTURES")
SCREENS = [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)]


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_pages_are_accessible_and_no_wider_than_the_screen(
    browser: Any, scheme: str, width: int
) -> None:
    axe = (package("axe-core") / "axe.min.js").read_text()
    viewport = {"width": width, "height": 800}
    context = browser.new_context(color_scheme=scheme, viewport=viewport)
    page = context.new_page()
    for name in _all_pages() if PICTURES else PAGES:
        page.goto(_page(name).as_uri())
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert found["passes"]
        violations = [
            (it["id"], [node["html"][:200] for node in it["nodes"]])
            for it in found["violations"]
            if it["impact"] != "minor"
        ]
        assert violations == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        if PICTURES:
            picture = f"{name.replace('/', '-')}-{scheme}-{width}.png"
            page.screenshot(path=Path(PICTURES, picture))
    context.close()


@pytest.mark.parametrize(
    ("words", "title"),
    [("trusted_proxies", "Deployment"), ("-32603", "Errors"), ("MCP", "Tools for agents")],
)
def test_the_search_finds_a_page(browser: Any, words: str, title: str) -> None:
    page = browser.new_page()
    page.goto(_page("docs/index").as_uri())
    page.get_by_placeholder("Search").fill(words)
    page.keyboard.press("Enter")
    results = page.get_by_role("main")
    results.get_by_role("link", name=title).first.wait_for(timeout=60_000)
    page.close()


def _all_pages() -> list[str]:
    found = (it.relative_to(SITE) for it in SITE.rglob("*.html"))
    return sorted(str(it.with_suffix("")) for it in found if str(it) not in GENERATED)


def _page(name: str) -> Path:
    path = SITE / f"{name}.html"
    if not path.exists():
        pytest.skip("make docs builds the site")
    return path
