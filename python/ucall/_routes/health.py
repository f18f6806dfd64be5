"""The program's own health checks, as part of ``GET /readyz``.

The core answers ``/healthz``, and ``/readyz`` while the server itself is not ready. Otherwise it
calls `ReadyChecks.respond` on the server's thread, which must not block: plain checks run in
threads of their own, async ones as tasks of the server's event loop. A request that comes while
checks run gets their result, too, so that a flood of requests runs each check once at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucall import _core

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["LIVE", "READY", "ReadyChecks"]

LIVE = "/healthz"
READY = "/readyz"


#: Makes the response with a problem, or with ``None``.
Render = Callable[[str | None], bytes]


def _joined(problems: list[str]) -> str | None:
    return "; ".join(problems) if problems else None


class ReadyChecks:
    """The checks of a program.

    Args:
        timeout_s: The time that all checks together get.
    """

    def __init__(self, core: _core.Server, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._checks: list[_Check] = []
        self._problems: list[Callable[[], str | None]] = []
        self._lock = threading.Lock()
        #: The requests that wait for the checks that run.
        self._waiting: list[tuple[Future[bytes], Render]] = []
        self._readiness: Render = _core.readiness
        core.insert_health_checks(self.respond)

    def add(self, check: Callable[[], object]) -> None:
        """Registers a check.

        Raises:
            TypeError: It is no function.
        """
        if not callable(check):
            raise TypeError(f"ready: expected a function, got {type(check).__name__}")
        self._checks.append(_Check(check))

    def add_problem(self, find: Callable[[], str | None]) -> None:
        """Registers a function of the core, which returns what is wrong without blocking."""
        self._problems.append(find)

    def respond(self) -> bytes | Future[bytes]:
        """The response of ``/readyz`` while the server itself is ready, or its future."""
        return self._respond(self._readiness)

    def respond_to_inference(self) -> bytes | Future[bytes]:
        """That of ``/v2/health/ready``."""
        from ucall._core import inference_readiness

        return self._respond(inference_readiness)

    def _respond(self, render: Render) -> bytes | Future[bytes]:
        problems = [it for it in (find() for find in self._problems) if it is not None]
        return self._run(render) if self._checks and not problems else render(_joined(problems))

    def _run(self, render: Render) -> Future[bytes]:
        from concurrent.futures import Future

        response: Future[bytes] = Future()
        with self._lock:
            self._waiting.append((response, render))
            if len(self._waiting) > 1:
                return response
        try:
            for check in self._checks:
                check.begin()
            threading.Thread(target=self._finish, name="ucall-ready", daemon=True).start()
        except BaseException:
            self._waiting.clear()
            raise
        return response

    def _finish(self) -> None:
        """Answers the waiting requests when all checks are done, or at the end of the time."""
        from concurrent.futures import wait

        checks = list(self._checks)
        wait([it.running for it in checks if it.running is not None], self._timeout_s)
        problems = [it for it in (check.take_problem(self._timeout_s) for check in checks) if it]
        problem = _joined(problems)
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for response, render in waiting:
            # False: its client has left.
            if response.set_running_or_notify_cancel():
                response.set_result(render(problem))


class _Check:
    """A check of the program, which runs once at a time."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self.running: Future[Any] | None = None
        #: The last problem that was logged.
        self._logged: str | None = None

    def begin(self) -> None:
        """Starts the check, unless an earlier run has not ended yet."""
        from ucall._functions import signatures

        if self.running is not None and not self.running.done():
            return
        if not signatures.is_async(self._function):
            self.running = _in_thread(self._function, f"ucall-ready-{self._name}")
            return
        import asyncio

        coroutine: Any = self._function()
        self.running = asyncio.run_coroutine_threadsafe(coroutine, asyncio.get_running_loop())

    def take_problem(self, timeout_s: float) -> str | None:
        """What is wrong by the run that has just ended, or ran out of time."""
        problem, error = self._problem(timeout_s)
        if problem is not None and problem != self._logged:
            import logging  # here, because importing it takes a fifth as long as all of ucall

            if error is not None:
                from ucall._tracebacks import cut

                cut(error)
            logging.getLogger("ucall").warning("not ready: %s", problem, exc_info=error)
        self._logged = problem
        return problem

    def _problem(self, timeout_s: float) -> tuple[str | None, BaseException | None]:
        if self.running is None:  # Registered after this run began.
            return None, None
        if not self.running.done():
            self.running.cancel()
            return f"{self._name} took longer than {timeout_s:g} s", None
        if self.running.cancelled():
            return f"{self._name} was cancelled", None
        if error := self.running.exception():
            return f"{self._name} raised {type(error).__name__}", error
        result = self.running.result()
        return (None, None) if result is None or result else (f"{self._name} failed", None)


def _in_thread(function: Callable[[], object], name: str) -> Future[object]:
    from concurrent.futures import Future

    future: Future[object] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
