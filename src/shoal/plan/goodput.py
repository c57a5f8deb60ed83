"""From the speed of a step to days, failures, dollars and energy of a run.

Failures come at random at a stated rate per chip and stop all chips together: training goes back
to the last checkpoint and needs a restart first. With mean time M between failures, restart R,
checkpoint interval t and stall d of a save (Daly 2006, exponential failures, R within M):

    wall time of t seconds of progress = M * exp(R / M) * (exp((t + d) / M) - 1)
    goodput = t / that;   Young's interval = sqrt(2 d M)
"""

import math
from dataclasses import dataclass

from shoal.plan.chips import Chip

HOURS_PER_YEAR = 365.25 * 24
# Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 H100 (arXiv 2407.21783).
FAILURES_PER_CHIP_YEAR = 0.173
# The public 535B run: typical recovery from a hang (marin-community/marin issue #8506).
RESTART_MINUTES = 21.0
# Ours: saves are asynchronous; what the copy to the host costs was not measured at this size.
CHECKPOINT_STALL_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often chips fail and what it costs; each number is an assumption of the plan."""

    failures_per_chip_year: float = FAILURES_PER_CHIP_YEAR
    restart_minutes: float = RESTART_MINUTES
    checkpoint_stall_s: float = CHECKPOINT_STALL_S

    def __post_init__(self) -> None:
        for name in ("failures_per_chip_year", "restart_minutes", "checkpoint_stall_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value} must be a number of 0 or more")


def failures(reliability: Reliability, *, num_chips: int, interval_s: float) -> dict[str, float]:
    """Return goodput (share of wall time that is progress) and what it follows from.

    Args:
        interval_s: seconds between checkpoints.

    Returns:
        `mtbf_hours` of all chips together, `goodput`, `interval_s`, Young's `best_interval_s` and
        the `best_goodput` that it would give.
    """
    rate = reliability.failures_per_chip_year * num_chips / (HOURS_PER_YEAR * 3600)
    stall = reliability.checkpoint_stall_s
    if rate == 0:
        return {"goodput": interval_s / (interval_s + stall), "interval_s": interval_s}
    mean_s = 1 / rate
    best_s = max(math.sqrt(2 * stall * mean_s), 1.0)
    restart_s = 60 * reliability.restart_minutes
    return {
        "mtbf_hours": mean_s / 3600,
        "goodput": _goodput(interval_s, stall, restart_s, mean_s),
        "interval_s": interval_s,
        "best_interval_s": best_s,
        "best_goodput": _goodput(best_s, stall, restart_s, mean_s),
    }


def _goodput(interval_s: float, stall_s: float, restart_s: float, mean_s: float) -> float:
    exponent = restart_s / mean_s + (interval_s + stall_s) / mean_s
    if exponent > 700:  # never gets to its next checkpoint
        return 0.0
    lost = math.exp(restart_s / mean_s) * math.expm1((interval_s + stall_s) / mean_s)
    return interval_s / (mean_s * lost)


def run_cost(
    *,
    step_s: float,
    num_steps: int,
    num_chips: int,
    goodput: float,
    chip: Chip,
    price_per_hour: float | None = None,
    power_w: float | None = None,
) -> dict[str, float]:
    """Return days of stepping alone, days with failures, chip hours, dollars and energy.

    Args:
        step_s: seconds of a step.
        price_per_hour: dollars per chip and hour; the chip's assumption by default.
        power_w: watts per chip with its share of the server; the chip's by default. Cooling and
            buildings are not counted.
    """
    price = chip.price_per_hour if price_per_hour is None else price_per_hour
    power = chip.power_w if power_w is None else power_w
    days = step_s * num_steps / 86_400
    found = {"days": days}
    if goodput <= 0:
        return found
    wall_days = days / goodput
    chip_hours = wall_days * 24 * num_chips
    return {
        **found,
        "days_with_failures": wall_days,
        "chip_hours": chip_hours,
        "cost": chip_hours * price,
        "energy_mwh": chip_hours * power / 1e6,
    }
