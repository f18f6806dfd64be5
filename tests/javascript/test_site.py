"""The site of the documentation in headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from node import ROOT, package

pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")

SITE = ROOT / ".site/html"
PAGES = [
    "docs/index",
    "docs/tutorial",
    "docs/security",
    "README",
]
SCREENS = [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)]


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_axe_finds_nothing_serious(browser: Any, scheme: str, width: int) -> None:
    axe = (package("axe-core") / "axe.min.js").read_text()
    viewport = {"width": width, "height": 800}
    context = browser.new_context(color_scheme=scheme, viewport=viewport)
    page = context.new_page()
    for name in PAGES:
        page.goto(_page(name).as_uri())
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert found["passes"]
        violations = [
            (it["id"], [node["html"][:200] for node in it["nodes"]])
            for it in found["violations"]
            if it["impact"] in ("serious", "critical")
        ]
        assert violations == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()


def test_the_search_finds_a_page(browser: Any) -> None:
    page = browser.new_page()
    page.goto(_page("docs/index").as_uri())
    page.get_by_placeholder("Search").fill("trusted_proxies")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Deployment").first.wait_for(timeout=60_000)
    page.close()


def _page(name: str) -> Path:
    path = SITE / f"{name}.html"
    if not path.exists():
        pytest.skip("make docs builds the site")
    return path
