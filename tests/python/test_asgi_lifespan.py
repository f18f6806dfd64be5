"""The lifespan of mounted applications."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from mounting import mounted
from routing import http_client
from serving import Serve

import ucall


class Life:
    """An application that notes its lifespan, with the answers that it is given."""

    def __init__(self, startup: Any = "complete", shutdown: Any = "complete") -> None:
        self.answers = {"lifespan.startup": startup, "lifespan.shutdown": shutdown}
        self.events: list[str] = []
        self.states: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.states.append(scope["state"])
            scope["state"]["own"] = len(self.states)
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"ok"})
            return
        assert scope["type"] == "lifespan"
        scope["state"]["shared"] = self
        while True:
            kind = (await receive())["type"]
            self.events.append(kind)
            answer = self.answers[kind]
            if isinstance(answer, Exception):
                raise answer
            await send({"type": f"{kind}.{answer}", "message": "the disk is full"})
            if kind == "lifespan.shutdown":
                return


def test_the_lifespan_surrounds_the_requests(engine: str) -> None:
    life = Life()
    with mounted(engine, life) as server, http_client(server) as client:
        assert life.events == ["lifespan.startup"]
        assert [client.get("/").text, client.get("/").text] == ["ok", "ok"]
    assert life.events == ["lifespan.startup", "lifespan.shutdown"]
    # Each request has a copy.
    assert life.states == [{"shared": life, "own": 1}, {"shared": life, "own": 2}]


def test_a_server_that_starts_again_has_another_lifespan() -> None:
    life = Life()
    server = ucall.Server(port=0)
    server.mount("/", life)
    for _ in range(2):
        with server:
            pass
    assert life.events == ["lifespan.startup", "lifespan.shutdown"] * 2


def test_hooks_of_the_server_are_around_it(serve_once: Serve) -> None:
    life = Life()
    server = ucall.Server(port=0)
    events = life.events
    server.on_startup(lambda: events.append("before"))
    server.on_shutdown(lambda: events.append("last"))
    server.mount("/", life)
    server.on_startup(lambda: events.append("after"))
    server.on_shutdown(lambda: events.append("first"))
    with server:
        pass
    assert events == ["before", "lifespan.startup", "after", "first", "lifespan.shutdown", "last"]


def test_a_startup_that_fails_stops_the_server() -> None:
    life = Life(startup="failed")
    server = ucall.Server(port=0)
    server.mount("/app", life)
    with pytest.raises(RuntimeError, match="startup of the application at '/app' failed: the disk"):
        server.start()
    assert life.events == ["lifespan.startup"]


def test_an_application_without_a_lifespan(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ucall")
    life = Life(startup=KeyError("unknown"))
    with mounted(engine, life) as server, http_client(server) as client:
        assert client.get("/").text == "ok"
    assert life.events == ["lifespan.startup"]
    assert "the application at '/' has no lifespan: KeyError('unknown')" in caplog.messages


@pytest.mark.parametrize("shutdown", ["failed", OSError("the disk is full")])
def test_a_shutdown_that_fails(shutdown: Any) -> None:
    server = ucall.Server(port=0)
    server.mount("/", Life(shutdown=shutdown))

    @server.on_startup
    def stop() -> None:
        server.stop()

    with pytest.raises((RuntimeError, OSError), match="the disk is full"):
        server.run()


def test_an_answer_that_was_not_asked_for() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.startup.complete"})

    server = ucall.Server(port=0)
    server.mount("/", app)
    with server:
        pass
