"""Decides whether a call is sent again. It does no I/O.

| outcome | the server has | sent again |
|---|---|---|
| no connection, or none of its bytes was sent | not read it | yes |
| a drain that has read fewer requests | not read it | yes |
| -32002, -32003 | not begun it | yes, within the retry budget |
| -32007, a status above 499, a broken connection | perhaps begun it | if idempotent, within it |
| another reply, no reply in time | | no |
"""

from __future__ import annotations

import itertools
import json
import math
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ucall._client.balancer import Balancer, Member
from ucall._client.frames import PROBE
from ucall._openrpc.budget import DESCRIPTION_BYTES_MAX
from ucall.errors import ConnectionError, HTTPError, TimeoutError

if TYPE_CHECKING:
    from ucall._client.options import Options
    from ucall._core import Reply, Request

__all__ = [
    "CONNECT_S",
    "PROBE_S",
    "Attempts",
    "Idempotence",
    "Verdict",
    "is_alive",
    "is_refused",
    "probe_request",
]

PoolT = TypeVar("PoolT")

#: Seconds that one attempt to connect to one of several addresses may take.
CONNECT_S = 1.0
#: Seconds in which a server has to answer a probe.
PROBE_S = 1.0
_probe_ids = itertools.count(1)
#: Seconds after which the client requests the list of idempotent functions again.
_KNOWN_S = 60.0

_DRAINING, _OVERLOADED, _ABORTED = -32002, -32003, -32007
#: In the data of an error -32003 that a function has met, in `Context.subscribe`, or the caller.
_LIMITS_OF_CALLERS = frozenset({"max_subscriptions", "max_held_bytes", "max_calls_per_s"})
#: The pause without `retry_after_ms` or `Retry-After`, and the longest that they may ask for.
_UNAVAILABLE_S = 1.0
_RETRY_AFTER_MAX_S = 30.0
#: Seconds to wait before each further round over all addresses.
_ROUND_PAUSES_S = (0.1, 0.3)


class Verdict(Enum):
    """What becomes of a call after an attempt."""

    DONE = "the outcome is the caller's"
    RESEND = "the server has not begun it"
    RESEND_IF_IDEMPOTENT = "the server may have begun it"


class Attempts(Generic[PoolT]):
    """The attempts of one call, after the first has failed.

    Args:
        balancer: The addresses.
        key: The key that picks one.
    """

    def __init__(self, balancer: Balancer[PoolT], key: bytes | None) -> None:
        self._balancer = balancer
        self._key = key
        self._tried: list[Member[PoolT]] = []
        self._pauses = iter(_ROUND_PAUSES_S)

    def judge(self, member: Member[PoolT], outcome: Reply | Exception, now: float) -> Verdict:
        """Takes the outcome of an attempt, and reports it to the balancer."""
        self._tried.append(member)
        if isinstance(outcome, TimeoutError | ConnectionError):
            return self._judge_failure(member, outcome, now)
        if isinstance(outcome, Exception):
            return Verdict.DONE
        error = _error_of(outcome)
        code = error.get("code")
        if code == _ABORTED:
            return Verdict.RESEND_IF_IDEMPOTENT
        if code == _DRAINING:
            self._balancer.fail(member, now)
        elif code == _OVERLOADED:
            self._balancer.overload(member, now, _retry_after_s(error))
        else:
            return Verdict.DONE
        return Verdict.RESEND if self._balancer.budget.spend() else Verdict.DONE

    def next(self, now: float) -> tuple[Member[PoolT] | None, float]:
        """The member for the next attempt, and the seconds to wait before it. When all were tried,
        another round follows a pause; ``None`` after the last."""
        member = self._balancer.pick(now, self._tried, self._key)
        if member is not None:
            return member, 0.0
        pause = next(self._pauses, None)
        if pause is None:
            return None, 0.0
        self._tried.clear()
        member = self._balancer.pick(now, self._tried, self._key)
        if member is not None and member.is_overloaded:
            member = None
        return member, self._balancer.jittered(pause) if member else 0.0

    def _judge_failure(
        self, member: Member[PoolT], error: TimeoutError | ConnectionError, now: float
    ) -> Verdict:
        balancer = self._balancer
        if isinstance(error, HTTPError):
            if error.status < 500:
                return Verdict.DONE
            # A server that accepts no WebSocket may be back at any moment.
            if error.status == 503 and error.may_have_run:
                seconds = _UNAVAILABLE_S if error.retry_after_s is None else error.retry_after_s
                balancer.overload(member, now, min(seconds, _RETRY_AFTER_MAX_S))
            else:
                balancer.fail(member, now)
        elif isinstance(error, TimeoutError) and not error._was_connecting:
            balancer.suspect(member)
            return Verdict.DONE
        else:
            balancer.fail(member, now)
        return Verdict.RESEND_IF_IDEMPOTENT if error.may_have_run else Verdict.RESEND


