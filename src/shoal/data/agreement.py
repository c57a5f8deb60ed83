"""How well two orders agree: of a judge with controls, of a student with its judge."""

from collections.abc import Sequence

import numpy as np


def separation(good: Sequence[float], bad: Sequence[float]) -> float | None:
    """The chance that one of the good scores above one of the bad, ties half; None without both."""
    if not len(good) or not len(bad):
        return None
    low = np.sort(np.asarray(bad, np.float64))
    high = np.asarray(good, np.float64)
    below = np.searchsorted(low, high, side="left")
    upto = np.searchsorted(low, high, side="right")
    return round(float((below + upto).sum()) / (2 * len(low) * len(high)), 4)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's, ties sharing their mean rank; None where either does not vary."""
    first, second = _ranks(one), _ranks(other)
    if len(first) < 2 or not first.std() or not second.std():
        return None
    first, second = first - first.mean(), second - second.mean()
    spread = np.sqrt((first * first).sum() * (second * second).sum())
    return round(float((first * second).sum() / spread), 4)


def _ranks(values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values, np.float64)
    ordered = np.sort(found)
    left = np.searchsorted(ordered, found, side="left")
    right = np.searchsorted(ordered, found, side="right")
    return (left + right - 1) / 2
