"""Clients over HTTP that shut down their sending side, and clients that leave, which look the same
until they answer bytes (RFC 9112, section 9.6)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from serving import Serve

import ucall
from harness import Wire, eventually, http, request

PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Work:
    """Functions that wait until they are released, and note what became of them."""

    def __init__(self) -> None:
        self.running = 0
        self.released = threading.Event()
        self.ends: list[str] = []

    async def later(self) -> str:
        return await self._wait()

    async def items(self) -> AsyncIterator[str]:
        yield await self._wait()

    async def more(self) -> AsyncIterator[str]:
        yield "first"
        yield await self._wait()

    def thread(self, ctx: ucall.Context) -> str:
        self.running += 1
        while not self.released.wait(0.001):
            if ctx.cancelled:
                self.ends.append("cancelled")
                break
        return "done"

    async def route(self, request: ucall.HttpRequest) -> str:
        return await self._wait()

    async def _wait(self) -> str:
        self.running += 1
        try:
            while not self.released.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        return "done"

    def serve(self, serve: Serve, **options: object) -> ucall.Server:
        server = serve(self.later, self.items, self.more, **options)
        server.add(self.thread, threads=True)
        server.http("/route")(self.route)
        return server

    def begin(self, wire: Wire, sent: bytes) -> None:
        before = self.running
        wire.send(sent)
        assert eventually(lambda: self.running > before)


ROUTE = b"GET /route HTTP/1.1\r\nHost: localhost\r\n\r\n"
EVENTS, LINES = "Accept: text/event-stream", "Accept: application/x-ndjson"


def test_a_client_that_only_receives_gets_its_reply(serve: Serve) -> None:
    work = Work()
    server = work.serve(serve)
    for sent in (
        http(request("later")),
        http(request("thread")),
        http(request("items"), EVENTS),
        http(request("items"), LINES),
        ROUTE,
    ):
        work.released.clear()
        with Wire(server.port) as wire:
            work.begin(wire, sent)
            wire.end()
            assert wire.take(len(PROBE)) == PROBE
            work.released.set()
            assert b"done" in wire.rest()
    assert work.ends == []


def test_the_last_reply_says_that_the_connection_closes(serve: Serve) -> None:
    work = Work()
    with Wire(work.serve(serve).port) as wire:
        work.begin(wire, http(request("later", id=1)) + http(request("later", id=2)))
        wire.end()
        assert wire.take(len(PROBE)) == PROBE
        work.released.set()
        for number in (1, 2):
            _, head, body = wire.reply()
            assert json.loads(body) == {"jsonrpc": "2.0", "id": number, "result": "done"}
            assert (b"Connection: close" in head) == (number == 2)
        assert wire.rest() == b""


def test_events_that_have_begun_go_on(serve: Serve) -> None:
    """The probe is a comment. Lines and bodies of routes have nothing of that kind."""
    work = Work()
    server = work.serve(serve)
    with Wire(server.port) as wire:
        work.begin(wire, http(request("more"), EVENTS))
        assert b'"first"' in wire.take_to(b"}\n\n\r\n")
        wire.end()
        assert wire.take_to(b": \n\n\r\n") == b"4\r\n: \n\n\r\n"
        work.released.set()
        assert wire.rest().endswith(b"0\r\n\r\n")
    work.released.clear()
    with Wire(server.port) as wire:
        work.begin(wire, http(request("more"), LINES))
        assert b'"first"' in wire.take_to(b"}\n\r\n")
        wire.end()
        assert wire.rest() == b""
    assert eventually(lambda: work.ends == ["cancelled"])


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_the_calls_of_a_client_that_leaves_are_cancelled(
    serve: Serve, tmp_path: Path, transport: str
) -> None:
    work, options = Work(), {} if transport == "tcp" else {"uds": str(tmp_path / "s")}
    server = work.serve(serve, **options)
    address = options.get("uds") or server.port
    for count, sent in enumerate(
        (
            http(request("later")),
            http(request("thread")),
            http(request("items"), EVENTS),
            http(request("more"), EVENTS),
            http(request("later")).replace(b"HTTP/1.1", b"HTTP/1.0"),
            ROUTE,
        ),
        1,
    ):
        with Wire(address) as wire:
            work.begin(wire, sent)
        assert eventually(lambda count=count: len(work.ends) == count), sent
    if transport == "unix":
        # A client that leaves later sends nothing more over TCP.
        with Wire(address) as wire:
            work.begin(wire, http(request("later")))
            wire.end()
            assert wire.take(len(PROBE)) == PROBE
        assert eventually(lambda: len(work.ends) == count + 1)


def test_a_relay_does_the_same(serve: Serve) -> None:
    work = Work()
    upstream = work.serve(serve)
    server = serve()
    server.relay(["later"], to=f"http://127.0.0.1:{upstream.port}")
    with Wire(server.port) as wire:
        work.begin(wire, http(request("later")))
    assert eventually(lambda: work.ends == ["cancelled"])
    with Wire(server.port) as wire:
        work.begin(wire, http(request("later")))
        wire.end()
        assert wire.take(len(PROBE)) == PROBE
        work.released.set()
        assert b'"done"' in wire.rest()
