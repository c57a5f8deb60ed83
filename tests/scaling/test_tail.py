"""The missing end of a run, and how good the rule is on runs that have theirs."""

from dataclasses import replace

import numpy as np
import pytest

from scaling.ladders import made
from shoal.scaling.forecast import forecast
from shoal.scaling.records import FRACTIONS, HEADLINE, Ladder
from shoal.scaling.tail import STATED_BIAS, completed, errors, line


def cut(ladder: Ladder, run: int, keep: int) -> Ladder:
    """The ladder with a run stopped after so many fractions."""
    stopped = ladder.runs[run]
    series = {n: (*v[:keep], *(None,) * (20 - keep)) for n, v in stopped.series.items()}
    runs = list(ladder.runs)
    runs[run] = replace(stopped, series=series)
    return replace(ladder, runs=tuple(runs))


def test_a_straight_end_is_filled_in_exactly():
    straight = tuple(3 - 0.5 * g for g in FRACTIONS)
    assert line((*straight[:16], *(None,) * 4)) == pytest.approx(straight)


def test_the_line_sees_the_points_from_60_to_80_percent_only():
    values = [3 - 0.5 * g for g in FRACTIONS]
    wild = [
        v + (5.0 if not 0.6 <= g <= 0.8 else 0.0) for g, v in zip(FRACTIONS, values, strict=True)
    ]
    assert line(tuple(wild)) == pytest.approx(values)
    for place in (11, 15):
        moved = list(values)
        moved[place] += 0.1
        assert line(tuple(moved)) != pytest.approx(values)


def test_the_bias_is_what_finished_runs_show_and_makes_up_for_the_bend():
    ladder = made(noise=0.0)
    stopped = cut(ladder, 7, 16)
    filled, marks = completed(stopped)
    seen = np.array(ladder.runs[7].series[HEADLINE][16:])
    straight = line(stopped.runs[7].series[HEADLINE])
    assert straight is not None
    found = np.array(filled.runs[7].series[HEADLINE][16:])
    assert np.abs(found - seen).max() < 0.5 * np.abs(straight[16:] - seen).max()
    assert list(marks) == ["made-3-0"]
    tail = {mark.series: mark for mark in marks["made-3-0"]}[HEADLINE]
    assert tail.since == 0.85
    assert tail.measured
    assert tail.bias == pytest.approx(
        float(np.mean([e[-1] for e in errors(stopped.runs, HEADLINE)]))
    )
    # What was seen stays as it was.
    assert filled.runs[7].series[HEADLINE][:16] == ladder.runs[7].series[HEADLINE][:16]
    assert filled.runs[:7] == ladder.runs[:7]


def test_the_back_test_on_finished_runs_shows_a_line_that_is_too_high_or_low_alike():
    found = np.array(errors(made(noise=0.0).runs, HEADLINE))
    assert (found[:, -1] > 0).all()
    assert found[:, 12:16] == pytest.approx(np.zeros((8, 4)), abs=2e-3)


def test_a_stated_bias_is_a_share_of_the_end():
    stopped = cut(made(noise=0.0), 7, 16)
    straight = line(stopped.runs[7].series[HEADLINE])
    assert straight is not None
    for given, share in ((0.01, 0.01), (0.0, 0.0)):
        filled, marks = completed(stopped, given)
        end = filled.runs[7].series[HEADLINE][-1]
        assert end == pytest.approx(straight[-1] * (1 + share))
        assert not marks["made-3-0"][0].measured
    alone = replace(stopped, runs=stopped.runs[7:])
    filled, _ = completed(alone)
    assert filled.runs[0].series[HEADLINE][-1] == pytest.approx(straight[-1] * (1 + STATED_BIAS))


def test_a_run_that_stopped_before_80_percent_stays_without_an_end():
    stopped = cut(made(), 7, 15)
    filled, marks = completed(stopped)
    assert filled == stopped
    assert marks == {}


def test_a_gap_in_the_middle_is_not_filled():
    ladder = made()
    values = list(ladder.runs[0].series[HEADLINE])
    values[4] = None
    runs = (replace(ladder.runs[0], series={HEADLINE: tuple(values)}), *ladder.runs[1:])
    filled, marks = completed(replace(ladder, runs=runs))
    assert filled.runs[0].series[HEADLINE][4] is None
    assert marks == {}


def test_a_forecast_marks_the_run_whose_end_was_filled_in():
    found = forecast(cut(made(noise=0.002), 7, 16))
    rows = {row["run"]: row["filled"] for row in found.data}
    assert rows["made-3-0"][HEADLINE]["since"] == 0.85
    assert all(filled == {} for run, filled in rows.items() if run != "made-3-0")
    whole = forecast(made(noise=0.002))
    assert found.headline.central[-1] == pytest.approx(whole.headline.central[-1], abs=0.02)
    assert found.headline.central[:16] == whole.headline.central[:16]
