"""The loss law L = E + A * C^-alpha, fitted to many series at once by variable projection.

For a given alpha the law is linear in E and A, so each alpha is solved in closed form, with E kept
between two bounds (equal bounds pin it), and only alpha is searched: on a grid, then by the sign of
the objective's slope. The objective is a weighted sum of squares in the loss, or Huber's. Compute
enters as x = ln(C / C_target), so the law is L = E + G * e^(-alpha x) with G the gap at the target,
and a fraction of training moves all x alike: one table serves all.

`spans` is the profile interval: all values of the law at the target (or of a run there, with its
own noise) for which some law within the bounds fits nearly as well as the best. For a given alpha
these values are an interval in closed form too, and the profile is the union over alpha.

Letters: P problems (a series at a fraction, perhaps with runs left out), N runs, G alphas.
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

ALPHA_LOW, ALPHA_HIGH = 0.002, 3.0
_GRID = np.geomspace(ALPHA_LOW, ALPHA_HIGH, 128)
_ZOOM = np.linspace(0.0, 1.0, 17)
_ROUNDS = 10
_STEPS = np.geomspace(1e-5, np.log(ALPHA_HIGH / ALPHA_LOW), 48)
_HUBER_ROUNDS = 12

type Rows = Float[np.ndarray, "P N"]
type Column = Float[np.ndarray, " P"]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where E may lie, for each problem.

    Attributes:
        low: the least.
        high: the greatest; a pin where it equals `low`.
        middle: what E is drawn towards.
        pull: how strongly: the objective gains `pull * (E - middle)**2`.
    """

    low: Column
    high: Column
    middle: Column
    pull: Column

    def only(self, rows: Int[np.ndarray, " Q"]) -> "Bounds":
        """The bounds of some of the problems."""
        return Bounds(
            low=self.low[rows],
            high=self.high[rows],
            middle=self.middle[rows],
            pull=self.pull[rows],
        )


def pinned(value: Column) -> Bounds:
    """Bounds that leave E one value."""
    return Bounds(low=value, high=value, middle=value, pull=np.zeros_like(value))


@dataclass(frozen=True, kw_only=True)
class Fits:
    """One law for each problem.

    Attributes:
        asymptote: E.
        alpha: the exponent.
        gap: what the law is above E at the target.
        objective: the least weighted sum of squares, with the pull.
        weights: those of the runs, a robust fit's included.
        residuals: seen minus law; 0 where a weight is 0.
    """

    asymptote: Column
    alpha: Column
    gap: Column
    objective: Column
    weights: Rows
    residuals: Rows

    @property
    def central(self) -> Column:
        """The law at the target."""
        return self.asymptote + self.gap

    def at(self, x: float) -> Column:
        """The law at x = ln(C / C_target)."""
        return self.asymptote + self.gap * np.exp(-self.alpha * x)

    def replaced(self, rows: Int[np.ndarray, " Q"], other: "Fits") -> "Fits":
        """The same with other laws for some problems."""
        merged = {field.name: getattr(self, field.name).copy() for field in fields(self)}
        for name, values in merged.items():
            values[rows] = getattr(other, name)
        return Fits(**merged)


@dataclass(frozen=True, kw_only=True)
class _Slices:
    """The problem at given alpha, as quadratics: arrays of shape (P, G).

    The objective at E is `least + stiff * (E - free)**2`; the law at the target is
    `slope * E + offset`, with variance `lever` in units of the noise.
    """

    least: np.ndarray
    stiff: np.ndarray
    free: np.ndarray
    slope: np.ndarray
    offset: np.ndarray
    lever: np.ndarray


def _center(x: Float[np.ndarray, " N"]) -> float:
    return float(x.mean())


