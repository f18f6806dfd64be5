"""When a server of a queue over JetStream pulls, and how many messages, without I/O.

One pull is in flight at a time. `TRANSITIONS` has the next state for each event and state. A pull
counts as lost after its time, because a broker that is killed forgets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

__all__ = ["TRANSITIONS", "Event", "First", "Idle", "Paused", "Pull", "Pulls", "Rest", "State"]

#: Messages that one pull asks for, at most.
BATCH_MAX = 256
#: Seconds of work that one pull asks for, and for which it waits if the stream has less.
AHEAD_S = 0.1
#: Seconds that a pull of a single message waits. It takes messages for as long as it waits.
FIRST_S = 2.0
#: Seconds after the end of a pull in which the broker reports it.
REPORT_S = 0.5


@dataclass(frozen=True, slots=True)
class Idle:
    """No pull is in flight."""

    #: Messages that the stream had for this group when it delivered the last one.
    there: int = 0


@dataclass(frozen=True, slots=True)
class First:
    """A pull of a single message is in flight."""

    until: float


@dataclass(frozen=True, slots=True)
class Rest:
    """A pull of messages that the stream had is in flight, and some are to come."""

    count: int
    until: float


@dataclass(frozen=True, slots=True)
class Paused:
    """The broker has refused a pull."""

    until: float


State = Idle | First | Rest | Paused


class Event(Enum):
    #: The program waits for a message, and has none.
    WANTED = auto()
    #: A message has arrived.
    ARRIVED = auto()
    #: The broker reports the end of a pull: its time is over, or there are no messages.
    ENDED = auto()
    #: The broker has refused a pull, or it could not be sent.
    REFUSED = auto()
    #: The connection or the group is another one, which knows no pull.
    RESET = auto()


class Pull(NamedTuple):
    """A request to send to the broker."""

    messages: int
    seconds: float


class Pulls:
    """The state, and the pace of the program, by which pulls get longer and shorter.

    Args:
        pause_s: Seconds without pulls after the broker has refused one.
    """

    def __init__(self, pause_s: float) -> None:
        self.state: State = Idle()
        self.pause_s = pause_s
        #: Messages that the next pull asks for, if the stream has as many.
        self.batch = 1
        #: When a message has arrived last.
        self.arrived_at = 0.0

    def due_s(self, now: float) -> float:
        """Seconds until `want` may return a pull."""
        return 0.0 if isinstance(self.state, Idle) else max(0.0, self.state.until - now)

    def want(self, now: float) -> Pull | None:
        """The program waits for a message; returns the pull to send for it, if it is due."""
        if not self.due_s(now):
            took_s = max(now - self.arrived_at, 1e-6)
            # At most twice as many as the last time.
            batch = min(2 * self.batch, int(self.batch * AHEAD_S / took_s))
            self.batch = max(1, min(BATCH_MAX, batch))
        return self.step(Event.WANTED, now)

    def step(self, event: Event, now: float, there: int = 0) -> Pull | None:
        """Handles an event; returns the pull to send, if any.

        Args:
            there: Messages that the stream has left for the group, if one has arrived.
        """
        before = self.state
        self.state = after = TRANSITIONS[event][type(before)](before, self, now, there)
        if event is Event.ARRIVED:
            self.arrived_at = now
        if type(after) is Rest and type(before) is not Rest:
            return Pull(after.count, AHEAD_S)
        return Pull(1, FIRST_S) if type(after) is First and after is not before else None


_Transition = Callable[[Any, Pulls, float, int], State]


def _idle(_state: State, _pulls: Pulls, _now: float, there: int) -> State:
    return Idle(there)


def _same(state: State, _pulls: Pulls, _now: float, _there: int) -> State:
    return state


def _pause(_state: State, pulls: Pulls, now: float, _there: int) -> State:
    return Paused(now + pulls.pause_s)


def _begin(state: Idle, pulls: Pulls, now: float, _there: int) -> State:
    if state.there:
        return Rest(min(state.there, pulls.batch), now + AHEAD_S + REPORT_S)
    return First(now + FIRST_S + REPORT_S)


def _begin_again(state: First | Rest | Paused, _pulls: Pulls, now: float, _there: int) -> State:
    return First(now + FIRST_S + REPORT_S) if now >= state.until else state


def _take_first(_state: First, pulls: Pulls, now: float, there: int) -> State:
    count = min(there, pulls.batch - 1)
    return Rest(count, now + AHEAD_S + REPORT_S) if count else Idle(there)


def _take(state: Rest, _pulls: Pulls, _now: float, there: int) -> State:
    return Rest(state.count - 1, state.until) if state.count > 1 else Idle(there)


TRANSITIONS: dict[Event, dict[type[State], _Transition]] = {
    Event.WANTED: {Idle: _begin, First: _begin_again, Rest: _begin_again, Paused: _begin_again},
    Event.ARRIVED: {Idle: _idle, First: _take_first, Rest: _take, Paused: _same},
    Event.ENDED: {Idle: _idle, First: _idle, Rest: _idle, Paused: _same},
    Event.REFUSED: {Idle: _pause, First: _pause, Rest: _pause, Paused: _pause},
    Event.RESET: {Idle: _idle, First: _idle, Rest: _idle, Paused: _idle},
}
