"""Writes the pictures of docs/explorer.md, and prints how fast the page is usable.

    explorer-screenshots.py

It needs Chromium and Playwright, which `make test-browser` installs.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import PIL.Image
from playwright.sync_api import sync_playwright

import ucall

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "javascript"))
import explored  # noqa: E402

DOCS = ROOT / "docs"
LOADS = 20
SCREENS = {"light": ("light", 960, 800), "dark": ("dark", 960, 800), "narrow": ("light", 360, 720)}


def main() -> None:
    server = ucall.Server(port=0, title="Sample", version="1.2.3")
    explored.add_to(server)
    with server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page_url = f"http://127.0.0.1:{server.port}/"
        for name, (scheme, width, height) in SCREENS.items():
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": width, "height": height}
            )
            take(context.new_page(), page_url, DOCS / f"explorer-{name}.png")
        times = sorted(load_ms(browser.new_context().new_page(), page_url) for _ in range(LOADS))
        browser.close()
    print(f"usable after {statistics.median(times):.0f} ms, at most {times[-1]:.0f} ms")


def take(page: Any, url: str, path: Path) -> None:
    """Takes a picture of a call with an image, or on a narrow screen with an error."""
    page.goto(f"{url}#thumbnail")
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        PIL.Image.linear_gradient("L").convert("RGB").save(file.name)
        page.get_by_label("photo", exact=True).set_input_files(file.name)
    page.get_by_label("size", exact=True).fill("x" if path.stem.endswith("narrow") else "128")
    page.get_by_role("button", name="Call", exact=True).click()
    page.get_by_text("Done" if "narrow" not in path.stem else "Failed").wait_for()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path)
    picture = PIL.Image.open(path).quantize(64)
    picture.save(path, optimize=True)


def load_ms(page: Any, url: str) -> float:
    """The time from the request for the page until its methods are shown, with an empty cache."""
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.locator("nav a").first.wait_for()
    took = 1000 * (time.perf_counter() - start)
    page.context.close()
    return took


main()
