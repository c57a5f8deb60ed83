"""The public run's forecast comes out as published."""

import json
from importlib import resources

import pytest

from shoal.scaling.forecast import forecast
from shoal.scaling.public import public_check, public_ladder

RUNGS = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"]


def test_pinned_at_one_and_a_half_it_is_the_published_one():
    ladder = public_ladder(RUNGS)
    found = forecast(ladder, asymptote=1.5)
    assert found.headline.alpha[-1] == pytest.approx(0.09011, abs=1e-5)
    assert found.headline.A[-1] == pytest.approx(85.28, abs=0.01)
    assert found.headline.central[-1] == pytest.approx(2.0378, abs=1e-4)
    check = public_check(ladder, found)
    assert check["fitted"]["d1024"] == pytest.approx(2.7802, abs=1e-4)
    assert check["fitted"]["d1536"] == pytest.approx(2.5614, abs=1e-4)
    assert check["range"]["1.3"] == pytest.approx(2.001, abs=5e-4)
    assert check["range"]["1.7"] == pytest.approx(2.084, abs=5e-4)
    assert check["published"]["central"] == 2.039


@pytest.mark.parametrize(("pin", "end"), [(1.4, 2.0184), (1.6, 2.0596)])
def test_other_asymptotes_move_the_center_as_derived_elsewhere(pin: float, end: float):
    found = forecast(public_ladder(RUNGS), asymptote=pin)
    assert found.headline.central[-1] == pytest.approx(end, abs=1e-4)


def test_the_interval_holds_the_range_of_assumed_asymptotes():
    found = forecast(public_ladder(RUNGS), asymptote=1.5).headline
    low, high = found.interval_90[-1]
    assert low < 2.001
    assert high > 2.084
    assert high - low < 0.12


def test_the_outcomes_are_scored_and_the_swap_is_worth_a_fifth():
    ladder = public_ladder(RUNGS)
    check = public_check(ladder, forecast(ladder, asymptote=1.5))
    raw, clean = check["outcomes"]["as scored"], check["outcomes"]["clean"]
    assert raw["error"] == pytest.approx(-0.0558, abs=1e-4)
    assert raw["percent"] == pytest.approx(-2.74, abs=0.01)
    assert raw["compute_equivalent"] == pytest.approx(3.37, abs=0.01)
    assert not raw["inside_90"]
    assert clean["error"] == pytest.approx(-0.0358, abs=1e-4)
    assert clean["compute_equivalent"] == pytest.approx(2.15, abs=0.01)
    assert clean["inside_90"]
    assert not clean["inside_50"]
    assert 1.20 <= check["mixture_swap"]["speedup"] < 1.215


def test_three_rungs_with_a_free_asymptote_take_it_from_a_range():
    found = forecast(public_ladder(RUNGS)).headline
    assert 0 < found.E[-1] < 0.8 * 2.5615
    low, high = found.interval_90[-1]
    pinned = forecast(public_ladder(RUNGS), asymptote=1.5).headline.interval_90[-1]
    assert high - low > pinned[1] - pinned[0]
