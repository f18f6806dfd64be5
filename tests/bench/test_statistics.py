"""Pairs, ratios and verdicts of the report."""

import pytest

from harness.report import Spread, spread
from render.data import Results, difference, floors_of, nearest
from render.verdicts import all_verdicts, evaluated
from suite.servers import everyone


def made(*rows: tuple[str, str, float]) -> Results:
    """Results of one load: a pair, a server and its CPU time a call each."""
    samples = [
        {"section": "s", "load": "c32", "pair": pair, "server": server, "cpu_us_per_call": cpu}
        for pair, server, cpu in rows
    ]
    return Results({"samples": samples, "idle": []})


def test_a_ratio_is_taken_within_its_pair():
    """The machine was twice as slow in the second pair, which must not change the ratio."""
    found = made(
        ("0.0", "floor-epoll", 2.0),
        ("0.0", "ours-c-posix", 3.0),
        ("0.1", "ours-c-posix", 6.0),
        ("0.1", "floor-epoll", 4.0),
    )
    assert found.to_floor("ours-c-posix", "c32", "cpu_us_per_call") == Spread(1.5, 1.5, 1.5)
    above = found.to_floor("ours-c-posix", "c32", "cpu_us_per_call", difference)
    assert above == Spread(1.5, 1.25, 1.75)


def test_a_pair_without_the_floor_is_ignored():
    found = made(("0.0", "ours-c-posix", 3.0), ("0.1", "floor-epoll", 1.0))
    assert found.to_floor("ours-c-posix", "c32", "cpu_us_per_call") is None
    assert found.values("ours-c-posix", "c32", "cpu_us_per_call") == Spread(3.0, 3.0, 3.0)


def test_each_is_compared_with_the_floor_of_its_engine_and_protocol():
    assert floors_of("ours-python-uring") == ("floor-uring", "floor-epoll")
    assert floors_of("ours-python-posix-raw") == ("floor-epoll-raw",)
    assert floors_of("h2o") == ("floor-epoll",)
    assert floors_of("payload-uring") == ("floor-echo",)


def test_quartiles_interpolate_between_samples():
    assert spread([1, 2, 3, 4, 5]) == Spread(3, 2, 4)
    assert spread([7]) == Spread(7, 7, 7)
    assert spread([]) is None


@pytest.mark.parametrize(
    ("lower", "median", "outcome"),
    [
        (1.0, 1.2, "met"),
        (1.2, 1.2001, "**by the lower quartile only**"),
        (1.2001, 1.3, "**missed**"),
    ],
)
def test_a_cost_is_met_by_its_median_or_by_its_lower_quartile_only(lower, median, outcome):
    assert evaluated("cost", Spread(median, lower, 3.0), "{:.2f}", most=1.2).outcome == outcome


@pytest.mark.parametrize(
    ("median", "upper", "outcome"),
    [
        (2.5, 2.6, "met"),
        (2.4999, 2.5, "**by the upper quartile only**"),
        (2.4, 2.4999, "**missed**"),
    ],
)
def test_a_rate_is_met_by_its_median_or_by_its_upper_quartile_only(median, upper, outcome):
    assert evaluated("rate", Spread(median, 1.0, upper), "{:.2f}", least=2.5).outcome == outcome


def test_an_unmeasured_target_is_not_met():
    assert evaluated("cost", None, "{:.2f}", most=1.2).outcome == "not measured"


def test_every_target_has_a_verdict(results):
    claims = [verdict.claim for verdict in all_verdicts(results, everyone())]
    for part in ("FastAPI, def", "batches of 100", "16 deep", "idle", "p50", "may_minihttp"):
        assert any(part in claim for claim in claims), part


def test_the_nearest_peer_is_found_within_pairs():
    """The second peer ran while the machine was fast, so only its ratio may count."""
    samples = [
        {"section": "s", "load": "c32", "pair": pair, "server": server, "calls_per_second": rate}
        for pair, server, rate in (
            ("0.0", "ours", 30.0),
            ("0.0", "first", 10.0),
            ("1.0", "ours", 80.0),
            ("1.0", "second", 20.0),
        )
    ]
    found = Results({"samples": samples, "idle": []})
    assert nearest(found, "ours", ["first", "second", "nobody"], "c32") == "first"
