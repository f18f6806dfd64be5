"""The states of a queue over JetStream, without a broker and without a clock."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from timing import Clock

from ucall import queue as nq
from ucall.queue.jetstream.deliveries import Deliveries, Delivery
from ucall.queue.jetstream.future import PutFuture
from ucall.queue.jetstream.payload import REPEATED
from ucall.queue.jetstream.pulls import (
    TRANSITIONS,
    Event,
    First,
    Idle,
    Paused,
    Pull,
    Pulls,
    Rest,
    State,
)
from ucall.queue.jetstream.sender import Sender

WAIT_S = 60
NOW = 100.0
#: When a pull that is sent now counts as lost, by the seconds that it waits.
LONG, SHORT = NOW + 2.5, NOW + 0.6
#: A pull of a single message, and one of the rest of a batch of ten.
ONE = Pull(1, 2.0)

#: The state before, the event, messages that the stream has left, the state after, and the pull.
STEPS: list[tuple[State, Event, int, State, Pull | None]] = [
    (Idle(), Event.WANTED, 0, First(LONG), ONE),
    (Idle(4), Event.WANTED, 0, Rest(4, SHORT), Pull(4, 0.1)),
    (Idle(99), Event.WANTED, 0, Rest(10, SHORT), Pull(10, 0.1)),
    (First(NOW + 1), Event.WANTED, 0, First(NOW + 1), None),
    (First(NOW), Event.WANTED, 0, First(LONG), ONE),
    (Rest(3, NOW + 1), Event.WANTED, 0, Rest(3, NOW + 1), None),
    (Rest(3, NOW), Event.WANTED, 0, First(LONG), ONE),
    (Paused(NOW + 1), Event.WANTED, 0, Paused(NOW + 1), None),
    (Paused(NOW), Event.WANTED, 0, First(LONG), ONE),
    (Idle(), Event.ARRIVED, 7, Idle(7), None),
    (First(NOW + 1), Event.ARRIVED, 0, Idle(), None),
    (First(NOW + 1), Event.ARRIVED, 4, Rest(4, SHORT), Pull(4, 0.1)),
    (First(NOW + 1), Event.ARRIVED, 99, Rest(9, SHORT), Pull(9, 0.1)),
    (Rest(3, NOW + 1), Event.ARRIVED, 7, Rest(2, NOW + 1), None),
    (Rest(1, NOW + 1), Event.ARRIVED, 7, Idle(7), None),
    (Paused(NOW + 1), Event.ARRIVED, 7, Paused(NOW + 1), None),
    (Idle(7), Event.ENDED, 0, Idle(), None),
    (First(NOW + 1), Event.ENDED, 0, Idle(), None),
    (Rest(3, NOW + 1), Event.ENDED, 0, Idle(), None),
    (Paused(NOW + 1), Event.ENDED, 0, Paused(NOW + 1), None),
    (Idle(7), Event.REFUSED, 0, Paused(NOW + 0.25), None),
    (First(NOW + 1), Event.REFUSED, 0, Paused(NOW + 0.25), None),
    (Rest(3, NOW + 1), Event.REFUSED, 0, Paused(NOW + 0.25), None),
    (Paused(NOW + 1), Event.REFUSED, 0, Paused(NOW + 0.25), None),
    (Idle(7), Event.RESET, 0, Idle(), None),
    (First(NOW + 1), Event.RESET, 0, Idle(), None),
    (Rest(3, NOW + 1), Event.RESET, 0, Idle(), None),
    (Paused(NOW + 1), Event.RESET, 0, Idle(), None),
]


def test_each_state_has_a_next_one_for_each_event() -> None:
    for before, event, there, after, pull in STEPS:
        pulls = Pulls(pause_s=0.25)
        pulls.state, pulls.batch = before, 10
        sent = pulls.step(event, NOW, there)
        assert (pulls.state, sent) == (after, pull), (before, event)
    tested = {(event, type(before)) for before, event, *_ in STEPS}
    states = {Idle, First, Rest, Paused}
    assert tested == {(event, state) for event in Event for state in states}
    assert {event: set(table) for event, table in TRANSITIONS.items()} == dict.fromkeys(
        Event, states
    )


def test_pulls_follow_the_pace_of_the_program() -> None:
    pulls, now, counts = Pulls(pause_s=0.25), NOW, []

    def work(seconds: float) -> None:
        """The program takes so long for each message of a stream without end."""
        nonlocal now
        pull = pulls.want(now)
        got = 0
        while pull is not None:
            counts.append(pull.messages)
            for _ in range(pull.messages):
                pull = pulls.step(Event.ARRIVED, now, 1000)
                got += 1
        now += got * seconds

    for _ in range(12):
        work(1e-5)
    # Twice as many each time, up to the most.
    assert counts == [*(2**power for power in range(9)), 256, 256, 256]
    counts.clear()
    for _ in range(4):
        work(0.019)
    assert counts == [256, 5, 5, 5]
    for _ in range(3):
        work(1.0)
    assert counts[4:] == [5, 1, 1]


def test_a_pull_is_due_once_the_one_before_is_lost() -> None:
    pulls = Pulls(pause_s=0.25)
    assert pulls.due_s(NOW) == 0
    assert pulls.want(NOW) == ONE
    assert pulls.due_s(NOW) == 2.5
    assert pulls.want(NOW + 2.4) is None
    assert pulls.want(NOW + 2.5) == ONE


def delivery(number: int) -> Delivery:
    return Delivery(f"reply.{number}", b"", {}, 1, number, number, 0)


def test_each_message_is_in_one_place() -> None:
    all = Deliveries()
    all.pulled.extend(map(delivery, range(5)))
    taken = [all.take(acknowledges=number == 0) for number in range(3)]
    assert [it.sequence for it in taken] == [0, 1, 2]
    all.acknowledge("reply.2")
    assert list(all.acknowledged) == ["reply.0", "reply.2"]
    assert (all.held(), all.is_held("reply.1"), all.is_held("reply.2")) == (
        ["reply.1"],
        True,
        False,
    )
    for reply in ("reply.0", "reply.2", "reply.3"):
        # Acknowledged before, or not handed out.
        with pytest.raises(KeyError):
            all.acknowledge(reply)
    assert all.give_back() == ["reply.3", "reply.4", "reply.1"]
    with pytest.raises(KeyError):
        all.acknowledge("reply.1")
    assert (list(all.pulled), all.held(), len(all.acknowledged)) == ([], [], 2)


@pytest.mark.parametrize("domain", ["", "hub.hash.", "_.hash."])
def test_the_broker_says_which_delivery_it_is(domain: str) -> None:
    token = ".token" if domain else ""
    reply = f"$JS.ACK.{domain}jobs.ucall.2.30.400.1700000000000000000.50{token}"
    message = SimpleNamespace(reply=reply, data=b"x", headers=None)
    assert Delivery.of(message) == Delivery(reply, b"x", {}, 2, 30, 400, 50)


@pytest.mark.parametrize("reply", ["_INBOX.1", "$JS.ACK.s.c.1", "$JS.ACK.s.c.x.1.1.1.1", "." * 8])
def test_a_message_of_another_client_is_no_delivery(reply: str) -> None:
    with pytest.raises(ValueError):
        Delivery.of(SimpleNamespace(reply=reply, data=b"", headers=None))


class _Sender:
    def __init__(self) -> None:
        self.withdrawn: list[Any] = []

    def withdraw(self, future: PutFuture) -> None:
        self.withdrawn.append(future)


def test_a_future_notifies_all_that_wait_for_it() -> None:
    sender: Any = _Sender()
    stored, refused, cancelled = (PutFuture(sender) for _ in range(3))
    calls: list[PutFuture] = []
    refused.add_done_callback(calls.append)
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        began = [threading.Event() for _ in range(2)]

        def wait(number: int, work: Any) -> Any:
            began[number].set()
            return work()

        waiting = [
            threads.submit(wait, 0, lambda: stored.result(WAIT_S)),
            threads.submit(wait, 1, lambda: concurrent.futures.wait([stored], WAIT_S).done),
        ]
        for event in began:
            assert event.wait(WAIT_S)
        assert stored.begin() and stored.running() and not stored.cancel()
        stored.finish(None)
        assert [it.result(WAIT_S) for it in waiting] == [None, {stored}]
    assert refused.begin()
    refused.finish(nq.FullError(None, "full"))
    assert calls == [refused] and isinstance(refused.exception(), nq.FullError)
    with pytest.raises(nq.FullError):
        refused.result()
    assert cancelled.cancel() and sender.withdrawn == [cancelled] and not cancelled.begin()


def test_a_future_that_nothing_waits_for_has_no_condition() -> None:
    sender: Any = _Sender()
    for error in (None, nq.FullError(None, "full")):
        future = PutFuture(sender)
        assert future.begin()
        future.finish(error)
        assert "condition" not in vars(future)
        assert future.done() and not future.running() and not future.cancelled()
        assert future.exception(0) is error
        calls: list[Any] = []
        future.add_done_callback(calls.append)
        assert calls == [future]
        assert concurrent.futures.wait([future], WAIT_S).done == {future}


def test_each_message_of_a_burst_is_sent_again_in_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes a second to send, and none is answered for five."""
    clock = Clock(monkeypatch, "ucall.queue.jetstream.sender")
    monkeypatch.setattr("ucall.queue.jetstream.session.start", lambda work: work.close())
    pauses = [1.5, 1.0]
    published: list[tuple[int, bool]] = []

    async def publish(_: str, __: bytes, ___: str, headers: dict[str, str]) -> None:
        published.append((int(headers["Nats-Msg-Id"].rpartition(":")[2]), REPEATED in headers))
        if REPEATED not in headers:
            clock.pass_by(1.0)

    async def next_change() -> None:
        if not pauses:
            raise EOFError
        clock.pass_by(pauses.pop(0))

    sender: Any = Sender(nq.CommunicatorOptions(broker=nq.BrokerOptions(topic="jobs")))
    sender._next_change = next_change
    sender._broker = SimpleNamespace(publish=publish, is_connected=True, max_payload=1 << 20)
    for _ in range(4):
        sender.put("a message")
    with pytest.raises(EOFError):
        asyncio.run(sender._send_all())
    first = [(number, False) for number in range(1, 5)]
    assert published == [*first, (1, True), (2, True)]
