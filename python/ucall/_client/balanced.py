"""The connections of a synchronous client to several addresses.

Here are the calls that go well, the pauses, and the threads, which exist only while they probe or
resolve. Everything else is in `failover`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from ucall import _core
from ucall._client.blocking import run
from ucall._client.failover import Call, FailoverPool, Outcome, Servers
from ucall._client.pool import Pool
from ucall._client.resend import is_refused
from ucall._client.resolve import resolve

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ucall._client.address import Address
    from ucall._client.hedge import Hedge

__all__ = ["BalancedPool"]

T = TypeVar("T")


class _Servers(Servers[Pool]):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.hedge: Hedge | None = None
        if self.latencies is not None:
            from ucall._client.hedge import Hedge

            self.hedge = Hedge()

    def new_lock(self) -> AbstractContextManager[object]:
        """See `Servers`."""
        return threading.Lock()

    async def lookup(self, timeout: float | None) -> list[Address]:
        """See `Servers`. ``getaddrinfo`` has a time limit of its own alone."""
        return resolve(self.addresses.first)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """See `Servers`."""
        time.sleep(seconds)

    @staticmethod
    async def wait(running: set[Any], seconds: float | None) -> tuple[set[Any], set[Any]]:
        """See `Servers`."""
        from concurrent.futures import FIRST_COMPLETED, wait

        return wait(running, seconds, FIRST_COMPLETED)

    @staticmethod
    def wrap(future: Future[Any]) -> Any:
        """See `Servers`."""
        return future

    def begin(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        """See `Servers`."""
        assert self.hedge is not None
        return self.hedge.submit(lambda: run(attempt()))

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """See `Servers`."""
        threading.Thread(target=lambda: run(work()), name=name, daemon=True).start()


class BalancedPool(FailoverPool[Pool]):
    """Connections to several servers, with the interface of `ucall._client.pool.Pool`."""

    _servers: _Servers
    _servers_of = _Servers

    def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request to one of the servers, and returns its reply. See `Pool.exchange`."""
        if self._latencies is not None:
            return run(self._exchange_hedged(Call(request, ids, timeout)))
        balancer, began = self._balancer, time.monotonic()
        if began >= balancer.next_due:
            self._run_due(began)
        pairs = balancer.pairs
        if pairs is not None and self._key is None:
            # As `Balancer.pick` does, without a call.
            member, other = next(pairs)
            if len(other.running) < len(member.running):
                member = other
        else:
            found = self._pick(began)
            if found is None or found is balancer.fallback:
                return run(self._exchange_from(found, Call(request, ids, timeout, began)))
            member = found
        running = member.running
        running.append(None)
        try:
            if self._rewrites:
                writer = self._writers.get(member) or self._writer_of(member)
                reply = member.pool.exchange(writer.rewrite(request), ids, timeout)
            else:
                reply = member.pool.exchange(request, ids, timeout)
        except OSError as error:
            outcome: Outcome | None = None if self._doubts_form(member, error) else error
        except _core.Undecided as error:
            self._doubts_form(member, error)
            outcome = None
        else:
            if reply.is_result or not is_refused(reply):
                member.replied_call = began
                if not member.is_up:
                    self._succeed(member, began)
                if (budget := balancer.budget).saved < budget.SAVED_MAX:
                    budget.earn()
                return reply
            outcome = reply
        finally:
            running.pop()
        call = Call(request, ids, timeout, began)
        if outcome is None:
            return run(self._exchange_from(member, call))
        return run(self._exchange_again(member, outcome, call))

    def close(self) -> None:
        """Closes the idle connections; those in use close after their exchange."""
        if self._servers.hedge is not None:
            self._servers.hedge.close()
        super().close()
