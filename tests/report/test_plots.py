import json
import math
import re

import numpy as np
import pytest

from shoal.report.plots import Band, Series, bar, heatmap, line_chart, strip
from shoal.report.scales import Axis, nice_ticks, scale, thin

X = Axis(label="tokens", format="compact", low=0)
Y = Axis(label="nats")


def data(chart: str) -> dict:
    found = re.search(r'<script type="application/json">(.*?)</script>', chart)
    assert found
    return json.loads(found[1])


def curve(y, x=None, **options) -> Series:
    y = np.asarray(y, np.float64)
    x = np.arange(1.0, len(y) + 1) if x is None else np.asarray(x, np.float64)
    return Series(name="train", x=x, y=y, style="c1", **options)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.13, 0.58, [0.2, 0.3, 0.4, 0.5]),
        (-3, 2, [-3, -2, -1, 0, 1, 2]),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert nice_ticks(low, high, 5) == expected


@pytest.mark.parametrize(
    ("axis", "values", "expected"),
    [
        (Axis(label="", format="compact"), [0, 1.9e6], ["0", "0.5M", "1.0M", "1.5M"]),
        (Axis(label="", format="duration"), [0, 190], ["0", "1 min", "2 min", "3 min"]),
        (Axis(label="", format="duration"), [0, 76 * 86_400], ["0", "20 d", "40 d", "60 d"]),
        (Axis(label=""), [0, 0.0115], ["0", "0.005", "0.010"]),
        (Axis(label="", log=True), [0.02, 2], ["0.03", "0.10", "0.30", "1.00"]),
        (Axis(label="", log=True), [1e12, 2e14], ["1e12", "1e13", "1e14"]),
        (Axis(label="", log=True), [1e-9, 1e3], ["1e-9", "1e-6", "0.001", "1", "1000"]),
        (Axis(label="", log=True), [20, 60], ["20", "30", "40", "50", "60"]),
    ],
)
def test_ticks_are_written_with_the_digits_that_tell_them_apart(axis, values, expected):
    ticks = scale(axis, np.array(values, np.float64)).ticks(4, axis.format)
    assert [name.replace("\N{MINUS SIGN}", "-") for _, name in ticks] == expected


def test_a_scale_of_equal_values_is_not_empty():
    for log in (False, True):
        made = scale(Axis(label="", log=log), np.array([3.0, 3.0]))
        assert made.low < 3 < made.high
        assert made.at(3.0) == pytest.approx(0.5)


def test_a_logarithmic_axis_without_positive_values_is_linear():
    assert not scale(Axis(label="", log=True), np.array([-1.0, 0.0])).log


def test_a_logarithmic_axis_is_not_stretched_by_one_value_next_to_nothing():
    made = scale(Axis(label="", log=True), np.array([1e-12, *np.linspace(1, 2, 99)]))
    assert made.low > 0.05


def test_values_without_a_place_have_none():
    made = scale(Axis(label="", log=True), np.array([0.1, 10.0]))
    assert np.isnan(made.place(np.array([0.0, -1.0, math.inf]))).all()


def test_thinning_keeps_every_extreme_and_stays_small():
    rng = np.random.default_rng(0)
    x = np.arange(400_000.0)
    y = rng.normal(size=len(x))
    y[[7, 123_456, 399_998]] = [90, -80, 70]
    keep = thin(x, y, 400)
    assert len(keep) <= 802
    assert {0, 7, 123_456, 399_998, 399_999} <= set(keep.tolist())
    assert (np.diff(keep) > 0).all()


def test_thinning_follows_x_and_not_the_count():
    x = np.concatenate([np.linspace(0, 1, 5_000), np.linspace(1, 100, 50)])
    keep = thin(x, np.sin(x), 100)
    assert (x[keep] > 1).sum() >= 49


def test_thinning_keeps_a_gap():
    y = np.ones(10_000)
    y[4_000:6_000] = np.nan
    keep = thin(np.arange(10_000.0), y, 100)
    assert np.isnan(y[keep]).sum() >= 10


def test_a_curve_breaks_where_a_value_is_not_finite():
    chart = line_chart("Loss", [curve([3, 2, math.nan, 1, math.inf, 0.5])], x=X, y=Y)
    path = re.search(r'<path d="([^"]*)"', chart)
    assert path
    assert path[1].count("M") == 3
    assert data(chart)["series"][0]["y"] == [3, 2, None, 1, None, 0.5]


