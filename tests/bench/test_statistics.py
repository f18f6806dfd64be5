"""Pairs, ratios and verdicts of the report."""

import math
import random
import statistics

import pytest

from bench.harness.figures import Column, Spread, in_turns, interval, spread, table_of
from bench.render import tables
from bench.render.data import Results, difference, nearest
from bench.render.verdicts import all_verdicts, evaluated
from bench.suite.servers import everyone, floors_of


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
    assert above == Spread(1.5, 1.0, 2.0)


def test_a_pair_without_the_floor_is_ignored():
    found = made(("0.0", "ours-c-posix", 3.0), ("0.1", "floor-epoll", 1.0))
    assert found.to_floor("ours-c-posix", "c32", "cpu_us_per_call") is None
    assert found.values("ours-c-posix", "c32", "cpu_us_per_call") == Spread(3.0, 3.0, 3.0)


def test_each_is_compared_with_the_floor_of_its_engine_and_protocol():
    assert floors_of("ours-python-uring") == ("floor-uring", "floor-epoll")
    assert floors_of("ours-python-posix-raw") == ("floor-epoll-raw",)
    assert floors_of("h2o") == ("floor-epoll",)


def test_quartiles_interpolate_between_samples():
    assert spread([1, 2, 3, 4, 5]) == Spread(3, 2, 4)
    assert spread([7]) == Spread(7, 7, 7)
    assert spread([]) is None


def test_an_interval_is_the_same_for_the_same_values_and_shrinks_with_their_number():
    chosen = random.Random(1)
    few, many = ([chosen.gauss(10, 1) for _ in range(count)] for count in (7, 200))
    assert interval(few) == interval(few)
    for values in (few, many):
        found = interval(values)
        assert found.lower < found.median == statistics.median(values) < found.upper
    wide, narrow = (found.upper - found.lower for found in map(interval, (few, many)))
    assert narrow < wide / 2
    assert interval([]) is None and interval([3.0]) == Spread(3.0, 3.0, 3.0)


def test_an_interval_has_the_true_median_in_95_of_100_cases():
    chosen = random.Random(2)
    hits = 0
    for _ in range(200):
        found = interval([chosen.expovariate(1) for _ in range(25)])
        hits += found.lower <= math.log(2) <= found.upper
    assert 180 <= hits <= 199


def test_pairs_of_different_modes_are_left_out():
    samples = [
        {"section": "s", "load": "c32", "pair": pair, "server": server, "cpu_us_per_call": cpu}
        | {"calibration_us": calibrated}
        for pair, server, cpu, calibrated in (
            ("0", "floor-epoll", 2.0, [1.8, 1.9]),
            ("0", "ours-c-posix", 2.2, [1.9, 1.8]),
            ("1", "floor-epoll", 5.0, [4.7, 4.7]),
            ("1", "ours-c-posix", 2.2, [1.8, 1.8]),
            ("2", "floor-epoll", 2.0, [1.8, 1.8]),
            ("2", "ours-c-posix", 6.0, [1.8, 4.7]),
        )
    ]
    found = Results({"samples": samples, "idle": []})
    assert len(found.accepted("ours-c-posix", "floor-epoll", "c32")) == 1
    assert found.to_floor("ours-c-posix", "c32", "cpu_us_per_call").median == pytest.approx(1.1)
    assert found.usual_mode == (1.8, 1.9)
    assert found.values("ours-c-posix", "c32", "cpu_us_per_call").median == 2.2


@pytest.mark.parametrize(
    ("lower", "upper", "outcome"),
    [
        (1.0, 1.2, "met"),
        (1.1, 1.2001, "undecided"),
        (1.2, 1.3, "undecided"),
        (1.2001, 1.3, "**missed**"),
    ],
)
def test_a_cost_is_judged_by_its_whole_interval(lower, upper, outcome):
    assert evaluated("cost", Spread(1.15, lower, upper), "{:.2f}", most=1.2).outcome == outcome