def _slices(
    alpha: np.ndarray, x: Float[np.ndarray, " N"], losses: Rows, weights: Rows, bounds: Bounds
) -> _Slices:
    """Sums over runs, with compute centered among the rungs and losses around their mean."""
    middle = _center(x)
    z = np.exp(-alpha[..., None] * (x - middle))
    at_target = np.exp(alpha * middle)
    total = weights.sum(-1, keepdims=True)
    mean = (weights * losses).sum(-1, keepdims=True) / total
    seen = np.where(weights > 0, losses - mean, 0.0)
    sides = np.stack([weights, weights * seen], axis=-1)
    sum_z, sum_lz = np.moveaxis(z @ sides, -1, 0)
    sum_zz = (z**2 @ weights[..., None])[..., 0]
    sum_ll = (weights * seen**2).sum(-1, keepdims=True)
    pull, pulled = bounds.pull[:, None], bounds.middle[:, None] - mean
    # The sum of weights times the losses is 0 around their mean.
    stiff = total - sum_z**2 / sum_zz + pull
    half = -sum_z * sum_lz / sum_zz + pull * pulled
    constant = sum_ll - sum_lz**2 / sum_zz + pull * pulled**2
    free = half / stiff
    slope = 1 - at_target * sum_z / sum_zz
    return _Slices(
        least=constant - half * free,
        stiff=stiff,
        free=free + mean,
        slope=slope,
        offset=mean * (1 - slope) + at_target * sum_lz / sum_zz,
        lever=at_target**2 / sum_zz,
    )


def _asymptote(slices: _Slices, bounds: Bounds) -> np.ndarray:
    return np.clip(slices.free, bounds.low[:, None], bounds.high[:, None])


def _objective(slices: _Slices, asymptote: np.ndarray) -> np.ndarray:
    return slices.least + slices.stiff * (asymptote - slices.free) ** 2


def _descent(
    alpha: np.ndarray, x: Float[np.ndarray, " N"], losses: Rows, weights: Rows, bounds: Bounds
) -> np.ndarray:
    """Minus half the derivative of the least objective by alpha, over the gap: its sign is wanted.

    E and A are at their best for each alpha, so only the direct derivative remains.
    """
    slices = _slices(alpha, x, losses, weights, bounds)
    asymptote = _asymptote(slices, bounds)
    gap = (slices.slope - 1) * asymptote + slices.offset
    shape = np.exp(-alpha[..., None] * x)
    law = asymptote[..., None] + gap[..., None] * shape
    residual = np.where(weights[:, None, :] > 0, losses[:, None, :] - law, 0.0)
    return -(weights[:, None, :] * residual * (x - _center(x)) * shape).sum(-1) * np.sign(gap)


def fit(
    x: Float[np.ndarray, " N"],
    losses: Rows,
    weights: Rows,
    bounds: Bounds,
    *,
    huber: float = 0.0,
    noise: Column | None = None,
) -> Fits:
    """The best law within the bounds for each problem.

    Args:
        x: ln(C / C_target) of each run.
        losses: of each run; whatever where the weight is 0.
        weights: of each run, 0 to leave it out.
        bounds: of E.
        huber: residuals beyond so many robust deviations count linearly; 0: all count squared.
        noise: a deviation is at least this: few residuals can all be small.
    """
    clean = np.where(weights > 0, losses, 0.0)
    found = _fitted(x, clean, weights, bounds)
    if not huber:
        return found
    scale = _scale(found, weights, noise)
    factors, active = np.ones_like(weights), np.arange(len(clean))
    for turn in range(_HUBER_ROUNDS):
        if 0 < turn <= _HUBER_ROUNDS // 3:
            # A wild run hides itself in the first fits, so the scale follows them for a while.
            scale = _scale(found, weights, noise)
        size = np.abs(found.residuals[active]) * np.sqrt(weights[active])
        limit = huber * scale[active, None]
        kept = np.where(size > limit, limit / np.maximum(size, 1e-300), 1.0)
        moved = (np.abs(kept - factors[active]) > 1e-9).any(-1)
        active = active[moved]
        factors[active] = kept[moved]
        if not active.size:
            break
        again = _fitted(x, clean[active], (weights * factors)[active], bounds.only(active))
        found = found.replaced(active, again)
    return found


def _scale(found: Fits, weights: Rows, noise: Column | None) -> Column:
    """A deviation that a few wild runs do not move; no less than a millionth of the gap."""
    size = np.where(weights > 0, np.abs(found.residuals) * np.sqrt(weights), np.nan)
    scale = np.maximum(1.4826 * np.nanmedian(size, axis=-1), 1e-6 * np.abs(found.gap))
    return scale if noise is None else np.maximum(scale, noise)


