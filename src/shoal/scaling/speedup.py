"""What one recipe saves against another: compute and time for the same loss.

The compute-equivalent speedup of B over A at C is C_A / C, with C_A the compute at which A's law
reaches the loss that B has at C. Its interval is that of the loss, moved through A's law: half
widths of the two curves (or of a single run, by the noise between runs) in quadrature. Time goes
the same way, with a law in seconds, and a better loss per FLOP can lose there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.scaling.forecast import points_of, rounded
from shoal.scaling.interval import MIN_RUNGS, Asymptote, Points, Settings, law_span, laws
from shoal.scaling.outcome import equivalent
from shoal.scaling.records import RungRun, Target

# What lies on the end of a range is within it, also after rounding.
EDGE = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What runs of one recipe scored at their end, over compute or over seconds.

    Attributes:
        name: of the recipe.
        runs: with the amount in their `flops`.
        losses: at the end of each.
    """

    name: str
    runs: tuple[RungRun, ...]
    losses: tuple[float, ...]

    @property
    def span(self) -> tuple[float, float]:
        """Least and greatest amount."""
        amounts = [run.flops for run in self.runs]
        return min(amounts), max(amounts)

    @property
    def lawful(self) -> bool:
        """Whether a law can be fitted."""
        return len({run.rung for run in self.runs}) >= MIN_RUNGS


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A curve at an amount: loss, half width of its 90 % interval, and the law there if any."""

    loss: float
    half: float
    asymptote: float = math.nan
    alpha: float = math.nan
    noise: float = 0.0


def curve(name: str, runs: Sequence[RungRun], metric: str, over: str = "flops") -> Curve | None:
    """The runs that have the series at their end, over `flops` or `seconds`.

    Returns:
        None where no run has both.
    """
    kept = [
        replace(run, flops=float(getattr(run, over)))
        for run in sorted(runs, key=lambda run: (run.flops, run.seed, run.run))
        if getattr(run, over) is not None and run.series.get(metric, (None,))[-1] is not None
    ]
    losses = tuple(float(run.series[metric][-1] or 0.0) for run in kept)
    return Curve(name=name, runs=tuple(kept), losses=losses) if kept else None


def read_law(found: Curve, amount: float, settings: Settings) -> Reading:
    """The law of a curve at an amount; the half width is the law's, without a run's own noise.

    Raises:
        ValueError: it has fewer than three rungs.
    """
    if not found.lawful:
        raise ValueError(f"{found.name} has fewer than {MIN_RUNGS} rungs, too few for a law")
    points = _points(found, amount)
    known = laws(points, settings)
    low, high = law_span(points, known)
    return Reading(
        loss=float(known.center.central[0]),
        half=float((high - low)[0] / 2),
        asymptote=float(known.center.asymptote[0]),
        alpha=float(known.center.alpha[0]),
        noise=float((known.quantiles[0.9] * known.noise)[0]),
    )


def _points(found: Curve, amount: float) -> Points:
    target = Target(name=found.name, fingerprint="", width=0, tokens=1, flops=amount)
    return points_of(found.runs, np.array([found.losses]), np.ones(1), target)


def speedup(
    reference: Curve, other: Curve, amount: float, asymptote: Asymptote = None
) -> dict[str, Any]:
    """What `other` saves at an amount, against the law of `reference`.

    Args:
        reference: at least three rungs.
        other: a law where it has three rungs; else the mean of its runs at that very amount.
        amount: FLOPs or seconds of `other`.
        asymptote: as for `forecast`, for both.

    Returns:
        `amount loss speedup interval_90 inside`; the interval's ends are None where no compute
        reaches the loss, and `inside` says whether the reference's rungs bracket the answer.

    Raises:
        ValueError: the reference has no law.
    """
    settings = Settings(asymptote=asymptote)
    here = read_law(reference, amount, settings)
    if other.lawful:
        mine = read_law(other, amount, settings)
    else:
        mine = _mean(other, amount, here.noise)
    central = equivalent(here.asymptote, here.alpha, here.loss, mine.loss)
    reach = read_law(reference, amount * (central or 1.0), settings)
    half = math.hypot(reach.half, mine.half)
    ends = [
        equivalent(here.asymptote, here.alpha, here.loss, mine.loss + side)
        for side in (half, -half)
    ]
    low, high = reference.span
    return {
        "amount": rounded(amount),
        "loss": rounded(mine.loss),
        "reference_loss": rounded(here.loss),
        "speedup": None if central is None else rounded(central),
        "interval_90": [None if end is None else rounded(end) for end in ends],
        "inside": central is not None and low / EDGE <= amount * central <= high * EDGE,
    }


def _mean(found: Curve, amount: float, unit: float) -> Reading:
    """Single runs at an amount, with the reference's noise, since they show none."""
    losses = [
        loss
        for run, loss in zip(found.runs, found.losses, strict=True)
        if math.isclose(run.flops, amount, rel_tol=1e-6)
    ]
    if not losses:
        raise ValueError(f"{found.name} has no run at {amount:.3g} and no law; ask at its runs")
    return Reading(loss=float(np.mean(losses)), half=unit / math.sqrt(len(losses)))


