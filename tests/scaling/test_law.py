"""The fit is the best one, by oracles that know nothing of how it is found."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import brentq, least_squares

from shoal.scaling.law import Bounds, fit, pinned, spans

X = np.log(np.geomspace(5e19, 9e21, 5) / 2.7e24)


def losses(number: int, noise: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    asymptote, alpha = rng.uniform(1.3, 1.7, number), rng.uniform(0.07, 0.12, number)
    law = asymptote[:, None] + (3 - asymptote[:, None]) * np.exp(-alpha[:, None] * (X - X[0]))
    return law + rng.normal(size=law.shape) * noise


def free(seen: np.ndarray) -> Bounds:
    zero = np.zeros(len(seen))
    return Bounds(low=zero, high=0.999 * seen.min(1), middle=zero, pull=zero)


def ranged(seen: np.ndarray, low: float, high: float, pull: float) -> Bounds:
    one = np.ones(len(seen))
    return Bounds(low=low * one, high=high * one, middle=(low + high) / 2 * one, pull=pull * one)


def oracle(seen: np.ndarray, weights: np.ndarray, low: float, high: float, **kind) -> float:
    """The least cost, from several starts."""
    root, center = np.sqrt(weights), X.mean()

    def wrong(p: np.ndarray) -> np.ndarray:
        return root * (seen - p[0] - p[1] * np.exp(-p[2] * (X - center)))

    found = [
        least_squares(
            wrong,
            [np.clip(e, low + 1e-6, high - 1e-6), 2.5 - e, a],
            bounds=([low, 0, 0.002], [high, 9, 3]),
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            **kind,
        )
        for e, a in ((1.5, 0.1), (0.5, 0.05), (2.0, 0.2))
    ]
    return min(one.cost for one in found) * 2


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.03])
def test_no_law_within_the_bounds_fits_better(noise: float):
    seen = losses(6, noise)
    weights = np.random.default_rng(1).uniform(0.5, 2, seen.shape)
    for low, high in ((0.0, 0.999), (0.5, 0.55), (0.3, 0.6)):
        bounds = Bounds(
            low=low * seen.min(1),
            high=high * seen.min(1),
            middle=np.zeros(6),
            pull=np.zeros(6),
        )
        found = fit(X, seen, weights, bounds)
        for row in range(6):
            best = oracle(seen[row], weights[row], bounds.low[row], bounds.high[row])
            assert found.objective[row] <= best * (1 + 1e-9) + 1e-14
            law = found.asymptote[row] + found.gap[row] * np.exp(-found.alpha[row] * X)
            cost = (weights[row] * (seen[row] - law) ** 2).sum()
            assert found.objective[row] == pytest.approx(cost, rel=1e-9, abs=1e-15)


def test_no_place_of_a_brute_force_grid_is_better():
    seen = losses(1, 0.01, seed=3)
    found = fit(X, seen, np.ones_like(seen), free(seen))
    alphas = np.geomspace(0.01, 0.5, 400)[:, None, None]
    shape = np.exp(-alphas * X)
    above = seen[0] - np.linspace(0, 2.2, 441)[None, :, None]
    gap = (above * shape).sum(-1, keepdims=True) / (shape**2).sum(-1, keepdims=True)
    cost = ((above - gap * shape) ** 2).sum(-1)
    assert found.objective[0] <= cost.min()
    assert found.objective[0] == pytest.approx(cost.min(), rel=0.02)
    row, column = np.unravel_index(cost.argmin(), cost.shape)
    assert found.alpha[0] == pytest.approx(alphas[row, 0, 0], rel=0.03)
    assert found.asymptote[0] == pytest.approx(np.linspace(0, 2.2, 441)[column], abs=0.03)


def test_a_noiseless_law_is_found_again_and_does_not_depend_on_where_it_is_seen_from():
    seen = 1.45 + 0.55 * np.exp(-0.093 * X)[None]
    for shift in (0.0, 7.0):
        found = fit(X + shift, seen, np.ones_like(seen), free(seen))
        assert found.alpha[0] == pytest.approx(0.093, rel=1e-6)
        assert found.asymptote[0] == pytest.approx(1.45, rel=1e-6)
        assert found.at(shift)[0] == pytest.approx(2.0, rel=1e-7)


def test_a_run_without_weight_says_nothing():
    seen = losses(3, 0.003)
    weights = np.ones_like(seen)
    weights[:, 2] = 0
    spoiled = seen.copy()
    spoiled[:, 2] = np.nan
    without = fit(X[[0, 1, 3, 4]], seen[:, [0, 1, 3, 4]], np.ones((3, 4)), free(seen))
    found = fit(X, spoiled, weights, free(seen))
    assert found.central == pytest.approx(without.central, rel=1e-7)


def test_a_pin_leaves_the_asymptote_alone_and_a_pull_draws_it():
    seen = losses(4, 0.003)
    held = fit(X, seen, np.ones_like(seen), pinned(np.full(4, 1.2)))
    assert (held.asymptote == 1.2).all()
    center = [fit(X, seen, np.ones_like(seen), ranged(seen, 1.0, 1.4, p)) for p in (0, 1e-4, 1e3)]
    away = [np.abs(found.asymptote - 1.2) for found in center]
    assert (away[1] <= away[0]).all()
    assert away[2].max() < 1e-5


def test_a_wild_run_moves_a_robust_fit_little_and_as_huber_says():
    x = np.log(np.repeat(np.geomspace(5e19, 9e21, 5), 3) / 2.7e24)
    rng = np.random.default_rng(2)
    clean = (1.5 + 0.54 * np.exp(-0.09 * x))[None] + rng.normal(size=(1, 15)) * 0.003
    wild = clean.copy()
    wild[0, 13] += 0.2
    weights = np.ones_like(clean)
    bounds = pinned(np.array([1.5]))
    right = fit(x, clean, weights, bounds).central[0]
    plain = fit(x, wild, weights, bounds).central[0]
    robust = fit(x, wild, weights, bounds, huber=3.0)
    assert abs(plain - right) > 0.02
    assert abs(robust.central[0] - right) < 0.25 * abs(plain - right)
    limit = np.sqrt(robust.weights[0, 13]) ** 2 * abs(robust.residuals[0, 13])
    found = least_squares(
        lambda p: wild[0] - 1.5 - p[0] * np.exp(-p[1] * x),
        [0.5, 0.1],
        loss="huber",
        f_scale=limit,
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    assert robust.central[0] == pytest.approx(1.5 + found.x[0], abs=1e-6)
    assert (np.delete(robust.weights[0], 13) == 1).all()


def test_the_profile_is_that_of_brute_force():
    """The highest value at the target for which some law fits within the allowance."""
    seen = losses(1, 0.003, seed=4)
    bounds = ranged(seen, 1.3, 1.7, 1e-4)
    found = fit(X, seen, np.ones_like(seen), bounds)
    allowed = 1.645**2 * 0.003**2
    levels, alphas = (
        np.linspace(1.3, 1.7, 201)[:, None, None],
        np.geomspace(0.06, 0.15, 800)[:, None],
    )
    for own in (0.0, 1.0):
        low, high = spans(found, X, seen, bounds, allowed=np.array([allowed]), own=own)

        def above(value: float, own: float = own) -> float:
            """The least objective with the target seen at a value, less what is allowed."""
            root = np.array([1.0] * 5 + [1.0 if own else 1e3])
            shape = np.exp(-alphas * np.append(X, 0.0)) * root
            gap = (np.append(seen[0], value) - levels) * root
            free = (gap * shape).sum(-1) / (shape**2).sum(-1)
            cost = ((gap - free[..., None] * shape) ** 2).sum(-1)
            least = (cost + 1e-4 * (levels[..., 0] - 1.5) ** 2).min()
            return float(least - found.objective[0] - allowed)

        center = float(found.central[0])
        for end, bracket in ((low, (center - 0.2, center)), (high, (center, center + 0.2))):
            assert end[0] == pytest.approx(brentq(above, *bracket, xtol=1e-4), abs=5e-4)


def test_more_is_allowed_more_is_held():
    seen = losses(20, 0.003)
    found = fit(X, seen, np.ones_like(seen), free(seen))
    widths = []
    for allowed in (1e-8, 1e-6, 1e-5, 1e-4):
        low, high = spans(found, X, seen, free(seen), allowed=np.full(20, allowed))
        assert (low < found.central).all()
        assert (high > found.central).all()
        widths.append(high - low)
    assert all((wider > narrow).all() for narrow, wider in pairwise(widths))
