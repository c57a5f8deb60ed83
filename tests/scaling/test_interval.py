"""Intervals hold what they say, on simulated ladders whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.scaling.interval import PARTS, Points, Settings, bounds_of, central, estimate
from shoal.scaling.law import fit, pinned, spans

NUMBER = 1000


def simulated(
    seeds: tuple[int, ...],
    noise: float,
    *,
    span: tuple[float, float, float] = (5e19, 9e21, 2.7e24),
    asymptote: tuple[float, float] = (1.3, 1.7),
    alpha: tuple[float, float] = (0.07, 0.12),
    number: int = NUMBER,
    seed: int = 0,
) -> tuple[Points, np.ndarray, np.ndarray]:
    """Ladders, what a run of the target scores, and the law there without its noise."""
    rng = np.random.default_rng(seed)
    low, high, target = span
    rung = np.repeat(np.arange(len(seeds)), seeds)
    x = np.log(np.geomspace(low, high, len(seeds)) / target)[rung]
    level, power = rng.uniform(*asymptote, number), rng.uniform(*alpha, number)

    def law(at: np.ndarray) -> np.ndarray:
        return level[:, None] + (3 - level[:, None]) * np.exp(-power[:, None] * (at - x[0]))

    seen = law(x) + rng.normal(size=(number, len(x))) * noise
    truth = law(np.zeros(1))[:, 0]
    points = Points(compute=x, tokens=x / 2, rung=rung, losses=seen, scale=np.ones(number))
    return points, truth + rng.normal(size=number) * noise, truth


def covered(interval: tuple[np.ndarray, np.ndarray], value: np.ndarray) -> float:
    low, high = interval
    return float(((low <= value) & (value <= high)).mean())


def width(interval: tuple[np.ndarray, np.ndarray]) -> float:
    return float((interval[1] - interval[0]).mean())


@pytest.mark.parametrize("noise", [0.001, 0.003, 0.01])
def test_a_thousand_ladders_with_the_asymptote_free(noise: float):
    points, seen, _ = simulated((3, 3, 1, 1, 1), noise)
    found = estimate(points, Settings())
    assert 0.85 <= covered(found.intervals[0.9], seen) <= 0.95
    assert 0.45 <= covered(found.intervals[0.5], seen) <= 0.62
    assert width(found.intervals[0.9]) < 30 * noise


def test_a_stated_range_is_narrower_and_holds_as_often():
    points, seen, _ = simulated((3, 3, 1, 1, 1), 0.003, number=400)
    free = estimate(points, Settings()).intervals[0.9]
    ranged = estimate(points, Settings(asymptote=(1.3, 1.7))).intervals[0.9]
    assert 0.85 <= covered(ranged, seen) <= 0.95
    assert width(ranged) < 0.85 * width(free)


@pytest.mark.parametrize(
    ("pin", "coverage", "wide"),
    [(None, (0.85, 0.92), 0.069), (1.6, (0.85, 0.92), 0.011), (1.5, (0.0, 0.02), 0.011)],
)
def test_the_profile_of_four_rungs_alone(
    pin: float | None, coverage: tuple[float, float], wide: float
):
    """Issue 5's simulation: E is 1.6, the noise known, and the law itself is to be held."""
    points, _, truth = simulated((1, 1, 1, 1), 0.003, asymptote=(1.6, 1.6), alpha=(0.09, 0.09))
    bounds, _ = bounds_of(points, Settings())
    bounds = bounds if pin is None else pinned(np.full(NUMBER, pin))
    best = fit(points.compute, points.losses, points.weights, bounds)
    allowed = np.full(NUMBER, 1.645**2 * 0.003**2)
    interval = spans(best, points.compute, points.losses, bounds, allowed=allowed, own=0.0)
    assert coverage[0] <= covered(interval, truth) <= coverage[1]
    assert width(interval) == pytest.approx(wide, rel=0.1)


@pytest.mark.parametrize("pin", [1.5, 1.6, 1.7])
def test_a_pin_that_is_off_is_covered_because_its_sensitivity_is_inside(pin: float):
    points, seen, truth = simulated((1, 1, 1, 1), 0.003, asymptote=(1.6, 1.6), number=400)
    found = estimate(points, Settings(asymptote=pin, noise=0.003))
    assert covered(found.intervals[0.9], seen) >= 0.85
    assert covered(found.intervals[0.9], truth) >= 0.85
    assert (found.law.asymptote == pin).all()
    # Nothing is gained by pinning with an interval as wide as that of a free asymptote.
    free = estimate(points, Settings(noise=0.003))
    assert width(found.intervals[0.9]) < width(free.intervals[0.9])