def test_a_band_lies_between_its_curves_and_is_a_bar_where_a_point_stands_alone():
    x = np.arange(5.0)
    low, high = np.array([1.0, 2, math.nan, 3, math.nan]), np.array([2.0, 4, 5, 5, 5])
    band = Band(name="90 %", x=x, low=low, high=high, style="c1")
    across = Axis(label="x", low=0, high=4)
    chart = line_chart("Loss", [curve([1, 5], x=[0, 4])], x=across, y=Y, bands=[band])
    drawn = re.findall(r'<path d="([^"]*)" class="(band|whisker) c1"', chart)
    assert [kind for _, kind in drawn] == ["band", "whisker"]
    bottom, top = (scale(Y, np.array([1.0, 5.0]), pad=0.06).at(value) for value in (1.0, 5.0))

    def values(path: str) -> list[list[float]]:
        points = [piece.split() for piece in path.removeprefix("M").split("L")]
        shares = [(int(right) / 4000, 1 - int(down) / 4000) for right, down in points]
        return [
            [round(4 * right, 2), round(1 + 4 * (up - bottom) / (top - bottom), 2)]
            for right, up in shares
        ]

    assert values(drawn[0][0]) == [[0, 1], [1, 2], [1, 4], [0, 2]]
    assert values(drawn[1][0]) == [[3, 3], [3, 5]]
    assert chart.count("90 %") == 1


def test_a_band_widens_the_axis():
    band = Band(name="b", x=np.array([1.0]), low=np.array([-7.0]), high=np.array([9.0]), style="c1")
    low, high = data(line_chart("Loss", [curve([1, 2])], x=X, y=Y, bands=[band]))["y"][:2]
    assert low < -7
    assert high > 9


def test_a_chart_of_many_points_is_small_and_says_its_range():
    y = 3 + np.random.default_rng(0).normal(size=400_000)
    chart = line_chart("Loss", [curve(y)], x=X, y=Y)
    assert len(chart) < 60_000
    assert f"train from {y[0]:.3f} to {y[-1]:.3f}" in chart


def test_a_curve_is_drawn_in_the_order_of_x():
    chart = line_chart("Loss", [curve([1, 2, 3], x=[3, 1, 2])], x=X, y=Y)
    assert data(chart)["series"][0] == {"x": [1, 2, 3], "y": [2, 3, 1], "style": "c1"}


def test_a_chart_of_nothing_finite_still_stands():
    chart = line_chart("Loss", [curve([math.nan, math.nan])], x=X, y=Y)
    assert "\N{EN DASH}" in chart


def test_names_cannot_leave_their_place():
    hostile = "</script><script>alert(1)</script>"
    one = Series(name=hostile, x=np.array([1.0]), y=np.array([2.0]), style="c1")
    unit = Axis(label=hostile)
    chart = line_chart(hostile, [one], x=unit, y=unit, references=[(hostile, 1.0)], note=hostile)
    assert chart.count("<script") == 1
    assert data(chart)["unit"] == hostile


def test_a_heatmap_has_every_expert_once_and_idle_ones_apart():
    values = np.array([[0.0, 0.1, 1.0, 1.0], [9.0, 1.0, 0.9, 1.2]])
    chart = heatmap("Load", values, unit="over mean")
    drawn = re.findall(r'<path d="([^"]*)" class="h(\d)">', chart)
    widths = {int(kind): sum(int(w) for w in re.findall(r"h(\d+)v", d)) for d, kind in drawn}
    assert widths == {0: 1, 1: 1, 4: 1, 5: 3, 6: 1, 9: 1}
    assert "none" in chart
    assert data(chart)["values"] == [[0, 0.1, 1, 1], [9, 1, 0.9, 1.2]]


def test_a_heatmap_without_idle_experts_does_not_speak_of_them():
    assert ">none<" not in heatmap("Load", np.ones((2, 3)), unit="over mean")


def test_a_strip_says_its_values_and_who_is_ahead():
    better = strip(2.0, [("xz", 2.5), ("zstd", 2.6)], 1, 3)
    assert 'aria-label="ours 2.00; xz 2.50; zstd 2.60"' in better
    assert "gap better" in better
    assert "gap worse" in strip(2.55, [("xz", 2.5), ("zstd", 2.6)], 1, 3)
    assert "ours missing" in strip(None, [], 1, 3)


def test_a_bar_never_leaves_its_track():
    assert 'width="100%" height="100%" class="fill"' in bar(7.0, "much")
    assert 'width="0%" height="100%" class="fill"' in bar(-1.0, "little")
