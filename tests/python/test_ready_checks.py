"""The checks of `GET /readyz`, without a server: which run, how long, and what they say."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from harness import eventually
from ucall._routes.health import ReadyChecks


class Core:
    """Stands for the core of a server, whose responses are bare texts here."""

    def insert_health_checks(self, respond: Callable[[], bytes | Future[bytes]]) -> None:
        self.respond = respond

    def readiness(self, problem: str | None) -> bytes:
        return b"ready" if problem is None else problem.encode()


def checks_of(*checks: Callable[[], object], timeout_s: float = 60) -> tuple[ReadyChecks, Core]:
    core: Any = Core()
    made = ReadyChecks(core, timeout_s)
    made._readiness = core.readiness
    for check in checks:
        made.add(check)
    return made, core


def ask(core: Core) -> str:
    """The response, which is due at once if no check is async."""
    response = core.respond()
    return (response if isinstance(response, bytes) else response.result(60)).decode()


def ask_in_loop(core: Core) -> str:
    async def main() -> str:
        response = core.respond()
        assert not isinstance(response, bytes)
        return (await asyncio.wait_for(asyncio.wrap_future(response), 60)).decode()

    return asyncio.run(main())


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The event that checks wait for; set at the end, so that their threads end."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_without_checks_the_response_needs_no_thread() -> None:
    made, core = checks_of()
    problem: str | None = None
    made.add_problem(lambda: problem)
    assert core.respond() == b"ready"
    made.add_problem(lambda: "no broker")
    assert core.respond() == b"no broker"
    problem = "no store"
    assert core.respond() == b"no store; no broker"


def test_a_problem_of_the_core_is_the_answer_before_checks_run() -> None:
    runs: list[int] = []
    made, core = checks_of(lambda: runs.append(1))
    problems = ["no broker", None]
    made.add_problem(lambda: problems.pop(0))
    assert core.respond() == b"no broker" and not runs
    assert ask(core) == "ready" and runs == [1]


def check_of(outcome: Any, is_async: bool) -> Callable[[], object]:
    """A check with the name `database`, that returns or raises this."""

    def database() -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def database_later() -> Any:
        await asyncio.sleep(0)
        return database()

    database_later.__name__ = "database"
    return database_later if is_async else database


OUTCOMES = [
    (None, "ready"),
    (True, "ready"),
    ("text", "ready"),
    (False, "database failed"),
    (OSError("secret"), "database raised OSError"),
]


@pytest.mark.parametrize(
    ("outcome", "text"), [*OUTCOMES, (SystemExit(), "database raised SystemExit")]
)
def test_what_a_check_means(outcome: Any, text: str) -> None:
    _, core = checks_of(lambda: True, check_of(outcome, is_async=False))
    assert ask(core) == text


@pytest.mark.parametrize(
    ("outcome", "text"), [*OUTCOMES, (asyncio.CancelledError(), "database was cancelled")]
)
def test_what_an_async_check_means(outcome: Any, text: str) -> None:
    _, core = checks_of(lambda: True, check_of(outcome, is_async=True))
    assert ask_in_loop(core) == text


def test_a_problem_is_logged_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    results = iter([False, False, True, False])
    _, core = checks_of(lambda: next(results), check_of(OSError("secret"), is_async=False))
    with caplog.at_level(logging.WARNING, "ucall"):
        for _ in range(4):
            ask(core)
    failed, raised = "not ready: <lambda> failed", "not ready: database raised OSError"
    assert [it.message for it in caplog.records] == [failed, raised, failed]
    # The log has what a public page must not show.
    assert caplog.records[1].exc_info and "secret" in str(caplog.records[1].exc_info[1])
    assert not caplog.records[0].exc_info


def test_a_check_has_a_time_limit(gate: threading.Event) -> None:
    runs: list[threading.Thread] = []

    def check() -> None:
        runs.append(threading.current_thread())
        gate.wait()

    _, core = checks_of(check, lambda: True, timeout_s=0.01)
    for _ in range(3):
        assert ask(core) == "check took longer than 0.01 s"
    # It is not started again beside itself, and no program waits for it.
    [thread] = runs
    assert thread.daemon and thread.name == "ucall-ready-check"
    gate.set()
    assert eventually(lambda: ask(core) == "ready" and len(runs) > 1)


def test_an_async_check_that_is_late_is_cancelled() -> None:
    ended: list[str] = []

    async def check() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    _, core = checks_of(check, timeout_s=0.01)
    for _ in range(2):
        assert ask_in_loop(core) == "check took longer than 0.01 s"
    assert ended == ["cancelled"] * 2


def test_all_checks_share_one_time_limit(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    waited = []

    def wait(running: Any, timeout: float) -> None:
        waited.append((len(running), timeout))

    monkeypatch.setattr(concurrent.futures, "wait", wait)
    _, core = checks_of(gate.wait, gate.wait, gate.wait, timeout_s=5)
    assert ask(core) == "; ".join(["wait took longer than 5 s"] * 3)
    assert waited == [(3, 5)]


def test_concurrent_requests_share_one_run(gate: threading.Event) -> None:
    runs: list[int] = []

    def check() -> bool:
        runs.append(1)
        return gate.wait(60)

    made, core = checks_of(check)
    responses: list[Any] = [core.respond() for _ in range(8)]
    # Its client leaves. A check that is added meanwhile is of the next run.
    assert responses[3].cancel()
    made.add(lambda: False)
    finishing = [it for it in threading.enumerate() if it.name == "ucall-ready"]
    assert finishing and all(it.daemon for it in finishing), "no program waits for them"
    gate.set()
    assert {it.result(60) for it in responses if not it.cancelled()} == {b"ready"}
    assert len(runs) == 1
    assert ask(core) == "<lambda> failed" and len(runs) == 2


def test_a_run_that_cannot_begin_leaves_no_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    _, core = checks_of(lambda: True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail_to_start)
        with pytest.raises(RuntimeError, match="can't start"):
            core.respond()
    assert ask(core) == "ready"


def fail_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_check_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="ready: expected a function, got str"):
        checks_of("database")  # type: ignore[arg-type]
