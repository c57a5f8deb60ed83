"""The missing end of a run that stopped early, so that its rung still counts.

A straight line through the points at 60 to 80 % of the run goes on to the end. Learning-rate decay
bends the curve, so such a line errs to one side: the bias that finished runs of the ladder show at
the same fraction is added, or a stated one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from shoal.scaling.records import FRACTIONS, Ladder, RungRun, Values

FROM, TO = 0.6, 0.8
STATED_BIAS = 0.002
_LINE = np.array([FROM - 1e-9 <= fraction <= TO + 1e-9 for fraction in FRACTIONS])


class Tail(NamedTuple):
    """What was filled in: from which fraction on, and what was added to the line at the end."""

    series: str
    since: float
    bias: float
    measured: bool


def line(values: Values) -> Float[np.ndarray, " 20"] | None:
    """The straight line through the points at 60 to 80 %; None where one of them is missing."""
    seen = np.array([np.nan if value is None else value for value in values])
    if np.isnan(seen[_LINE]).any():
        return None
    at = np.array(FRACTIONS)
    slope, level = np.polyfit(at[_LINE], seen[_LINE], 1)
    return level + slope * at


def errors(runs: Sequence[RungRun], series: str) -> list[Float[np.ndarray, " 20"]]:
    """Seen minus line, for each run that has the series to its end: how good the rule is."""
    found: list[Float[np.ndarray, " 20"]] = []
    for run in runs:
        values = run.series.get(series)
        straight = None if values is None or values[-1] is None else line(values)
        if values is not None and straight is not None:
            seen = np.array([np.nan if value is None else value for value in values])
            found.append(seen - straight)
    return found


def completed(ladder: Ladder, bias: float | None = None) -> tuple[Ladder, dict[str, list[Tail]]]:
    """The ladder with missing ends filled in, and which: run -> one entry for each series.

    Args:
        ladder: what the runs left.
        bias: added to the line, as a share of its end; None: what the finished runs show, or
            `STATED_BIAS` where no run is finished.
    """
    marks: dict[str, list[Tail]] = {}
    runs: list[RungRun] = []
    for run in ladder.runs:
        series = dict(run.series)
        for name, values in run.series.items():
            missing = _missing(values)
            straight = line(values) if missing < len(values) else None
            if straight is None:
                continue
            known = [] if bias is not None else errors(ladder.runs, name)
            share = STATED_BIAS if bias is None else bias
            added = np.full(len(FRACTIONS), share * straight[-1])
            if known:
                counts = np.maximum((~np.isnan(known)).sum(0), 1)
                added = np.nansum(known, axis=0) / counts
            filled = (straight + added)[missing:].tolist()
            series[name] = (*values[:missing], *filled)
            marks.setdefault(run.run, []).append(
                Tail(name, FRACTIONS[missing], float(added[-1]), bool(known))
            )
        runs.append(replace(run, series=series))
    return replace(ladder, runs=tuple(runs)), marks


def _missing(values: Values) -> int:
    """Where the unbroken missing end begins; the number of values where there is none."""
    start = len(values)
    while start and values[start - 1] is None:
        start -= 1
    return start
