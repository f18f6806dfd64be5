"""Calls over UDP without sockets and clocks: retransmission, the window, cookies and replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ucall import _core
from ucall._client.datagrams import (
    WINDOW,
    Cookie,
    RoundTrips,
    Window,
    add_cookie,
    check_length,
    parse_reply,
    wants_tcp,
)


def _window(
    uniform: Callable[[float, float], float] = lambda low, high: (low + high) / 2,
    round_trips: RoundTrips | None = None,
) -> Window:
    return Window(round_trips or RoundTrips(), Cookie(), uniform)


def _reply(id: object, **members: object) -> _core.Reply:
    members = members or {"result": id}
    _, reply = parse_reply(json.dumps({"jsonrpc": "2.0", "id": id, **members}).encode(), 10_000)
    assert reply is not None
    return reply


def _sent_at(window: Window, count: int) -> list[float]:
    """When a window with one call sends it."""
    times = [0.0]
    assert window.take_due(0) == [b"{}"]
    while len(times) < count:
        due_at = window.due_at
        assert due_at is not None
        assert window.take_due(due_at - 0.001) == []
        assert window.take_due(due_at) == [b"{}"]
        times.append(due_at)
    return times


@pytest.mark.parametrize(
    ("uniform", "expected"),
    [
        (lambda low, high: (low + high) / 2, [0, 1, 3, 5, 7]),
        (lambda low, high: low, [0, 0.75, 2.25, 3.75]),
        (lambda low, high: high, [0, 1.25, 3.75, 6.25]),
    ],
)
def test_pauses_double_up_to_two_seconds_and_vary_by_a_quarter(
    uniform: Callable[[float, float], float], expected: Sequence[float]
) -> None:
    window = _window(uniform)
    window.add([(1, b"{}")])
    assert _sent_at(window, len(expected)) == pytest.approx(expected)


def test_the_first_pause_follows_the_replies() -> None:
    round_trips = RoundTrips()
    window = _window(round_trips=round_trips)
    assert round_trips.pause_s == 1
    for id, took_s, pause_s in ((1, 0.1, 0.3), (2, 0.1, 0.25), (3, 0.2, 0.325)):
        window.add([(id, b"{}")])
        window.take_due(5)
        assert window.take_reply(id, _reply(id), 5 + took_s)
        assert round_trips.pause_s == pytest.approx(pause_s)
    window.add([(4, b"{}")])
    assert _sent_at(window, 3) == pytest.approx([0, 0.325, 0.975])
    # It is unknown to which copy this is the reply.
    assert window.take_reply(4, _reply(4), 9)
    assert round_trips.pause_s == pytest.approx(0.325)


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 0.05), (60, 2)])
def test_the_first_pause_has_bounds(took_s: float, pause_s: float) -> None:
    round_trips = RoundTrips()
    for _ in range(20):
        round_trips.add(took_s)
    assert round_trips.pause_s == pause_s


def test_calls_wait_in_their_order_while_the_window_is_full() -> None:
    assert WINDOW == 32
    window, calls = _window(), [(number, b"%d" % number) for number in range(WINDOW + 3)]
    window.add(calls)
    assert not window.is_done
    assert window.take_due(0) == [data for _, data in calls[:WINDOW]]
    assert window.take_reply(7, _reply(7), 0.1)
    assert not window.take_reply(7, _reply(7), 0.1)
    assert not window.take_reply(WINDOW, _reply(WINDOW), 0.1), "it was not sent"
    assert window.take_due(0.2) == [calls[WINDOW][1]]
    window.discard([1, WINDOW + 1])
    assert not window.take_reply(1, _reply(1), 0.3)
    assert window.take_due(0.3) == [calls[WINDOW + 2][1]]
    assert (window.sent_count, list(window.replies)) == (WINDOW, [7])
    window.discard(range(WINDOW + 3))
    assert (window.is_done, window.due_at, window.replies) == (True, None, {})


def _asks(data: object) -> _core.Reply:
    return _reply(1, error={"code": -32006, "message": "", "data": data})


def test_a_request_is_sent_again_at_once_with_the_cookie_of_the_server() -> None:
    cookie = Cookie()
    window = Window(RoundTrips(), cookie, lambda low, high: 1)
    window.add([(1, b"{}"), (2, b"{}")])
    window.take_due(0)
    assert not window.is_done
    assert not window.take_reply(1, _asks({"cookie": "c" * 256}), 0.5)
    assert cookie.text == "c" * 256 and window.due_at == 0.5
    # The other one is due after its pause.
    assert window.take_due(0.5) == [add_cookie(b"{}", cookie.text)]
    assert window.take_due(1) == [add_cookie(b"{}", cookie.text)]


@pytest.mark.parametrize(
    "data", [None, "text", {}, {"cookie": 5}, {"cookie": None}, {"cookie": "c" * 257}]
)
def test_an_error_without_a_cookie_is_the_reply(data: object) -> None:
    window = _window()
    window.add([(1, b"{}")])
    window.take_due(0)
    assert window.take_reply(1, _asks(data), 0.5) and window.is_done


def test_only_an_error_that_asks_for_a_cookie_is_no_reply() -> None:
    window = _window()
    for reply in (
        _reply(1, error={"code": -32007, "message": "", "data": {"cookie": "0"}}),
        _reply(1, result={"code": -32006, "data": {"cookie": "0"}}),
    ):
        window.add([(1, b"{}")])
        window.take_due(0)
        assert window.take_reply(1, reply, 0.5)


def test_a_server_that_asks_for_cookies_for_ever_is_not_obeyed() -> None:
    window = _window()
    window.add([(1, b"{}")])
    for now in range(3):
        assert len(window.take_due(now)) == 1
        assert not window.take_reply(1, _asks({"cookie": "0"}), now)
    window.take_due(3)
    assert window.take_reply(1, _asks({"cookie": "0"}), 3)


@pytest.mark.parametrize(
    ("request_", "cookie", "meta"),
    [
        (b'{"id":1} ', None, {}),
        (b'{"id":1} ', 'a"b', {"cookie": 'a"b'}),
        (b'{"id":1,"_meta":{"x":1}}', "c", {"x": 1, "cookie": "c"}),
        (b'{"id":1,"params":["_meta"]}', "c", {"cookie": "c"}),
    ],
)
def test_a_cookie_is_added_to_the_other_bytes(
    request_: bytes, cookie: str | None, meta: dict[str, Any]
) -> None:
    added = add_cookie(request_, cookie)
    assert added.startswith(request_.rstrip()[:-1])
    assert json.loads(added).get("_meta", {}) == meta
    assert cookie or added == request_


def test_a_batch_gets_no_cookie() -> None:
    assert add_cookie(b"[{}]", "c") == b"[{}]"


def test_a_request_is_no_longer_than_a_datagram() -> None:
    check_length(bytes(65_507))
    window = _window()
    with pytest.raises(ValueError, match="has 65508 bytes; expected at most 65507, or tcp://"):
        window.add([(1, b"{}"), (2, bytes(65_508))])
    assert window.is_done, "none of them is sent"


@pytest.mark.parametrize(
    "datagram",
    [
        b"no JSON",
        b"",
        b'{"result":1}\n{"result":2}',
        b'{"jsonrpc":"2.0","method":"news","params":[]}',
        b'[{"jsonrpc":"2.0","id":1,"result":1}]',
        b'{"jsonrpc":"2.0","id":1,"error":5}',
        b'{"jsonrpc":"2.0","id":null,"result":1}',
        b'{"jsonrpc":"2.0","id":1.5,"result":1}',
        b'{"jsonrpc":"2.0","id":true,"result":1}',
        b'{"jsonrpc":"2.0","id":%s,"result":1}' % (b"9" * 5000),
        b'{"jsonrpc":"2.0","id":1,"result":"%s"}' % (b"x" * 10_000),
    ],
)
def test_a_datagram_without_one_reply_is_dropped(datagram: bytes) -> None:
    """Anybody may have sent it."""
    assert parse_reply(datagram, 10_000) == (None, None)


def test_ids_of_replies_are_numbers_and_strings() -> None:
    for id in (1, "1"):
        assert parse_reply(json.dumps({"id": id, "result": 1}).encode(), 10_000)[0] == id


def test_a_reply_says_that_its_result_needs_tcp() -> None:
    def says(data: object, name: str = "error") -> bool:
        return wants_tcp(_reply(1, **{name: {"code": -32603, "message": "", "data": data}}))

    assert says({"transport": "tcp"})
    assert not says({"transport": "udp"}) and not says({}) and not says("tcp") and not says(None)
    assert not says({"transport": "tcp"}, "result")
