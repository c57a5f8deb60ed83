"""The charts of a forecast: the ladder, the trajectory, the residuals, the health of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from shoal.report.folder import at
from shoal.report.forecast_folder import (
    ForecastFolder,
    Foretold,
    evaluated,
    medians,
    numbers,
    planned_steps,
    seen_at,
)
from shoal.report.forecast_outcome import day
from shoal.report.markup import Html, missing, number
from shoal.report.plots import Band, Series, line_chart
from shoal.report.scales import Axis
from shoal.report.training import smooth

# Compute of a hypothetical run -> lowest and highest value at 90 % and at 50 %.
type Corridor = Sequence[tuple[float, float, float, float, float]]

_SHARE = Axis(label="% of training", low=0, high=100)
_LAW_POINTS = 60
# A band further out than so many times its center says only that nothing is known.
_WIDEST = 30.0
_UNITS = {"loss": "nats per token", "bpb": "bits per byte"}


def unit_of(series: str) -> str:
    """What a series is measured in."""
    return _UNITS.get(series.rpartition("/")[2], "")


def rung_runs(found: ForecastFolder) -> list[Mapping[str, object]]:
    """The ladder's runs, as far as they are objects with compute."""
    runs = found.ladder.get("runs")
    runs = runs if isinstance(runs, list) else []
    return [one for one in runs if isinstance(one, Mapping) and (number(one.get("flops")) or 0) > 0]


def rung_value(found: ForecastFolder, run: Mapping[str, object], place: int) -> float:
    """A rung's headline at a fraction of its own training; NaN where it has none."""
    return float(numbers(at(run, "series", found.metric), len(found.fractions))[place])


def law_at(told: Foretold, place: int, compute: Float[np.ndarray, " n"]) -> np.ndarray:
    """The law of one fraction at some compute; NaN where there is none."""
    asymptote, scale, alpha = told.law[place]
    with np.errstate(all="ignore"):
        found = asymptote + scale * compute**-alpha
    return np.where(np.isfinite(found), found, np.nan)


def ladder_chart(found: ForecastFolder, corridor: Corridor = ()) -> Html:
    """Compute against the headline: rungs, law, and the target as foretold and as seen.

    Args:
        found: the forecast.
        corridor: where runs between the rungs and the target would lie; the target's own interval
            is always drawn.
    """
    told, place = found.headline, found.end
    flops = number(at(found.forecast, "target", "flops"))
    if told is None or place is None or flops is None or flops <= 0:
        return missing("nothing is forecast yet; shoal forecast makes it.")
    share = float(found.fractions[place])
    target = np.array([share * flops])
    runs = rung_runs(found)
    x = np.array([share * (number(run.get("flops")) or 0.0) for run in runs])
    y = np.array([rung_value(found, run, place) for run in runs])
    near = x[np.isfinite(y)].min() if np.isfinite(y).any() else target[0] / 100
    grid = np.geomspace(min(near, target[0]), max(target[0], near), _LAW_POINTS)
    series = [
        Series(name="law", x=grid, y=law_at(told, place, grid), style="c1"),
        _dots("forecast", target, told.central[[place]], "c1"),
    ]
    if np.isfinite(y).any():
        series.insert(1, _dots("runs of rungs", x, y, "c3"))
    seen = seen_at(found).get(found.metric)
    if seen is not None and np.isfinite(seen[place]):
        series.append(_dots("seen", target, seen[[place]], "c2"))
    return line_chart(
        "Ladder",
        series,
        x=Axis(label="FLOPs of training, without the head", log=True),
        y=Axis(label=f"{found.metric}, {unit_of(found.metric)}"),
        bands=_corridors(told, place, target, corridor),
        note=_ladder_note(found, corridor, share),
        wide=True,
    )


def _dots(name: str, x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], style: str) -> Series:
    order = np.argsort(x, kind="stable")
    return Series(name=name, x=x[order], y=y[order], style=f"{style} bare", marks=True)


def _corridors(
    told: Foretold, place: int, target: Float[np.ndarray, " 1"], corridor: Corridor
) -> list[Band]:
    bands: list[Band] = []
    rows = np.array(corridor, np.float64).reshape(-1, 5)
    for level, ends, first, style in (
        ("90 %", told.outer, 1, "c1"),
        ("50 %", told.inner, 3, "c1 deep"),
    ):
        x, low, high = target, ends[[place], 0], ends[[place], 1]
        if len(rows):
            x, low, high = rows[:, 0], rows[:, first], rows[:, first + 1]
        bands.append(Band(name=level, x=x, low=low, high=high, style=style))
    return bands


def _ladder_note(found: ForecastFolder, corridor: Corridor, share: float) -> str:
    told: list[str] = []
    if share < 1:
        told.append(f"Nothing is forecast beyond {share:.0%} of training: this is that point.")
    if corridor:
        told.append(
            "The bands are where one run of that compute would lie, by the same fit with the target"
            " moved there."
        )
    date = found.seal.get("date")
    told.append(f"Sealed {day(date)}." if date else "Not sealed.")
    return " ".join(told)


