"""Shared connections of the synchronous client and of asyncio, without a server."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import ucall
from harness import started
from ucall import _core
from ucall._client.aio_connection import SharedConnection
from ucall._client.blocking import run
from ucall._client.deadline import Deadline
from ucall._client.inbox import Inbox, Router
from ucall._client.link import Link
from ucall._client.turn import Turn
from ucall.client import Client


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def request() -> _core.Request:
    with Client("tcp://127.0.0.1:1") as client:
        return client._options.writer.call("get", (), None, 1)


def link_of(end: socket.socket) -> Link:
    return Link(end, Router([], 1 << 20), 1000, None, None)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long links have waited for room. A socket has none."""
    seconds: list[float | None] = []
    monkeypatch.setattr(Link, "_wait_for", lambda *given: bool(seconds.append(given[-1])))
    return seconds


def fill(end: socket.socket) -> None:
    end.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            end.send(bytes(65536))


def read(end: socket.socket) -> bytes:
    """All that has arrived."""
    end.setblocking(False)
    received = b""
    with suppress(BlockingIOError):
        while data := end.recv(1 << 20):
            received += data
    return received


def test_a_request_of_which_nothing_was_sent_is_not_counted(
    ends: tuple[socket.socket, socket.socket], waits: list[float | None]
) -> None:
    """A server that drains says how many requests it has read."""
    link = link_of(ends[0])
    fill(ends[0])
    with pytest.raises(ucall.TimeoutError) as caught:
        link.start(request(), [1], Deadline(5))
    assert not caught.value.may_have_run
    assert link.error is None and link._requests_sent == 0 and len(waits) == 1


