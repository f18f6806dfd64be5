"""The table of relays: its goals, and its section of docs/relay.md."""

from bench.sections import relay

ROUND = {"relay_us": 10.0, "both_us": 20.0, "p50_us": 50.0}


def relay_results(raw, p50_us):
    ours = {"relay_us": 5.0, "both_us": 11.0, "p50_us": p50_us}
    samples = {relay.OURS: [ours, ours], relay.BASELINE: [ROUND, ROUND]}
    options = {"engine": "posix", "rounds": 2}
    return {"machine": raw["machine"], "options": options, "samples": samples}


def test_a_figure_past_its_goal_is_named(results):
    good, bad = (relay_results(results.raw, p50_us) for p50_us in (50.0, 51.0))
    assert relay.missed(good["samples"]) == []
    assert relay.missed(bad["samples"]) == ["p50, 1 connection"]
    assert "Past the goal: p50, 1 connection." in relay.report(bad)
    assert "All goals are met." in relay.report(good)
    assert "| 51.00 | 1.02 |" in relay.report(bad)
