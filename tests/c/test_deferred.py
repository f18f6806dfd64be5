"""Deferred calls."""

import json
import time

import load
import pytest

import harness
from harness import Client, serving, wait_until

DEFERRED = harness.example("deferred.c")
LATER = harness.PROGRAMS / "later.c"


@pytest.fixture
def later(built, engine):
    with serving([built(LATER), engine]) as server:
        yield server


def test_a_thread_pool_answers(built, engine):
    with serving([built(DEFERRED), "--port", 0, "--engine", engine]) as server:
        assert load.run(server.port, [load.slow_sums], clients=16, calls=3_200) == 3_200


def test_four_calls_take_as_long_as_one(built):
    with serving([built(DEFERRED), "--port", 0]) as server, Client(server.port) as client:

        def is_quick() -> bool:
            begun = time.monotonic()
            for number in range(4):
                client.submit("slow_sum", {"a": number, "b": 1, "milliseconds": 300})
            assert sorted(client.message()["result"] for _ in range(4)) == [1, 2, 3, 4]
            return time.monotonic() - begun < 0.9

        # One after another they would never finish.
        wait_until(is_quick)


def test_replies_come_as_calls_finish(later):
    texts = ["first", "é\n", ""]
    with Client(later.port) as client, Client(later.port) as other:
        numbers = {client.submit("keep", {"text": text}): text for text in texts}
        # The server has deferred the calls when this call, sent after them, returns.
        assert client.call("cancelled") == 0
        for text in reversed(texts):
            other.call("answer_last")
            reply = client.message()
            assert reply["result"] == text == numbers[reply["id"]]


@pytest.mark.parametrize("thread", [False, True])
def test_a_call_that_outlives_its_callback_answers_nobody_else(later, thread):
    with Client(later.port) as client:
        for answers in (True, False):
            client.submit("outlive", {"answers": answers})
            reply = client.message()
            assert reply["result"] == 3 if answers else reply["error"]["code"] == -32603
            assert client.call("use", {"thread": thread}) == 4
    later.stop()
    assert "after its callback had returned" in later.errors
    assert "ucall_call_defer" in later.errors


def test_a_drain_waits_for_deferred_calls(later):
    with Client(later.port) as client:
        client.submit("keep", {"text": "kept"})
        assert client.call("drain", {"timeout_ms": 60_000, "answers": True}) == 1
        assert client.message()["result"] == "kept"
        assert client.rest() == b"" and client.drain_notices
    assert later.wait() == 0


def test_a_drain_abandons_calls_at_its_end(later):
    with Client(later.port) as client:
        client.submit("keep", {"text": "late"})
        assert client.call("drain", {"timeout_ms": 1}) == 1
        assert client.message()["error"]["code"] == -32007
        assert client.rest() == b""
    assert later.wait() == 0


def test_a_deferred_call_without_reply_gets_an_error(later):
    with Client(later.port) as client:
        client.submit("keep", {"no text": 1})
        assert client.call("answer_all") == 1
        assert client.message()["error"]["code"] == -32603
    later.stop()
    assert "did not reply" in later.errors


def test_a_cancelled_call_needs_no_reply(later):
    with Client(later.port) as other:
        with Client(later.port) as client:
            client.submit("keep", {"no text": 1})
            assert client.call("cancelled") == 0
            client.reset()
        wait_until(lambda: other.call("cancelled") == 1)
        assert other.call("answer_all") == 1
    later.stop()
    assert "did not reply" not in later.errors


def test_a_reply_after_deferring_is_ignored(later):
    with Client(later.port) as client:
        client.submit("keep", {"text": "right"})
        assert client.call("answer_all") == 1
        assert client.message()["result"] == "right"
    later.stop()
    assert "that it had deferred" in later.errors


