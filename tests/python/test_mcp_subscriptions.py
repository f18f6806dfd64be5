"""Changes that clients of MCP hear of: docs/mcp.md."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp_offers import CAPABILITIES, NEWEST, OLDER
from serving import Serve
from test_workers import supervised

import ucall
from harness import eventually, http
from wire import Wire, request

PREFIX = "io.modelcontextprotocol/"
META = {PREFIX + "protocolVersion": NEWEST, PREFIX + "clientCapabilities": CAPABILITIES}
UPDATED = "notifications/resources/updated"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["notes://today"],
}


def notes() -> str:
    return "a note"


def offering(serve: Serve) -> ucall.Server:
    server = serve(notes, mcp=True)
    server.resource("notes://today")(notes)
    server.prompt(notes)
    return server


def listen(wire: Wire, id: Any, **notifications: Any) -> Any:
    """The notifications that the server agrees to."""
    params = {"_meta": META, "notifications": notifications}
    wire.send(request("subscriptions/listen", params, id))
    message = wire.message()
    assert message["method"] == "notifications/subscriptions/acknowledged"
    assert message["params"].pop("_meta") == {PREFIX + "subscriptionId": id}
    return message["params"]["notifications"]


def heard(wire: Wire, id: Any) -> tuple[str, dict[str, Any]]:
    """The next notification of a subscription."""
    message = wire.message()
    assert message["params"].pop("_meta") == {PREFIX + "subscriptionId": id}
    return message["method"], message["params"]


def test_a_connection_listens(serve: Serve) -> None:
    server = offering(serve)
    with Wire(server.port) as wire:
        assert listen(wire, 1, **EVERYTHING) == EVERYTHING
        assert listen(wire, "b", promptsListChanged=True) == {"promptsListChanged": True}
        assert server.stats()["subscriptions"] == 2
        server.publish("notes://tomorrow", UPDATED, {"uri": "notes://tomorrow"})
        server.publish("notes://today", "notifications/other", {"uri": "notes://today"})
        server.publish("notes://today", UPDATED, {"uri": "notes://today", "_meta": {"a": 1}})
        assert wire.message()["params"] == {
            "uri": "notes://today",
            "_meta": {"a": 1, PREFIX + "subscriptionId": 1},
        }
        server.add(lambda: 1, "added")
        assert heard(wire, 1) == ("notifications/tools/list_changed", {})
        server.resource("notes://{day}")(one)
        assert heard(wire, 1) == ("notifications/resources/list_changed", {})
        server.prompt(name="more")(notes)
        changed = "notifications/prompts/list_changed", {}
        first = wire.message()["params"]["_meta"][PREFIX + "subscriptionId"]
        assert heard(wire, "b" if first == 1 else 1) == changed
        cancelled = {"_meta": META, "requestId": 1}
        wire.send(request("notifications/cancelled", cancelled, ...))
        assert wire.result("notes") == "a note"
        assert server.stats()["subscriptions"] == 1
        server.prompt(name="most")(notes)
        assert heard(wire, "b") == changed
    with Wire(server.port) as wire:
        listen(wire, 2, toolsListChanged=True)
        # It ends with the server, and does not hold its drain up.
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        reply = wire.message()
        assert (reply["id"], reply["result"]["resultType"]) == (2, "complete")
        assert reply["result"]["_meta"][PREFIX + "subscriptionId"] == 2
        stopping.join()
    assert server.stats()["subscriptions"] == 0


def one(day: str) -> str:
    return day


def test_a_client_over_http_listens(serve: Serve) -> None:
    server = offering(serve)
    url = f"http://127.0.0.1:{server.port}/mcp"
    filters = {"toolsListChanged": True, "resourceSubscriptions": ["notes://today"]}
    params = {"_meta": META, "notifications": filters}
    body = {"jsonrpc": "2.0", "id": "s", "method": "subscriptions/listen", "params": params}
    headers = {"Mcp-Method": "subscriptions/listen", "MCP-Protocol-Version": NEWEST}
    refused = httpx.post(url, json=body, headers=headers).json()
    assert refused["error"]["data"] == "Accept: expected text/event-stream"
    headers |= {"Accept": "application/json, text/event-stream"}
    with httpx.stream("POST", url, json=body, headers=headers) as response:
        lines = response.iter_lines()
        messages = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        acknowledged = next(messages)
        assert acknowledged["params"] == {
            "notifications": filters,
            "_meta": {PREFIX + "subscriptionId": "s"},
        }
        server.prompt(name="unheard")(notes)
        server.add(lambda: 1, "added")
        assert next(messages)["method"] == "notifications/tools/list_changed"
        server.publish("notes://today", UPDATED, {"uri": "notes://today"})
        assert next(messages)["params"]["uri"] == "notes://today"
    # It ends with its client.
    assert eventually(lambda: server.stats()["subscriptions"] == 0)


def test_updates_that_come_at_once_all_arrive(serve: Serve) -> None:
    count = 1000
    server = serve(notes, mcp=True)

    def change() -> None:
        for number in range(count):
            server.publish("notes://today", UPDATED, {"uri": "notes://today", "number": number})

    server.add(change, "change")
    server.resource("notes://today")(notes)
    params = {"_meta": META, "notifications": {"resourceSubscriptions": ["notes://today"]}}
    headers = [
        "Accept: text/event-stream",
        "Mcp-Method: subscriptions/listen",
        f"MCP-Protocol-Version: {NEWEST}",
    ]
    body = request("subscriptions/listen", params)
    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.send(http(body, *headers, target="/mcp"))
        wire.take_to(b"acknowledged")
        assert other.result("change") is None
        text = wire.take_to(f'"number":{count - 1},'.encode())
    assert text.count(b'"number":') == count


def test_only_what_there_is_is_agreed_to(serve: Serve) -> None:
    with Wire(serve(notes, mcp=True).port) as wire:
        assert listen(wire, 1, **EVERYTHING) == {"toolsListChanged": True}
        assert listen(wire, 2) == {}
    with Wire(offering(serve).port) as wire:
        uris = {"resourceSubscriptions": ["topic", "notes://today"]}
        assert listen(wire, 1, **uris) == {"resourceSubscriptions": ["notes://today"]}


def test_older_clients_subscribe_by_their_connection(serve: Serve) -> None:
    server = offering(serve)
    today = {"uri": "notes://today"}
    with Wire(server.port) as wire, Wire(server.port) as other:
        assert wire.result("resources/subscribe", today) == {}
        server.publish("notes://today", UPDATED, today)
        assert wire.message() == {"jsonrpc": "2.0", "method": UPDATED, "params": today}
        assert wire.result("resources/unsubscribe", today) == {}
        server.publish("notes://today", UPDATED, today)
        assert wire.result("notes") == other.result("notes") == "a note"
        for method in ("resources/subscribe", "resources/unsubscribe"):
            assert wire.error(method, {**today, "_meta": META})["code"] == -32601
            assert wire.error(method, {})["data"] == "uri: expected a string, got None"
        # Topics of the program are no resources.
        error = wire.error("resources/subscribe", {"uri": "topic"})
        assert (error["message"], error["data"]) == ("Resource not found", {"uri": "topic"})
        assert wire.error("subscriptions/listen", {"notifications": {}})["code"] == -32601


URIS = ["notes://today"] * 1024


@pytest.mark.parametrize(
    ("notifications", "data"),
    [
        (None, "notifications: expected an object, got None"),
        (
            {"toolsListChanged": 1},
            "notifications.toolsListChanged: expected a boolean, got int",
        ),
        (
            {"resourceSubscriptions": "x"},
            "notifications.resourceSubscriptions: expected an array of strings",
        ),
        (
            {"resourceSubscriptions": [1]},
            "notifications.resourceSubscriptions: expected an array of strings",
        ),
        (
            {"resourceSubscriptions": [*URIS, "notes://"]},
            "notifications.resourceSubscriptions: expected at most 1024, got 1025",
        ),
    ],
)
def test_wrong_filters(serve: Serve, notifications: Any, data: str) -> None:
    with Wire(offering(serve).port) as wire:
        params = {"_meta": META, "notifications": notifications}
        error = wire.error("subscriptions/listen", params)
        assert (error["code"], error["data"]) == (-32602, data)
        assert listen(wire, 1, resourceSubscriptions=URIS) == {"resourceSubscriptions": URIS}


APP = """
import os, ucall
server = ucall.Server(port=0, mcp=True)
@server
def publish() -> int:
    server.publish("n://1", "notifications/resources/updated", {"uri": "n://1"})
    return os.getpid()