def test_a_cancel_and_a_pong_wait_for_no_other_thread(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """The one that sends sends them afterwards."""
    link: Any = link_of(ends[0])
    pings = [b"first", b"second"]
    link._reader = SimpleNamespace(feed=lambda _: [], take_ping=pings.pop, is_upgraded=True)
    waits: list[dict[str, object]] = []
    free, link._sending = link._sending, SimpleNamespace(acquire=lambda **how: waits.append(how))
    cancel = request()
    link.cancel([cancel])
    for _ in range(2):
        ends[1].send(b"a Ping")
        link._receive(Deadline(5))
    assert waits == [{"timeout": 0}] * 3
    link._sending = free
    link.send(request(), Deadline(5), Inbox())
    sent, pong_bytes = ends[1].recv(1000), 2 + 4 + len(b"first")
    # Its mask is random. It is that of the last Ping alone.
    assert sent[:-pong_bytes] == cancel.data.tobytes() * 2 and len(sent) > pong_bytes
    assert (link._requests_sent, link._queued) == (2, {})


@pytest.mark.parametrize("later", ["receive", "poll", "close"])
def test_a_cancel_waits_for_no_room(
    ends: tuple[socket.socket, socket.socket],
    waits: list[float | None],
    monkeypatch: pytest.MonkeyPatch,
    later: str,
) -> None:
    """It is sent once the server sends something, or the client looks at or closes the link."""
    link, cancel = link_of(ends[0]), request()
    link.cancel([cancel])
    assert waits == [] and read(ends[1]) == cancel.data
    fill(ends[0])
    link.cancel([cancel])
    assert waits == [0] and link._requests_sent == 1
    if later == "close":

        def wait_for(_: Link, __: int, seconds: float) -> bool:
            return seconds > 0 and read(ends[1]) != b""

        monkeypatch.setattr(Link, "_wait_for", wait_for)
        link.close()
    else:
        read(ends[1])
        monkeypatch.undo()
    if later == "receive":
        ends[1].send(b"\n")
        link._receive(Deadline(5))
    elif later == "poll":
        link.poll()
    assert read(ends[1]) == cancel.data and link._requests_sent == 2


def test_closing_waits_for_another_thread_to_send_the_cancels(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link: Any = link_of(ends[0])
    # Others have it whenever nobody waits for it.
    link._sending = SimpleNamespace(acquire=lambda timeout: timeout > 0, release=lambda: None)
    link.cancel([request()])
    assert read(ends[1]) == b""
    link.close()
    assert read(ends[1]) == request().data


def test_nothing_is_sent_on_the_connection_of_a_parent(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link = link_of(ends[0])
    link.abandon()
    link.cancel([request()])
    assert read(ends[1]) == b""


@pytest.mark.parametrize("looks", range(3))
def test_a_request_has_not_run_if_its_time_ends_before_its_first_byte(
    ends: tuple[socket.socket, socket.socket], looks: int
) -> None:
    """At whichever look at the clock."""

    class Ending(Deadline):
        seen = 0

        def is_over(self) -> bool:
            return False

        def left(self) -> float:
            self.seen += 1
            if self.seen > looks:
                raise TimeoutError
            return 1

    link = link_of(ends[0])
    link._is_secure = True
    with pytest.raises(ucall.TimeoutError) as caught:
        link.start(request(), [1], Ending(1))
    assert link.error is None and not caught.value.may_have_run
    assert read(ends[1]) == b""


def test_a_call_waits_in_its_time_for_the_reason_of_a_failed_send(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Any] = []

    async def wait(_: Link, __: Inbox, deadline: Deadline) -> None:
        limits.append(deadline.left())

    monkeypatch.setattr(Link, "wait", wait)
    link = link_of(ends[0])
    for seconds in (1.0, None):
        link._closed_by_server(BrokenPipeError(), Deadline(seconds))
    assert limits[0] <= 1 < limits[1] <= 5


def test_a_call_waits_in_its_time_for_what_another_thread_sends_under_tls(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link: Any = link_of(ends[0])
    link._is_secure = True
    limits: list[float] = []
    link._socket_lock = SimpleNamespace(acquire=lambda timeout: limits.append(timeout))
    ends[1].send(b"x")
    link._receive(Deadline(1))
    assert 0 < limits[0] <= 1
    with link._sending:
        link.poll()
    assert len(limits) == 1


def test_no_call_begins_on_a_connection_that_has_failed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link = link_of(ends[0])
    link.error = ucall.ConnectionError("it has failed")
    with pytest.raises(ucall.ConnectionError, match="it has failed") as caught:
        link.start(request(), [1], Deadline(5))
    assert link._router.is_unused
    # Other calls may have.
    assert link.error.may_have_run and not caught.value.may_have_run


def test_no_call_begins_on_a_connection_that_has_ended_in_asyncio() -> None:
    connection = SharedConnection(Router([], 1 << 20), 1000, None)
    asyncio.run(connection.open(Deadline(5)))
    connection.error = ucall.ConnectionError("it has ended")
    with pytest.raises(ucall.ConnectionError, match="it has ended") as caught:
        connection.start(request(), [1])
    assert connection._router.is_unused
    assert connection.error.may_have_run and not caught.value.may_have_run


def test_a_connection_that_the_system_gives_up_has_failed(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ETIMEDOUT is a `TimeoutError`, but no deadline of a call."""

    def give_up(*_: object) -> bytes:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    link = link_of(ends[0])
    monkeypatch.setattr(link, "_receive_at_once", give_up)
    ends[1].send(b"x")
    run(link.wait(Inbox(), Deadline(60)))
    assert "the connection failed" in str(link.error)


@pytest.mark.parametrize("put", [Inbox.put_item, Inbox.put_latest])
def test_a_thread_takes_items_while_another_receives(put: Any) -> None:
    """Neither waits for the other: a signal handler that interrupts it may close a stream."""
    inbox: Any = Inbox()

    def take_and_put() -> None:
        inbox.take_item()
        inbox.put_latest(bytes(10), 1000)

    class Item:
        def __len__(self) -> int:
            started(take_and_put).result(10)
            return 100

    put(inbox, bytes(100), 1000)
    put(inbox, Item(), 1000)
    assert inbox.waiting_bytes == 10 + 100
    for _ in range(2):
        inbox.take_item()
    assert inbox.waiting_bytes == 0


def test_the_latest_notification_is_kept_beyond_the_limit() -> None:
    inbox: Any = Inbox()
    for length in (100, 200):
        inbox.put_latest(bytes(length), 50)
        assert inbox.waiting_bytes == length


def test_a_call_may_end_while_a_thread_counts_what_waits() -> None:
    router = Router([], 1 << 20)

    class Ended(Inbox):
        @property
        def waiting_bytes(self) -> int:
            router.remove([1])
            return 0

    for id, inbox in enumerate((Ended(), Inbox()), start=1):
        router.add([id], inbox)
    assert not router.is_full


def test_a_turn_is_given_back_though_a_signal_handler_wakes_the_waiting() -> None:
    """At whichever line of the notification."""
    lines = 0

    def interrupted(turn: Turn, at: int) -> Any:
        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if frame.f_code is threading.Condition.notify.__code__ and event == "line":
                lines += 1
                if lines == at:
                    turn.wake()
            return trace

        return trace

    at = 0
    while lines >= at:
        lines, at = 0, at + 1
        turn, looked = Turn(), threading.Event()
        assert turn.take_at_once()
        waiting = started(partial(turn.take, looked.set, Deadline(60)))
        assert looked.wait(60)
        before = sys.gettrace()
        with turn.lock:  # So the thread waits for its changes.
            sys.settrace(interrupted(turn, at))
            try:
                turn.give_back()
            finally:
                sys.settrace(before)
        assert waiting.result(60)
    assert at > 5
