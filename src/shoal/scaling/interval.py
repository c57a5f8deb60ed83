"""How sure a forecast is: one interval from noise, the asymptote, single rungs and the form.

The interval at the target is the profile over all laws within the bounds of E (`law.spans`), with
the noise that the runs themselves show, and is widened until it holds every forecast from which one
rung was left out and that of each other form. Seed repeats say what the noise is; where the law
misses the rungs by more than seeds explain, its residuals do.

A law of three numbers has nothing left over at three rungs: E then comes from a range. A pinned E
moves the center only: the interval holds the laws of all E in a range around the pin.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from shoal.scaling.law import (
    ALPHA_HIGH,
    ALPHA_LOW,
    Bounds,
    Column,
    Fits,
    Rows,
    fit,
    pinned,
    spans,
)
from shoal.scaling.tail import FROM, TO

LEVELS = (0.5, 0.9)
MIN_RUNGS = 3
PARTS = ("residual", "seed", "leave_one_out", "asymptote", "form")

type Asymptote = float | tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every literal that decides the numbers of a forecast.

    Attributes:
        asymptote: E in units of the headline series: a pin, a range, or free. Other series take
            it in proportion to their least value.
        noise: standard deviation of a run's headline between seeds, if it is known otherwise;
            other series in proportion.
        noise_share: it is at least this share of the loss where no rung was repeated.
        pin_share: a pin may be wrong by this share of it.
        range_share: E as a share of the least loss, at three rungs and no range given.
        free_share: a free E is at most this share of the least loss.
        huber: residuals beyond so many deviations count linearly.
        misfit: probability of the F test above which residuals, and not seeds, are the noise.
        tail_bias: for missing ends, as a share of the loss; None: from the finished runs.
    """

    asymptote: Asymptote = None
    noise: float | None = None
    noise_share: float = 0.001
    pin_share: float = 2 / 15
    range_share: tuple[float, float] = (0.0, 0.8)
    free_share: float = 0.999
    huber: float = 3.0
    misfit: float = 0.95
    tail_bias: float | None = None

    def plain(self) -> dict[str, Any]:
        """What a forecast's file says of them."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        named |= {"alpha_range": (ALPHA_LOW, ALPHA_HIGH), "tail_line": (FROM, TO)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in named.items()
        }


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """Forecasts of P problems at the target.

    Attributes:
        central: the forecast.
        law: alpha, E, and the gap above E at the target.
        intervals: level -> lowest and highest value of one run there.
        parts: what the 90 % interval comes from, each as its own half width.
        forms: form -> its forecast.
        noise: of one run.
        left_out: what each rung, left out, moves the center by: (rungs, P).
    """

    central: Column
    law: Fits
    intervals: dict[float, tuple[Column, Column]]
    parts: dict[str, Column]
    forms: dict[str, Column]
    noise: Column
    left_out: Float[np.ndarray, "R P"]


@dataclass(frozen=True, kw_only=True)
class Points:
    """Runs and what they scored, in P problems.

    Attributes:
        compute: ln(C / C_target) of each run.
        tokens: ln(T / T_target) of each run.
        rung: of each run, from 0 on.
        losses: NaN where a run has none.
        scale: the problem's losses over the headline's, for what is given in its units.
    """

    compute: Float[np.ndarray, " N"]
    tokens: Float[np.ndarray, " N"]
    rung: Int[np.ndarray, " N"]
    losses: Rows
    scale: Column

    @property
    def weights(self) -> Rows:
        """1 where there is a loss."""
        return (~np.isnan(self.losses)).astype(np.float64)

    @property
    def least(self) -> Column:
        """The least loss of each problem."""
        return np.nanmin(self.losses, axis=-1)

    def rungs(self, weights: Rows) -> Bool[np.ndarray, "P R"]:
        """Which rungs have a run with a weight."""
        number = int(self.rung.max()) + 1
        return np.stack([(weights[:, self.rung == k] > 0).any(-1) for k in range(number)], axis=-1)


@dataclass(frozen=True, kw_only=True)
class Laws:
    """The fits that everything else is measured from.

    Attributes:
        bounds: of E.
        pins: of E, if it has any.
        center: the law that is forecast.
        wide: the best within the bounds, all runs weighing alike.
        held: the best with the center's E, likewise.
        noise: of one run.
        quantiles: of the noise, for each level.
    """

    bounds: Bounds
    pins: Column | None
    center: Fits
    wide: Fits
    held: Fits
    noise: Column
    quantiles: dict[float, Column]

    @property
    def kept(self) -> Rows:
        """Weights of the runs: what a robust fit set aside stays aside."""
        return (self.wide if self.pins is None else self.held).weights


def laws(points: Points, settings: Settings) -> Laws:
    """Fit every problem; errors as `bounds_of`."""
    bounds, pins = bounds_of(points, settings)
    center = central(points, bounds, pins, settings=settings)
    even, robust = points.weights, _robust(points, settings)
    wide = center
    if pins is not None:
        wide = fit(points.compute, points.losses, even, bounds, **robust)
    held = fit(points.compute, points.losses, even, pinned(center.asymptote), **robust)
    noise, quantiles = _noise(points, wide if pins is None else held, pins, settings)
    return Laws(
        bounds=bounds,
        pins=pins,
        center=center,
        wide=wide,
        held=held,
        noise=noise,
        quantiles=quantiles,
    )


def estimate(points: Points, settings: Settings) -> Estimates:
    """Forecast every problem, each with at least three rungs, at the target."""
    known = laws(points, settings)
    center, noise, quantiles = known.center, known.noise, known.quantiles
    at, held = (points.compute, points.losses), pinned(center.asymptote)
    left_out = _left_out(points, known)
    in_tokens = central(points, known.bounds, known.pins, x=points.tokens, weights=known.kept)
    forms = {
        "L = E + A * T^-alpha": in_tokens.central,
        "ln L = a + b ln C + c ln^2 C": curved(points, known.kept),
    }
    moves = np.concatenate([left_out, np.stack(list(forms.values())) - center.central])
    intervals: dict[float, tuple[Column, Column]] = {}
    for level in LEVELS:
        allowed, share = (quantiles[level] * noise) ** 2, quantiles[level] / quantiles[0.9]
        low, high = spans(known.wide, *at, known.bounds, allowed=allowed)
        inner = spans(known.held, *at, held, allowed=allowed)
        low = np.minimum(np.minimum(low, inner[0]), center.central + share * moves.min(0))
        high = np.maximum(np.maximum(high, inner[1]), center.central + share * moves.max(0))
        intervals[level] = (np.maximum(low, 0.0), high)
    parts = _parts(points, known)
    parts["leave_one_out"] = np.abs(left_out).max(0)
    parts["form"] = np.abs(moves[len(left_out) :]).max(0)
    return Estimates(
        central=center.central,
        law=center,
        intervals=intervals,
        parts={name: parts[name] for name in PARTS},
        forms=forms,
        noise=noise,
        left_out=left_out,
    )


def law_span(points: Points, known: Laws) -> tuple[Column, Column]:
    """The 90 % interval of the law itself at the target, without a run's own noise."""
    unit = known.quantiles[0.9] * known.noise
    return spans(known.wide, points.compute, points.losses, known.bounds, allowed=unit**2, own=0.0)


