"""When a hedged call is sent again, which attempt it gets, and its threads; without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from test_client_given_back import KINDS, SERVERS, AsyncPool, Pool, run
from timing import Clock

import ucall
from harness import eventually
from ucall._client import aio_balanced, balanced, blocking, hedge
from ucall._client.failover import Servers
from ucall._client.hedge import Hedge, Latencies, first_result
from ucall._client.sockets import not_sent
from ucall.client import Client


def done(value: str) -> Future[str]:
    future: Future[str] = Future()
    future.set_result(value)
    return future


def failed(message: str) -> Future[str]:
    future: Future[str] = Future()
    future.set_exception(OSError(message))
    return future


def short_delays() -> Iterator[float]:
    while True:
        yield 0.001


def never() -> bool:
    raise AssertionError("another attempt is considered")


def first_of_threads(
    begin: Callable[[], Any],
    delays_s: Iterable[float],
    may_hedge: Callable[[], bool],
    servers: type[Servers[Any]] = balanced._Servers,
    run: Callable[[Any], Any] = blocking.run,
) -> Any:
    async def may_hedge_later() -> bool:
        return may_hedge()

    async def main() -> Any:
        begin_one = lambda: servers.wrap(begin())  # noqa: E731
        return await first_result(begin_one, delays_s, may_hedge_later, servers.wait)

    return run(main())


def first_of_tasks(*arguments: Any) -> Any:
    return first_of_threads(*arguments, aio_balanced._Servers, asyncio.run)


FIRST = pytest.mark.parametrize("first", [first_of_threads, first_of_tasks])


def test_the_95th_percentile() -> None:
    latencies = Latencies()
    for number in range(31):
        latencies.add(1000 + number)
        assert latencies.p95 is None
    latencies.add(1031)
    assert latencies.p95 == 1030
    # It is that of the last 512.
    for number in reversed(range(512)):
        latencies.add(number)
    assert latencies.p95 == 486


@FIRST
def test_a_call_that_may_not_be_repeated_yet_is_repeated_later(first: Any) -> None:
    """The retry budget, which was used up, has earned a retry in between."""
    allowed = [True, False, False]
    slow: Future[str] = Future()
    attempts = iter([slow, done("second")])
    assert first(lambda: next(attempts), short_delays(), allowed.pop) == "second"
    assert allowed == []
    assert slow.cancelled(), "the slower attempt"


@FIRST
def test_an_attempt_that_ends_within_the_delay_is_the_only_one(first: Any) -> None:
    assert first(lambda: done("first"), [60, 60], never) == "first"
    with pytest.raises(OSError, match="refused"):
        first(lambda: failed("refused"), [60, 60], never)


@FIRST
def test_of_attempts_that_end_at_once_the_one_that_succeeds_counts(first: Any) -> None:
    slow: Future[str] = Future()
    attempts = iter([slow, failed("refused")])

    def may_hedge() -> bool:
        slow.set_result("slow")
        return True

    assert first(lambda: next(attempts), [0.001], may_hedge) == "slow"


@FIRST
@pytest.mark.parametrize("cut", [0, 1])
def test_a_call_fails_if_all_attempts_do(first: Any, cut: int) -> None:
    """By the one after which it may have run."""
    errors = [not_sent(ucall.ConnectionError("refused")) for _ in range(2)]
    errors[cut] = ucall.ConnectionError("cut")
    slow, other = Future[str](), Future[str]()
    other.set_exception(errors[1])
    attempts = iter([slow, other])

    def may_hedge() -> bool:
        slow.set_exception(errors[0])
        return True

    with pytest.raises(ucall.ConnectionError, match="cut"):
        first(lambda: next(attempts), [0.001], may_hedge)


def test_a_failed_attempt_leaves_the_call_to_the_other() -> None:
    slow: Future[str] = Future()

    class Failed(Future[str]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            slow.set_result("slow")
            return super().exception(timeout)

    other = Failed()
    other.set_exception(OSError("refused"))
    attempts = iter([slow, other])
    assert first_of_threads(lambda: next(attempts), [0.001], lambda: True) == "slow"


def test_attempts_run_in_up_to_128_threads() -> None:
    hedge, gate = Hedge(), threading.Event()
    assert hedge.submit(threading.current_thread).result(60).daemon, "no program waits for it"
    threads = hedge._threads
    assert threads is not None
    before = set(threading.enumerate())
    futures = [threads.submit(gate.wait) for _ in range(130)]
    try:
        # One is that of the first attempt.
        assert len(set(threading.enumerate()) - before) == 127
    finally:
        gate.set()
        assert all(it.result(60) for it in futures)
        hedge.close()


def test_an_idle_thread_runs_the_next_attempt_and_ends_with_the_client() -> None:
    with Client(["tcp://127.0.0.1:1", "tcp://127.0.0.2:1"], hedge=True) as client:
        hedge = client._pool._servers.hedge
        thread = hedge.submit(threading.current_thread).result(60)
        with pytest.raises(OSError, match="refused"):
            hedge.submit(lambda: failed("refused").result()).result(60)
        threads = hedge._threads
        assert threads is not None
        assert eventually(lambda: threads._idle._value == 1), "it is idle again"
        assert hedge.submit(threading.current_thread).result(60) is thread
    thread.join(60)
    assert not thread.is_alive()


@KINDS
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_idempotent_calls_are_hedged_after_the_time_of_most(
    monkeypatch: pytest.MonkeyPatch, kind: str, is_idempotent: bool
) -> None:
    clock = Clock(monkeypatch, "ucall._client.failover")
    delays: list[float] = []

    async def first(begin: Callable[[], Any], delays_s: Iterable[float], *waits: Any) -> Any:
        delays.extend(delays_s)
        return await first_result(begin, (), *waits)

    monkeypatch.setattr(hedge, "first_result", first)
    monkeypatch.setattr(Latencies, "_INTERVAL", 2)

    async def use(client: Any) -> None:
        made = Pool() if kind == "threads" else AsyncPool()
        made.events = Passing(clock)
        for member in client._pool._balancer.members:
            member.pool = made
        for _ in range(3):
            await blocking.result_of(client.with_options(idempotent=is_idempotent).call("get"))
        await blocking.result_of(client.close())

    run(kind, use, SERVERS, hedge=True)
    assert delays == ([2.0] if is_idempotent else [])


class Passing(list[str]):
    """The requests to a server, of which each takes two seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def append(self, method: str) -> None:
        super().append(method)
        self._clock.pass_by(2.0)


@KINDS
def test_a_server_that_answers_a_hedged_call_is_up(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = Clock(monkeypatch, "ucall._client.failover")

    async def use(client: Any) -> None:
        members = client._pool._balancer.members
        for member in members:
            member.pool = Pool() if kind == "threads" else AsyncPool()
            client._pool._balancer.fail(member, clock.now)
        clock.pass_by(0.01)
        await blocking.result_of(client.call("get"))
        assert [it.is_up for it in members] == [bool(it.pool.events) for it in members]
        await blocking.result_of(client.close())

    run(kind, use, SERVERS, hedge=True)