@server
def worker() -> int:
    return os.getpid()
@server.resource("n://1")
def note() -> str:
    return ""
"""


def test_the_clients_of_all_workers_hear(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2", source=APP) as app, ExitStack() as stack:
        app.wait_for(2)
        clients: dict[int, Wire] = {}

        def connect() -> bool:
            wire = Wire(app.port)
            clients.setdefault(wire.result("worker"), wire)
            if wire not in clients.values():
                wire.close()
            return len(clients) == 2

        assert eventually(connect)
        for pid, wire in clients.items():
            stack.enter_context(wire)
            listen(wire, pid, resourceSubscriptions=["n://1"])
        for publisher in clients.values():
            publisher.send(request("publish", id="p"))
        for pid, wire in clients.items():
            messages = [wire.message() for _ in range(3)]
            updates = [it["params"] for it in messages if it.get("id") != "p"]
            meta = {PREFIX + "subscriptionId": pid}
            assert updates == [{"uri": "n://1", "_meta": meta}] * 2
        app.stop()


ASKING = """
import os, ucall
server = ucall.Server(port=0, mcp=True)
@server
def worker() -> int:
    return os.getpid()
@server
async def ask(ctx: ucall.Context) -> str:
    return ucall.mcp.elicit(ctx, str(os.getpid()), {"x": str}).content["x"]
"""


def test_an_older_client_may_answer_another_worker(tmp_path: Path) -> None:
    with supervised(tmp_path, "--workers", "2", source=ASKING) as app, ExitStack() as stack:
        app.wait_for(2)
        url = f"http://127.0.0.1:{app.port}"
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask"}}
        headers = {"MCP-Protocol-Version": OLDER, "Accept": "application/json, text/event-stream"}
        stream = httpx.stream("POST", f"{url}/mcp", json=call, headers=headers)
        lines = stack.enter_context(stream).iter_lines()
        messages = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        asked = next(messages)
        clients: list[httpx.Client] = []

        def connect() -> bool:
            clients.append(stack.enter_context(httpx.Client(base_url=url)))
            reply = clients[-1].post("/", json={"jsonrpc": "2.0", "id": 1, "method": "worker"})
            return str(reply.json()["result"]) != asked["params"]["message"]

        assert eventually(connect)
        result = {"action": "accept", "content": {"x": "there"}}
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        headers = {"MCP-Protocol-Version": OLDER}
        assert clients[-1].post("/mcp", json=answer, headers=headers).status_code == 202
        assert next(messages)["result"]["content"] == [{"type": "text", "text": "there"}]
        app.stop()
