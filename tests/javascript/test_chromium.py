"""`ucall.js` and the chat page in headless Chromium."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from node import MODULE, ROOT, TOKEN, Serve

import ucall
import ucall.auth

api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")

#: Long enough for a busy machine.
WAIT_MS = 60_000
CHAT = ROOT / "examples" / "chat" / "server.py"


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Opens an empty page of a host and port; the test fails on errors of its pages."""
    contexts = []
    errors: list[Any] = []

    def open_(port: int, path: str = "", host: str = "127.0.0.1", **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(error))
        origin = f"http://{host}:{port}"
        page.route(
            f"{origin}/empty", lambda route: route.fulfill(body="", content_type="text/html")
        )
        page.goto(f"{origin}/{path or 'empty'}")
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


PAGE = """<!doctype html><title>Sum</title><p id="sum"></p><script type="module">
import { Client } from "./api/rpc/ucall.js";
const client = new Client(URL);
document.querySelector("#sum").textContent = await client.call("sum", [2, 3]);
</script>"""


@pytest.mark.parametrize("url", ["'api/rpc'", "`ws://${location.host}/api/rpc`"])
def test_a_page_of_a_server_at_a_path(open_page: OpenPage, serve: Serve, url: str) -> None:
    server = serve(path="/api/rpc")

    @server.http("/")
    def page(request: ucall.HttpRequest) -> ucall.HttpResponse:
        return ucall.HttpResponse(PAGE.replace("URL", url), content_type="text/html")

    opened = open_page(server.port, "?")
    api.expect(opened.locator("#sum")).to_have_text("5", timeout=WAIT_MS)


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


ARRAYS = """
const { NDArray } = await import("/ucall.js");
const image = new NDArray(Float32Array.from([1, 2, 3, 4, 5, 6]), [2, 3]);
const file = new File([new Uint8Array(100_000).fill(7), "end"], "name");
const seen = [];
for (let at = 0; at < 5; at++) {
    const { data, shape, dtype } = await client.call("transpose", { image }).array();
    const reversed = await client.call("reverse", [file]).bytes();
    seen.push([[...data], shape, dtype, new TextDecoder().decode(reversed.subarray(0, 4))]);
}
return seen;
"""


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_arrays_from_an_allowed_origin(open_page: OpenPage, serve: Serve, scheme: str) -> None:
    page_port = serve().port
    port = serve(allow_origins=[f"http://localhost:{page_port}"]).port
    page = open_page(page_port, host="localhost")
    seen = run(page, f"{scheme}://127.0.0.1:{port}/", ARRAYS)
    assert seen == [[[1, 4, 2, 5, 3, 6], [3, 2], "float32", "dne\x07"]] * 5


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
for await (const item of client.stream("endless")) if (item === 3) break;
while ((await client.call("endings")) === 0);
const failed = [];
try {
    for await (const item of client.stream("fail_later")) failed.push(item);
} catch (error) {
    failed.push(error.code);
}
return [items.length, await stream.result, failed, await client.call("sum", { a: 1, b: 2 })];
"""


@pytest.mark.parametrize("url", ["ws://127.0.0.1:{}/ws", "/"])
def test_streams(open_page: OpenPage, serve: Serve, url: str) -> None:
    port = serve().port
    assert run(open_page(port), url.format(port), STREAMS) == [1000, "done", [1, 7], 3]


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
    page = open_page(peer)
    page.route("**/ucall.js", lambda route: route.fulfill(path=MODULE))
    url = f"ws://127.0.0.1:{peer}/ws"
    ticks = [{"method": "tick", "params": [at]} for at in range(2)]
    states = ["open", "waiting", "connecting", "open"]
    assert run(page, url, NOTIFICATIONS) == [ticks, True, 3, states]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of the example's server."""
    made = ucall.Server
    monkeypatch.setattr(ucall, "Server", lambda: made(port=0))
    server = runpy.run_path(str(CHAT))["server"]
    with server:
        yield server.port


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_the_chat_page(open_page: OpenPage, chat: int, color_scheme: str) -> None:
    page = open_page(chat, "chat", color_scheme=color_scheme)
    api.expect(page.get_by_role("status")).to_have_text("open", timeout=WAIT_MS)
    prompt = page.get_by_label("Message", exact=True)
    prompt.fill("Hello!")
    prompt.press("Enter")
    messages = page.get_by_role("log").locator("p")
    answer = "You said: Hello! A model would say more. "
    api.expect(messages.nth(1)).to_have_text(answer, timeout=WAIT_MS)
    api.expect(messages.nth(1)).to_have_attribute("aria-busy", "false", timeout=WAIT_MS)
    api.expect(prompt).to_be_focused(timeout=WAIT_MS)
    prompt.fill("again " * 10_000)
    page.get_by_role("button", name="Send").click()
    api.expect(messages.nth(3)).to_contain_text("You said: again", timeout=WAIT_MS)
    page.get_by_role("button", name="Stop").click()
    api.expect(messages.nth(3)).to_contain_text("(stopped)", timeout=WAIT_MS)
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