@pytest.mark.parametrize("protocol", ["raw", "http"])
def test_a_closed_connection_cancels(later, protocol):
    with Client(later.port) as other:
        client = Client(later.port)
        for number in range(10):
            send_keep(client, protocol, number)
        wait_until(lambda: other.call("kept") == 10)
        assert other.call("cancelled") == 0
        if protocol == "raw":
            # Without a reset the server cannot tell it from `nc -N`, which still reads replies.
            client.reset()
        client.close()
        wait_until(lambda: other.call("cancelled") == 10)
        # Their replies are dropped, and must not go to the connection that has the descriptor now.
        with Client(later.port) as successor:
            assert other.call("answer_all") == 10
            assert successor.call("cancelled") == 0


def test_a_peer_that_ended_its_side_still_gets_raw_replies(later):
    with Client(later.port) as client, Client(later.port) as other:
        client.submit("keep", {"text": "late"})
        client.end()
        wait_until(lambda: other.call("answer_all") == 1)
        assert client.message()["result"] == "late"
        assert client.line() == b""


def send_keep(client: Client, protocol: str, number: int) -> None:
    params = {"text": str(number)}
    if protocol == "raw":
        client.submit("keep", params)
    else:
        client.send(load.request("keep", params, "id", http=True))


def test_calls_outlive_their_server(later):
    with Client(later.port) as client:
        for number in range(10):
            client.submit("keep", {"text": str(number)})
        assert client.call("cancelled") == 0
        later.stop()
    # The server must no longer log there: the descriptor may belong to another file by then.
    assert "replied twice" not in later.errors


def test_notifications_may_be_deferred(later):
    with Client(later.port) as client:
        client.notify("keep", {"text": "x"})
        assert client.call("answer_all") == 1
        assert client.call("cancelled") == 0


def test_too_many_are_refused(built, engine):
    with serving([built(LATER), engine, 0, 3]) as server, Client(server.port) as client:
        for number in range(3):
            client.submit("keep", {"text": str(number)})
        assert client.error_of("keep", {"text": "x"})["code"] == -32003
        assert client.call("answer_all") == 3
        assert {client.message()["result"] for _ in range(3)} == {"0", "1", "2"}
        client.submit("keep", {"text": "again"})
        assert client.call("answer_all") == 1
        assert client.message()["result"] == "again"


@pytest.mark.skipif(harness.PROFILE == "release", reason="the release library does not check it")
def test_freeing_twice_is_an_error_in_a_debug_build(built):
    with serving([built(harness.PROGRAMS / "misuse.c")]) as server, Client(server.port) as client:
        for method in ("call", "writer"):
            assert client.call(method) == "freed"
            assert client.call(method) == "freed"


def test_deadlines(built, engine):
    with serving([built(LATER), engine, 400]) as server, Client(server.port) as client:
        wait_until(lambda: 350 < client.call("time_left") <= 400)
        begun = time.monotonic()
        client.submit("keep", {"text": "late"})
        reply = client.message()
        assert reply["error"]["code"] == -32001
        assert time.monotonic() - begun > 0.3
        assert client.call("cancelled") == 1
        assert client.call("answer_all") == 1
        assert client.call("cancelled") == 0


def test_a_caller_s_own_deadline(later):
    """A deadline in milliseconds in the request's header: the earlier deadline counts."""
    with Client(later.port) as client, Client(later.port) as other:
        wish = b"Ucall-Timeout-Ms: %d\r\n"

        def time_left() -> int:
            client.send(load.request("time_left", {}, "1", http=True, more=wish % 5000))
            return json.loads(client.reply()[2])["result"]

        wait_until(lambda: 4900 < time_left() <= 5000)
        client.send(load.request("keep", {}, "2", http=True, more=wish % 0))
        assert json.loads(client.reply()[2])["error"]["code"] == -32001
        assert other.call("kept") == 0
        client.send(load.request("keep", {}, "3", http=True, more=wish % 200))
        assert json.loads(client.reply()[2])["error"]["code"] == -32001
        assert other.call("cancelled") == 1


def test_without_a_timeout_there_is_no_deadline(later):
    with Client(later.port) as client:
        assert client.call("time_left") == -1
