"""The connections of a synchronous client to several addresses.

A call that goes well costs a choice and two counts. Everything else is in `balancer` and `resend`;
here are the sockets, the pauses and the threads, which exist only while they probe or resolve.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from ucall import _core, _forks
from ucall._client.balancer import Balancer, Member
from ucall._client.base import SUBSCRIPTIONS_REFUSED
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
from ucall._client.resolve import resolve
from ucall._client.sockets import Deadline, closed_error, connect_error, not_sent, timeout_error
from ucall.errors import ConnectionError

if TYPE_CHECKING:
    from typing import Never

    from ucall._client.address import Address, Addresses
    from ucall._client.hedge import Hedge
    from ucall._client.inbox import Message
    from ucall._client.options import Options
    from ucall._client.pool import Pool
    from ucall._client.streams import Source
    from ucall._nats.group import Group

__all__ = ["BalancedPool"]

Outcome: TypeAlias = "_core.Reply | Exception"


class _Servers:
    """The addresses of a client, which clients with other options share."""

    def __init__(self, addresses: Addresses, make_pool: Callable[[Address], Pool]) -> None:
        self.addresses = addresses
        self.balancer = Balancer(make_pool, random.random, resolves=addresses.resolves)
        self.idempotence = Idempotence()
        # Guards the balancer, except for what `BalancedPool.exchange` does.
        self.lock = threading.Lock()
        if not addresses.resolves:
            self.balancer.update(addresses.list, time.monotonic())
        #: The servers by NATS, and what calls go to while none is reached directly.
        self.group: Group | None = None
        self.fallback: Member[Any] | None = None
        _forks.register(self)

    def use_group(self, group: Group) -> None:
        """Finds the servers by NATS."""
        from ucall._nats.group import BrokerPool

        self.group, self.fallback = group, Member(self.addresses.first, BrokerPool(group))
        weakref.finalize(self, group.close).atexit = False

    def resolve(self, timeout: float | None = None) -> None:
        """Resolves the name again. Keeps the known addresses if that fails.

        Args:
            timeout: Seconds in which a broker has to answer. DNS has its own limit.
        """
        if self.group is None:
            found = resolve(self.addresses.first)
        else:
            from ucall._nats.connection import start

            found = start(self.group.discover(timeout)).result()
        now = time.monotonic()
        with self.lock:
            if self.fallback is not None:
                found = self.balancer.with_missing(found, now)
                self.balancer.fallback = self.fallback
            removed = self.balancer.update(found, now)
        for member in removed:
            member.pool.close_idle()

    def resolve_in_background(self) -> None:
        def run() -> None:
            with suppress(OSError, UnicodeError):
                self.resolve()

        threading.Thread(target=run, name="ucall-client-resolve", daemon=True).start()

    def abandon(self) -> None:
        """Forgets what the threads of the parent of this process have begun."""
        self.lock = threading.Lock()
        self.balancer.forget_calls()


class BalancedPool:
    """Connections to several servers, with the interface of `ucall._client.pool.Pool`."""

    def __init__(self, servers: _Servers, options: BalancedOptions, hedge: Hedge | None) -> None:
        self._servers = servers
        self._balancer = servers.balancer
        self._options = options
        self._key = options.key
        self._is_http = options.address.is_http
        self._writers: dict[Member[Pool], _core.RequestWriter] = {}
        self._hedge = hedge

    @classmethod
    def of(
        cls,
        addresses: Addresses,
        options: Options,
        make_pool: Callable[[Options, float], Pool],
        *,
        hedges: bool,
        group: Group | None,
    ) -> BalancedPool:
        """Connections to these addresses, each of which gets a pool."""
        assert isinstance(options, BalancedOptions)

        def make(address: Address) -> Pool:
            return make_pool(options.at(address, options.timeout), CONNECT_S)

        hedge = None
        if hedges:
            from ucall._client.hedge import Hedge

            hedge = Hedge()
        servers = _Servers(addresses, make)
        if group is not None:
            servers.use_group(group)
        return cls(servers, options, hedge)

    def for_options(self, options: BalancedOptions) -> BalancedPool:
        """The pool of a client with other options, with the same connections."""
        return BalancedPool(self._servers, options, self._hedge)

    def exchange(
        self, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends a request to one of the servers, and returns its reply. See `Pool.exchange`."""
        if self._hedge is not None:
            return self._exchange_hedged(self._hedge, request, ids, timeout)
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
            is_first, deadline = not balancer.is_resolved, Deadline(timeout, began)
            member = self._pick(began, deadline)
            if is_first or member is balancer.fallback:
                return self._exchange_from(member, request, ids, deadline)
        running = member.running
        running.append(None)
        try:
            if self._is_http:
                writer = self._writers.get(member) or self._writer_of(member)
                reply = member.pool.exchange(writer.rewrite(request), ids, timeout)
            else:
                reply = member.pool.exchange(request, ids, timeout)
        except OSError as error:
            outcome: Outcome = error
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
        return self._exchange_again(member, outcome, request, ids, Deadline(timeout, began))

    def close(self) -> None:
        """Closes the idle connections; those in use close after their exchange."""
        if self._hedge is not None:
            self._hedge.close()
        for member in self._balancer.members:
            member.pool.close()
        if self._servers.group is not None:
            self._servers.group.close()

    def source(self, begin: Callable[[Pool, Options], Source]) -> Source:
        """Begins a stream on one of the servers; on another one if it is not begun there.

        Raises:
            ucall.ConnectionError, ucall.TimeoutError: See `Pool.exchange`.
        """
        return _BalancedSource(self, begin, Deadline(self._options.timeout))

    def channel(self, *, for_calls: bool = False) -> Never:
        """Raises ``ValueError``: messages come from the server that was subscribed to."""
        raise ValueError(SUBSCRIPTIONS_REFUSED)

    def _exchange_hedged(
        self, hedge: Hedge, request: _core.Request, ids: Collection[object], timeout: float | None
    ) -> _core.Reply:
        """Sends the request to a second server if the first is slow, and takes the first reply."""
        began, deadline, delay = time.monotonic(), Deadline(timeout), hedge.latencies.p95
        tried: list[Member[Pool]] = []

        def attempt() -> _core.Reply:
            member = self._pick(time.monotonic(), deadline, tried)
            tried.append(member)
            return self._exchange_from(member, request, ids, deadline)

        if delay is None or not self._is_idempotent(request, deadline):
            reply = attempt()
        else:
            reply = hedge.run(attempt, delay, self._balancer.budget.spend)
        hedge.latencies.add(time.monotonic() - began)
        return reply

    def _pick(
        self, now: float, deadline: Deadline, tried: Collection[Member[Pool]] = ()
    ) -> Member[Pool]:
        if now >= self._balancer.next_due:
            self._run_due(now)
        member = self._balancer.pick(now, tried, self._key) or self._balancer.pick(now)
        return self._first_member(deadline) if member is None else member

    def _exchange_from(
        self,
        member: Member[Pool],
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> _core.Reply:
        """Sends a request to this member first, with the time that is left."""
        outcome = self._attempt(member, request, ids, deadline)
        if isinstance(outcome, Exception) or is_refused(outcome):
            return self._exchange_again(member, outcome, request, ids, deadline)
        self._balancer.budget.earn()
        return outcome

    def _exchange_again(
        self,
        member: Member[Pool],
        outcome: Outcome,
        request: _core.Request,
        ids: Collection[object],
        deadline: Deadline,
    ) -> _core.Reply:
        """Goes on after an attempt that has failed."""
        attempts = Attempts(self._balancer, self._key)
        while self._may_resend(attempts, member, outcome, request, deadline):
            found = self._next_member(attempts, deadline)
            if found is None:
                break
            member = found
            outcome = self._attempt(member, request, ids, deadline)
        if isinstance(outcome, Exception):
            raise outcome from None
        return outcome

    def _may_resend(
        self,
        attempts: Attempts[Pool],
        member: Member[Pool],
        outcome: Outcome,
        request: _core.Request,
        deadline: Deadline,
    ) -> bool:
        with self._servers.lock:
            verdict = attempts.judge(member, outcome, time.monotonic())
        if verdict is Verdict.RESEND_IF_IDEMPOTENT:
            return self._may_repeat(request, deadline)
        return verdict is Verdict.RESEND

    def _next_member(self, attempts: Attempts[Pool], deadline: Deadline) -> Member[Pool] | None:
        now = time.monotonic()
        if now >= self._balancer.next_due:
            self._run_due(now)
        with self._servers.lock:
            member, pause = attempts.next(now)
        if pause:
            time.sleep(pause)
        return None if deadline.is_over() else member

    def _attempt(
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
                reply: _core.Reply = fallback.pool.exchange(
                    request, ids, left, lambda: self._may_repeat(request, deadline)
                )
            else:
                reply = member.pool.exchange(request, ids, left)
        except TimeoutError as error:
            return error if hasattr(error, "may_have_run") else timeout_error(deadline.seconds)
        except OSError as error:
            return error
        finally:
            member.running.pop()
        if not is_refused(reply):
            self._succeed(member, began)
        return reply

    def _may_repeat(self, request: _core.Request, deadline: Deadline) -> bool:
        return self._is_idempotent(request, deadline) and self._balancer.budget.spend()

    def _is_idempotent(self, request: _core.Request, deadline: Deadline) -> bool:
        if self._options.idempotent:
            return True
        idempotence = self._servers.idempotence
        if idempotence.is_stale(time.monotonic()):
            self._discover(deadline)
        return idempotence.allows(request)

    def _discover(self, deadline: Deadline) -> None:
        """Asks the servers which functions are idempotent, until one of them answers."""
        now = time.monotonic()
        tried: list[Member[Pool]] = []
        while (member := self._balancer.pick(now, tried)) is not None and not deadline.is_over():
            tried.append(member)
            with suppress(OSError):
                left = deadline.at_most(PROBE_S).left()
                options = self._options.at(member.address, left)
                request, id = probe_request(options, "rpc.discover")
                reply = member.pool.exchange(request, (id,), left)
                return self._servers.idempotence.learn(reply, now)

    def _writer_of(self, member: Member[Pool]) -> _core.RequestWriter:
        made = self._options.at(member.address, self._options.timeout).writer
        # Other threads read it, so it is replaced.
        kept = {it: writer for it, writer in self._writers.items() if not it.is_removed}
        self._writers = {**kept, member: made}
        return made

    def _succeed(self, member: Member[Pool], began: float) -> None:
        with self._servers.lock:
            self._balancer.succeed(member, began)

    def _first_member(self, deadline: Deadline) -> Member[Pool]:
        """Resolves the name for the first call."""
        address = self._options.address
        try:
            self._servers.resolve(deadline.left())
        except ConnectionError:  # No broker accepts the connection.
            raise
        except (OSError, UnicodeError) as error:
            raise connect_error(address, error, deadline.seconds) from None
        member = self._balancer.pick(time.monotonic(), (), self._key)
        if member is None:
            raise not_sent(ConnectionError(f"cannot connect to {address.name}: it has no address"))
        return member

    def _run_due(self, now: float) -> None:
        """Begins the probes and the resolution that are due."""
        servers = self._servers
        with servers.lock:
            due = self._balancer.poll_probes(now)
            resolves = self._balancer.poll_resolve(now) and self._balancer.is_resolved
        for member in due:
            run = self._probe
            threading.Thread(
                target=run, args=(member,), name="ucall-client-probe", daemon=True
            ).start()
        if resolves:
            servers.resolve_in_background()

    def _probe(self, member: Member[Pool]) -> None:
        if not member.is_up:
            member.pool.close_idle()
        request, id = probe_request(self._options.at(member.address, PROBE_S))
        outcome: Outcome
        try:
            outcome = member.pool.exchange(request, (id,), PROBE_S)
        except OSError as error:
            outcome = error
        with self._servers.lock:
            self._balancer.probed(member, time.monotonic(), is_alive=is_alive(outcome))


class _BalancedSource:
    """A stream of one of the servers, which counts as a call of it until it is closed."""

    def __init__(
        self, pool: BalancedPool, begin: Callable[[Pool, Options], Source], deadline: Deadline
    ) -> None:
        self._pool, self._begin, self._deadline = pool, begin, deadline
        self._attempts = Attempts(pool._balancer, pool._key)
        self._member = pool._pick(time.monotonic(), deadline)
        self._source: Source | None = None
        #: Whether it has a message of the server that has begun it.
        self._has_begun = False
        self._open()

    def next(self) -> Message:
        """See `Source.next`."""
        while True:
            if (source := self._source) is None:
                raise closed_error()
            try:
                message = source.next()
            except OSError as error:
                if self._source is None or self._has_begun or not self._may_move(error):
                    raise
            else:
                if (
                    self._has_begun
                    or not isinstance(message, _core.Reply)
                    or not is_refused(message)
                    or not self._may_move(message)
                ):
                    self._has_begun = True
                    return message
            self._open()

    def close(self, *, has_ended: bool) -> None:
        """See `Source.close`."""
        source, self._source = self._source, None
        if source is not None:
            self._running.pop()
            source.close(has_ended=has_ended)

    def _open(self) -> None:
        """Sends the request."""
        options = self._pool._options
        while self._source is None:
            member = self._member
            try:
                self._source = self._begin(member.pool, options.at(member.address, options.timeout))
            except OSError as error:
                if not self._may_move(error):
                    raise
            else:
                self._running = member.running
                self._running.append(None)

    def _may_move(self, outcome: Outcome) -> bool:
        """Moves to another server, if this one has not begun the stream."""
        pool = self._pool
        with pool._servers.lock:
            verdict = self._attempts.judge(self._member, outcome, time.monotonic())
        if verdict is not Verdict.RESEND:
            return False
        found = pool._next_member(self._attempts, self._deadline)
        if found is None:
            return False
        self.close(has_ended=True)
        self._member = found
        return True
