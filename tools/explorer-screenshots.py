"""Writes the pictures of docs/explorer.md, and prints how fast the page is usable.

    explorer-screenshots.py

It needs Chromium and Playwright, which `make test-browser` installs.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageDraw
from playwright.sync_api import sync_playwright

import ucall

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "javascript"))
import explored  # noqa: E402

DOCS = ROOT / "docs"
LOADS = 20
SCREENS = {"light": ("light", 960, 800), "dark": ("dark", 960, 800), "narrow": ("light", 360, 720)}

# Notes the time at which the list of methods is in the page.
NOTE_TIME = """
new MutationObserver((_changes, observer) => {
    if (!document.querySelector("nav a")) return;
    observer.disconnect();
    window.shownMs = performance.now();
}).observe(document, { childList: true, subtree: true });
"""


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
        times = [load_ms(browser.new_context().new_page(), page_url) for _ in range(LOADS)]
        browser.close()
    print(f"usable after {statistics.median(times):.0f} ms, at most {max(times):.0f} ms")


def take(page: Any, url: str, path: Path) -> None:
    """Takes a picture of a call with an image, or on a narrow screen of an error."""
    is_wrong = path.stem.endswith("narrow")
    page.goto(f"{url}#thumbnail")
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.png"
        draw().save(photo)
        page.get_by_label("photo", exact=True).set_input_files(photo)
        page.get_by_text("photo.png is sent.").wait_for()
    page.get_by_label("size", exact=True).fill("large" if is_wrong else "96")
    page.get_by_role("button", name="Call", exact=True).click()
    page.get_by_text("Failed" if is_wrong else "96 × 96").wait_for()
    page.screenshot(path=path)
    PIL.Image.open(path).quantize(64).save(path, optimize=True)


def draw() -> PIL.Image.Image:
    """A picture of a hill and the sun."""
    picture = PIL.Image.new("RGB", (240, 240), "skyblue")
    drawn = PIL.ImageDraw.Draw(picture)
    drawn.ellipse((150, 30, 210, 90), "gold")
    drawn.ellipse((-60, 140, 300, 400), "seagreen")
    return picture


def load_ms(page: Any, url: str) -> float:
    """The time from the request for the page until its methods are shown, with an empty cache."""
    page.add_init_script(NOTE_TIME)
    page.goto(url)
    page.locator("nav a").first.wait_for()
    start = "performance.getEntriesByType('navigation')[0].requestStart"
    took = float(page.evaluate(f"shownMs - {start}"))
    page.context.close()
    return took


main()
