"""Runs the functions behind a method of MCP: at once, as tasks or in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from ucall._core import Context
from ucall._functions import signatures
from ucall._mcp.inputs import Reply
from ucall.errors import RPCError

if TYPE_CHECKING:
    from ucall._mcp.registry import Registry

__all__ = ["Call", "Host", "MethodRunner", "Mode", "mode_of"]

Mode = Literal["inline", "task", "thread"]


class Host(NamedTuple):
    """The server whose methods are answered.

    Args:
        registry: The methods of MCP that it answers.
        threads: Whether its plain functions run in threads unless they say otherwise.
        need_loop: Called when a function needs an event loop.
    """

    registry: Registry
    threads: bool
    need_loop: Callable[[], object]


class Call(NamedTuple):
    """A call of a function."""

    mode: Mode
    function: Callable[[], Any]
    #: Makes the result of the method from that of the function.
    finish: Callable[[Any], dict[str, Any]]


def mode_of(host: Host, function: Callable[..., object], name: str, threads: bool | None) -> Mode:
    """Where a function is to run.

    Raises:
        TypeError: It is a generator, or is async and to run in a thread.
    """
    if signatures.yields(function):
        raise TypeError(f"{name}: is a generator: return the whole")
    is_async = signatures.is_async(function)
    if is_async and threads:
        raise TypeError(
            f"{name}: is async, and runs as a task; threads=True is for plain functions"
        )
    if is_async:
        return "task"
    return "thread" if (host.threads if threads is None else threads) else "inline"


class MethodRunner:
    """A method whose calls run one of several functions.

    The core knows one mode for a method: if the functions differ in theirs, the method is a task,
    which runs each as its own kind says.

    Args:
        begin: Finds the function of a call; raises `RPCError` if there is none.
    """

    def __init__(
        self,
        host: Host,
        method: str,
        begin: Callable[[dict[str, Any], str, Context], Call],
    ) -> None:
        self._host = host
        self._exchanges = host.registry.exchanges
        self._method = method
        self._begin = begin
        self._mode: Mode | None = None

    def add(self, mode: Mode) -> None:
        """Has the method run functions of a mode."""
        mode = mode if self._mode in (None, mode) else "task"
        if mode == self._mode:
            return
        self._mode = mode
        if mode == "task":
            self._host.need_loop()
        run = self.run_task if mode == "task" else self.run
        self._host.registry.add_method(self._method, run, mode=mode)

    def run(self, params: dict[str, Any], version: str, ctx: Context) -> dict[str, Any]:
        """Answers a call of the method, at once or in a thread."""

        def answer() -> dict[str, Any]:
            call = self._begin(params, version, ctx)
            return call.finish(call.function())

        try:
            if self._mode == "thread":
                return cast(dict[str, Any], self._exchanges.run(answer, ctx))
            return answer()
        except Reply as reply:
            return _result_of(reply)

    async def run_task(self, params: dict[str, Any], version: str, ctx: Context) -> dict[str, Any]:
        """Answers a call of the method, within the event loop."""

        async def answer() -> dict[str, Any]:
            call = self._begin(params, version, ctx)
            if call.mode == "task":
                return call.finish(await call.function())
            if call.mode == "thread":
                return call.finish(await asyncio.to_thread(call.function))
            return call.finish(call.function())

        try:
            return cast(dict[str, Any], await self._exchanges.run_async(answer, ctx))
        except Reply as reply:
            return _result_of(reply)


def _result_of(reply: Reply) -> dict[str, Any]:
    if "result" in reply.member:
        return dict(reply.member["result"])
    raise RPCError(**reply.member["error"]) from None