class Idempotence:
    """The functions that are declared idempotent, by ``rpc.discover``. A description that is too
    long declares none."""

    def __init__(self) -> None:
        self._methods: frozenset[str] = frozenset()
        self._learned_at = -math.inf

    def is_stale(self, now: float) -> bool:
        """Whether a server should be asked."""
        return self._learned_at + _KNOWN_S < now

    def learn(self, reply: Reply, now: float) -> None:
        """Takes the reply to ``rpc.discover``. Servers without it have no idempotent functions."""
        document = None
        if not reply.is_error and len(reply.text) <= DESCRIPTION_BYTES_MAX:
            with suppress(ValueError):  # Such as a number of too many digits.
                document = reply.result()
        methods = document.get("methods") if isinstance(document, dict) else None
        found = [it for it in methods or () if isinstance(it, dict) and it.get("x-idempotent")]
        self._methods = frozenset(it["name"] for it in found if isinstance(it.get("name"), str))
        self._learned_at = now

    def allows(self, request: Request) -> bool:
        """Whether all calls of a request are idempotent."""
        document = json.loads(request.document)
        calls = document if isinstance(document, list) else [document]
        return all(call["method"] in self._methods for call in calls)


def probe_request(options: Options, method: str = PROBE) -> tuple[Request, str]:
    """A call of the client itself, and its id, which no other call has."""
    id = f"ucall-probe-{next(_probe_ids)}"
    return options.writer.without_frames().call(method, (), None, id), id


def is_refused(reply: Reply) -> bool:
    """Whether the server has not begun the call, or has aborted it."""
    return _error_of(reply).get("code") in (_DRAINING, _OVERLOADED, _ABORTED)


def is_alive(outcome: Reply | Exception) -> bool:
    """Whether the outcome of a probe is that of a server which takes calls."""
    if isinstance(outcome, Exception):
        return isinstance(outcome, HTTPError) and outcome.status < 500
    return _error_of(outcome).get("code") != _DRAINING


def _error_of(reply: Reply) -> dict[str, Any]:
    """The error of a reply, unless a function has met it, or its caller. That of a batch is its
    first one, if all calls in it were refused."""
    if reply.is_batch:
        # Only the replies to refused calls need a closer look.
        if b'"code":-3200' not in reply.text.replace(b" ", b""):
            return {}
        errors = [_error_of(part) for part in reply.split()]
        codes = {error.get("code") for error in errors}
        return errors[0] if codes <= {_DRAINING, _OVERLOADED} else {}
    error = reply.error() if reply.is_error else None
    if not isinstance(error, dict) or not _LIMITS_OF_CALLERS.isdisjoint(_data(error)):
        return {}
    return error


def _data(error: dict[str, Any]) -> dict[str, Any]:
    data = error.get("data")
    return data if isinstance(data, dict) else {}


def _retry_after_s(error: dict[str, Any]) -> float:
    millis = _data(error).get("retry_after_ms")
    if isinstance(millis, int | float) and millis > 0:
        return min(millis / 1000, _RETRY_AFTER_MAX_S)
    return _UNAVAILABLE_S
