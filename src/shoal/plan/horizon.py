"""When hardware is lost and the calendar stays: a shorter horizon, and its learning-rate line.

The public run's contingency: for up to a quarter of the token budget, train fewer steps, and let
the linear decay start from where it is and land on the same final fraction at the new end
(marin-community/marin issue #8435).
"""

import datetime as dt
import math
from dataclasses import dataclass

from shoal.optim.config import OptimizerConfig
from shoal.optim.law import num_warmup_steps, schedule_fraction

# The share of the token budget up to which the public plan would shorten rather than extend.
SHARE_TO_GIVE_UP = 0.25


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """What remains until a date.

    Attributes:
        at_step: updates done at the start.
        steps: the new last step, at most the planned one.
        planned_steps: the old one.
        step_s: seconds of a step with what is left of the chips.
        steps_left: steps that the time allows from `line_from`'s start, goodput counted.
        seconds: wall time from the start to the deadline.
        line_from: step where the new line starts: the current one, or the end of warmup.
        fraction_from: share of the peak rate there.
        fraction_to: share at the end, as planned.
        slope_per_step: change of the share with every step, below zero.
        planned_slope_per_step: that of the planned line.
    """

    at_step: int
    steps: int
    planned_steps: int
    step_s: float
    steps_left: int
    seconds: float
    line_from: int
    fraction_from: float
    fraction_to: float
    slope_per_step: float
    planned_slope_per_step: float

    @property
    def line(self) -> tuple[float, float]:
        """Share of the peak rate at the start and at the end of the new line."""
        return self.fraction_from, self.fraction_to

    @property
    def share_given_up(self) -> float:
        """Share of the planned tokens that will not be trained."""
        return 1 - self.steps / self.planned_steps


def as_moment(value: str, what: str) -> dt.datetime:
    """Read a date, or date and time, as UTC where it names no zone; a date is its first moment.

    Raises:
        ValueError: not in ISO form.
    """
    try:
        read = dt.datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError(
            f"{what}={value!r} is no date; write it as 2027-01-31 or 2027-01-31T18:00"
        ) from error
    return read if read.tzinfo else read.replace(tzinfo=dt.UTC)


def shortened(
    optimizer: OptimizerConfig,
    *,
    num_steps: int,
    at_step: int,
    start: dt.datetime,
    deadline: dt.datetime,
    step_s: float,
    lost: float,
    goodput: float,
) -> Horizon:
    """Return the horizon that `lost` of the chips leaves until a deadline.

    Args:
        at_step: updates done at `start`.
        step_s: seconds of a step with all chips; with fewer it grows in proportion.
        lost: share of the chips, 0 to below 1.
        goodput: share of wall time that is progress.

    Raises:
        ValueError: no time, no chips or no steps are left.
    """
    if not 0 <= lost < 1:
        raise ValueError(f"lost={lost} must be a share from 0 to below 1, such as 0.25 or 25%")
    if not 0 <= at_step < num_steps:
        raise ValueError(f"at_step={at_step} must be from 0 to below the {num_steps} planned steps")
    seconds = (deadline - start).total_seconds()
    if seconds <= 0:
        raise ValueError(
            f"deadline={deadline.date()} is not after the start, {start.date()}; give a later"
            " deadline or an earlier start"
        )
    slower_s = step_s / (1 - lost)
    steps_left = math.floor(seconds * goodput / slower_s)
    end = min(at_step + steps_left, num_steps)
    line_from = max(at_step, num_warmup_steps(optimizer, num_steps))
    if end <= line_from:
        raise ValueError(
            f"only {steps_left} steps fit before deadline={deadline.date()} at {slower_s:.4g} s a"
            f" step, and the rate cannot fall before step {line_from}; give a later deadline"
        )
    fraction = schedule_fraction(line_from, optimizer, num_steps)
    final = optimizer.final_fraction
    return Horizon(
        at_step=at_step,
        steps=end,
        planned_steps=num_steps,
        step_s=slower_s,
        steps_left=steps_left,
        seconds=seconds,
        line_from=line_from,
        fraction_from=fraction,
        fraction_to=final,
        slope_per_step=(final - fraction) / (end - line_from),
        planned_slope_per_step=(final - fraction) / (num_steps - line_from),
    )
