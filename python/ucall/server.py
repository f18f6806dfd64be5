"""The server: functions in, calls answered, on whatever engine."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload
from weakref import WeakSet

from ucall import _core

__all__ = ["Server"]

Function = TypeVar("Function", bound=Callable[..., object])

#: How long the end of the program waits for a server in the background, in seconds.
_EXIT_PATIENCE_S = 10


class Server:
    """Serves functions over JSON-RPC 2.0: HTTP/1.1 and raw TCP, told apart on one port.

    The object itself is the decorator::

        server = Server()

        @server
        def sum(a: int, b: int) -> int:
            return a + b

        server.run()

    Parameters are checked by their annotations: ``int``, ``float`` (takes ints too), ``bool``,
    ``str``, ``bytes`` (base64), ``None``, ``list``, ``list[T]``, ``dict``, ``dict[str, T]``,
    ``T | None``, ``Any``; one without an annotation takes any value. What does not fit is answered
    with -32602 and never reaches the function. Returned may be None, bool, int, float, str, list,
    tuple, dict, and bytes, bytearray or memoryview (base64).

    Functions run one after another on the thread that runs the server. Whatever else a function
    raises than `ucall.RPCError` is answered with -32603 and logged with its traceback.

    Args:
        host: Address or name to listen on. Bound to another address than loopback, anybody who
            can reach the machine can call.
        port: 0 picks a free one; see the attribute ``port``.
        debug: Errors carry the traceback in ``data``.
        allowed_hosts: Names by which browsers may address the server, besides localhost.
        allow_origins: Origins whose pages may call, such as ``"https://example.com"``.
        max_connections: Open at once, and always fewer than the process may have descriptors. Past
            it, the longest idle one is closed for a newcomer.
        max_head_bytes: Request line and headers. Past it, 431.
        max_headers: Headers of one request. Past it, 431.
        max_body_bytes: Body of a request, or a raw document. Past it, 413.
        max_nesting: Lists and dicts inside one another. Past it, -32700.
        max_batch_calls: Calls in one batch. Past it, -32600.
        max_reply_bytes: A reply, a whole batch's together. Past it, -32603.
        max_id_bytes: Text of an id. Past it, -32600.
        max_pipeline: Requests of one connection that wait. Past it, reading pauses.
        max_output_bytes: Replies of one connection that wait to be sent, beyond the one in hand.
            Past it, reading pauses.
        head_timeout_s: Seconds from a head's first byte to its last. Past it, 408.
        body_timeout_s: Seconds without a byte of a body; in all, a second more for each KiB. Past
            it, 408.
        idle_timeout_s: Seconds that a connection is kept without a request.
        send_timeout_s: Seconds without the peer taking any of a reply. Past it, closed.

    Raises:
        OSError: The address cannot be listened on; ``errno.EADDRINUSE`` when the port is taken.
        ucall.EngineError: (``ucall.uring.Server``) io_uring cannot be used here.
        ValueError: A limit or a name makes no sense.
    """

    _ENGINE: ClassVar[str] = "auto"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8545,
        *,
        debug: bool = False,
        allowed_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
        max_connections: int = 16_384,
        max_head_bytes: int = 16_384,
        max_headers: int = 100,
        max_body_bytes: int = 16_777_216,
        max_nesting: int = 128,
        max_batch_calls: int = 1_000,
        max_reply_bytes: int = 67_108_864,
        max_id_bytes: int = 1_024,
        max_pipeline: int = 128,
        max_output_bytes: int = 1_048_576,
        head_timeout_s: float = 10.0,
        body_timeout_s: float = 30.0,
        idle_timeout_s: float = 75.0,
        send_timeout_s: float = 30.0,
    ) -> None:
        limits: dict[str, float] = {
            "max_connections": max_connections,
            "max_head_bytes": max_head_bytes,
            "max_headers": max_headers,
            "max_body_bytes": max_body_bytes,
            "max_nesting": max_nesting,
            "max_batch_calls": max_batch_calls,
            "max_reply_bytes": max_reply_bytes,
            "max_id_bytes": max_id_bytes,
            "max_pipeline": max_pipeline,
            "max_output_bytes": max_output_bytes,
            "head_timeout_s": head_timeout_s,
            "body_timeout_s": body_timeout_s,
            "idle_timeout_s": idle_timeout_s,
            "send_timeout_s": send_timeout_s,
        }
        self._core = _core.Server(
            self._ENGINE,
            host,
            port,
            debug=debug,
            allowed_hosts=_listed(allowed_hosts),
            allow_origins=_listed(allow_origins),
            limits=limits,
        )
        self._functions: dict[str, Callable[..., object]] = {}
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    @property
    def host(self) -> str:
        """The address that is listened on."""
        return self._core.host

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._core.port

    @property
    def engine(self) -> str:
        """``"uring"`` or ``"posix"``."""
        return self._core.engine

    @overload
    def __call__(self, function: Function, /) -> Function: ...

    @overload
    def __call__(self, *, name: str) -> Callable[[Function], Function]: ...

    def __call__(self, function: Any = None, *, name: str | None = None) -> Any:
        """Serves a function, and returns it as it was: ``@server`` or ``@server(name="a.b")``.

        Raises:
            TypeError, ValueError: See `add`.
        """
        if function is None:
            return functools.partial(self.add, name=name)
        return self.add(function, name)

    def add(self, function: Function, name: str | None = None) -> Function:
        """Serves a function, a method of an object, or anything else that can be called.

        May be called while the server runs. A function that is defined again (in a notebook, by a
        reload) replaces its earlier self.

        Args:
            function: What to call.
            name: The method's name for callers, ``function.__name__`` if not given. Dots are fine.

        Returns:
            The function, as it was.

        Raises:
            TypeError: An annotation cannot be served, or the function is async or a generator. The
                message names the function and the parameter.
            ValueError: Another function has that name, or JSON-RPC keeps it for itself (``rpc.…``).
        """
        from ucall import _signature  # Looks at code, which takes a while to import.

        name = _signature.name_of(function) if name is None else name
        if not name or name.startswith("rpc."):
            raise ValueError(f"{name!r} cannot be a method's name: JSON-RPC keeps it for itself")
        signature = _signature.describe(function, name)
        known = self._functions.setdefault(name, function)
        if known is not function and _origin(known) != _origin(function):
            raise ValueError(f"{name!r} is served already, by {known!r}")
        self._functions[name] = function
        self._core.insert(name, function, signature)
        return function

    def run(self, max_cycles: int = -1, max_seconds: float = -1) -> None:
        """Serves on this thread until `stop`, Ctrl-C or SIGTERM, or for as long as told.

        On the main thread it takes over SIGINT and SIGTERM (a handler of the program's own for
        SIGTERM stays), and returns when one comes.

        Args:
            max_cycles: Turns of the server; in each it waits for something to happen and does all
                that did. Negative: no bound.
            max_seconds: Negative: no bound.

        When a bound ends the run, connections stay open and the next run on the same thread goes
        on with them; `stop` closes them.

        Raises:
            RuntimeError: The server runs already.
            OSError: The port cannot be bound again after a stop.
        """
        self._run(max_cycles, max_seconds, None)

    def start(self) -> None:
        """Serves on a thread of its own; returns when connections are being accepted.

        The thread ends with `stop`, or with the program. Functions run on that thread.

        Raises:
            RuntimeError: The server runs already.
            OSError: The port cannot be bound again after a stop.
        """
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                raise RuntimeError("the server runs already")
            self._thread = self._started()

    def stop(self) -> None:
        """Stops the server, from any thread; waits for the thread of `start` to end.

        Connections are closed. The server may be started again. Before a server has ever run, the
        stop is remembered: its first `run` returns at once.
        """
        self._core.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stats(self) -> dict[str, int]:
        """What was done since the server was made.

        Returns:
            ``calls`` (each of a batch counted), ``connections`` (open now), ``accepted``
            (connections ever), ``bytes_received``, ``bytes_sent``, ``turns``, ``system_calls``.
        """
        return self._core.stats()

    def __enter__(self) -> Self:
        """Starts in the background."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops."""
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self._core.is_running else "not running"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"<ucall.Server on {host}:{self.port}, {self.engine}, {state}>"

    def _started(self) -> threading.Thread:
        """A thread that serves already."""
        started = threading.Event()
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                self._run(-1, -1, started.set)
            except BaseException as failure:
                if started.is_set():
                    raise
                failures.append(failure)
            finally:
                started.set()

        # A daemon, because a program that ends joins the others before it runs exit functions.
        thread = threading.Thread(target=serve, name=f"ucall:{self.port}", daemon=True)
        thread.start()
        started.wait()
        if failures:
            raise failures[0]
        return thread

    def _run(
        self, max_cycles: int, max_seconds: float, on_start: Callable[[], object] | None
    ) -> None:
        self._idle.clear()
        _running.add(self)
        try:
            self._core.run(max_cycles, max_seconds, on_start)
        finally:
            self._idle.set()


def _listed(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"expected several names, got the str {names!r}")
    return list(names)


def _origin(function: Callable[..., object]) -> tuple[object, ...]:
    """Where a function was defined: the same for its earlier and its later self."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<lambda>" in name:
        return (id(function),)
    return module, name, id(getattr(function, "__self__", None))


_running: WeakSet[Server] = WeakSet()


def _stop_all() -> None:
    """Ends the servers on other threads before the interpreter ends under them."""
    for server in list(_running):
        server._core.stop()
        server._idle.wait(_EXIT_PATIENCE_S)


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads, and nothing to wait for.
    os.register_at_fork(after_in_child=_running.clear)
