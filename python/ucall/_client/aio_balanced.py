"""The connections of an asyncio client to several addresses. See `ucall._client.balanced`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ucall import _core
from ucall._client.aio_pool import HttpPool, SharedPool
from ucall._client.failover import Call, FailoverPool, Outcome, Servers
from ucall._client.resend import is_refused
from ucall._client.resolve import addresses_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ucall._client.address import Address

__all__ = ["AsyncBalancedPool"]

T = TypeVar("T")
Pool: TypeAlias = HttpPool | SharedPool


class _Servers(Servers[Pool]):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop alone would not keep its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    async def lookup(self, timeout: float | None) -> list[Address]:
        """See `Servers`."""
        address, loop = self.addresses.first, asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return addresses_of(address, found)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """See `Servers`."""
        await asyncio.sleep(seconds)

    @staticmethod
    async def wait(running: set[Any], seconds: float | None) -> tuple[set[Any], set[Any]]:
        """See `Servers`."""
        return await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    @staticmethod
    def wrap(future: Future[Any]) -> Any:
        """See `Servers`."""
        return asyncio.wrap_future(future)

    def begin(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        """See `Servers`."""
        return asyncio.ensure_future(attempt())

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """See `Servers`."""
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def use_running_loop(self) -> None:
        """See `Servers`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self.balancer.forget_calls()

    def cancel(self) -> None:
        """Ends the probes, which would open connections again."""
        for task in self._tasks:
            task.cancel()
        for member in self.balancer.members:
            member.is_probing = False


class AsyncBalancedPool(FailoverPool[Pool]):
    """Connections to several servers, with the interface of `ucall._client.aio_pool.AsyncPool`."""

    _servers: _Servers
    _servers_of = _Servers

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request to one of the servers, and returns its reply.

        Raises:
            ucall.ConnectionError, ucall.TimeoutError: See `AsyncPool.exchange`.
        """
        self._servers.use_running_loop()
        if self._latencies is not None:
            return await self._exchange_hedged(Call(request, ids, timeout))
        balancer, began = self._balancer, time.monotonic()
        pairs = balancer.pairs
        if pairs is not None and self._key is None and began < balancer.next_due:
            # As `Balancer.pick` does, without a call.
            member, other = next(pairs)
            if len(other.running) < len(member.running):
                member = other
        else:
            found = self._pick(began)
            if found is None or found is balancer.fallback:
                return await self._exchange_from(found, Call(request, ids, timeout, began))
            member = found
        running = member.running
        running.append(None)
        try:
            if self._rewrites:
                writer = self._writers.get(member) or self._writer_of(member)
                reply = await member.pool.exchange(writer.rewrite(request), ids, timeout)
            else:
                reply = await member.pool.exchange(request, ids, timeout)
        except OSError as error:
            outcome: Outcome | None = None if self._doubts_form(member, error) else error
        except _core.Undecided as error:
            self._doubts_form(member, error)
            outcome = None
        else:
            if reply.is_result or not is_refused(reply):
                member.replied_call = began
                if not member.is_up:
                    balancer.succeed(member, began)
                balancer.budget.earn()
                return reply
            outcome = reply
        finally:
            running.pop()
        call = Call(request, ids, timeout, began)
        if outcome is None:
            return await self._exchange_from(member, call)
        return await self._exchange_again(member, outcome, call)

    def close(self) -> None:
        """Closes the connections."""
        self._servers.cancel()
        super().close()
