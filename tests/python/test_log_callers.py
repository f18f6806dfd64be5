"""What the log says of the callers of failed calls."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest
from mounting import mounted, sends
from serving import Serve

import ucall
import ucall.auth
from harness import Wire, eventually, http, request
from ucall import _log
from ucall.client import Client

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = ["Authorization: Bearer s3cret", f"traceparent: 00-{TRACE}-b7ad6b7169203331-01"]

Records = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Records:
    """The errors that the log has."""
    return lambda: [it for it in caplog.records if it.levelno == logging.ERROR]


def fail(value: int = 0) -> int:
    raise ValueError(value)


async def fail_later(value: int = 0) -> int:
    raise ValueError(value)


def with_context(ctx: ucall.Context) -> int:
    raise ValueError(ctx.id)


def unwritable() -> Any:
    return object()


def items() -> Iterator[int]:
    yield 1
    raise ValueError


async def items_later() -> AsyncIterator[int]:
    yield 1
    raise ValueError


def batch(values: list[int]) -> list[int]:
    raise ValueError


async def batch_later(values: list[int]) -> list[int]:
    raise ValueError


def batch_items(values: list[int]) -> list[Any]:
    return [ValueError(value) for value in values]


class Params(NamedTuple):
    value: int


def in_slots(slots: ucall.Slots[Params]) -> Iterator[Any]:
    for _ in slots:
        raise ValueError
    yield


async def around(ctx: ucall.Context, call: ucall.Call) -> Any:
    return await call()


def plain_around(ctx: ucall.Context, call: ucall.Call) -> Any:
    return call()


#: The function of each kind, how it is added, and its params.
KINDS: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "plain": (fail, {}, [1]),
    "context": (with_context, {}, []),
    "unwritable": (unwritable, {}, []),
    "task": (fail_later, {}, [1]),
    "thread": (fail, {"threads": True}, [1]),
    "process": (fail, {"processes": 1}, [1]),
    "generator": (items, {}, []),
    "async generator": (items_later, {}, []),
    "thread generator": (items, {"threads": True}, []),
    "hook": (fail, {"middleware": [plain_around]}, [1]),
    "hook in a thread": (fail, {"threads": True, "middleware": [plain_around]}, [1]),
    "async hook": (fail, {"middleware": [around]}, [1]),
    "async hook, thread": (fail, {"threads": True, "middleware": [around]}, [1]),
}
BATCHES: dict[str, tuple[Any, dict[str, Any]]] = {
    "batch": (batch, {}),
    "async batch": (batch_later, {}),
    "batch in a thread": (batch, {"threads": True}),
    "item": (batch_items, {}),
    "slots": (in_slots, {"slots": 2}),
}


def added(server: ucall.Server, kind: str) -> list[Any]:
    """Adds the function of a kind as ``f``. Returns its params."""
    if kind in BATCHES:
        function, options = BATCHES[kind]
        server.batch(function, name="f", **options)
        return [1]
    function, options, params = KINDS[kind]
    if "middleware" in options:
        group = ucall.Group(middleware=options["middleware"])
        group.add(function, "f", **{it: options[it] for it in options if it != "middleware"})
        server.include(group)
        return params
    server.add(function, "f", **options)
    return params


@pytest.mark.parametrize("kind", [*KINDS, *BATCHES])
def test_a_failure_says_who_has_called(serve_once: Serve, records: Records, kind: str) -> None:
    server = serve_once(auth=ucall.auth.bearer({"s3cret": "ada"}))
    params = added(server, kind)
    with Wire(server.port) as wire:
        wire.send(http(request("f", params, id=7), *HEADERS))
        assert json.loads(wire.reply()[2])["error"]["code"] == -32603
        peer = f"127.0.0.1:{wire.socket.getsockname()[1]}"
    [record] = records()
    message, _, call = record.getMessage().partition(" (")
    expected = "f: result: " if kind == "unwritable" else "f raised"
    assert message.startswith(expected)
    assert call == f"{peer} http id=7 user=ada trace_id={TRACE})"
    line = json.loads(_log._JsonFormatter().format(record))
    assert line["message"] == message
    members = {it: line[it] for it in ("peer", "transport", "user", "method", "id", "trace_id")}
    assert members == {
        "peer": peer,
        "transport": "http",
        "user": "ada",
        "method": "f",
        "id": 7,
        "trace_id": TRACE,
    }


def test_a_batch_has_one_line_for_all_of_its_calls(serve_once: Serve, records: Records) -> None:
    server = serve_once(with_context)  # So the server knows the addresses of its callers.
    server.batch(batch, max_wait_ms=200)
    with Wire(server.port) as wire:
        wire.send(b"[" + b",".join(request("batch", [1], id=it) for it in (5, 6, 7)) + b"]")
        assert len(wire.message()) == 3
    [record] = records()
    found = record.getMessage()
    assert found.startswith("batch raised (3 calls, the first: 127.0.0.1:")
    assert found.endswith(" tcp id=5)")
    line = json.loads(_log._JsonFormatter().format(record))
    assert (line["calls"], line["id"], line["transport"]) == (3, 5, "tcp")


def test_what_callers_send_is_escaped(serve_once: Serve, records: Records) -> None:
    server = serve_once(fail)
    hostile = "x\n2026 ERROR ucall: forged (\u202e"
    with Wire(server.port) as wire:
        text = {"jsonrpc": "2.0", "method": "fail", "id": hostile}
        meta = {"traceparent": "00-\nforged-01"}
        wire.send(json.dumps({**text, "_meta": meta}).encode())
        wire.message()
    [record] = records()
    message = record.getMessage()
    assert "\n" not in message and "\u202e" not in message and "trace_id" not in message
    line = json.loads(_log._JsonFormatter().format(record))
    assert line["id"] == hostile


def test_an_id_that_is_no_float_is_shown_as_it_is(serve_once: Serve, records: Records) -> None:
    server = serve_once(fail)
    with Wire(server.port) as wire:
        wire.send(b'{"jsonrpc":"2.0","method":"fail","id":1e999}')
        wire.message()
    [record] = records()
    line = _log._JsonFormatter().format(record)
    assert '"id":1e999' in line and "Infinity" not in line
    assert json.loads(line)["message"] == "fail raised"


def test_a_notification_has_no_id(serve_once: Serve, records: Records) -> None:
    server = serve_once(fail)
    with Client(port=server.port) as client:
        client.notify("fail")
        assert eventually(lambda: len(records()) == 1)
    [record] = records()
    assert " http id=-)" in record.getMessage()
    assert "id" not in json.loads(_log._JsonFormatter().format(record))


def test_a_mounted_application_is_logged_with_its_caller(engine: str, records: Records) -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        raise ValueError

    with mounted(engine, early) as server, Wire(server.port) as wire:
        wire.send(http(b"", method="GET", target="/page"))
        assert wire.reply()[0] == 500
        [record] = records()
        assert record.getMessage().endswith(" http id=-)")
        assert json.loads(record.__dict__["ucall_call"])["method"] == "/page"


def test_what_a_mounted_application_raises_after_its_response_is_logged_with_its_caller(
    engine: str, records: Records
) -> None:
    answer = sends(
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"done"},
    )

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await answer(scope, receive, send)
        raise ValueError

    with mounted(engine, late) as server, Wire(server.port) as wire:
        wire.send(http(b"", method="GET", target="/page"))
        assert wire.reply()[0] == 200
        assert eventually(lambda: len(records()) == 1)
        message = records()[0].getMessage()
        assert ", after its response, raised (127.0.0.1:" in message