def bounds_of(points: Points, settings: Settings) -> tuple[Bounds, Column | None]:
    """Where E may lie in each problem, and its pin if it has one.

    Raises:
        ValueError: E is above the losses.
    """
    least, scale = points.least, points.scale
    top, given = settings.free_share * least, settings.asymptote
    zero = np.zeros_like(least)
    pins: Column | None = None
    if given is None:
        share_low, share_high = settings.range_share
        few = points.rungs(points.weights).sum(-1) <= MIN_RUNGS
        low = np.where(few, share_low * least, zero)
        high = np.where(few, share_high * least, top)
        drawn = few
    else:
        if isinstance(given, tuple):
            low, high = given[0] * scale, given[1] * scale
        else:
            pins = given * scale
            low, high = pins * (1 - settings.pin_share), pins * (1 + settings.pin_share)
        over = (low if pins is None else pins) >= top
        if over.any():
            raise ValueError(
                f"asymptote={given} is not below the least loss, {float(least[over][0]):.4g};"
                " give one that the runs do not reach, or none"
            )
        high = np.minimum(high, top)
        drawn = np.ones_like(least, bool)
    half = (high - low) / 2
    drawn = drawn & (half > 0)
    guess = _guess(points, settings)
    return (
        Bounds(
            low=low,
            high=high,
            middle=(low + high) / 2 if pins is None else pins,
            pull=np.where(drawn, (guess / np.where(drawn, half, 1.0)) ** 2, 0.0),
        ),
        pins,
    )


def central(
    points: Points,
    bounds: Bounds,
    pins: Column | None,
    *,
    x: Float[np.ndarray, " N"] | None = None,
    weights: Rows | None = None,
    settings: Settings | None = None,
) -> Fits:
    """The law that gives the center.

    With a pin every run weighs by the inverse square of its distance from E, which is least squares
    in ln(L - E) on ln C, as published; otherwise all runs weigh alike.

    Args:
        points: the problems.
        bounds: of E, as `bounds_of` gives them.
        pins: of E, likewise.
        x: what the law is in, if not compute.
        weights: 0 to leave a run out.
        settings: for a robust fit; None: all residuals count squared.
    """
    x = points.compute if x is None else x
    weights = points.weights if weights is None else weights
    robust = {} if settings is None else _robust(points, settings)
    if pins is None:
        return fit(x, points.losses, weights, bounds, **robust)
    gaps = np.where(weights > 0, points.losses - pins[:, None], 1.0)
    relative = weights / gaps**2
    relative *= weights.sum(-1, keepdims=True) / relative.sum(-1, keepdims=True)
    return fit(x, points.losses, relative, pinned(pins), **robust)


def _robust(points: Points, settings: Settings) -> dict[str, Any]:
    return {"huber": settings.huber, "noise": _guess(points, settings)}


