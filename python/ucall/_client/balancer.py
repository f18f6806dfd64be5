"""Picks the server for each call of a client with several addresses. It does no I/O.

The present and random numbers are arguments, so tests have a clock of their own.

| an address is | it gets | and becomes |
|---|---|---|
| up | calls: of two random addresses the one with fewer | resting, if it fails or drains |
| resting | a probe after each pause; calls only if none is up | starting, if it answers |
| starting | a share of the calls that grows for ten seconds; more if the others are busy | up |

An address that has replied to nothing for a second, while calls wait for it, is probed, too, and
rests if it does not answer: a process that is stopped and a network that drops packets report no
error. Pauses grow to ten seconds.

The servers of a group are those that have answered a broker. One that is missing in an answer may
have lost only its broker, so it stays for a minute of answers if it is not down.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, TypeVar

from ucall._client.address import Address

__all__ = ["MEMBERS_MAX", "Balancer", "Member", "RetryBudget"]

PoolT = TypeVar("PoolT")

#: Seconds until the first probe of an address that has failed, and the longest pause.
_PAUSE_FIRST_S = 0.1
_PAUSE_LAST_S = 10.0
#: Seconds without any reply after which an address with calls in flight is probed.
_SILENCE_S = 1.0
_SLOW_START_S = 10.0
#: The share of calls of an address that has just come up.
_SHARE_LEAST = 0.1
#: How many random pairs are drawn at once.
_PAIRS = 1024
#: Seconds between two inspections, between two resolutions, and between two after failures.
_INSPECTION_S = 1.0
_RESOLVE_S = 30.0
_RESOLVE_LEAST_S = 1.0
#: Seconds for which a member stays that is missing in the answers to a broker.
_MISSING_S = 60.0
#: The members of a group: any user of the broker may announce more.
MEMBERS_MAX = 4_096


class Member(Generic[PoolT]):
    """One address, and what is known of it."""

    __slots__ = (
        "address",
        "hash",
        "is_overloaded",
        "is_probing",
        "is_removed",
        "is_suspected",
        "is_up",
        "missing_since",
        "name",
        "pause_s",
        "pool",
        "replied_call",
        "reply_before",
        "rested_at",
        "rests_until",
        "running",
        "silent_since",
        "started_at",
        "was_running",
    )

    def __init__(self, address: Address, pool: PoolT) -> None:
        self.address = address
        self.name = str(address)
        self.pool = pool
        self.hash = hashlib.blake2b(self.name.encode(), digest_size=8)
        #: An entry for each call in flight: unlike `+=`, `append` and `pop` are atomic.
        self.running: list[None] = []
        self.is_up = True
        self.rested_at = -math.inf
        self.rests_until = 0.0
        #: Whether it rests because it has asked for that.
        self.is_overloaded = False
        self.pause_s = 0.0
        self.is_probing = False
        #: When its slow start began; ``None`` without one.
        self.started_at: float | None = None
        #: When the call began that it replied to last, now and at the last inspection.
        self.replied_call = self.reply_before = -math.inf
        #: Whether calls were in flight at the last inspection.
        self.was_running = False
        #: Since when it has replied to no call, as far as inspections know.
        self.silent_since = math.inf
        #: Whether a call was late.
        self.is_suspected = False
        #: Whether the name has this address no more.
        self.is_removed = False
        #: Since when it has been missing in the answers to a broker.
        self.missing_since: float | None = None

    def score(self, key: bytes) -> bytes:
        """Its rank for a key, by rendezvous hashing: without one address, the keys of the others
        stay where they are."""
        made = self.hash.copy()
        made.update(key)
        return made.digest()


class RetryBudget:
    """The calls that may be sent again: one in ten, and a hundred that are saved up."""

    EARNED = 0.1
    SAVED_MAX = 100.0

    __slots__ = ("saved",)

    def __init__(self) -> None:
        self.saved = self.SAVED_MAX

    def earn(self) -> None:
        """Earns for one call."""
        self.saved = min(self.saved + self.EARNED, self.SAVED_MAX)

    def spend(self) -> bool:
        """Spends one retry, if there is one."""
        has_one = self.saved >= 1
        if has_one:
            self.saved -= 1
        return has_one


class Balancer(Generic[PoolT]):
    """The addresses of a client.

    Args:
        make_pool: Makes the connections to an address, without opening any.
        random: Returns a random number from 0 up to 1.
        resolves: Whether the addresses are those of a name, which may change.
        members_max: How many of them a broker may report.
    """

    def __init__(
        self,
        make_pool: Callable[[Address], PoolT],
        random: Callable[[], float],
        *,
        resolves: bool,
        members_max: int = MEMBERS_MAX,
    ) -> None:
        self._make_pool = make_pool
        self._members_max = members_max
        self._random = random
        self.members: list[Member[PoolT]] = []
        self._up: list[Member[PoolT]] = []
        #: What calls go to while no address is up: the broker of a group that was resolved.
        self.fallback: Member[PoolT] | None = None
        #: Random pairs of the members that are up, without end, so that a call need not draw one;
        #: ``None`` if there are fewer than two, or a slow start.
        self.pairs: Iterator[tuple[Member[PoolT], Member[PoolT]]] | None = None
        self.budget = RetryBudget()
        self._resolve_at = 0.0 if resolves else math.inf
        self._resolved_at = -math.inf if resolves else math.inf
        #: When `poll_probes` or `poll_resolve` has something to do.
        self.next_due = 0.0

    def update(self, addresses: Iterable[Address], now: float) -> list[Member[PoolT]]:
        """Replaces the addresses, and returns the members that were removed."""
        known = {member.name: member for member in self.members}
        kept: dict[str, Member[PoolT]] = {}
        for address in addresses:
            name = str(address)
            if name in kept:
                continue
            is_known = name in known
            member = known.pop(name) if is_known else Member(address, self._make_pool(address))
            kept[name] = member
            if self.members and not is_known:
                member.started_at = now
        for member in known.values():
            member.is_removed, member.is_up = True, False
        self.members = list(kept.values())
        self._sort()
        return list(known.values())

    def pick(
        self,
        now: float,
        tried: Collection[Member[PoolT]] = (),
        key: bytes | None = None,
    ) -> Member[PoolT] | None:
        """The member for a call; ``None`` if all were tried, or there is none."""
        pairs = self.pairs
        if pairs is not None and not tried and key is None:
            one, other = next(pairs)
            return one if len(one.running) <= len(other.running) else other
        found = [member for member in self._up if member not in tried]
        if not found and self.fallback is not None and not self._has_overloaded():
            self._resolve_soon()
            return None if self.fallback in tried else self.fallback
        if not found:
            found = self._resting(tried)
        if key is not None and found:
            return max(found, key=lambda member: member.score(key))
        return self._least_of_two(found, now)

    def fail(self, member: Member[PoolT], now: float) -> None:
        """A member does not accept connections, has ended one with calls, or drains."""
        if member.is_up or member.is_probing:
            member.pause_s = min(max(member.pause_s * 2, _PAUSE_FIRST_S), _PAUSE_LAST_S)
            self._rest(member, now, self.jittered(member.pause_s))
        self._resolve_soon()

    def jittered(self, seconds: float) -> float:
        """A pause without a random part of up to half, so that clients do not return at once."""
        return seconds * (0.5 + self._random() / 2)

    def overload(self, member: Member[PoolT], now: float, seconds: float) -> None:
        """A member has asked for a pause."""
        if member.is_up:
            self._rest(member, now, seconds)
            member.is_overloaded = True

    def suspect(self, member: Member[PoolT]) -> None:
        """A call of a member was late: it is probed at the next call."""
        member.is_suspected = True
        self.next_due = 0.0

    def succeed(self, member: Member[PoolT], began: float) -> None:
        """A call has succeeded that began at this time."""
        member.replied_call = began
        if not member.is_up and began > member.rested_at:
            self._start(member, began)

    def poll_probes(self, now: float) -> list[Member[PoolT]]:
        """The members to probe now. Each expects a call of `probed`."""
        due = []
        for member in self.members:
            if member.is_probing:
                continue
            if member.is_up:
                self._end_slow_start(member, now)
                if self._is_silent(member, now) or member.is_suspected:
                    due.append(member)
            elif member.rests_until <= now and member.is_overloaded:
                self._start(member, None)
            elif member.rests_until <= now:
                due.append(member)
        for member in due:
            member.is_probing, member.is_suspected = True, False
        waits = [member.rests_until for member in self.members if not member.is_up]
        waits = [until for until in waits if until > now]
        self.next_due = min([now + _INSPECTION_S, self._resolve_at, *waits])
        self._sort()
        return due

    def probed(self, member: Member[PoolT], now: float, *, is_alive: bool) -> None:
        """A probe has ended."""
        if is_alive and not member.is_removed:
            member.silent_since = now
            if not member.is_up:
                self._start(member, now)
        else:
            self.fail(member, now)
        member.is_probing = False

    def poll_resolve(self, now: float) -> bool:
        """Whether to resolve the name now."""
        if now < self._resolve_at:
            return False
        self._resolved_at, self._resolve_at = now, now + _RESOLVE_S
        return True

    @property
    def is_resolved(self) -> bool:
        """Whether the name was resolved before."""
        return bool(self.members) or self.fallback is not None

    def with_missing(self, found: Iterable[Address], now: float) -> list[Address]:
        """The addresses that a broker has reported, and the known ones that may only have answered
        late. Known ones come first, so that new ones above the limit displace none."""
        reported = {str(address): address for address in found}
        kept: dict[str, Address] = {}
        for member in self.members:
            if member.name in reported:
                member.missing_since = None
            elif self._is_gone(member, now, has_answers=bool(reported)):
                continue
            kept[member.name] = member.address
        return list((kept | reported).values())[: self._members_max]

    def forget_calls(self) -> None:
        """Forgets calls and probes of another process or event loop."""
        for member in self.members:
            # Streams that are open then still count themselves out of the list of before.
            member.running = []
            member.is_probing = False

    def _resolve_soon(self) -> None:
        self._resolve_at = min(self._resolve_at, self._resolved_at + _RESOLVE_LEAST_S)
        self.next_due = min(self.next_due, self._resolve_at)

    def _is_gone(self, member: Member[PoolT], now: float, *, has_answers: bool) -> bool:
        """Whether a member that a broker does not report any more is dropped: if it is down for
        long, or missing for long while others answer, as another group may have its address."""
        if has_answers:
            if member.missing_since is None:
                member.missing_since = now
            if now - member.missing_since >= _MISSING_S:
                return True
        return not (member.is_up or member.is_overloaded or member.pause_s < _PAUSE_LAST_S)

    def _has_overloaded(self) -> bool:
        return any(member.is_overloaded for member in self.members)

    def _is_silent(self, member: Member[PoolT], now: float) -> bool:
        """Whether calls have waited for long, and none has had a reply since."""
        was_running, member.was_running = member.was_running, bool(member.running)
        has_replied = member.replied_call != member.reply_before
        if has_replied or not (member.running and was_running):
            member.reply_before, member.silent_since = member.replied_call, now
        return member.silent_since + _SILENCE_S <= now

    def _rest(self, member: Member[PoolT], now: float, seconds: float) -> None:
        member.is_up, member.is_overloaded, member.started_at = False, False, None
        member.rested_at, member.rests_until = now, now + seconds
        self.next_due = min(self.next_due, member.rests_until)
        self._sort()

    def _start(self, member: Member[PoolT], began: float | None) -> None:
        if not member.is_removed:
            member.is_up, member.is_overloaded, member.started_at = True, False, began
            self._sort()

    def _end_slow_start(self, member: Member[PoolT], now: float) -> None:
        if member.started_at is None or now - member.started_at >= _SLOW_START_S:
            member.started_at, member.pause_s = None, 0.0

    def _sort(self) -> None:
        # Other threads read these lists, so they are replaced and never changed.
        up = [member for member in self.members if member.is_up]
        if up == self._up and self.pairs is not None:
            return
        self._up, self.pairs = up, None
        if len(up) > 1 and all(member.started_at is None for member in up):
            self.pairs = itertools.cycle([self._two_of(up) for _ in range(_PAIRS)])

    def _resting(self, tried: Collection[Member[PoolT]]) -> list[Member[PoolT]]:
        """The members to try when none is up. One that has asked for a pause gets no call that was
        refused elsewhere."""
        found = [it for it in self.members if it not in tried and not it.is_overloaded]
        if found or tried:
            return found
        return sorted(self.members, key=lambda member: member.rests_until)[:1]

    def _two_of(self, members: list[Member[PoolT]]) -> tuple[Member[PoolT], Member[PoolT]]:
        first = int(self._random() * len(members))
        second = int(self._random() * (len(members) - 1))
        return members[first], members[second + (second >= first)]

    def _least_of_two(self, members: list[Member[PoolT]], now: float) -> Member[PoolT] | None:
        if len(members) < 2:
            return members[0] if members else None
        one, other = self._two_of(members)
        # A slow start must not make others queue: calls are compared by the share of each, too.
        share, other_share = self._share(one, now), self._share(other, now)
        load = (len(one.running) + 1) / share
        other_load = (len(other.running) + 1) / other_share
        if self._random() >= share and other_load <= load:
            return other
        if self._random() >= other_share and load <= other_load:
            return one
        return one if len(one.running) <= len(other.running) else other

    def _share(self, member: Member[PoolT], now: float) -> float:
        if member.started_at is None:
            return 1.0
        return max((now - member.started_at) / _SLOW_START_S, _SHARE_LEAST)
