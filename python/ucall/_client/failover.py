"""Sends the calls of a client with several addresses, and sends them again after a failure.

Both clients run these coroutines: that of asyncio in its event loop, the synchronous one by
`blocking.run`, because nothing that it awaits suspends. Each client has a class `Servers` of its
own, with what the coroutines wait for. `balancer` picks a server, and `resend` judges an outcome.

`exchange` is in `balanced` and `aio_balanced`: a call that goes well costs a choice and two counts
there, and no coroutine more than a call of one address.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)

from ucall import _core, _forks
from ucall._client.balancer import Balancer, Member
from ucall._client.base import SUBSCRIPTIONS_REFUSED
from ucall._client.blocking import result_of
from ucall._client.frames import decided_writer, doubt_frames, writer_after_doubt
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
from ucall._client.sockets import (
    Deadline,
    closed_error,
    connect_error,
    left_to_send,
    not_sent,
    timeout_error,
)
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ucall._client.address import Address, Addresses
    from ucall._client.inbox import Message
    from ucall._client.options import Options
    from ucall._client.streams import Source
    from ucall._nats.group import Group

__all__ = ["Call", "FailoverPool", "FailoverSource", "Outcome", "Servers"]


class _Pool(Protocol):
    """The connections to one server, as both clients have them."""

    def exchange(self, *arguments: Any, **options: Any) -> Any: ...

    def close(self) -> None: ...

    def close_idle(self) -> None: ...


PoolT = TypeVar("PoolT", bound=_Pool)
T = TypeVar("T")
Outcome: TypeAlias = "_core.Reply | Exception"


class Call:
    """A request, the ids of its calls, and until when their reply is due."""

    __slots__ = ("deadline", "ids", "request")

    def __init__(
        self,
        request: _core.Request,
        ids: Collection[object],
        timeout: float | None,
        began: float | None = None,
    ) -> None:
        self.request, self.ids, self.deadline = request, ids, Deadline(timeout, began)


class Servers(Generic[PoolT]):
    """The addresses of a client, which clients with other options share, and the waits of its kind.

    Args:
        make_pool: Makes the connections to an address, without opening any.
        hedges: Whether slow calls are sent to a second server.
        group: The servers by NATS, if they are found so.
    """

    def __init__(
        self,
        addresses: Addresses,
        make_pool: Callable[[Address], PoolT],
        hedges: bool,
        group: Group | None,
    ) -> None:
        self.addresses = addresses
        self.balancer = Balancer(make_pool, random.random, resolves=addresses.resolves)
        self.idempotence = Idempotence()
        #: Whether calls may be frames, because one had binary params, or wants such a result.
        self.use_frames = False
        #: Guards the balancer, except for what `exchange` does.
        self.lock = self.new_lock()
        self.latencies = None
        if hedges:
            from ucall._client.hedge import Latencies

            self.latencies = Latencies()
        self.group = group
        #: What calls go to while no server of the group is reached directly.
        self.fallback: Member[Any] | None = None
        if group is not None:
            from ucall._nats.group import BrokerPool

            # No method of `self`: without a cycle, it ends when the program drops the client.
            self.fallback = Member(addresses.first, BrokerPool(group, self.wrap, self.wait))
            weakref.finalize(self, group.close).atexit = False
        if not addresses.resolves:
            self.balancer.update(addresses.list, time.monotonic())
        _forks.register(self)

    async def resolve(self, timeout: float | None = None) -> None:
        """Resolves the name again. Keeps the known addresses if that fails.

        Args:
            timeout: Seconds in which a broker has to answer. DNS has its own limit, too.
        """
        if self.fallback is None:
            found = await self.lookup(timeout)
        else:
            found = await self.fallback.pool.discover(timeout)
        now = time.monotonic()
        with self.lock:
            if self.fallback is not None:
                found = self.balancer.with_missing(found, now)
                self.balancer.fallback = self.fallback
            removed = self.balancer.update(found, now)
        for member in removed:
            member.pool.close_idle()

    async def resolve_quietly(self) -> None:
        """Resolves the name beside the calls."""
        with suppress(OSError, UnicodeError):
            await self.resolve()

    def abandon(self) -> None:
        """Forgets what the threads of the parent of this process have begun."""
        self.lock = self.new_lock()
        self.balancer.forget_calls()

    def use_running_loop(self) -> None:
        """Forgets the calls of another event loop."""

    def new_lock(self) -> AbstractContextManager[object]:
        """A lock, if there are threads."""
        return nullcontext()

    async def lookup(self, timeout: float | None) -> list[Address]:
        """The addresses that the name has now."""
        raise NotImplementedError

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Waits before another round over all addresses."""
        raise NotImplementedError

    @staticmethod
    async def wait(running: set[Any], seconds: float | None) -> tuple[set[Any], set[Any]]:
        """Waits until one of these futures is done; returns those that are, and the others."""
        raise NotImplementedError

    @staticmethod
    def wrap(future: Future[Any]) -> Any:
        """The future of a coroutine on another thread, for `wait`."""
        raise NotImplementedError

    def begin(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        """Runs one attempt of several at a time; returns its future."""
        raise NotImplementedError

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Runs a probe or a resolution beside the calls."""
        raise NotImplementedError


class FailoverPool(Generic[PoolT]):
    """Connections to several servers, with the interface of those to one."""

    #: Makes the `Servers` of this client.
    _servers_of: ClassVar[Callable[..., Servers[Any]]]

    def __init__(self, servers: Servers[PoolT], options: BalancedOptions) -> None:
        self._servers = servers
        self._balancer = servers.balancer
        self._latencies = servers.latencies
        self._options = options
        self._key = options.key
        #: Whether each request is written again for its server: with its head, or as a frame.
        self._rewrites = options.address.is_http or servers.use_frames
        self._writers: dict[Member[PoolT], _core.RequestWriter] = {}

    @classmethod
    def of(
        cls,
        addresses: Addresses,
        options: Options,
        make_pool: Callable[[Options, float], PoolT],
        *,
        hedges: bool,
        group: Group | None,
    ) -> Self:
        """Connections to these addresses, each of which gets a pool."""
        assert isinstance(options, BalancedOptions)

        def make(address: Address) -> PoolT:
            return make_pool(options.at(address, options.timeout), CONNECT_S)

        return cls(cls._servers_of(addresses, make, hedges, group), options)

    def for_options(self, options: BalancedOptions) -> Self:
        """The pool of a client with other options, with the same connections."""
        return type(self)(self._servers, options)

    def close(self) -> None:
        """Closes the connections that no exchange uses; those of asyncio, where calls share one,
        too."""
        for member in self._balancer.members:
            member.pool.close()
        if self._servers.group is not None:
            self._servers.group.close()

    def want_frames(self) -> None:
        """A result in base64 was read as bytes."""
        self._use_frames()
        for member in self._balancer.members:
            if member.address.frames is not None:
                member.address.frames.want()

    def source(self, begin: Callable[[PoolT, Options], Source]) -> Source:
        """A stream of one of the servers, on another one if it is not begun there."""
        return FailoverSource(self, begin)

    def channel(self, *, for_calls: bool = False) -> NoReturn:
        """Raises ``ValueError``: messages come from the server that was subscribed to."""
        raise ValueError(SUBSCRIPTIONS_REFUSED)

    async def _exchange_hedged(self, call: Call) -> _core.Reply:
        """Sends the request to a second server if the first is slow, and takes the first reply."""
        assert self._latencies is not None
        began, delay_s = time.monotonic(), self._latencies.p95
        tried: list[Member[PoolT]] = []

        async def attempt() -> _core.Reply:
            now = time.monotonic()
            member = self._pick(now, tried) or await self._first_member(call.deadline)
            tried.append(member)
            return await self._exchange_from(member, call)

        if delay_s is None or not await self._is_idempotent(call):
            reply = await attempt()
        else:
            from ucall._client.hedge import first_result

            reply = await first_result(
                lambda: self._servers.begin(attempt),
                (delay_s,),
                self._may_hedge,
                self._servers.wait,
            )
        self._latencies.add(time.monotonic() - began)
        return reply

    async def _may_hedge(self) -> bool:
        return self._balancer.budget.spend()

    def _pick(self, now: float, tried: Collection[Member[PoolT]] = ()) -> Member[PoolT] | None:
        """The member for a call; ``None`` before the name was resolved."""
        self._run_due(now)
        return self._balancer.pick(now, tried, self._key) or self._balancer.pick(now)

    async def _first_member(self, deadline: Deadline) -> Member[PoolT]:
        """Resolves the name for the first call."""
        address = self._options.address
        try:
            await self._servers.resolve(deadline.left())
        except ConnectionError:  # No broker accepts the connection.
            raise
        except (OSError, UnicodeError) as error:
            raise connect_error(address, error, deadline.seconds) from None
        member = self._balancer.pick(time.monotonic(), (), self._key)
        if member is None:
            raise not_sent(ConnectionError(f"cannot connect to {address.name}: it has no address"))
        return member

    async def _exchange_from(self, member: Member[PoolT] | None, call: Call) -> _core.Reply:
        """Sends a request to this member first, with the time that is left. Without one, the name
        is resolved."""
        member = member or await self._first_member(call.deadline)
        outcome = await self._attempt(member, call)
        if isinstance(outcome, Exception) or is_refused(outcome):
            return await self._exchange_again(member, outcome, call)
        self._balancer.budget.earn()
        return outcome

    async def _exchange_again(
        self, member: Member[PoolT], outcome: Outcome, call: Call
    ) -> _core.Reply:
        """Goes on after an attempt that has failed."""
        attempts, may_have_run = Attempts(self._balancer, self._key), False
        while True:
            verdict = self._judge(attempts, member, outcome)
            if verdict is Verdict.RESEND_IF_IDEMPOTENT:
                may_have_run = True
                if await self._may_repeat(call):
                    verdict = Verdict.RESEND
            found = await self._next_member(attempts, verdict, call.deadline)
            if found is None:
                break
            member, outcome = found, await self._attempt(found, call)
        if isinstance(outcome, Exception):
            if may_have_run:  # At an attempt before.
                outcome.may_have_run = True  # type: ignore[attr-defined]
            raise outcome from None
        return outcome

    def _judge(self, attempts: Attempts[PoolT], member: Member[PoolT], outcome: Outcome) -> Verdict:
        with self._servers.lock:
            return attempts.judge(member, outcome, time.monotonic())

    async def _next_member(
        self, attempts: Attempts[PoolT], verdict: Verdict, deadline: Deadline
    ) -> Member[PoolT] | None:
        """The member for another attempt; ``None`` if there is none."""
        if verdict is not Verdict.RESEND:
            return None
        now = time.monotonic()
        self._run_due(now)
        with self._servers.lock:
            member, pause = attempts.next(now)
        if pause:
            await self._servers.sleep(pause)
        return None if deadline.is_over() else member

    async def _attempt(self, member: Member[PoolT], call: Call) -> Outcome:
        """Sends a request with the time that is left."""
        began, running = time.monotonic(), member.running
        running.append(None)
        try:
            request = await self._rewritten(member, call)
            try:
                reply = await self._send_to(member, request, call)
            except (_core.Undecided, ConnectionError) as error:
                if not self._doubts_form(member, error):
                    raise
                options = self._options.at(member.address, left_to_send(call.deadline))
                if member.address.refuses_coding(error):
                    writer = options.writer.plain()
                else:
                    writer = await writer_after_doubt(error, member.pool, options, call.deadline)
                reply = await self._send_to(member, writer.rewrite(call.request), call)
        except TimeoutError as error:
            if hasattr(error, "may_have_run"):
                return error
            return timeout_error(call.deadline.seconds)
        except OSError as error:
            return error
        finally:
            running.pop()
        if not is_refused(reply):
            self._succeed(member, began)
        return reply

    async def _send_to(
        self, member: Member[PoolT], request: _core.Request, call: Call
    ) -> _core.Reply:
        left = left_to_send(call.deadline)
        repeats = [lambda: self._may_repeat(call)] if member is self._servers.fallback else []
        reply: _core.Reply = await result_of(
            member.pool.exchange(request, call.ids, left, *repeats)
        )
        return reply

    def _doubts_form(self, member: Member[PoolT], error: Exception) -> bool:
        """Whether an attempt has failed because of a coding or a frame; see `doubt_frames`."""
        if member.address.refuses_coding(error):
            return True
        return self._rewrites and doubt_frames(error, self._options.at(member.address, None))

    async def _rewritten(self, member: Member[PoolT], call: Call) -> _core.Request:
        """The request for this member, which is asked whether it takes frames if that matters."""
        options = self._options.at(member.address, left_to_send(call.deadline))
        try:
            return options.writer.rewrite(call.request)
        except _core.Undecided:
            self._use_frames()
            writer = await decided_writer(member.pool, options, call.deadline)
            return writer.rewrite(call.request)

    def _use_frames(self) -> None:
        self._rewrites = self._servers.use_frames = True

    def _succeed(self, member: Member[PoolT], began: float) -> None:
        with self._servers.lock:
            self._balancer.succeed(member, began)

    async def _may_repeat(self, call: Call) -> bool:
        return await self._is_idempotent(call) and self._balancer.budget.spend()

    async def _is_idempotent(self, call: Call) -> bool:
        if self._options.idempotent:
            return True
        idempotence = self._servers.idempotence
        if idempotence.is_stale(time.monotonic()):
            await self._discover(call.deadline)
        return idempotence.allows(call.request)

    async def _discover(self, deadline: Deadline) -> None:
        """Asks the servers which functions are idempotent, until one of them answers."""
        now = time.monotonic()
        tried: list[Member[PoolT]] = []
        while (member := self._balancer.pick(now, tried)) is not None and not deadline.is_over():
            tried.append(member)
            with suppress(OSError):
                left = deadline.at_most(PROBE_S).left()
                request, id = probe_request(self._options.at(member.address, left), "rpc.discover")
                reply = await result_of(member.pool.exchange(request, (id,), left))
                return self._servers.idempotence.learn(reply, now)

    def _writer_of(self, member: Member[PoolT]) -> _core.RequestWriter:
        made = self._options.at(member.address, self._options.timeout).writer
        # Other threads read it, so it is replaced.
        kept = {it: writer for it, writer in self._writers.items() if not it.is_removed}
        self._writers = {**kept, member: made}
        return made

    def _run_due(self, now: float) -> None:
        """Begins the probes and the resolution that are due."""
        balancer, servers = self._balancer, self._servers
        if now < balancer.next_due:
            return
        with servers.lock:
            due = balancer.poll_probes(now)
            resolves = balancer.poll_resolve(now) and balancer.is_resolved
        for member in due:
            servers.start(partial(self._probe, member), "ucall-client-probe")
        if resolves:
            servers.start(servers.resolve_quietly, "ucall-client-resolve")

    async def _probe(self, member: Member[PoolT]) -> None:
        if not member.is_up:
            member.pool.close_idle()
        request, id = probe_request(self._options.at(member.address, PROBE_S))
        outcome: Outcome
        try:
            outcome = await result_of(member.pool.exchange(request, (id,), PROBE_S))
        except OSError as error:
            outcome = error
        with self._servers.lock:
            self._balancer.probed(member, time.monotonic(), is_alive=is_alive(outcome))


class FailoverSource(Generic[PoolT]):
    """A stream of one of several servers, which counts as a call of it until it is closed."""

    def __init__(
        self,
        pool: FailoverPool[PoolT],
        begin: Callable[[PoolT, Options], Source],
    ) -> None:
        self._pool, self._begin = pool, begin
        self._attempts = Attempts(pool._balancer, pool._key)
        self._source: Source | None = None
        #: Whether it has a message of the server that has begun it.
        self._has_begun = False

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`."""
        source, self._source = self._source, None
        if source is not None:
            self._running.pop()
            source.close(has_ended=has_ended)

    async def begin(self, deadline: Deadline) -> None:
        """Begins it on one of the servers; on another one if it is not begun there."""
        pool = self._pool
        pool._servers.use_running_loop()
        self._deadline = deadline
        await self._begin_at(pool._pick(time.monotonic()) or await pool._first_member(deadline))

    async def next(self, deadline: Deadline) -> Message:
        """See `Source.next`."""
        while True:
            if (source := self._source) is None:
                raise closed_error()
            try:
                message = await source.next(deadline)
            except OSError as error:
                # The program may have closed it, which ends the wait.
                if self._has_begun or self._source is None:
                    raise
                found = await self._another(error)
                if found is None:
                    raise
            else:
                found = None
                if isinstance(message, _core.Reply) and not self._has_begun and is_refused(message):
                    found = await self._another(message)
                if found is None:
                    self._has_begun = True
                    return message
            self.close(has_ended=True)
            await self._begin_at(found)

    def poll(self) -> _core.Notification | None:
        """See `Source.poll`."""
        return self._source.poll() if self._source is not None and self._has_begun else None

    async def _begin_at(self, member: Member[PoolT]) -> None:
        options = self._pool._options
        while self._source is None:
            self._member, self._running = member, member.running
            # Before it has begun, so that streams of asyncio that begin together take all servers.
            self._running.append(None)
            try:
                at = options.at(member.address, options.timeout)
                source = self._begin(member.pool, at)
                await source.begin(self._deadline)
            except BaseException as error:
                self._running.pop()
                found = await self._another(error) if isinstance(error, OSError) else None
                if found is None:
                    raise
                member = found
            else:
                self._source = source

    async def _another(self, outcome: Outcome) -> Member[PoolT] | None:
        """Another server for it, if this one has not begun it."""
        verdict = self._pool._judge(self._attempts, self._member, outcome)
        return await self._pool._next_member(self._attempts, verdict, self._deadline)