def trajectory_charts(found: ForecastFolder) -> list[Html]:
    """The headline over training with its bands and the run: as it is, and less the forecast."""
    told = found.headline
    if told is None or found.end is None:
        return [missing("nothing is forecast yet; shoal forecast makes it.")]
    share = 100 * found.fractions
    unit = unit_of(found.metric)
    points = _evaluations(found)
    seen = seen_at(found).get(found.metric, np.full(len(share), np.nan))
    alone = np.isfinite(told.central).sum() < 2
    central = Series(name="forecast", x=share, y=told.central, style="c1", marks=bool(alone))
    charts = [
        line_chart(
            "Trajectory",
            [central, *([_run_curve(*points)] if len(points[0]) else [])],
            x=_SHARE,
            y=Axis(label=f"{found.metric}, {unit}"),
            bands=_bands(share, told.outer, told.inner),
            note=_progress(found),
            wide=True,
        )
    ]
    apart = seen - told.central
    curves = [_run_curve(share, apart)] if np.isfinite(apart).any() else []
    middle = told.central[:, None]
    zero = Series(name="forecast", x=share, y=told.central * 0, style="c1", marks=bool(alone))
    return [
        *charts,
        line_chart(
            "Seen minus forecast",
            [zero, *curves],
            x=_SHARE,
            y=Axis(label=unit),
            bands=_bands(share, told.outer - middle, told.inner - middle),
        ),
    ]


def _run_curve(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Series:
    return Series(name="run", x=x, y=y, style="c2", marks=True)


def _bands(
    x: Float[np.ndarray, " n"], outer: Float[np.ndarray, "n 2"], inner: Float[np.ndarray, "n 2"]
) -> list[Band]:
    return [
        Band(name=level, x=x, low=ends[:, 0], high=ends[:, 1], style=style)
        for level, ends, style in (("90 %", outer, "c1"), ("50 %", inner, "c1 deep"))
    ]


def _evaluations(found: ForecastFolder) -> tuple[np.ndarray, np.ndarray]:
    """The run's own evaluations at the share of training where they were made, in %."""
    values = [
        (100 * share, value)
        for share, name, value in (evaluated(found.run) if found.run else [])
        if name == found.metric
    ]
    if values:
        x, y = np.array(sorted(values), np.float64).T
        return x, y
    seen = seen_at(found).get(found.metric)
    if seen is None:
        return np.array([]), np.array([])
    known = np.isfinite(seen)
    return 100 * found.fractions[known], seen[known]


def _progress(found: ForecastFolder) -> str | None:
    run = found.run
    if run is None or run.finished or run.last_step is None or not planned_steps(run):
        return None
    return (
        f"The run is at step {run.last_step:,} of {planned_steps(run):,.0f},"
        f" {run.last_step / planned_steps(run):.0%} of its training."
    )


def training_chart(found: ForecastFolder) -> Html | None:
    """The loss of training so far, on the same axis; None without a run."""
    run = found.run
    loss = run.metrics.column("loss") if run else None
    if run is None or loss is None or not planned_steps(run):
        return None
    x = 100 * run.metrics.steps / planned_steps(run)
    curve = Series(name="smoothed", x=x, y=smooth(loss), style="c2")
    return line_chart("Training loss so far", [curve], x=_SHARE, y=Axis(label="nats per token"))


def residuals_of(found: ForecastFolder) -> list[tuple[Mapping[str, object], float, float]]:
    """Every rung's run with what it scored and what the law fits to it, at the last fraction."""
    told, place = found.headline, found.end
    if told is None or place is None:
        return []
    share = float(found.fractions[place])
    rows: list[tuple[Mapping[str, object], float, float]] = []
    for run in rung_runs(found):
        compute = np.array([share * (number(run.get("flops")) or 0.0)])
        fitted = float(law_at(told, place, compute)[0])
        rows.append((run, rung_value(found, run, place), fitted))
    return sorted(rows, key=lambda row: number(row[0].get("flops")) or 0.0)


def residual_chart(found: ForecastFolder) -> Html | None:
    """Seen minus fitted of every run of every rung; None where none has a value."""
    share = 1.0 if found.end is None else float(found.fractions[found.end])
    known = [
        (share * (number(run.get("flops")) or 0.0), seen - fitted)
        for run, seen, fitted in residuals_of(found)
        if np.isfinite(seen - fitted)
    ]
    if not known:
        return None
    x, y = np.array(known, np.float64).T
    return line_chart(
        "Residuals",
        [_dots("seen minus fitted", x, y, "c3")],
        x=Axis(label="FLOPs of training, without the head", log=True),
        y=Axis(label=unit_of(found.metric)),
        references=[("the law", 0.0)],
        wide=True,
    )


def health_chart(found: ForecastFolder, name: str) -> tuple[Html, float | None] | None:
    """A health series' band and the run; with the share of what was seen that lies outside.

    None where nothing is projected; the share is None where nothing was seen.
    """
    size = len(found.fractions)
    tree = at(found.forecast, "health", name)
    central, low, high = (numbers(at(tree, side), size) for side in ("central", "low", "high"))
    if not np.isfinite(central).any():
        return None
    share, seen = 100 * found.fractions, medians(found, name)
    both = np.isfinite(seen) & np.isfinite(low) & np.isfinite(high)
    outside = (seen < low) | (seen > high)
    known = [side[np.isfinite(side)] for side in (central, low, high, seen)]
    positive = all(bool((side > 0).all()) for side in known)
    least = min(float(side.min()) for side in known if side.size)
    note = None
    if positive:
        edge = central * _WIDEST
        if bool((high > edge).any() or (low < central / _WIDEST).any()):
            note = f"Wider than {_WIDEST:.0f} times its center, the band is cut off here."
        low, high = np.maximum(low, central / _WIDEST), np.minimum(high, edge)
    curve = Series(name="projected", x=share, y=central, style="c1 dash")
    curves = [replace(curve, marks=bool(np.isfinite(central).sum() < 2))]
    if np.isfinite(seen).any():
        curves.append(_run_curve(share, seen))
    label = "median of each 5 %" + (", log scale" if positive else "")
    chart = line_chart(
        name,
        curves,
        x=_SHARE,
        y=Axis(label=label, log=positive, low=0 if not positive and least >= 0 else None),
        bands=[Band(name="90 %", x=share, low=low, high=high, style="c1")],
        note=note,
    )
    return chart, float(outside[both].mean()) if both.any() else None
