"""The connections of an asyncio client to several addresses. See `ucall._client.balanced`."""

from __future__ import annotations

import asyncio
import random
import socket
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ucall import _core
from ucall._client.balancer import Balancer, Member
from ucall._client.options import BalancedOptions
from ucall._client.resend import (
    CONNECT_S,
    PROBE_S,
    Attempts,
    Idempotence,
    Verdict,
    is_alive,
    is_refused,
    probe_request,
)
from ucall._client.resolve import addresses_of
from ucall._client.sockets import Deadline, connect_error, not_sent, timeout_error
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from ucall._client.address import Address, Addresses
    from ucall._client.aio_pool import HttpPool, SharedPool
    from ucall._client.aio_streams import Source
    from ucall._client.hedge import Latencies
    from ucall._client.inbox import Message
    from ucall._client.options import Options
    from ucall._nats.group import Group

    Pool: TypeAlias = HttpPool | SharedPool

__all__ = ["AsyncBalancedPool", "first_async_result"]

T = TypeVar("T")
Outcome: TypeAlias = "_core.Reply | Exception"


class _Servers:
    """The addresses of a client, which clients with other options share."""

    def __init__(self, addresses: Addresses, make_pool: Callable[[Address], Pool]) -> None:
        self.addresses = addresses
        self.balancer = Balancer(make_pool, random.random, resolves=addresses.resolves)
        self.idempotence = Idempotence()
        self._loop: asyncio.AbstractEventLoop | None = None
        # The loop alone would not keep its tasks.
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The servers by NATS, and what calls go to while none is reached directly.
        self.group: Group | None = None
        self.fallback: Member[Any] | None = None
        if not addresses.resolves:
            self.balancer.update(addresses.list, time.monotonic())

    def use_group(self, group: Group) -> None:
        """Finds the servers by NATS."""
        from ucall._nats.group import AsyncBrokerPool

        self.group, self.fallback = group, Member(self.addresses.first, AsyncBrokerPool(group))
        weakref.finalize(self, group.close).atexit = False

    def use_running_loop(self) -> None:
        """Forgets the calls of another event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self.balancer.forget_calls()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a probe or a resolution beside the calls."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def resolve(self) -> None:
        """Resolves the name again. Keeps the known addresses if that fails."""
        removed = self.balancer.update(await self._find(), time.monotonic())
        for member in removed:
            member.pool.close_idle()

    async def _find(self) -> list[Address]:
        if self.group is not None:
            from ucall._nats.connection import start

            known = await asyncio.wrap_future(start(self.group.discover()))
            self.balancer.fallback = self.fallback
            return self.balancer.with_missing(known, time.monotonic())
        address = self.addresses.first
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        return addresses_of(address, found)

    async def resolve_quietly(self) -> None:
        with suppress(OSError, UnicodeError):
            await self.resolve()

    def cancel(self) -> None:
        """Ends the probes, which would open connections again."""
        for task in self._tasks:
            task.cancel()
        for member in self.balancer.members:
            member.is_probing = False


class AsyncBalancedPool:
    """Connections to several servers, with the interface of `ucall._client.aio_pool.AsyncPool`."""

    def __init__(
        self, servers: _Servers, options: BalancedOptions, latencies: Latencies | None
    ) -> None:
        self._servers = servers
        self._balancer = servers.balancer
        self._options = options
        self._key = options.key
        self._is_http = options.address.is_http
        self._writers: dict[Member[Pool], _core.RequestWriter] = {}
        self._latencies = latencies

    @classmethod
    def of(
        cls,
        addresses: Addresses,
        options: Options,
        make_pool: Callable[[Options, float], Pool],
        *,
        hedges: bool,
        group: Group | None,
    ) -> AsyncBalancedPool:
        """Connections to these addresses, each of which gets a pool."""
        assert isinstance(options, BalancedOptions)

        def make(address: Address) -> Pool:
            return make_pool(options.at(address, options.timeout), CONNECT_S)

        latencies = None
        if hedges:
            from ucall._client.hedge import Latencies

            latencies = Latencies()
        servers = _Servers(addresses, make)
        if group is not None:
            servers.use_group(group)
        return cls(servers, options, latencies)

    def for_options(self, options: BalancedOptions) -> AsyncBalancedPool:
        """The pool of a client with other options, with the same connections."""
        return AsyncBalancedPool(self._servers, options, self._latencies)

    async def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request to one of the servers, and returns its reply.

        Raises:
            ucall.ConnectionError, ucall.TimeoutError: See `AsyncPool.exchange`.
        """
        if self._latencies is not None:
            return await self._exchange_hedged(self._latencies, request, ids, timeout)
        balancer, began = self._balancer, time.monotonic()
        pairs = balancer.pairs
        if pairs is not None and self._key is None and began < balancer.next_due:
            # As `_pick` does, without a coroutine.
            self._servers.use_running_loop()
            member, other = next(pairs)
            if len(other.running) < len(member.running):
                member = other
        else:
            is_first = not balancer.is_resolved
            member = await self._pick(began)
            if is_first or member is balancer.fallback:
                return await self._exchange_from(member, request, ids, Deadline(timeout, began))
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
            _remove(running)
        return await self._exchange_again(member, outcome, request, ids, Deadline(timeout, began))

    def close(self) -> None:
        """Closes the connections."""
        self._servers.cancel()
        for member in self._balancer.members:
            member.pool.close()
        if self._servers.group is not None:
            self._servers.group.close()

    def source(self, begin: Callable[[Pool, Options], Source]) -> Source:
        """A stream of one of the servers, which its first message begins."""
        return _BalancedSource(self, begin)

    async def begin_stream(
        self, begin: Callable[[Pool, Options], Source]
    ) -> tuple[Source, Message, list[None]]:
        """Begins a stream on one of the servers; on another one if it is not begun there. Returns
        it with its first message, and the list that counts it."""
        attempts, deadline = Attempts(self._balancer, self._key), Deadline(self._options.timeout)
        member = await self._pick(time.monotonic())
        while True:
            options = self._options.at(member.address, self._options.timeout)
            source = begin(member.pool, options)
            member.running.append(None)
            outcome: Message | Exception
            try:
                outcome = await source.next()
                if not isinstance(outcome, _core.Reply) or not is_refused(outcome):
                    return source, outcome, member.running
            except OSError as error:
                outcome = error
            except BaseException:
                _remove(member.running)
                source.close(has_ended=False)
                raise
            _remove(member.running)
            source.close(has_ended=isinstance(outcome, _core.Reply))
            verdict = attempts.judge(member, outcome, time.monotonic())
            found = None
            if verdict is Verdict.RESEND:
                found = await self._next_member(attempts, deadline)
            if found is not None:
                member = found
            elif isinstance(outcome, Exception):
                raise outcome from None
            else:
                return source, outcome, []

    async def _exchange_hedged(
        self,
        latencies: Latencies,
        request: _core.Request,
        ids: Collection[object],
        timeout: float | None,
    ) -> _core.Reply:
        """Sends the request to a second server if the first is slow, and takes the first reply."""
        began, deadline, delay = time.monotonic(), Deadline(timeout), latencies.p95
        tried: list[Member[Pool]] = []

        async def attempt() -> _core.Reply:
            member = await self._pick(time.monotonic(), tried)
            tried.append(member)
            return await self._exchange_from(member, request, ids, deadline)

        if delay is None or not await self._is_idempotent(request, deadline):
            reply = await attempt()
        else:
            reply = await first_async_result(
                lambda: asyncio.ensure_future(attempt()), (delay,), self._may_hedge
            )
        latencies.add(time.monotonic() - began)
        return reply

    async def _exchange_from(
        self,
        member: Member[Pool],
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> _core.Reply:
        """Sends a request to this member first, with the time that is left."""
        outcome = await self._attempt(member, request, ids, deadline)
        if isinstance(outcome, Exception) or is_refused(outcome):
            return await self._exchange_again(member, outcome, request, ids, deadline)
        self._balancer.budget.earn()
        return outcome

    async def _exchange_again(
        self,
        member: Member[Pool],
        outcome: Outcome,
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> _core.Reply:
        """Goes on after an attempt that has failed."""
        attempts = Attempts(self._balancer, self._key)
        while await self._may_resend(attempts, member, outcome, request, deadline):
            found = await self._next_member(attempts, deadline)
            if found is None:
                break
            member = found
            outcome = await self._attempt(member, request, ids, deadline)
        if isinstance(outcome, Exception):
            raise outcome from None
        return outcome

    async def _may_resend(
        self,
        attempts: Attempts[Pool],
        member: Member[Pool],
        outcome: Outcome,
        request: _core.Request,
        deadline: Deadline,
    ) -> bool:
        verdict = attempts.judge(member, outcome, time.monotonic())
        if verdict is Verdict.RESEND_IF_IDEMPOTENT:
            return await self._may_repeat(request, deadline)
        return verdict is Verdict.RESEND

    async def _next_member(
        self, attempts: Attempts[Pool], deadline: Deadline
    ) -> Member[Pool] | None:
        self._run_due(time.monotonic())
        member, pause = attempts.next(time.monotonic())
        if pause:
            await asyncio.sleep(pause)
        return None if deadline.is_over() else member

    async def _attempt(
        self,
        member: Member[Pool],
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> Outcome:
        """Sends a request with the time that is left."""
        began = time.monotonic()
        member.running.append(None)
        try:
            left = deadline.left()
            request = self._options.at(member.address, left).writer.rewrite(request)
            fallback = self._servers.fallback
            if fallback is not None and member is fallback:
                reply: _core.Reply = await fallback.pool.exchange(
                    request, ids, left, lambda: self._may_repeat(request, deadline)
                )
            else:
                reply = await member.pool.exchange(request, ids, left)
        except TimeoutError as error:
            return error if hasattr(error, "may_have_run") else timeout_error(deadline.seconds)
        except OSError as error:
            return error
        finally:
            _remove(member.running)
        if not is_refused(reply):
            self._balancer.succeed(member, began)
        return reply

    async def _may_hedge(self) -> bool:
        return self._balancer.budget.spend()

    async def _may_repeat(self, request: _core.Request, deadline: Deadline) -> bool:
        return await self._is_idempotent(request, deadline) and self._balancer.budget.spend()

    async def _is_idempotent(self, request: _core.Request, deadline: Deadline) -> bool:
        if self._options.idempotent:
            return True
        idempotence = self._servers.idempotence
        if idempotence.is_stale(time.monotonic()):
            await self._discover(deadline)
        return idempotence.allows(request)

    async def _discover(self, deadline: Deadline) -> None:
        """Asks the servers which functions are idempotent, until one of them answers."""
        now = time.monotonic()
        tried: list[Member[Pool]] = []
        while (member := self._balancer.pick(now, tried)) is not None and not deadline.is_over():
            tried.append(member)
            with suppress(OSError):
                left = deadline.at_most(PROBE_S).left()
                options = self._options.at(member.address, left)
                request, id = probe_request(options, "rpc.discover")
                reply = await member.pool.exchange(request, (id,), left)
                return self._servers.idempotence.learn(reply, now)

    async def _pick(self, now: float, tried: Collection[Member[Pool]] = ()) -> Member[Pool]:
        self._servers.use_running_loop()
        self._run_due(now)
        member = self._balancer.pick(now, tried, self._key) or self._balancer.pick(now)
        return await self._first_member() if member is None else member

    async def _first_member(self) -> Member[Pool]:
        """Resolves the name for the first call."""
        address, timeout = self._options.address, self._options.timeout
        try:
            async with asyncio.timeout(timeout):
                await self._servers.resolve()
        except ConnectionError:  # No broker accepts the connection.
            raise
        except (OSError, UnicodeError) as error:
            raise connect_error(address, error, timeout) from None
        member = self._balancer.pick(time.monotonic(), (), self._key)
        if member is None:
            raise not_sent(ConnectionError(f"cannot connect to {address.name}: it has no address"))
        return member

    def _writer_of(self, member: Member[Pool]) -> _core.RequestWriter:
        made = self._options.at(member.address, self._options.timeout).writer
        self._writers = {it: kept for it, kept in self._writers.items() if not it.is_removed}
        self._writers[member] = made
        return made

    def _run_due(self, now: float) -> None:
        """Begins the probes and the resolution that are due."""
        if now < self._balancer.next_due:
            return
        for member in self._balancer.poll_probes(now):
            self._servers.start(self._probe(member))
        if self._balancer.poll_resolve(now) and self._balancer.is_resolved:
            self._servers.start(self._servers.resolve_quietly())

    async def _probe(self, member: Member[Pool]) -> None:
        if not member.is_up:
            member.pool.close_idle()
        request, id = probe_request(self._options.at(member.address, PROBE_S))
        outcome: Outcome
        try:
            outcome = await member.pool.exchange(request, (id,), PROBE_S)
        except OSError as error:
            outcome = error
        self._balancer.probed(member, time.monotonic(), is_alive=is_alive(outcome))


class _BalancedSource:
    """A stream of one of several servers, which counts as a call of it until it is closed."""

    def __init__(self, pool: AsyncBalancedPool, begin: Callable[[Pool, Options], Source]) -> None:
        self._pool = pool
        self._begin = begin
        self._source: Source | None = None
        self._running: list[None] = []

    async def next(self) -> Message:
        """See `Source.next`."""
        if self._source is None:
            self._source, message, self._running = await self._pool.begin_stream(self._begin)
            return message
        return await self._source.next()

    def poll(self) -> Message | None:
        """See `Source.poll`."""
        return None if self._source is None else self._source.poll()

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`."""
        if self._source is not None:
            _remove(self._running)
            self._source.close(has_ended=has_ended)


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


def _remove(running: list[None]) -> None:
    """Counts one call less, unless another event loop has forgotten all."""
    if running:
        running.pop()
