"""What a seen value says about a forecast: how far off, in what units, inside which interval."""

import math
from typing import Any

from shoal.scaling.forecast import SeriesForecast, rounded


def equivalent(asymptote: float, alpha: float, before: float, after: float) -> float | None:
    """The factor of compute by which a law goes from one loss to another.

    Args:
        asymptote: E of the law.
        alpha: its exponent.
        before: a loss.
        after: a lower one gives a factor above 1.

    Returns:
        None where no compute gets there: a loss is not above E, or the law does not fall.
    """
    if min(before, after) <= asymptote or alpha <= 0:
        return None
    power = math.log((before - asymptote) / (after - asymptote)) / alpha
    return math.exp(power) if abs(power) < 700 else None


def score(series: SeriesForecast, seen: float, place: int = -1) -> dict[str, Any]:
    """A seen value against a forecast.

    Args:
        series: the forecast.
        seen: the value.
        place: index of the fraction at which it was seen; the end.

    Returns:
        `seen central error percent compute_equivalent inside_50 inside_90`: the error is seen minus
        central, and the equivalent the factor of compute at which the law reaches what was seen.

    Raises:
        ValueError: nothing is forecast there.
    """
    central, alpha, asymptote = series.central[place], series.alpha[place], series.E[place]
    if central is None or alpha is None or asymptote is None:
        raise ValueError(f"nothing is forecast at fraction {place} of the series")
    factor = equivalent(asymptote, alpha, central, seen)
    inside = [
        None if pair is None else bool(pair[0] <= seen <= pair[1])
        for pair in (series.interval_50[place], series.interval_90[place])
    ]
    return {
        "seen": seen,
        "central": central,
        "error": rounded(seen - central),
        "percent": rounded(100 * (seen - central) / central),
        "compute_equivalent": None if factor is None else rounded(factor),
        "inside_50": inside[0],
        "inside_90": inside[1],
    }