@pytest.mark.parametrize(
    ("lower", "upper", "outcome"),
    [
        (2.5, 2.6, "met"),
        (2.4999, 2.6, "undecided"),
        (2.4, 2.5, "undecided"),
        (2.4, 2.4999, "**missed**"),
    ],
)
def test_a_rate_is_judged_by_its_whole_interval(lower, upper, outcome):
    assert evaluated("rate", Spread(2.5, lower, upper), "{:.2f}", least=2.5).outcome == outcome


def test_a_run_of_peers_does_not_change_the_headline():
    samples = [
        {"section": section, "load": "c32", "pair": pair, "server": server, "cpu_us_per_call": cpu}
        for section, pair, server, cpu in (
            ("headline", "0", "floor-epoll", 2.0),
            ("headline", "0", "ours-c-posix", 2.2),
            ("calls", "1", "floor-epoll", 2.0),
            ("calls", "1", "ours-c-posix", 4.0),
            ("calls", "1", "ntex", 3.0),
            ("calls", "2", "floor-epoll", 2.0),
            ("calls", "2", "ours-c-posix", 4.0),
            ("calls", "2", "actix", 5.0),
        )
    ]
    sample = {"calls_per_second": 1.0, "p99_us": 1.0, "rss_mb": 1.0, "errors": 0}
    found = Results({"samples": [it | sample for it in samples], "idle": []})
    assert found.to_floor("ours-c-posix", "c32", "cpu_us_per_call").median == pytest.approx(1.1)
    assert found.values("ours-c-posix", "c32", "cpu_us_per_call").median == 2.2
    assert found.to_floor("ntex", "c32", "cpu_us_per_call").median == 1.5
    table = tables.headline(found, everyone())
    assert "actix" in table and "ntex" not in table


@pytest.mark.parametrize(("errors", "is_broken"), [(0, False), (1, False), (2, True)])
def test_a_server_that_fails_calls_has_no_rate(errors, is_broken):
    sample = {"section": "calls", "load": "c32", "pair": "0", "server": "ntex", "errors": errors}
    metrics = ("p50_us", "p99_us", "p999_us", "cpu_us_per_call", "rss_mb")
    sample |= {"calls_per_second": 123.0} | dict.fromkeys(metrics, 1.0)
    found = Results({"samples": [sample], "idle": []})
    table = tables.calls(found, everyone(), "c32")
    assert ("| broken |" in table, "| 123 |" in table) == (is_broken, not is_broken)
    assert f"| {errors} |" in table


def test_an_unmeasured_target_is_not_met():
    assert evaluated("cost", None, "{:.2f}", most=1.2).outcome == "not measured"


def test_every_target_has_a_verdict(results):
    claims = [verdict.claim for verdict in all_verdicts(results, everyone())]
    for part in ("FastAPI, def", "batches of 100", "16 deep", "idle", "p50", "ntex"):
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


def test_every_second_round_runs_backwards_and_ratios_are_of_a_round():
    """The machine is twice as slow in the second round, which must not change the ratio."""
    order = []

    def contender(name, *figures):
        left = list(figures)

        def measure():
            order.append(name)
            return {"us": left.pop(0)}

        return measure

    turns = {"base": contender("base", 2.0, 4.0), "other": contender("other", 3.0, 6.0)}
    runs = in_turns(turns, 2)
    assert order == ["base", "other", "other", "base"]
    columns = [Column("µs", "us"), Column("ratio", "us", base="base", kind=spread)]
    assert table_of({**runs, "failed": [None]}, columns, "by").splitlines() == [
        "| by | µs | ratio |",
        "|---|---:|---:|",
        "| base | 3.00 | 1.00 (1.00..1.00) |",
        "| other | 4.50 | 1.50 (1.50..1.50) |",
        "| failed |  |  |",
    ]
