"""Loss to accuracy by a sigmoid, and both steps together, on records of a known task."""

import math

import numpy as np
import pytest

from scaling.ladders import made
from shoal.scaling.accuracy import fit_accuracy, two_step
from shoal.scaling.forecast import forecast


def task(loss: np.ndarray) -> np.ndarray:
    return 0.25 + 0.65 / (1 + np.exp((loss - 1.6) * 4.0))


def test_a_known_sigmoid_is_found_again():
    losses = np.linspace(1.0, 2.4, 9)
    law = fit_accuracy(losses.tolist(), task(losses).tolist(), chance=0.25)
    assert law.height == pytest.approx(0.65, rel=1e-6)
    assert law.middle == pytest.approx(1.6, rel=1e-6)
    assert law.slope == pytest.approx(4.0, rel=1e-6)
    assert law.noise == pytest.approx(0.0, abs=1e-7)
    assert law.at(50.0) == pytest.approx(0.25)
    assert law.at(-50.0) == pytest.approx(0.9)


def test_no_sigmoid_nearby_fits_better():
    rng = np.random.default_rng(0)
    losses = rng.uniform(1.0, 2.4, 12)
    seen = np.clip(task(losses) + rng.normal(size=12) * 0.02, 0, 1)
    law = fit_accuracy(losses.tolist(), seen.tolist(), chance=0.25)
    best = float(((np.array([law.at(x) for x in losses]) - seen) ** 2).sum())
    for _ in range(3000):
        height = law.height * math.exp(0.05 * rng.normal())
        middle = law.middle + 0.05 * rng.normal()
        slope = law.slope * math.exp(0.1 * rng.normal())
        other = 0.25 + height / (1 + np.exp((losses - middle) * slope))
        assert ((other - seen) ** 2).sum() >= best - 1e-12


def test_accuracies_never_leave_chance_and_one():
    losses = [1.0, 1.5, 2.0, 2.5]
    law = fit_accuracy(losses, [1.0, 1.0, 0.9, 0.3], chance=0.25)
    assert law.at(-100) <= 1.0
    assert law.at(100) >= 0.25


def test_both_steps_hold_what_the_target_reaches_nine_times_in_ten():
    inside, widths = 0, []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        losses = rng.uniform(0.9, 2.4, 12)
        seen = task(losses) + 0.01 * rng.normal(size=12)
        law = fit_accuracy(losses.tolist(), seen.tolist(), chance=0.25)
        series = forecast(made(noise=0.005, seed=seed, ends=True)).headline
        said = two_step(series, law)
        loss = 0.6 + 2.0 * 240**-0.12 + 0.005 * rng.normal()
        truth = float(task(np.array([loss]))[0]) + 0.01 * rng.normal()
        low, high = said["interval_90"]
        assert low <= said["interval_50"][0] <= said["central"] <= said["interval_50"][1] <= high
        inside += low <= truth <= high
        widths.append(high - low)
    assert inside >= 33
    assert np.mean(widths) < 0.2


def test_few_items_make_it_less_sure():
    losses = np.linspace(1.0, 2.4, 9)
    law = fit_accuracy(losses.tolist(), task(losses).tolist(), chance=0.25)
    series = forecast(made(noise=0.005)).headline
    wide = [np.ptp(two_step(series, law, items=n)["interval_90"]) for n in (100, 10_000, None)]
    assert wide[0] > wide[1] > wide[2]


@pytest.mark.parametrize(
    ("losses", "accuracies", "chance", "said"),
    [
        ([1.0, 2.0, 3.0], [0.5, 0.4, 0.3], 0.25, "at least 4"),
        ([1.0] * 4, [0.5] * 4, 0.25, "different losses"),
        ([1.0, 2.0, 3.0, math.nan], [0.5] * 4, 0.25, "finite"),
        ([1.0, 2.0, 3.0, 4.0], [0.5, 0.5, 0.5, 1.5], 0.25, "from 0 to 1"),
    ],
)
def test_what_cannot_be_fitted_is_refused(losses, accuracies, chance, said):
    with pytest.raises(ValueError, match=said):
        fit_accuracy(losses, accuracies, chance=chance)