def _within(points: Points) -> tuple[Column, Column]:
    """Squares around each rung's mean, and their degrees of freedom."""
    weights = points.weights
    squares, count = np.zeros(len(weights)), np.zeros(len(weights))
    for rung in range(int(points.rung.max()) + 1):
        here = points.rung == rung
        seen, number = np.nan_to_num(points.losses[:, here]), weights[:, here].sum(-1)
        mean = seen.sum(-1) / np.maximum(number, 1)
        squares += (weights[:, here] * (seen - mean[:, None]) ** 2).sum(-1)
        count += np.maximum(number - 1, 0)
    return squares, count


def _floor(points: Points, settings: Settings) -> Column:
    if settings.noise is not None:
        return settings.noise * points.scale
    return settings.noise_share * np.nanmean(points.losses, axis=-1)


def _guess(points: Points, settings: Settings) -> Column:
    """The noise before anything is fitted: only how strongly a range draws hangs on it."""
    squares, count = _within(points)
    floor = _floor(points, settings)
    if settings.noise is not None:
        return floor
    return np.where(count >= 2, np.sqrt(squares / np.maximum(count, 1)), floor)


def _noise(
    points: Points, found: Fits, pins: Column | None, settings: Settings
) -> tuple[Column, dict[float, Column]]:
    """Standard deviation of a run, and the quantile of its distribution for each level."""
    from scipy.special import fdtri, stdtrit

    squares, count = _within(points)
    rungs = points.rungs(points.weights).sum(-1)
    free = np.where(rungs <= MIN_RUNGS, rungs, 3) if pins is None else np.full_like(rungs, 2)
    left = (rungs - free).astype(np.float64)
    missed = np.maximum((found.weights * found.residuals**2).sum(-1) - squares, 0.0)
    repeated, spare = count > 0, left > 0
    of_seeds = squares / np.maximum(count, 1)
    of_rungs = missed / np.maximum(left, 1)
    limit = fdtri(np.maximum(left, 1), np.maximum(count, 1), settings.misfit)
    misfit = repeated & spare & (of_rungs > limit * of_seeds)
    both = (squares + missed * spare) / np.maximum(count + left * spare, 1)
    variance = np.where(repeated & ~misfit, both, of_rungs)
    freedom = np.where(repeated & ~misfit, count + left * spare, np.maximum(left, 1))
    floor = _floor(points, settings)
    quantiles = {level: stdtrit(freedom, 0.5 + level / 2) for level in LEVELS}
    normal = {level: float(stdtrit(1e9, 0.5 + level / 2)) for level in LEVELS}
    known = np.full_like(repeated, settings.noise is not None)
    # A few residuals can be small by luck: without repeats the floor holds.
    lucky = ~repeated & (floor * normal[0.9] > np.sqrt(variance) * quantiles[0.9])
    stated = known | lucky
    return (
        np.where(stated, floor, np.sqrt(variance)),
        {level: np.where(stated, normal[level], quantiles[level]) for level in LEVELS},
    )


def _parts(points: Points, known: Laws) -> dict[str, Column]:
    """Half widths of what the profile holds: noise in the law, one run's own, and E."""
    unit, held = known.quantiles[0.9] * known.noise, pinned(known.center.asymptote)
    at = (points.compute, points.losses)
    low, high = spans(known.held, *at, held, allowed=unit**2, own=0.0)
    residual = (high - low) / 2
    low, high = law_span(points, known)
    asymptote = np.sqrt(np.maximum(((high - low) / 2) ** 2 - residual**2, 0.0))
    return {"residual": residual, "seed": unit, "asymptote": asymptote}


def _left_out(points: Points, known: Laws) -> Float[np.ndarray, "R P"]:
    """How far the center moves without each rung; 0 where too few are left."""
    weights, center = known.kept, known.center.central
    rungs = points.rungs(weights)
    moves: list[Column] = []
    for rung in range(rungs.shape[1]):
        without = weights * (points.rung != rung)
        left = points.rungs(without).sum(-1)
        usable = rungs[:, rung] & (left >= 2)
        tried = np.where(usable[:, None], without, weights)
        moved = central(points, known.bounds, known.pins, weights=tried).central - center
        moves.append(np.where(usable, moved, 0.0))
    return np.stack(moves)


def curved(points: Points, weights: Rows) -> Column:
    """The target where ln L is a parabola in ln C, which has no asymptote."""
    middle = float(points.compute.mean())
    x = points.compute - middle
    shape = np.stack([np.ones_like(x), x, x**2], axis=-1)
    left = np.einsum("pn,ni,nj->pij", weights, shape, shape)
    logs = np.log(np.where(weights > 0, np.maximum(np.nan_to_num(points.losses), 1e-12), 1.0))
    right = np.einsum("pn,ni,pn->pi", weights, shape, logs)
    found = np.linalg.solve(left, right[..., None])[..., 0]
    return np.exp(np.minimum(found @ np.array([1.0, -middle, middle**2]), 50.0))