def compared(reference: Curve, other: Curve, asymptote: Asymptote = None) -> dict[str, Any]:
    """The speedup at each of the other's sizes, and at the top of the range that both cover.

    Returns:
        `at`, one `speedup` for each size; `top`, that of the headline, or None with `why` where no
        size is within both.
    """
    sizes = sorted({run.flops for run in other.runs})
    if not other.lawful:
        rows = [speedup(reference, other, size, asymptote) for size in sizes]
    else:
        rows = [speedup(reference, other, size, asymptote) for size in _means(other)]
    low = max(reference.span[0], other.span[0])
    high = min(reference.span[1], other.span[1])
    if low > high:
        why = f"{other.name} and {reference.name} share no range: more than extrapolation is needed"
        return {"at": rows, "top": None, "why": why}
    top = speedup(reference, other, high, asymptote) if other.lawful else rows[-1]
    return {"at": rows, "top": top, "why": None}


def _means(found: Curve) -> list[float]:
    """The geometric mean amount of each rung."""
    amounts: dict[str, list[float]] = {}
    for run in found.runs:
        amounts.setdefault(run.rung, []).append(run.flops)
    return sorted(float(np.exp(np.mean(np.log(some)))) for some in amounts.values())


def at_equal_time(reference: Curve, other: Curve, asymptote: Asymptote = None) -> dict[str, Any]:
    """Losses of two laws in seconds, at the longest time that both cover.

    Returns:
        `seconds losses difference interval_90`, other minus reference, and `speedup` in time.

    Raises:
        ValueError: one has too few rungs, or they share no time.
    """
    low = max(reference.span[0], other.span[0])
    high = min(reference.span[1], other.span[1])
    if low > high:
        raise ValueError(f"{reference.name} and {other.name} took times that do not overlap")
    settings = Settings(asymptote=asymptote)
    mine, here = read_law(other, high, settings), read_law(reference, high, settings)
    half, difference = math.hypot(mine.half, here.half), mine.loss - here.loss
    return {
        "seconds": rounded(high),
        "losses": {reference.name: rounded(here.loss), other.name: rounded(mine.loss)},
        "difference": rounded(difference),
        "interval_90": [rounded(difference - half), rounded(difference + half)],
        "speedup": speedup(reference, other, high, asymptote),
    }


def ratio(
    reference: Curve, first: Curve, second: Curve, asymptote: Asymptote = None
) -> dict[str, Any]:
    """What one finished run saves against another, by the law of a ladder.

    Each run's loss is worth the compute at which the law reaches it; the speedup is how much more
    of that the second run got from its own compute than the first. The law's uncertainty moves
    both alike and is left out, the noise of the two runs is not.

    Returns:
        `first second`, each run's speedup against the law, and `ratio` with `speedup interval_90`.

    Raises:
        ValueError: the reference has no law.
    """
    settings = Settings(asymptote=asymptote)
    sides = [speedup(reference, one, one.runs[0].flops, asymptote) for one in (first, second)]
    law = read_law(reference, first.runs[0].flops, settings)
    noise = math.hypot(law.noise, law.noise)
    spent = second.runs[0].flops / first.runs[0].flops
    got = [
        equivalent(law.asymptote, law.alpha, sides[0]["loss"], sides[1]["loss"] + move)
        for move in (0.0, noise, -noise)
    ]
    central, low, high = [None if one is None else rounded(one / spent) for one in got]
    return {
        "first": sides[0],
        "second": sides[1],
        "ratio": {"speedup": central, "interval_90": [low, high]},
    }