def test_the_small_ladder_far_from_its_asymptote_is_covered():
    """Four rungs over a factor 30, three seeds on two of them, the target 8 times beyond."""
    span = (7e11, 2e13, 1.7e14)
    points, seen, _ = simulated((3, 3, 1, 1), 0.01, span=span, asymptote=(0.0, 1.2))
    found = estimate(points, Settings())
    assert 0.85 <= covered(found.intervals[0.9], seen) <= 0.97


def test_three_rungs_take_the_asymptote_from_a_range_and_are_covered():
    points, seen, _ = simulated((3, 3, 1), 0.003)
    found = estimate(points, Settings())
    assert 0.85 <= covered(found.intervals[0.9], seen) <= 0.97
    bounds, pins = bounds_of(points, Settings())
    assert pins is None
    assert (bounds.low == 0).all()
    assert bounds.high == pytest.approx(0.8 * points.least)
    assert bounds.middle == pytest.approx(0.4 * points.least)
    assert (found.law.asymptote > 0).all()
    assert (found.law.asymptote <= bounds.high).all()


def test_the_interval_holds_what_left_out_rungs_and_other_forms_say():
    points, _, _ = simulated((1, 1, 1, 1, 1), 0.003, number=50)
    found = estimate(points, Settings())
    low, high = found.intervals[0.9]
    for other in [*(found.central + found.left_out), *found.forms.values()]:
        assert (low <= other + 1e-12).all()
        assert (other <= high + 1e-12).all()
    assert set(found.parts) == set(PARTS)
    assert found.parts["leave_one_out"] == pytest.approx(np.abs(found.left_out).max(0))
    moves = np.stack(list(found.forms.values())) - found.central
    assert found.parts["form"] == pytest.approx(np.abs(moves).max(0))


def test_a_left_out_rung_is_truly_left_out():
    points, _, _ = simulated((1, 1, 1, 1, 1), 0.003, number=5)
    found = estimate(points, Settings())
    for rung in range(5):
        spoiled = points.losses.copy()
        spoiled[:, rung] = np.nan
        without = Points(
            compute=points.compute,
            tokens=points.tokens,
            rung=points.rung,
            losses=spoiled,
            scale=points.scale,
        )
        again = central(without, bounds_of(points, Settings())[0], None)
        assert again.central - found.central == pytest.approx(found.left_out[rung], abs=1e-6)


def test_where_the_law_misses_by_more_than_seeds_explain_the_interval_says_so():
    points, _, _ = simulated((3, 3, 3, 3, 3), 0.001, number=40)
    bent = points.losses + 0.02 * (points.rung % 2)
    off = Points(
        compute=points.compute,
        tokens=points.tokens,
        rung=points.rung,
        losses=bent,
        scale=points.scale,
    )
    plain, misfit = estimate(points, Settings()), estimate(off, Settings())
    assert (misfit.noise > 5 * plain.noise).all()
    assert width(misfit.intervals[0.9]) > 4 * width(plain.intervals[0.9])


def test_without_repeats_luck_does_not_make_it_sure():
    """Three rungs that a pinned law meets exactly still have the noise of a thousandth."""
    x = np.log(np.array([2.65e19, 1.726e20, 1.381e21]) / 2.611e24)
    exact = (1.5 + 0.54 * np.exp(-0.09 * x))[None]
    points = Points(compute=x, tokens=x / 2, rung=np.arange(3), losses=exact, scale=np.ones(1))
    found = estimate(points, Settings(asymptote=1.5))
    assert found.noise[0] == pytest.approx(0.001 * exact.mean())
    assert found.parts["seed"][0] == pytest.approx(1.645 * found.noise[0], rel=1e-3)
    assert estimate(points, Settings(asymptote=1.5, noise=0.02)).noise[0] == 0.02


def test_an_asymptote_above_the_losses_is_refused():
    points, _, _ = simulated((1, 1, 1, 1), 0.003, number=2)
    with pytest.raises(ValueError, match="not below the least loss"):
        estimate(points, Settings(asymptote=2.9))
    with pytest.raises(ValueError, match="not below the least loss"):
        estimate(points, Settings(asymptote=(2.9, 3.0)))


@settings(max_examples=8, deadline=None)
@given(st.floats(0.2, 5.0))
def test_the_unit_of_the_loss_does_not_matter(unit: float):
    points, _, _ = simulated((3, 3, 1, 1), 0.003, number=3)
    scaled = Points(
        compute=points.compute,
        tokens=points.tokens,
        rung=points.rung,
        losses=points.losses * unit,
        scale=points.scale,
    )
    plain, other = estimate(points, Settings()), estimate(scaled, Settings())
    assert other.central == pytest.approx(plain.central * unit, rel=1e-6)
    for level in (0.5, 0.9):
        for one, two in zip(plain.intervals[level], other.intervals[level], strict=True):
            assert two == pytest.approx(one * unit, rel=1e-5)