def _fitted(x: Float[np.ndarray, " N"], losses: Rows, weights: Rows, bounds: Bounds) -> Fits:
    coarse = _slices(_GRID[None], x, losses, weights, bounds)
    values = _objective(coarse, _asymptote(coarse, bounds))
    place = values.argmin(-1)
    low = _GRID[np.maximum(place - 1, 0)]
    high = _GRID[np.minimum(place + 1, len(_GRID) - 1)]
    for _ in range(_ROUNDS):
        tried = low[:, None] + (high - low)[:, None] * _ZOOM
        down = _descent(tried, x, losses, weights, bounds) > 0
        # The first place where the objective no longer falls; the last where it falls to the end.
        first = np.where(down.all(-1), len(_ZOOM) - 1, (~down).argmax(-1))
        low = np.take_along_axis(tried, np.maximum(first - 1, 0)[:, None], -1)[:, 0]
        high = np.take_along_axis(tried, first[:, None], -1)[:, 0]
    alpha = (low + high) / 2
    slices = _slices(alpha[:, None], x, losses, weights, bounds)
    asymptote = _asymptote(slices, bounds)
    gap = ((slices.slope - 1) * asymptote + slices.offset)[:, 0]
    asymptote = asymptote[:, 0]
    law = asymptote[:, None] + gap[:, None] * np.exp(-alpha[:, None] * x)
    residuals = np.where(weights > 0, losses - law, 0.0)
    pull = bounds.pull * (asymptote - bounds.middle) ** 2
    return Fits(
        asymptote=asymptote,
        alpha=alpha,
        gap=gap,
        objective=(weights * residuals**2).sum(-1) + pull,
        weights=weights,
        residuals=residuals,
    )


def spans(
    found: Fits,
    x: Float[np.ndarray, " N"],
    losses: Rows,
    bounds: Bounds,
    *,
    allowed: Column,
    own: float = 1.0,
) -> tuple[Column, Column]:
    """The profile interval of the law at the target.

    Args:
        found: the best fits within the bounds; their weights are kept.
        x: as for `fit`.
        losses: as for `fit`.
        bounds: as for `fit`.
        allowed: how far above its least the objective may be: squared quantile times variance.
        own: variance of the value's own noise over that of the runs: 1 for a run, 0 for the law.
    """
    clean = np.where(found.weights > 0, losses, 0.0)
    steps = np.concatenate([-_STEPS[::-1], [0.0], _STEPS])
    around = np.clip(np.log(found.alpha)[:, None] + steps, np.log(ALPHA_LOW), np.log(ALPHA_HIGH))
    limit = found.objective + allowed
    ends: list[Column] = []
    for sign in (-1.0, 1.0):
        grid, reach = around, around
        for _ in range(3):
            reach = sign * _reach(sign, np.exp(grid), x, clean, found.weights, bounds, limit, own)
            place = reach.argmax(-1)
            low = np.take_along_axis(grid, np.maximum(place - 1, 0)[:, None], -1)
            high = np.take_along_axis(grid, np.minimum(place + 1, grid.shape[1] - 1)[:, None], -1)
            grid = low + (high - low) * _ZOOM
        ends.append(sign * reach.max(-1))
    # The best law is always allowed, also where rounding leaves no room around it.
    return np.minimum(ends[0], found.central), np.maximum(ends[1], found.central)


def _reach(
    sign: float,
    alpha: np.ndarray,
    x: Float[np.ndarray, " N"],
    losses: Rows,
    weights: Rows,
    bounds: Bounds,
    limit: Column,
    own: float,
) -> np.ndarray:
    """The least (sign -1) or greatest value at each alpha that fits well enough."""
    slices = _slices(alpha, x, losses, weights, bounds)
    room = np.maximum(limit[:, None] - slices.least, 0.0)
    variance = own + slices.lever
    lean = slices.slope**2 / slices.stiff
    best = sign * np.sqrt(room) * slices.slope / (slices.stiff * np.sqrt(lean + variance))
    asymptote = np.clip(slices.free + best, bounds.low[:, None], bounds.high[:, None])
    left = limit[:, None] - _objective(slices, asymptote)
    value = slices.slope * asymptote + slices.offset
    # At the best alpha itself rounding may leave less than nothing.
    fits = left >= -1e-9 * limit[:, None]
    return np.where(fits, value + sign * np.sqrt(variance * np.maximum(left, 0.0)), -sign * np.inf)
