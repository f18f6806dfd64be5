"""The checker of histories: it accepts what a store may answer, and finds what it may not."""

from __future__ import annotations

import random

import pytest
from linearizability import UNANSWERED, Call, State, unexplained

# Each call: its method and params, when it began and ended, its answer.
LINEARIZABLE = {
    "one after another": [
        Call("get", (), 0, 1, None),
        Call("put", (7,), 2, 3, 1),
        Call("get", (), 4, 5, (7, 1)),
        Call("delete", (), 6, 7, True),
        Call("delete", (), 8, 9, False),
        Call("cas", (0, 5), 10, 11, 4),
        Call("increment", (2,), 12, 13, 7),
        Call("get", (), 14, 15, (7, 5)),
    ],
    "at the same time, in the other order": [
        Call("put", (1,), 0, 10, 2),
        Call("put", (2,), 1, 9, 1),
        Call("get", (), 11, 12, (1, 2)),
    ],
    "two cas, of which one wins": [
        Call("put", (1,), 0, 1, 1),
        Call("cas", (1, 2), 2, 5, None),
        Call("cas", (1, 3), 3, 4, 2),
    ],
    "an unanswered call has run": [
        Call("put", (1,), 0),
        Call("get", (), 5, 6, (1, 3)),
    ],
    "an unanswered call has run late": [
        Call("increment", (1,), 0),
        Call("get", (), 5, 6, None),
        Call("increment", (1,), 7, 8, 2),
    ],
    "increments by 0 change the version": [
        Call("increment", (5,), 0, 1, 5),
        Call("increment", (0,), 2, 9, 5),
        Call("get", (), 3, 4, (5, 1)),
        Call("get", (), 5, 6, (5, 2)),
    ],
    "a cas fails because an increment took another version": [
        Call("increment", (5,), 0, 1, 5),
        Call("cas", (4, 6), 2, 3, None),
        Call("get", (), 4, 5, (5, 8)),
    ],
    "an unanswered call has not run": [
        Call("delete", (), 0),
        Call("put", (1,), 1, 2, 1),
        Call("get", (), 5, 6, (1, 1)),
    ],
}

WRONG = {
    "a lost write": [Call("put", (1,), 0, 1, 1), Call("get", (), 2, 3, None)],
    "an old value": [
        Call("put", (1,), 0, 1, 1),
        Call("put", (2,), 2, 3, 2),
        Call("get", (), 4, 5, (1, 1)),
    ],
    "a value that was never written": [Call("put", (1,), 0), Call("get", (), 2, 3, (2, 1))],
    "two increments with one sum": [
        Call("increment", (1,), 0, 9, 1),
        Call("increment", (1,), 1, 8, 1),
    ],
    "an increment that ran twice": [
        Call("increment", (1,), 0, 1, 1),
        Call("get", (), 2, 3, (2, 2)),
    ],
    "an unanswered increment that ran twice": [
        Call("increment", (1,), 0),
        Call("get", (), 2, 3, (2, 2)),
    ],
    "two cas that both win": [
        Call("put", (1,), 0, 1, 1),
        Call("cas", (1, 2), 2, 5, 2),
        Call("cas", (1, 3), 3, 4, 3),
    ],
    "a cas that fails at its version": [
        Call("put", (1,), 0, 1, 1),
        Call("cas", (1, 2), 2, 3, None),
    ],
    "a cas of an absent key that fails": [Call("cas", (0, 2), 2, 3, None)],
    "a cas that wins after an increment": [
        Call("put", (1,), 0, 1, 1),
        Call("increment", (1,), 2, 3, 2),
        Call("cas", (1, 9), 4, 5, 3),
    ],
    "a version that is given twice": [Call("put", (1,), 0, 1, 1), Call("put", (1,), 2, 3, 1)],
    "another version for the same write": [
        Call("put", (1,), 0, 1, 1),
        Call("get", (), 2, 3, (1, 2)),
    ],
    "a delete that finds what is gone": [
        Call("put", (1,), 0, 1, 1),
        Call("delete", (), 2, 3, True),
        Call("delete", (), 4, 5, True),
    ],
    "a write that returns before it was called": [
        Call("get", (), 0, 1, (1, 1)),
        Call("put", (1,), 2, 3, 1),
    ],
    "a value that returns": [
        Call("put", (1,), 0, 9, 1),
        Call("put", (2,), 0, 9, 2),
        Call("get", (), 1, 2, (2, 2)),
        Call("get", (), 3, 4, (1, 1)),
    ],
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_a_history_with_an_order_is_accepted(name: str) -> None:
    assert unexplained(LINEARIZABLE[name], State()) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_history_without_an_order_is_found(name: str) -> None:
    assert unexplained(WRONG[name], State()) != []


def test_the_first_calls_without_an_order_are_returned() -> None:
    calls = WRONG["two increments with one sum"]
    later = Call("increment", (1,), 10, 11, 3)
    assert len(unexplained([*calls, later], State())) == 1
    assert unexplained([*calls, later], State())[0] in calls


def history(chance: random.Random, clients: int, count: int) -> list[Call]:
    """Calls of concurrent clients of a store that is linearizable; some get no answer."""
    calls, state, version = [], State(), 0
    free_at = [0.0] * clients
    for moment in range(count):
        # The call takes effect at `moment`, between its beginning and its end.
        client = min(range(clients), key=lambda one: (free_at[one] > moment, chance.random()))
        if free_at[client] > moment:
            continue
        began = chance.uniform(free_at[client], moment)
        ended = moment + chance.uniform(0, 3 * clients)
        method = chance.choice(["get", "put", "delete", "cas", "increment"])
        number, expected = chance.randrange(9), state.version if state.value is not None else 0
        if method == "cas" and chance.random() < 0.5:
            expected = -1
        params = {"put": (number,), "cas": (expected, number), "increment": (number,)}
        found, value, answer = state.value, state.value, None
        wins = expected != -1
        if method in ("put", "cas", "increment") and wins:
            version += 1
            value = number + (found or 0) * (method == "increment")
            answer = value if method == "increment" else version
        elif method == "delete":
            value, answer = None, found is not None
        elif method == "get" and found is not None:
            answer = (found, state.version)
        has_written = method in ("put", "cas", "increment") and wins
        state = State(value, version if has_written else state.version)
        call = Call(method, params.get(method, ()), began, ended, answer)
        if chance.random() < 0.02:
            call.ended, call.answer = float("inf"), UNANSWERED
        free_at[client] = ended
        calls.append(call)
    return calls


@pytest.mark.parametrize("seed", range(10))
def test_histories_of_a_linearizable_store_are_accepted(seed: int) -> None:
    assert unexplained(history(random.Random(seed), 8, 300), State()) == []
