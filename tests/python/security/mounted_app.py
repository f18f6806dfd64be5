"""An application of ASGI whose paths do wrong in one way each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

START = {"type": "http.response.start", "status": 200}
LENGTH = {**START, "headers": [(b"content-length", b"4")]}
BODY = {"type": "http.response.body", "body": b"body"}
PART = {**BODY, "more_body": True}
SPLIT = {**START, "headers": [(b"x", b"a\r\nset-cookie: b")]}
ACCEPT = {"type": "websocket.accept"}
TEXT = {"type": "websocket.send", "text": "text"}
CLOSE = {"type": "websocket.close", "code": 4000}

#: What it sends at a path; "raise" raises, and "wait" waits until the client has left.
SENT: dict[str, list[Message | str]] = {
    "raises": ["raise"],
    "returns": [],
    "raises-later": ["later", "raise"],
    "body-first": [BODY],
    "twice": [START, BODY, START, BODY],
    "starts-twice": ["later", START, START],
    "after-the-end": [START, BODY, BODY],
    "too-long": [LENGTH, PART, BODY],
    "too-short": ["later", LENGTH, {**BODY, "body": b"b", "more_body": True}, "later"],
    "raises-within": ["later", START, PART, "later", "raise"],
    "splits": [SPLIT, BODY],
    "status": [{**START, "status": 99}, BODY],
    "text": [START, {**BODY, "body": "text"}],
    "websocket": [ACCEPT],
    "never": ["wait"],
    "denies": [{"type": "websocket.close"}],
    "accepts-twice": [ACCEPT, ACCEPT],
    "unaccepted": [TEXT],
    "closed": [ACCEPT, CLOSE, TEXT],
    "raises-open": [ACCEPT, TEXT, "raise"],
    "leaves-open": [ACCEPT, TEXT],
    "subprotocol": [{**ACCEPT, "subprotocol": "a\r\nset-cookie: b"}],
    "code": [ACCEPT, {**CLOSE, "code": 1006}],
    "neither": [ACCEPT, {"type": "websocket.send"}],
    "after-denial": [{"type": "websocket.close"}, ACCEPT],
}


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    path = scope["path"].rpartition("/")[2]
    if path == "echo":
        return await _echo(receive, send)
    if path == "count":
        return await _count(receive, send)
    await receive()
    for message in SENT[path]:
        if message == "raise":
            raise KeyError("a secret of the application's")
        elif message == "wait":
            await receive()
        elif message == "later":
            await asyncio.sleep(0)
        else:
            assert isinstance(message, dict)
            await send(message)


async def _echo(receive: Receive, send: Send) -> None:
    await receive()
    await send(ACCEPT)
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


async def _count(receive: Receive, send: Send) -> None:
    total, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        total, more = total + len(message["body"]), message["more_body"]
    await send(START)
    await send({**BODY, "body": str(total).encode()})
