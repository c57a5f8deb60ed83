"""Axes: where values stand, which round values are named, and how few points draw a curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from shoal.report.markup import MINUS, SCALES, compact, duration, significant

FORMATS: dict[str, Callable[[object], str]] = {
    "number": significant,
    "compact": compact,
    "duration": duration,
}
_ROUND_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800)
_SECONDS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: what it measures, how its numbers are written, limits in place of the data's."""

    label: str
    format: str = "number"
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values to 0..1."""

    low: float
    high: float
    log: bool

    def place(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Where values stand; NaN where they have no place."""
        low, high = self.low, self.high
        if self.log:
            values = np.log10(np.where(values > 0, values, np.nan))
            low, high = math.log10(low), math.log10(high)
        return (np.where(np.isfinite(values), values, np.nan) - low) / (high - low)

    def at(self, value: float) -> float:
        """Where one value stands."""
        return float(self.place(np.array([value]))[0])

    def ticks(self, most: int, form: str = "number") -> list[tuple[float, str]]:
        """Round values within the scale, about `most` of them, and how they are written."""
        found = self._log_ticks(most) if self.log else []
        if form == "duration":
            step = _round_seconds((self.high - self.low) / most)
            found = _multiples(step, self.low, self.high)
            return list(zip(found, _time_texts(found, step), strict=True))
        found = found or nice_ticks(self.low, self.high, most)
        return list(zip(found, _texts(found, form), strict=True))

    def _log_ticks(self, most: int) -> list[float]:
        """Powers of ten and, where these are few, what lies between; none on less than a decade."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        powers = range(first, last + 1)
        every = max(1, math.ceil(len(powers) / (most + 1)))
        for factors in ((1,), (1, 3), (1, 2, 5)):
            found = [
                float(f"{factor}e{power}")
                for power in powers
                for factor in factors
                if power % every == 0 and self.low <= float(f"{factor}e{power}") <= self.high
            ]
            if len(found) >= 3 or every > 1:
                return found
        return []


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values."""
    return _multiples(_nice_step((high - low) / most), low, high)


def _nice_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.9999)


def _multiples(step: float, low: float, high: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _round_seconds(raw: float) -> float:
    if raw < 1:
        return _nice_step(raw)
    days = _nice_step(max(1, raw / 86_400)) * 86_400
    return next((step for step in _ROUND_SECONDS if step >= raw), days)


def _time_texts(ticks: Sequence[float], step: float) -> list[str]:
    scale, unit = next((s, u) for s, u in _SECONDS if step >= s or s == 1)
    return [f"{tick / scale:g} {unit}" if tick else "0" for tick in ticks]


def _texts(ticks: Sequence[float], form: str) -> list[str]:
    """Ticks with the fewest digits that tell them apart, all with the same unit."""
    largest = max(map(abs, ticks), default=0.0)
    smallest = min((abs(tick) for tick in ticks if tick), default=1.0)
    scale, unit = 1.0, ""
    if form == "compact":
        scale, unit = next(((s, u) for s, u in SCALES if largest >= s), (1.0, ""))
    elif largest >= 1e5 or smallest < 1e-4:
        short = [
            f"{tick:g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
            for tick in ticks
        ]
        return [text.replace("-", MINUS) for text in short]
    if ticks and largest / smallest > 1e3:  # decades: each with its own digits
        return [f"{tick / scale:g}{unit}" for tick in ticks]
    places = next(
        places
        for places in range(13)
        if places == 12 or all(abs(round(t / scale, places) - t / scale) < 1e-9 for t in ticks)
    )
    return [f"{t / scale:,.{places}f}{unit}".replace("-", MINUS) if t else "0" for t in ticks]


def scale(axis: Axis, values: Float[np.ndarray, " n"], *, pad: float = 0.0) -> Scale:
    """The scale of an axis for its values, widened where they are all equal.

    A logarithmic axis without positive values becomes linear; one with a few values far below all
    others leaves these out.
    """
    values = values[np.isfinite(values)]
    log = axis.log and bool((values > 0).any())
    if log:
        values = values[values > 0]
    low = float(values.min()) if values.size else 0.0
    high = float(values.max()) if values.size else 1.0
    if log and values.size >= 50 and low < (usual := float(np.quantile(values, 0.02)) / 10):
        low = usual  # one value next to nothing would press all others together
    if axis.low is not None:
        low = min(low, axis.low)
    if axis.high is not None:
        high = max(axis.high, low)
    if log:
        margin = (high / low) ** pad if high > low else 2.0
        return Scale(low=low / margin, high=high * margin, log=True)
    margin = (high - low) * pad if high > low else abs(high) * 0.1 or 1.0
    return Scale(low=low if axis.low == low else low - margin, high=high + margin, log=False)


def thin(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], buckets: int
) -> Int[np.ndarray, " k"]:
    """Indices that keep the first, the last and the extremes of y in each of `buckets` parts of x.

    A part without a finite value keeps one that is not: there the curve breaks.
    """
    if len(x) <= 2 * buckets:
        return np.arange(len(x))
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], buckets + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], edges, [len(x)]]))
    kept: list[int] = [0, len(x) - 1]
    for first, last in itertools.pairwise(bounds.tolist()):
        part = y[first:last]
        finite = np.flatnonzero(np.isfinite(part))
        if finite.size:
            values = part[finite]
            kept += [first + int(finite[values.argmin()]), first + int(finite[values.argmax()])]
        else:
            kept.append(first)
    return np.unique(np.array(kept))
