"""The choice of a server, its rests and probes, and which calls are sent again; without sockets."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

import ucall
from ucall import _core, aio
from ucall._client.address import Address, Addresses
from ucall._client.balancer import MEMBERS_MAX, Balancer, Member, RetryBudget
from ucall._client.options import BalancedOptions
from ucall._client.resend import Attempts, Idempotence, Verdict, is_alive, is_refused
from ucall._client.sockets import connect_error, not_sent
from ucall._openrpc.budget import DESCRIPTION_BYTES_MAX
from ucall.client import Client

Made = Balancer[str]
HOSTS = ["host0", "host1", "host2"]


def balancer(count: int = 4, *, resolves: bool = False) -> Made:
    made = Made(
        lambda address: f"pool of {address.name}", random.Random(1).random, resolves=resolves
    )
    made.update([Address(f"host{number}") for number in range(count)], 0.0)
    made.poll_probes(0.0)
    return made


def picked(made: Made, now: float, count: int = 1000, **options: Any) -> Counter[str]:
    found = (made.pick(now, **options) for _ in range(count))
    return Counter(member.address.host for member in found if member)


def read(text: str) -> _core.Reply:
    reader = _core.ReplyReader(http=False, reply_bytes_max=2 * DESCRIPTION_BYTES_MAX)
    [message] = reader.feed(text.encode() + b"\n")
    assert isinstance(message, _core.Reply)
    return message


def reply(body: dict[str, Any] | list[Any]) -> _core.Reply:
    return read(json.dumps(body))


def error(code: int, data: object = None) -> _core.Reply:
    return reply({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "m", "data": data}})


def request(methods: list[str]) -> _core.Request:
    writer = BalancedOptions(Address("host"), 1, {}).writer
    return writer.batch([{"jsonrpc": "2.0", "method": it, "id": 1} for it in methods], True)


def test_calls_go_to_all_alike() -> None:
    counts = picked(balancer(), 0)
    assert len(counts) == 4 and min(counts.values()) > 200


def test_of_two_the_one_with_fewer_calls_gets_the_next() -> None:
    made = balancer()
    busy, *others = made.members
    busy.running.extend([None] * 5)
    # It is never the better one of two.
    assert busy.address.host not in picked(made, 0)
    for member in others:
        member.running.extend([None] * 9)
    assert picked(made, 0)[busy.address.host] > 400


def test_a_member_that_fails_rests_and_is_probed_after_growing_pauses() -> None:
    made, now, pauses = balancer(2), 100.0, []
    member = made.members[0]
    made.fail(member, now)
    for _ in range(12):
        assert picked(made, now).keys() == {"host1"}
        pauses.append(member.rests_until - now)
        assert made.poll_probes(now + pauses[-1] / 2) == []
        assert made.next_due <= member.rests_until
        now = member.rests_until
        assert made.poll_probes(now) == [member]
        assert made.poll_probes(now + 1) == [], "one probe at a time"
        made.probed(member, now, is_alive=False)
    assert all(0.05 * 2**it <= pauses[it] <= 0.1 * 2**it for it in range(6))
    assert min(pauses[7:]) >= 5 and max(pauses) <= 10
    made.probed(member, now, is_alive=True)
    assert member.is_up


@pytest.mark.parametrize(("number", "share"), [(0.0, 0.5), (1.0, 1.0)])
def test_up_to_half_of_a_pause_is_left_out(number: float, share: float) -> None:
    made = Made(lambda address: "", lambda: number, resolves=False)
    made.update([Address("host")], 0.0)
    [member] = made.members
    for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10):
        member.is_probing = True
        made.fail(member, 0.0)
        assert member.rests_until == pytest.approx(pause_s * share)


def test_many_calls_that_fail_at_once_are_one_failure() -> None:
    made = balancer(2)
    for _ in range(50):
        made.fail(made.members[0], 0.0)
    assert made.members[0].rests_until <= 0.1


def test_a_slow_start() -> None:
    made = balancer()
    member = made.members[0]
    made.fail(member, 0.0)
    made.poll_probes(1.0)
    made.probed(member, 1.0, is_alive=True)
    shares = [picked(made, 1.0 + seconds)["host0"] / 1000 for seconds in (0, 5, 9.9)]
    assert shares[0] < 0.06 < shares[1] < 0.2 < shares[2]
    made.poll_probes(10.9)
    assert made.pairs is None
    made.poll_probes(11.0)
    assert made.pairs is not None and picked(made, 11.0)["host0"] > 200


def test_a_slow_start_relieves_busy_addresses() -> None:
    made = balancer(2)
    made.fail(made.members[0], 0.0)
    made.poll_probes(1.0)
    made.probed(made.members[0], 1.0, is_alive=True)
    made.members[1].running.extend([None] * 8)
    assert picked(made, 1.0)["host0"] < 200
    made.members[1].running.extend([None] * 2)
    assert picked(made, 1.0)["host0"] == 1000


def test_a_new_address_starts_slowly_and_the_first_ones_do_not() -> None:
    made = balancer(2)
    assert made.pairs is not None
    made.update([Address(f"host{number}") for number in range(3)], 5.0)
    assert made.pairs is None and picked(made, 5.0)["host2"] < 100


def test_a_removed_address_gets_no_calls() -> None:
    made = balancer(3)
    member = made.members[0]
    assert made.update([Address("host1"), Address("host2")], 1.0) == [member]
    assert not member.is_up
    assert picked(made, 1.0).keys() == {"host1", "host2"}
    made.probed(member, 2.0, is_alive=True)
    made.succeed(member, 2.0)
    assert not member.is_up


def found_by_broker(made: Made, names: list[str], now: float) -> list[str]:
    made.update(made.with_missing([Address(name) for name in names], now), now)
    return [member.address.host for member in made.members]


def test_a_member_that_a_broker_reports_no_more_stays_for_a_minute() -> None:
    made = balancer(2, resolves=True)
    # Nothing is known from a discovery without answers.
    assert all(found_by_broker(made, [], now) == ["host0", "host1"] for now in (0.0, 100.0))
    assert found_by_broker(made, ["host0"], 100.0) == ["host0", "host1"]
    assert found_by_broker(made, ["host0", "host1"], 130.0) == ["host0", "host1"]
    assert found_by_broker(made, ["host0"], 140.0) == ["host0", "host1"]
    assert found_by_broker(made, ["host0"], 199.9) == ["host0", "host1"]
    # Another group may have its address by now: calls to it succeed, with -32601.
    made.succeed(made.members[1], 199.9)
    assert found_by_broker(made, ["host0"], 200.0) == ["host0"]


def test_a_missing_member_that_is_down_for_long_is_dropped_at_once() -> None:
    made = balancer(2, resolves=True)
    for now in range(10):
        made.fail(made.members[1], float(now))
        made.members[1].is_probing = True
    assert found_by_broker(made, ["host0"], 10.0) == ["host0"]


def test_a_broker_that_reports_ever_new_members_displaces_none() -> None:
    assert MEMBERS_MAX == 4_096
    made = Made(lambda address: "", random.Random(1).random, resolves=True, members_max=5)
    known = ["host0", "host1"]
    assert found_by_broker(made, known, 0.0) == known
    assert found_by_broker(made, ["a", "b", "c"], 1.0) == [*known, "a", "b", "c"]
    for now in range(2, 60):
        new = [f"new{now}-{number}" for number in range(10)]
        assert found_by_broker(made, [*new, *known], float(now)) == [*known, "a", "b", "c"]
    assert found_by_broker(made, [*new, *known], 62.0) == [*known, *new[:3]]


def test_an_overloaded_member_stays_though_a_broker_reports_it_no_more() -> None:
    made = balancer(2)
    one, other = made.members
    for member in (one, other):
        member.pause_s = 10.0
        made.fail(member, 0.0)
    made.probed(one, 1.0, is_alive=True)
    made.overload(one, 1.0, 30)
    # It has only asked for a pause; the other one is down for long.
    assert made.with_missing([], 1.0) == [one.address]


def test_a_call_is_not_sent_again_to_a_server_that_was_tried() -> None:
    made = balancer(3)
    assert made.pairs is not None
    assert picked(made, 0, tried=made.members[:2]).keys() == {"host2"}
    assert made.pick(0, made.members) is None


def test_a_broker_gets_calls_while_no_server_is_up() -> None:
    made, broker = balancer(2), Member(Address("broker"), "pool")
    made.fallback = broker
    assert picked(made, 0).keys() == {"host0", "host1"}
    for member in made.members:
        made.fail(member, 0.0)
    assert picked(made, 0).keys() == {"broker"}
    assert made.pick(0, [broker]) is None
    # One that has asked for a pause is not passed over.
    made.members[0].is_overloaded = True
    assert picked(made, 0).keys() == {"host1"}


def test_a_name_is_resolved_once_it_has_an_address_or_a_broker() -> None:
    made = balancer(0, resolves=True)
    assert not made.is_resolved
    made.fallback = Member(Address("broker"), "pool")
    assert made.is_resolved
    assert balancer(1, resolves=True).is_resolved


def test_of_overloaded_members_the_one_that_rests_shortest_is_tried() -> None:
    made = balancer(3)
    for member, seconds in zip(made.members, (30, 5, 10), strict=True):
        made.overload(member, 0.0, seconds)
    assert picked(made, 1.0, 50).keys() == {"host1"}
    # Its rest has ended, so it gets calls as any other.
    made.poll_probes(5.0)
    assert [it.is_overloaded for it in made.members] == [True, False, True]


def test_an_address_that_is_listed_twice_counts_once() -> None:
    made = balancer(0)
    made.update([Address("host0"), Address("host0"), Address("host1")], 0.0)
    assert [it.address.host for it in made.members] == ["host0", "host1"]


def test_a_probe_that_takes_long_delays_no_other() -> None:
    made = balancer(3)
    one, other, _ = made.members
    made.fail(one, 0.0)
    assert made.poll_probes(1.0) == [one]
    made.fail(other, 1.0)
    assert made.poll_probes(2.0) == [other]


def test_calls_of_another_process_are_forgotten() -> None:
    made = balancer(2)
    for member in made.members:
        member.running.append(None)
        member.is_probing = True
    made.forget_calls()
    assert [(it.running, it.is_probing) for it in made.members] == [([], False)] * 2


def test_a_member_with_calls_from_the_beginning_is_silent_after_a_second() -> None:
    made = Made(lambda address: "", random.Random(1).random, resolves=False)
    made.update([Address("host")], 0.0)
    made.members[0].running.append(None)
    assert [made.poll_probes(now) for now in (0.0, 0.5, 1.0)] == [[], [], made.members]


def test_a_member_that_is_gone_takes_no_other_along() -> None:
    made = balancer(3, resolves=True)
    addresses = [member.address for member in made.members]
    assert made.with_missing(addresses[1:], 0.0) == addresses
    assert made.with_missing(addresses[2:], 60.0) == addresses[1:]


def test_each_pair_of_members_is_drawn() -> None:
    made = balancer(3)
    assert made.pairs is not None
    drawn = {tuple(it.address.host for it in next(made.pairs)) for _ in range(1000)}
    assert drawn == {(one, two) for one in HOSTS for two in HOSTS if one != two}


def test_members_are_inspected_once_a_second() -> None:
    made = balancer(2)
    made.poll_probes(5.0)
    assert made.next_due == 6.0
    made.fail(made.members[0], 5.0)
    assert made.next_due == made.members[0].rests_until


def test_without_any_that_is_up_resting_ones_are_tried() -> None:
    made = balancer(2)
    for member in made.members:
        made.fail(member, 0.0)
    assert picked(made, 0.0).keys() <= {"host0", "host1"}
    made.succeed(made.members[0], 0.05)
    assert picked(made, 0.06).keys() == {"host0"}


def test_a_call_from_before_a_rest_ends_no_rest() -> None:
    made = balancer(2)
    made.fail(made.members[0], 10.0)
    made.succeed(made.members[0], 9.0)
    assert not made.members[0].is_up


def test_a_silent_member_is_probed() -> None:
    made = balancer(2)
    member = made.members[0]
    member.running.append(None)
    assert made.poll_probes(1.0) == [] and made.poll_probes(1.9) == []
    assert made.poll_probes(2.0) == [member]
    made.probed(member, 3.0, is_alive=False)
    assert not member.is_up


def test_a_member_that_replies_is_not_silent() -> None:
    made = balancer(2)
    member = made.members[0]
    member.running.append(None)
    for second in range(1, 20):
        assert made.poll_probes(float(second)) == []
        made.succeed(member, float(second))
    member.running.clear()
    assert not any(made.poll_probes(float(second)) for second in range(20, 30))


def test_a_late_call_has_its_server_probed() -> None:
    made = balancer(2)
    made.suspect(made.members[1])
    assert made.next_due == 0 and made.poll_probes(0.5) == [made.members[1]]


def test_an_overloaded_member_rests_as_long_as_it_asks() -> None:
    made = balancer(2)
    made.overload(made.members[0], 0.0, 3.0)
    assert made.poll_probes(2.9) == [] and picked(made, 2.9).keys() == {"host1"}
    made.poll_probes(3.0)
    assert picked(made, 3.0).keys() == {"host0", "host1"}


def test_names_are_resolved_again_in_time_and_after_failures() -> None:
    made = balancer(2, resolves=True)
    assert made.poll_resolve(0.0) and not made.poll_resolve(29.9) and made.poll_resolve(30.0)
    made.fail(made.members[0], 30.5)
    assert not made.poll_resolve(30.9) and made.poll_resolve(31.0)
    lists = balancer(2)
    lists.fail(lists.members[0], 1.0)
    assert not lists.poll_resolve(1e9)


def test_a_key_stays_at_its_server() -> None:
    made = balancer()
    keys = [b"user %d" % number for number in range(200)]
    before = {key: made.pick(0.0, key=key) for key in keys}
    assert Counter(it.address.host for it in before.values() if it).keys() == {
        "host0",
        "host1",
        "host2",
        "host3",
    }
    gone = made.members[0]
    made.fail(gone, 0.0)
    after = {key: made.pick(0.0, key=key) for key in keys}
    assert all(after[key] is before[key] or before[key] is gone for key in keys)
    assert gone not in after.values()


def test_the_budget_allows_one_call_in_ten() -> None:
    budget = RetryBudget()
    assert sum(budget.spend() for _ in range(200)) == 100
    for _ in range(1001):
        budget.earn()
    assert sum(budget.spend() for _ in range(200)) == 100


def judge(outcome: _core.Reply | Exception) -> tuple[Verdict, Made, Member[str]]:
    made = balancer(2)
    return Attempts(made, None).judge(made.members[0], outcome, 0.0), made, made.members[0]


@pytest.mark.parametrize(
    ("outcome", "verdict", "is_up"),
    [
        (not_sent(ucall.ConnectionError("refused")), Verdict.RESEND, False),
        (connect_error(Address("tcp://a"), TimeoutError(), 1.0), Verdict.RESEND, False),
        (not_sent(ucall.TimeoutError("it waited for others")), Verdict.DONE, True),
        (error(-32002), Verdict.RESEND, False),
        (error(-32003, {"retry_after_ms": 5000}), Verdict.RESEND, False),
        (error(-32003, {"max_subscriptions": 1024}), Verdict.DONE, True),
        (error(-32003, {"retry_after_ms": 50, "max_calls_per_s": 20}), Verdict.DONE, True),
        (error(-32003, {"max_held_bytes": "none is left"}), Verdict.DONE, True),
        (reply([error(-32002).data(), error(-32003).data()]), Verdict.RESEND, False),
        (ucall.ConnectionError("cut"), Verdict.RESEND_IF_IDEMPOTENT, False),
        (ucall.HTTPError(500), Verdict.RESEND_IF_IDEMPOTENT, False),
        (ucall.HTTPError(503), Verdict.RESEND_IF_IDEMPOTENT, False),
        (not_sent(ucall.HTTPError(503)), Verdict.RESEND, False),
        (error(-32007), Verdict.RESEND_IF_IDEMPOTENT, True),
        (ucall.TimeoutError("late"), Verdict.DONE, True),
        (ucall.HTTPError(499), Verdict.DONE, True),
        (error(-32603), Verdict.DONE, True),
        (reply([error(-32002).data(), {"id": 1, "result": "-32003"}]), Verdict.DONE, True),
        (ValueError("another call has the id"), Verdict.DONE, True),
    ],
)
def test_which_outcomes_allow_another_attempt(
    outcome: _core.Reply | Exception, verdict: Verdict, is_up: bool
) -> None:
    found, made, member = judge(outcome)
    assert (found, member.is_up) == (verdict, is_up)
    if verdict is Verdict.RESEND:
        assert made.pick(0.0) is made.members[1]


def test_retry_after_is_honoured() -> None:
    assert judge(error(-32003, {"retry_after_ms": 5000}))[2].rests_until == 5
    assert judge(error(-32003, {"retry_after_ms": 10**9}))[2].rests_until == 30
    assert judge(error(-32003, {"retry_after_ms": 1}))[2].rests_until == 0.001
    assert judge(error(-32003, {"retry_after_ms": 0}))[2].rests_until == 1
    assert judge(error(-32003, "?"))[2].rests_until == 1
    assert judge(ucall.HTTPError(503))[2].rests_until == 1
    assert judge(ucall.HTTPError(503, retry_after_s=7))[2].rests_until == 7
    assert judge(ucall.HTTPError(503, retry_after_s=2**64))[2].rests_until == 30


def test_a_batch_that_is_refused_counts_as_its_first_call() -> None:
    overloaded, draining = error(-32003, {"retry_after_ms": 5000}).data(), error(-32002).data()
    assert judge(reply([overloaded, draining]))[2].rests_until == 5
    assert judge(reply([draining, overloaded]))[2].rests_until <= 0.1


def test_a_server_that_refuses_websockets_may_be_back_soon() -> None:
    assert judge(not_sent(ucall.HTTPError(503)))[2].rests_until < 0.5


def test_refused_calls_are_not_resent_beyond_the_budget() -> None:
    made = balancer(2)
    made.budget.saved = 0.5
    refused = Attempts(made, None).judge(made.members[0], error(-32003), 0.0)
    # What was not sent costs no server anything.
    unsent = not_sent(ucall.ConnectionError("refused"))
    assert refused is Verdict.DONE
    assert Attempts(made, None).judge(made.members[0], unsent, 0.0) is Verdict.RESEND


def test_each_address_is_tried_in_each_of_three_rounds() -> None:
    made = balancer(3)
    attempts, found, pauses = Attempts(made, None), [], []
    member: Member[str] | None = made.members[0]
    while member is not None:
        found.append(member)
        attempts.judge(member, not_sent(ucall.ConnectionError("refused")), 0.0)
        member, pause = attempts.next(0.0)
        pauses.append(pause)
    assert Counter(it.address.host for it in found) == {"host0": 3, "host1": 3, "host2": 3}
    first, second = (pause for pause in pauses if pause)
    assert 0.05 <= first <= 0.1 and 0.15 <= second <= 0.3 and (first, second) != (0.1, 0.3)


def test_a_refused_call_does_not_go_to_another_overloaded_server() -> None:
    made = balancer(2)
    made.overload(made.members[1], 0.0, 5.0)
    attempts = Attempts(made, None)
    attempts.judge(made.members[0], error(-32003), 0.0)
    assert attempts.next(0.0) == (None, 0.0)


def test_a_late_call_has_its_server_probed_once() -> None:
    made = balancer(2)
    made.suspect(made.members[0])
    assert made.poll_probes(0.0) == made.members[:1]
    made.probed(made.members[0], 0.1, is_alive=True)
    assert made.poll_probes(0.2) == []


def test_which_replies_mean_that_a_server_takes_calls() -> None:
    assert is_alive(error(-32601)) and is_alive(ucall.HTTPError(499))
    assert not is_alive(error(-32002)) and not is_alive(ucall.ConnectionError("refused"))
    assert not is_alive(ucall.HTTPError(500)) and not is_alive(ucall.TimeoutError("late"))
    assert is_refused(error(-32007)) and not is_refused(reply({"id": 1, "result": 1}))


def test_idempotent_functions_are_known_by_the_description() -> None:
    known = Idempotence()
    assert known.is_stale(0.0) and not known.allows(request(["get"]))
    methods = [{"name": "get", "x-idempotent": True}, {"name": "put"}, {"x-idempotent": True}, 5]
    known.learn(reply({"id": 1, "result": {"methods": methods}}), 0.0)
    assert known.allows(request(["get", "get"])) and not known.allows(request(["get", "put"]))
    assert not known.is_stale(60.0) and known.is_stale(60.1)
    known.learn(error(-32601), 61.0)
    assert not known.allows(request(["get"])) and not known.is_stale(62.0)


def test_a_description_that_is_too_long_declares_no_idempotent_function() -> None:
    def described(others: str) -> _core.Reply:
        methods = json.dumps([{"name": "get", "x-idempotent": True}])
        return read(f'{{"jsonrpc":"2.0","id":1,"result":{{"methods":{methods},"x":{others}}}}}')

    room = DESCRIPTION_BYTES_MAX - len(described('""').text)
    for others, is_known in (
        (f'"{"x" * room}"', True),
        (f'"{"x" * (room + 1)}"', False),
        ("9" * 5000, False),
    ):
        known = Idempotence()
        known.learn(described(others), 0.0)
        assert known.allows(request(["get"])) is is_known


@pytest.mark.parametrize(
    ("uris", "message"),
    [
        ([], "at least one"),
        (["http://a", "tcp://b"], "one protocol"),
        (["http://a", "https://b"], "one protocol"),
        ("dns+unix:///path", "has no host"),
        ("dns://a:b", "port"),
    ],
)
def test_addresses_that_are_refused(uris: str | list[str], message: str) -> None:
    for kind in (Client, aio.Client):
        with pytest.raises(ValueError, match=message):
            kind(uris)


def test_names_of_several_addresses() -> None:
    for uri, name, port in [
        ("dns://a", "http", 8545),
        ("dns://a:9", "http", 9),
        ("dns+tcps://a", "tcps", 8545),
        ("DNS+wss://a/path", "wss", 443),
    ]:
        assert Addresses.is_several(uri)
        address = Addresses(uri).first
        assert (address.scheme, address.port, address.host) == (name, port, "a")
        at = address.at("::1")
        assert (at.host, at.connect_host, at.host_header) == ("a", "::1", address.host_header)
    assert not Addresses.is_several("dns.example:80")


@pytest.mark.parametrize("kind", [Client, aio.Client])
def test_one_of_several_servers_has_a_second_to_accept_a_connection(kind: Any) -> None:
    members = kind(["127.0.0.1", "127.0.0.2"])._pool._servers.balancer.members
    assert [member.pool._connect_s for member in members] == [1, 1]


@pytest.mark.parametrize("kind", [Client, aio.Client])
def test_options_that_do_not_fit(kind: Any) -> None:
    for options in ({"idempotent": True}, {"key": "a"}):
        with pytest.raises(ValueError, match="several addresses"):
            kind("127.0.0.1").with_options(**options)
    for client, options in (("127.0.0.1", {"hedge": True}), (["127.0.0.1"], {"reconnect": True})):
        with pytest.raises(ValueError, match="several addresses"):
            kind(client, **options)
    with pytest.raises(TypeError, match="key: expected str or int, got bool"):
        kind(["127.0.0.1"]).with_options(key=True)
    with pytest.raises(ValueError, match="not a valid name"):
        kind(["127.0.0.1"], headers={"a b": "c"})
    with pytest.raises(ValueError, match="no subscriptions"):
        kind(["tcp://127.0.0.1"]).subscribe()
