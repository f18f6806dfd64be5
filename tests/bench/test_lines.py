"""Line charts: well-formed, to scale, and one style for each series."""

import re
import xml.etree.ElementTree

import pytest
from soak.chart import chart
from soak.samples import Sample

from bench.render.lines import COLOURS, HEIGHT, LEFT, STEP, TOP, WIDTH, Axis, Panel, lines

PERCENT = Axis(0, 100, {50: "half <"})
DECADES = Axis(0.1, 1000, {1: "1"}, is_logarithmic=True)


def points_of(text: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]+)"', text)
    return [[tuple(map(float, point.split(","))) for point in it.split()] for it in found]


def test_points_are_to_scale_and_clipped_to_the_axes():
    series = {"a": [(10, 50), (0.01, -1), (1e6, 101)]}
    [drawn] = points_of(lines([Panel("t", DECADES, PERCENT, series)]))
    bottom = TOP + HEIGHT
    assert drawn == [(LEFT + WIDTH / 2, bottom - HEIGHT / 2), (LEFT, bottom), (LEFT + WIDTH, TOP)]


def test_a_series_has_one_style_and_one_legend_entry():
    first = Panel("a & b", DECADES, PERCENT, {"ours": [(1, 1)], "theirs": [(1, 2)]})
    second = Panel("c", DECADES, PERCENT, {"theirs": [(1, 0)]})
    text = lines([first, second], dashed=["theirs"])
    xml.etree.ElementTree.fromstring(text)
    styles = re.findall(r'<polyline .*? stroke="(.*?)"( stroke-dasharray)?', text)
    assert styles == [(COLOURS[0], ""), (COLOURS[1], " stroke-dasharray"), styles[1]]
    assert text.count(">theirs</text>") == text.count(">ours</text>") == 1
    assert points_of(text)[2] == [(points_of(text)[1][0][0], STEP + TOP + HEIGHT)]


def test_no_two_series_share_a_colour():
    series = {str(number): [(1.0, 1.0)] for number in range(len(COLOURS) + 1)}
    with pytest.raises(ValueError, match="colours"):
        lines([Panel("t", DECADES, PERCENT, series)])


def test_a_soak_chart_has_minutes_and_round_ticks():
    samples = [Sample(at_s, 40 + at_s / 60, 12, 3) for at_s in (0, 300, 600)]
    text = chart({"posix": samples, "uring": samples})
    xml.etree.ElementTree.fromstring(text)
    memory, same_memory, *descriptors = points_of(text)
    assert len(descriptors) == 2 and memory == same_memory
    assert [x for x, _ in memory] == [LEFT, LEFT + WIDTH / 2, LEFT + WIDTH]
    for tick in ("0 min", "5 min", "10 min", "20", "40", "5", "10"):
        assert f">\n{tick}</text>" in text or f">{tick}</text>" in text, tick
