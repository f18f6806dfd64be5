"""Asks clients of versions before 2026-07-28, whose calls stay open meanwhile.

Such a client gets the server's requests on the stream of its call, and replies to them by a request
of its own, which may come to another worker. The function that asks has ended by then, as for newer
clients, and runs again with the answers.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple

from ucall._core import Context
from ucall._mcp import state
from ucall._mcp.bus import Bus, send
from ucall._mcp.inputs import Asked, earlier
from ucall.errors import RPCError

__all__ = ["Exchanges"]

Json = dict[str, Any]

#: The method of messages between workers. No client can subscribe to such a topic.
_TOPIC = "\0mcp response"
#: How often a thread looks whether its caller has left.
_LOOK_S = 0.1


class _Waiting(NamedTuple):
    """A request that a client has not replied to."""

    key: str
    user: str
    #: The answers of its round, once it is complete.
    round: _Round


class _Round:
    """The requests that a function has made at once."""

    def __init__(self, count: int) -> None:
        self.answers: Json = {}
        self.missing = count
        self.done: Future[Json] = Future()

    def take(self, key: str, answer: object) -> None:
        self.answers[key] = answer
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(self.answers)


class Exchanges:
    """The requests of one server's functions to clients of older versions.

    Args:
        threads_max: Threads that wait for clients at once. A client that has left keeps its own
            until the question expires.
    """

    def __init__(self, bus: Bus, threads_max: int) -> None:
        self._bus = bus
        self._threads = threading.Semaphore(threads_max)
        #: By the ids of the requests, which nobody can guess.
        self._waiting: dict[str, _Waiting] = {}
        bus.handlers[_TOPIC] = self._take

    def wrap(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """A function that is async, or runs in a thread, and has a context: with its rounds."""
        run: Callable[..., Any]
        if is_async:

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                return await self.run_async(
                    lambda: function(*args, **kwargs), _context(args, kwargs)
                )

        else:

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                return self.run(lambda: function(*args, **kwargs), _context(args, kwargs))

        return run

    async def run_async(self, function: Callable[[], Awaitable[Any]], ctx: Context | None) -> Any:
        """Runs an async function, and asks what it asks."""
        known: tuple[Json, Any] = ({}, None)
        while True:
            token = earlier.set(known)
            try:
                return await function()
            except Asked as asked:
                if ctx is None:
                    raise
                question = asked
            finally:
                earlier.reset(token)
            ids, done = self._send(ctx, question)
            try:
                waiting = asyncio.wrap_future(done)
                answers = await asyncio.wait_for(waiting, question.expires_s)
            except TimeoutError:
                raise _not_answered() from None
            finally:
                self._forget(ids)
            known = question.answers | answers, question.kept

    def run(self, function: Callable[[], Any], ctx: Context | None) -> Any:
        """Runs a function in a thread, and asks what it asks."""
        known: tuple[Json, Any] = ({}, None)
        while True:
            token = earlier.set(known)
            try:
                return function()
            except Asked as asked:
                if ctx is None:
                    raise
                question = asked
            finally:
                earlier.reset(token)
            if not self._threads.acquire(blocking=False):
                raise RPCError(-32603, "Too many calls wait for their clients: try again later")
            try:
                ids, done = self._send(ctx, question)
                try:
                    answers = _result(done, ctx, question.expires_s)
                finally:
                    self._forget(ids)
            finally:
                self._threads.release()
            known = question.answers | answers, question.kept

    def respond(self, params: Json, version: str, ctx: Context) -> None:
        """Takes what a client replies to a request, or hands it to the worker that waits."""
        response: Json = {name: params.get(name) for name in ("id", "result", "error")}
        response["user"] = state.identify(ctx.user)
        if not self._take(response):
            self._bus.publish(_TOPIC, response)

    def _take(self, response: Json) -> bool:
        """Whether a request of this process waits for a response."""
        waiting = self._waiting.get(str(response["id"]))
        if waiting is None:
            return False
        if response["user"] == waiting.user and self._waiting.pop(response["id"], None):
            waiting.round.take(waiting.key, _answer(response))
        return True

    def _send(self, ctx: Context, asked: Asked) -> tuple[list[str], Future[Json]]:
        """Sends requests; returns their ids, and the future of all answers.

        Raises:
            Asked: The call has no stream that they could be sent on.
        """
        if ctx.transport not in ("http", "tcp"):  # From others, no reply has a way to here.
            raise asked
        requests = {secrets.token_urlsafe(16): key for key in asked.requests}
        made = _Round(len(requests))
        user = state.identify(ctx.user)
        self._waiting |= {id: _Waiting(key, user, made) for id, key in requests.items()}
        self._bus.listen(len(requests))
        for id, key in requests.items():
            if not send(ctx, {"jsonrpc": "2.0", "id": id, **asked.requests[key]}):
                self._forget(list(requests))
                raise asked
        return list(requests), made.done

    def _forget(self, ids: list[str]) -> None:
        for id in ids:
            self._waiting.pop(id, None)
        self._bus.listen(-len(ids))


def _context(args: tuple[Any, ...], kwargs: Json) -> Context | None:
    return next((it for it in (*args, *kwargs.values()) if isinstance(it, Context)), None)


def _answer(response: Json) -> object:
    """The client's result, or the error that the function raises."""
    error = response.get("error")
    if not isinstance(error, dict):
        return response["result"]
    return RPCError(-32603, f"The client failed: {error.get('message')}", error.get("data"))


def _result(done: Future[Json], ctx: Context, expires_s: float) -> Json:
    end = time.monotonic() + expires_s
    while True:
        try:
            return done.result(_LOOK_S)
        except FutureTimeoutError:
            if ctx.cancelled or time.monotonic() > end:
                raise _not_answered() from None


def _not_answered() -> RPCError:
    return RPCError(-32603, "The client has not answered")
