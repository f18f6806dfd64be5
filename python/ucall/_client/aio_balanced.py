"""The connections of an asyncio client to several addresses. See `ucall._client.balanced`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ucall import _core
from ucall._client.aio_pool import HttpPool, SharedPool
from ucall._client.aio_streams import Source
from ucall._client.failover import Call, FailoverPool, FailoverSource, Outcome, Servers
from ucall._client.resend import is_refused
from ucall._client.resolve import addresses_of

if TYPE_CHECKING:
    from ucall._client.address import Address
    from ucall._client.inbox import Message
    from ucall._client.options import Options
    from ucall._nats.group import AsyncBrokerPool, Group

__all__ = ["AsyncBalancedPool", "first_async_result"]

T = TypeVar("T")
Pool: TypeAlias = HttpPool | SharedPool


class _Servers(Servers[Pool]):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop alone would not keep its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    def broker_pool(self, group: Group) -> AsyncBrokerPool:
        """See `Servers`."""
        from ucall._nats.group import AsyncBrokerPool

        return AsyncBrokerPool(group)

    async def lookup(self, timeout: float | None) -> list[Address]:
        """See `Servers`."""
        async with asyncio.timeout(timeout):
            if self.group is not None:
                from ucall._nats.connection import start

                return await asyncio.wrap_future(start(self.group.discover()))
            address = self.addresses.first
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )
            return addresses_of(address, found)

    async def result_of(self, begun: Any) -> Any:
        """See `Servers`."""
        return await begun

    async def sleep(self, seconds: float) -> None:
        """See `Servers`."""
        await asyncio.sleep(seconds)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """See `Servers`."""
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def use_running_loop(self) -> None:
        """Forgets the calls of another event loop."""
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


class AsyncBalancedPool(FailoverPool[Pool, Source]):
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
            if self._is_http:
                writer = self._writers.get(member) or self._writer_of(member)
                reply = await member.pool.exchange(writer.rewrite(request), ids, timeout)
            else:
                reply = await member.pool.exchange(request, ids, timeout)
        except OSError as error:
            outcome: Outcome = error
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
        return await self._exchange_again(member, outcome, Call(request, ids, timeout, began))

    def close(self) -> None:
        """Closes the connections."""
        self._servers.cancel()
        super().close()

    def source(self, begin: Callable[[Pool, Options], Source]) -> Source:
        """A stream of one of the servers, which its first message begins."""
        return _BalancedSource(self, begin)

    async def _first_reply(
        self, attempt: Callable[[], Coroutine[Any, Any, _core.Reply]], delay_s: float
    ) -> _core.Reply:
        return await first_async_result(
            lambda: asyncio.ensure_future(attempt()), (delay_s,), self._may_hedge
        )

    async def _may_hedge(self) -> bool:
        return self._balancer.budget.spend()


class _BalancedSource(FailoverSource[Pool, Source]):
    _pool: AsyncBalancedPool

    async def next(self) -> Message:
        """See `Source.next`."""
        if self._source is None:
            self._pool._servers.use_running_loop()
            await self._open()
        return await self._next()

    def poll(self) -> Message | None:
        """See `Source.poll`."""
        return self._source.poll() if self._source is not None and self._has_begun else None


async def first_async_result(
    begin: Callable[[], asyncio.Future[T]],
    delays_s: Iterable[float],
    may_hedge: Callable[[], Awaitable[bool]],
) -> T:
    """See `ucall._client.hedge.first_result`."""
    begun = running = {begin()}
    try:
        for delay_s in delays_s:
            done, _ = await asyncio.wait(
                running, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                break
            if await may_hedge():
                running.add(begin())
        while True:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            succeeded = [it for it in done if it.exception() is None]
            if succeeded or not running:
                return (succeeded or [*done])[0].result()
    finally:
        for future in begun:
            future.cancel()
