"""The decorators that register functions, of servers and of groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

if TYPE_CHECKING:
    from ucall._core import Context

__all__ = ["Auth", "FunctionDecorators"]

Function = TypeVar("Function", bound=Callable[..., object])
Auth = Callable[["Context"], object]
Overflow = Literal["pause", "drop_oldest", "drop_newest", "close"]


class FunctionDecorators:
    """The part of `ucall.Server` and `ucall.Group` that registers functions."""

    def _add_function(
        self, function: Callable[..., object], name: str | None, **options: Any
    ) -> None:
        """Registers a function, or keeps it to be registered, with the options of
        `ucall._functions.table.Functions.add`."""
        raise NotImplementedError

    @overload
    def __call__(self, function: Function, /) -> Function: ...

    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        max_waiting: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Callable[[Function], Function]: ...

    def __call__(self, function: Any = None, **options: Any) -> Any:
        """Registers a function as `add` does: ``@server`` or ``@server(name="a.b")``."""
        if function is None:
            return functools.partial(self.add, **options)
        return self.add(function, **options)

    @overload
    def batch(
        self,
        function: Function,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        processes: int | None = None,
        devices: Sequence[str] | None = None,
        rows: bool = False,
        max_waiting: int | None = None,
        weight: Callable[..., int] | None = None,
        max_weight: int | None = None,
        warm_up: Sequence[object] | None = None,
        slots: int | None = None,
        threads: bool | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Function: ...

    @overload
    def batch(
        self,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        processes: int | None = None,
        devices: Sequence[str] | None = None,
        rows: bool = False,
        max_waiting: int | None = None,
        weight: Callable[..., int] | None = None,
        max_weight: int | None = None,
        warm_up: Sequence[object] | None = None,
        slots: int | None = None,
        threads: bool | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Callable[[Function], Function]: ...

    def batch(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        max_size: int = 64,
        max_wait_ms: float = 0,
        parallel: int = 1,
        processes: int | None = None,
        devices: Sequence[str] | None = None,
        rows: bool = False,
        max_waiting: int | None = None,
        weight: Callable[..., int] | None = None,
        max_weight: int | None = None,
        warm_up: Sequence[object] | None = None,
        slots: int | None = None,
        threads: bool | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Any:
        """Registers a function that takes many calls at once, such as a model's inference::

            @server.batch(max_size=64)
            def embed(texts: list[str]) -> list[list[float]]:
                return model.encode(texts)

        Callers call it with one item per parameter: ``embed("a text")``. Calls that arrive together
        form a batch; while one runs, the next is collected. The function returns a list of results
        in the order of the calls; an exception in the list fails that call alone. A parameter is a
        list, or a NumPy array, which is stacked along a new first axis from items of one shape, or
        of any other type: then it is one value, and calls with other values run on their own. A
        parameter ``list[ucall.Context]`` gets the contexts of the calls.

        Args:
            function: A plain or an async function; or a generator, whose items are lists with an
                item, or `ucall.END`, for each call.
            name, threads, timeout_ms, stream, overflow, idempotent, mcp, auth, scopes: See `add`.
            max_size: Calls in one batch.
            max_wait_ms: How long the first call of a batch waits for later ones.
            weight: What a call weighs, such as its tokens: a function of the call's params, by
                position. More calls than one batch takes are put together by close weights.
            max_weight: The sum of the weights in one batch. A heavier call gets -32602.
            max_waiting: Calls that wait for a batch or a slot; further ones get -32003.
            parallel: Concurrent batches, if the function is async, a generator or runs in threads;
                with ``processes`` those that each process has at once, of which it runs one.
            processes: Runs batches in this many processes, one for each device by default. The
                function must be defined at the top of a module. The processes start with the
                server, which listens when all are ready; one that dies is replaced.
            devices: Names of devices, such as ``["cuda:0", "cuda:1"]``, which the processes take in
                turn: see `device`.
            rows: Has each call pass several items, as a list or along the first axis of an array,
                and get as many results. The function gets those of all calls, one after another;
                the items of one call may be in several batches.
            warm_up: A value for each parameter, such as ``("a text",)``. Batches of 1, 2, 4 and so
                on up to ``max_size`` run with it before ``/readyz`` turns green, where those of
                callers will, after the startup hooks and models; the log has their times. If one
                fails, the server does not start.
            slots: Has a generator take calls between its steps, up to so many at once, in place of
                batches: it has one parameter, `ucall.Slots`, and yields `ucall.SlotItems`. See
                docs/streams.md#calls-that-come-and-go.

        Raises:
            TypeError, ValueError: See `add`. TypeError also if no parameter is a list or an array.
        """
        from ucall._functions.registration import BatchRules, StreamRules

        options: dict[str, Any] = {
            "threads": threads,
            "timeout_ms": timeout_ms,
            "batch": BatchRules(
                max_size,
                max_wait_ms,
                parallel,
                weight,
                max_weight,
                warm_up,
                slots,
                processes,
                devices,
                rows,
            ),
            "max_waiting": max_waiting,
            "stream": StreamRules(stream, overflow),
            "idempotent": idempotent,
            "tool": mcp,
            "auth": auth,
            "scopes": scopes,
        }

        def add(function: Function) -> Function:
            self._add_function(function, name, **options)
            return function

        return add if function is None else add(function)

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, bool] | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Callable[[Function], Function]: ...

    def tool(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        title: str | None = None,
        annotations: Mapping[str, bool] | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        threads: bool | None = None,
        processes: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Any:
        """Registers a function as `add` does, with more for ``Server(mcp=True)`` to tell models::

            @server.tool(title="Weather", annotations={"readOnlyHint": True})
            def weather(city: str) -> Report: ...

        Args:
            function: A plain or an async function, or a generator.
            name, threads, processes, timeout_ms, stream, overflow, idempotent, auth, scopes: See
                `add`.
            title: The name that people see.
            annotations: ``readOnlyHint``, ``destructiveHint`` and ``openWorldHint``, as the
                specification describes them; ``idempotent=True`` gives ``idempotentHint``.
            headers: Params that clients also send as headers for proxies to route by:
                ``{"region": "Region"}`` for ``Mcp-Param-Region``. Each is a str, an int or a bool.
            media_type: What the bytes are that the function returns, such as ``"audio/wav"``.
            input_schema: The JSON Schema (2020-12) of the params, in place of that of the
                annotations, by which params are checked all the same.

        Raises:
            TypeError, ValueError: See `add`. Also for an option that does not fit the function.
        """
        from ucall._functions.registration import StreamRules
        from ucall._functions.tool_rules import ToolRules

        options: dict[str, Any] = {
            "threads": threads,
            "processes": processes,
            "timeout_ms": timeout_ms,
            "stream": StreamRules(stream, overflow),
            "idempotent": idempotent,
            "tool": ToolRules(title, annotations or {}, headers or {}, media_type, input_schema),
            "auth": auth,
            "scopes": scopes,
        }

        def add(function: Function) -> Function:
            self._add_function(function, name, **options)
            return function

        return add if function is None else add(function)

    def add(
        self,
        function: Function,
        name: str | None = None,
        *,
        threads: bool | None = None,
        processes: int | None = None,
        max_waiting: int | None = None,
        timeout_ms: float | None = None,
        stream: Literal["only"] | None = None,
        overflow: Overflow | None = None,
        idempotent: bool = False,
        mcp: bool = True,
        auth: Auth | Literal[False] | None = None,
        scopes: Iterable[str] = (),
    ) -> Function:
        """Registers a function or another callable, and returns it. The server may be running.

        A new definition of a function replaces the old one.

        Args:
            name: The method's name; ``function.__name__`` by default. It may contain dots.
            threads: Whether to run it in a thread, because it blocks; by default as the server.
            processes: Runs it in a pool of this many processes, because it computes. It must be
                defined at the top of a module; arguments and results are pickled.
            max_waiting: Calls of it that wait for a thread or a process; further ones get -32003,
                whose data says when to retry. The largest number is that of all running calls.
            timeout_ms: Time for each call, from its receipt; by default the server's. Past it,
                -32001: an async function is cancelled, a plain one that waits is not started, and a
                pool's process that runs it is killed.
            stream: ``"only"`` refuses calls of a generator that do not take its items one by one;
                they get a list otherwise. See docs/streams.md.
            overflow: What happens when a client reads a generator's items too slowly:
                ``"pause"`` (the default), ``"drop_oldest"``, ``"drop_newest"`` or ``"close"``.
            idempotent: Whether a call may run twice. Clients with several servers learn it by
                ``rpc.discover``, and send such calls again after a failure (docs/scale.md). Over
                UDP, copies of a call then run again, and replies need no memory (docs/udp.md).
            mcp: Whether it is a tool of a server with ``mcp`` (docs/mcp.md): see `tool`.
            auth: In place of the server's ``auth``: another such function, or False to let anyone
                call. See docs/security.md#by-function.
            scopes: What the caller's token must allow: each one is in the set ``scopes`` of
                `Context.user`. Otherwise -32004, whose data names those that are missing. See
                docs/security.md.

        Raises:
            TypeError: An annotation is not supported, or the options exclude each other. The
                message names the function and the parameter.
            ImportError: An annotation needs a module that is not installed; the message names it.
            ValueError: The name belongs to another function, or to JSON-RPC (``rpc.…``), or is
                none for a tool; or scopes are given and nobody is authenticated.
        """
        from ucall._functions.registration import StreamRules

        self._add_function(
            function,
            name,
            threads=threads,
            processes=processes,
            max_waiting=max_waiting,
            timeout_ms=timeout_ms,
            stream=StreamRules(stream, overflow),
            idempotent=idempotent,
            tool=mcp,
            auth=auth,
            scopes=scopes,
        )
        return function
