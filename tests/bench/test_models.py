"""The models, the ideal batcher and the report of the section `models`."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy
import pytest
from part_frames import parse

from bench import ROOT
from bench.harness import arrays, ideal, models, processes
from bench.harness.ideal import Times
from bench.sections import models as section
from bench.suite import model_contenders
from bench.suite.model_contenders import BARE, THREADS, Contender, Field

#: A batch takes a second, and a tenth more for each item.
LINEAR = Times({1: 1.1, 11: 2.1})


def test_the_time_of_a_batch_lies_between_those_that_were_measured():
    assert [LINEAR.of(size) for size in (1, 6, 11)] == pytest.approx([1.1, 1.6, 2.1])
    assert Times({1: 1, 2: 3, 4: 4}).of(3) == pytest.approx(3.5)
    # As many as wait fill no larger batch.
    assert LINEAR.rate(10) == pytest.approx(1 / 1.1) and LINEAR.rate(512) == pytest.approx(11 / 2.1)


def test_the_best_batcher_never_waits_while_the_device_is_free():
    # The first goes alone, the next three go together when it is done, the last one alone.
    found = ideal.latencies([0, 0.5, 0.6, 1.1, 5], LINEAR, 64)
    assert found == pytest.approx([1.1, 1.9, 1.8, 1.3, 1.1])
    # Batches of two at most.
    found = ideal.latencies([0, 0.5, 0.6, 1.1], LINEAR, 2)
    assert found == pytest.approx([1.1, 1.8, 1.7, 2.3])


def test_calls_arrive_at_the_rate_and_at_random_times():
    found = ideal.poisson(1000, 10, seed=1)
    assert found == ideal.poisson(1000, 10, seed=1) != ideal.poisson(1000, 10, seed=2)
    assert len(found) == pytest.approx(10_000, rel=0.05) and found == sorted(found)
    gaps = numpy.diff(found)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_the_result_of_an_item_is_its_own_in_each_batch(monkeypatch):
    monkeypatch.setattr(models, "STEPS_A_MS", 1)
    contents = [it.tobytes() for it in models.items("sleep", 3)]
    assert len(set(contents)) == 3 and len(contents[0]) == 512
    for run in models.TIMED.values():
        assert models.of_bytes("sleep", run, contents) == [it * 3 for it in contents]


def test_the_bare_loop_prints_how_long_each_size_takes():
    command = [sys.executable, "-m", "bench.harness.models", "sleep", "cpu"]
    done = subprocess.run(
        command, input="0.05\n", cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    found = {int(size): took for size, took in json.loads(done.stdout).items()}
    assert list(found) == list(models.SIZES)
    assert found[1] >= 0.000_52 and found[64] >= 0.001_78


def test_each_form_of_a_call_has_the_item():
    content = bytes(range(64))
    in_json = json.loads(body_of(model_contenders.message("bytes", b"npy", content)))
    assert in_json["method"] == "predict"
    text, [part] = parse(body_of(model_contenders.message("arrays", b"npy", content)))
    assert text["method"] == "predict_arrays" and part == b"npy"
    for form in ("item", "items"):
        sent = model_contenders.message(form, b"npy", content)
        assert sent.startswith(b"POST /predict ") and in_json["params"][0].encode() in sent


def body_of(sent: bytes) -> bytes:
    return sent.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("form", ["bytes", "arrays"])
def test_our_server_replies_with_the_result_of_each_item(form, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(processes, "OUTPUT", tmp_path)
    field = Field("sleep", "cpu", "posix", None, tmp_path / "none")
    contender = Contender("ours", "threads", form)
    with field.running(contender) as server:
        assert len(set(field.requests(contender, server.port))) == model_contenders.ITEMS
        sent = model_contenders.message(form, arrays.npy(models.items("sleep", 1)[0]), bytes(512))
        with pytest.raises(processes.LoadError, match="not the expected reply"):
            field.check(server.port, sent, b"something else", form == "arrays")


def sampled(**more: float) -> dict[str, float]:
    found = {f"{name}_{it}": 1.0 for it in section.CONNECTIONS for name in ("items", "p50", "p99")}
    return {**found, "cpu_us": 10.0, **more}


def test_a_sample_is_compared_with_the_bare_loop_of_its_round():
    slow, fast = {1: 0.002, 8: 0.002, 64: 0.004}, {1: 0.001, 8: 0.001, 64: 0.002}
    ours = sampled(items_8=4000, items_512=8000, p50_1=2.2)
    found = section.compared({BARE: [slow, fast], THREADS: [ours, ours]}, 0.1, 100)
    first, second = found[THREADS]
    assert (first["share_8"], second["share_8"]) == pytest.approx((1, 0.5))
    assert (first["share_512"], second["share_512"]) == pytest.approx((0.5, 0.25))
    assert (first["added_ms"], second["added_ms"]) == pytest.approx((0.2, 1.2))
    assert "late_0.5" not in first


def test_p99_is_compared_with_the_best_on_the_same_arrivals():
    times = {1: 0.001, 64: 0.001}
    ours = sampled(**{"open_p99_0.5": 4.0})
    [sample] = section.compared({BARE: [times], THREADS: [ours]}, 1, 100)[THREADS]
    best = ideal.latencies(section.arrivals(0.5, 1, 100), Times(times), models.MAX_SIZE)
    assert sample["late_0.5"] == pytest.approx(0.004 / ideal.percentile(best, 0.99))
    assert 2 <= sample["late_0.5"] <= 4


def test_the_table_and_the_verdicts_show_what_was_measured():
    times = {1: 0.001, 8: 0.001, 64: 0.002}
    ours = sampled(items_8=8000, items_256=30_400, p50_1=1.5)
    runs = section.compared({BARE: [times], THREADS: [ours, None]}, 0.1, 100)
    assert f"| {THREADS} | 30,400 |" in section.table("sleep", runs)
    verdicts = section.verdicts({"sleep": runs})
    assert "at least 0.95 of the bare loop's items a second at 256 | met |" in verdicts
    assert "at most 0.3 ms more for a single caller | **missed** |" in verdicts
    assert "at most 12 µs of CPU time an item | met |" in verdicts
