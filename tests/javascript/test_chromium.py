"""`ucall.js` and the chat page in headless Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import programs
import pytest
from conftest import Serve
from node import MODULE, ROOT, TOKEN

import ucall.auth

api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")

# Chromium has no sandbox as root. It asks before a page that it takes for a public one, as those
# that the tests make, reaches this machine.
ARGUMENTS = ["--no-sandbox", "--disable-features=LocalNetworkAccessChecks"]
CHAT = ROOT / "examples" / "chat" / "chat.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = programs.require("chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Opens a page whose origin is a host and port, with the module; fails on its errors."""
    contexts = []
    errors: list[Any] = []

    def open_(port: int, html: str = "", host: str = "127.0.0.1", **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(error))
        origin = f"http://{host}:{port}"
        page.route(
            f"{origin}/page", lambda route: route.fulfill(body=html, content_type="text/html")
        )
        page.route(f"{origin}/ucall.js", lambda route: route.fulfill(path=MODULE))
        page.goto(f"{origin}/page")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []


def run(page: Any, url: str, body: str, options: str = "{}") -> Any:
    """What an async function of the page returns, which has a client."""
    program = f"""async () => {{
        const {{ Client }} = await import("/ucall.js");
        const client = new Client("{url}", {options});
        try {{ {body} }} finally {{ client.close(); }}
    }}"""
    return page.evaluate(program)


CALLS = """
const [three, failed] = await client.batch([
    { method: "sum", params: [1, 2] }, { method: "fail" },
]);
await client.notify("sum", [1, 2]);
return [
    await client.call("sum", { a: 2, b: 3 }),
    await client.call("sum", { a: 2, b: "3" }).catch((error) => error.data),
    three.value,
    failed.reason.code,
    (await client.call("echo", ["é".repeat(100000)])).length,
];
"""
RESULTS = [5, "params.b: expected int, got str", 3, 7, 100_000]


@pytest.mark.parametrize("url", ["ws://127.0.0.1:{}/ws", "http://127.0.0.1:{}/", "/"])
def test_calls(open_page: OpenPage, serve: Serve, url: str) -> None:
    port = serve().port
    assert run(open_page(port), url.format(port), CALLS) == RESULTS


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_a_token_from_an_allowed_origin(open_page: OpenPage, serve: Serve, scheme: str) -> None:
    """Over HTTP the browser asks with a preflight."""
    page_port = serve().port
    origin = f"http://localhost:{page_port}"
    auth = ucall.auth.bearer({TOKEN: "alice"})
    port = serve(auth=auth, allow_origins=[origin]).port
    page = open_page(page_port, host="localhost")
    url = f"{scheme}://127.0.0.1:{port}/"
    body = 'return await client.call("whoami");'
    assert run(page, url, body, f'{{ token: "{TOKEN}" }}') == "alice"
    assert run(page, url, f"{body[:-1]}.catch((error) => error.name);") == "ConnectionError"


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_a_foreign_origin(open_page: OpenPage, serve: Serve, scheme: str) -> None:
    page = open_page(serve().port)
    url = f"{scheme}://127.0.0.1:{serve().port}/"
    body = 'return await client.call("sum", [1, 2]).catch((error) => error.name);'
    assert run(page, url, body) == "ConnectionError"


STREAMS = """
const items = [];
const stream = client.stream("count", { to: 1000 });
for await (const item of stream) items.push(item);
const endless = client.stream("endless");
for await (const item of endless) if (item === 3) break;
const failed = [];
try {
    for await (const item of client.stream("fail")) failed.push(item);
} catch (error) {
    failed.push(error.code);
}
return [items.length, await stream.result, failed, await client.call("sum", { a: 1, b: 2 })];
"""


@pytest.mark.parametrize("url", ["ws://127.0.0.1:{}/ws", "/"])
def test_streams(open_page: OpenPage, peer: int, url: str) -> None:
    assert run(open_page(peer), url.format(peer), STREAMS) == [1000, "done", [1, 7], 3]


NOTIFICATIONS = """
const notifications = client.notifications();
const states = [];
client.addEventListener("statechange", () => states.push(client.state));
await client.call("tell", { method: "tick", times: 2 });
const seen = [(await notifications.next()).value, (await notifications.next()).value];
const lost = await client.call("drop").catch((error) => error.mayHaveRun);
while (client.state !== "open") {
    await new Promise((resolve) => client.addEventListener("statechange", resolve, { once: true }));
}
return [seen, lost, await client.call("sum", { a: 1, b: 2 }), [...states]];
"""


def test_notifications_and_a_lost_connection(open_page: OpenPage, peer: int) -> None:
    url = f"ws://127.0.0.1:{peer}/ws"
    ticks = [{"method": "tick", "params": [at]} for at in range(2)]
    states = ["open", "waiting", "connecting", "open"]
    assert run(open_page(peer), url, NOTIFICATIONS) == [ticks, True, 3, states]


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_the_chat_page(open_page: OpenPage, peer: int, color_scheme: str) -> None:
    page = open_page(peer, CHAT.read_text(), color_scheme=color_scheme)
    api.expect(page.get_by_role("status")).to_have_text("open")
    prompt = page.get_by_label("Message", exact=True)
    prompt.fill("Hello, server.")
    prompt.press("Enter")
    messages = page.get_by_role("log").locator("p")
    api.expect(messages.nth(1)).to_contain_text("You said: Hello, server.")
    api.expect(messages.nth(1)).to_have_attribute("aria-busy", "false")
    api.expect(prompt).to_be_focused()
    prompt.fill("forever")
    page.get_by_role("button", name="Send").click()
    api.expect(messages.nth(3)).to_contain_text("forever")
    page.get_by_role("button", name="Stop").click()
    api.expect(messages.nth(3)).to_contain_text("(stopped)")
    assert messages.count() == 4
    assert _contrast(page, "#state") > 4.5 and _contrast(page, ".mine") > 4.5


def _contrast(page: Any, selector: str) -> float:
    """The ratio of text to background, by WCAG 2."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.strip("rgb()").split(",")]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    colors = page.evaluate(
        """(selector) => {
            const element = document.querySelector(selector);
            const { color, backgroundColor } = getComputedStyle(element);
            const page = getComputedStyle(document.body).backgroundColor;
            return [color, backgroundColor === "rgba(0, 0, 0, 0)" ? page : backgroundColor];
        }""",
        selector,
    )
    low, high = sorted(luminance(color) for color in colors)
    return (high + 0.05) / (low + 0.05)
