"""Goodput against a simulation of failures."""

import math

import numpy as np
import pytest

from shoal.plan.chips import chip_named
from shoal.plan.goodput import HOURS_PER_YEAR, Reliability, failures, run_cost


def _simulated(mean_s, interval_s, stall_s, restart_s, segments=40_000):
    """Wall time of many segments where a failure loses what came since the last checkpoint."""
    draw = np.random.default_rng(0)
    wall = 0.0
    for _ in range(segments):
        while (until := draw.exponential(mean_s)) < interval_s + stall_s:
            wall += until
            while (again := draw.exponential(mean_s)) < restart_s:  # a restart can fail too
                wall += again
            wall += restart_s
        wall += interval_s + stall_s
    return segments * interval_s / wall


@pytest.mark.parametrize("interval_s", [600.0, 3600.0])
def test_goodput_is_that_of_simulated_failures(interval_s):
    mean_s = 4 * 3600.0
    rate = HOURS_PER_YEAR * 3600 / mean_s / 100
    told = Reliability(failures_per_chip_year=rate, restart_minutes=21, checkpoint_stall_s=30)
    found = failures(told, num_chips=100, interval_s=interval_s)
    assert found["mtbf_hours"] == pytest.approx(4)
    simulated = _simulated(mean_s, interval_s, 30, 21 * 60)
    assert found["goodput"] == pytest.approx(simulated, abs=0.01)


def test_youngs_interval_is_near_the_best():
    told = Reliability(failures_per_chip_year=1.0)
    best = failures(told, num_chips=704, interval_s=100.0)["best_interval_s"]
    tried = np.geomspace(best / 10, best * 10, 401)
    goodputs = [failures(told, num_chips=704, interval_s=float(t))["goodput"] for t in tried]
    found = failures(told, num_chips=704, interval_s=best)
    assert found["goodput"] == found["best_goodput"] == pytest.approx(max(goodputs), abs=2e-4)


def test_chips_that_never_fail_lose_only_what_saves_cost():
    told = Reliability(failures_per_chip_year=0.0, checkpoint_stall_s=30.0)
    assert failures(told, num_chips=8, interval_s=570.0)["goodput"] == pytest.approx(0.95)


def test_failures_before_every_checkpoint_leave_nothing():
    told = Reliability(failures_per_chip_year=1e9)
    found = failures(told, num_chips=704, interval_s=3600.0)
    assert found["goodput"] == 0
    cost = run_cost(
        step_s=1.0, num_steps=86_400, num_chips=704, goodput=0.0, chip=chip_named("h100")
    )
    assert cost == {"days": 1.0}


def test_cost_and_energy_are_chip_hours_times_their_rates():
    cost = run_cost(
        step_s=2.0,
        num_steps=43_200,
        num_chips=10,
        goodput=0.5,
        chip=chip_named("h100"),
        price_per_hour=3.0,
        power_w=1000.0,
    )
    assert cost["days"] == 1.0
    assert cost["days_with_failures"] == 2.0
    assert cost["chip_hours"] == 480.0
    assert cost["cost"] == 1440.0
    assert math.isclose(cost["energy_mwh"], 0.48)


@pytest.mark.parametrize("name", ["failures_per_chip_year", "restart_minutes"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_rate_below_zero_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} must be a number of 0 or more"):
        Reliability(**{name: value})
