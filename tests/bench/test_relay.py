"""The table of relays: its goals, and its section of docs/relay.md."""

import relay

MACHINE = {"date": "2026-01-01", "commit": "abc", "cpus": 2, "cpu": "A", "kernel": "6.1"}


def results(p50_us):
    ours = {"relay_us": 5.0, "both_us": 11.0, "p50_us": p50_us}
    theirs = {"relay_us": 10.0, "both_us": 20.0, "p50_us": 50.0}
    samples = {relay.OURS: [ours, ours], relay.BASELINE: [theirs, theirs]}
    return {"machine": MACHINE, "options": {"engine": "posix", "rounds": 2}, "samples": samples}


def test_a_figure_past_its_goal_is_named():
    assert relay.missed(results(50.0)["samples"]) == []
    assert relay.missed(results(51.0)["samples"]) == ["p50, 1 connection"]
    assert "Past the goal: p50, 1 connection." in relay.section(results(51.0))
    assert "All goals are met." in relay.section(results(50.0))


def test_the_section_is_added_once_and_replaced_later():
    page = "# Relayed calls\n\nText.\n"
    once = relay.with_section(page, relay.section(results(50.0)))
    again = relay.with_section(once, relay.section(results(51.0)))
    assert once.startswith(page.rstrip()) and once.count(relay.BEGIN) == 1
    assert again.count(relay.BEGIN) == 1 and "51.00 µs (1.02)" in again
    assert relay.with_section(again, relay.section(results(50.0))) == once
