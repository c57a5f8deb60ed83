"""The sections about training: curves, routing, optimizer and speed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from shoal.report.evaluation import over_evaluations, references
from shoal.report.folder import RunFolder, at
from shoal.report.markup import Html, compact, duration, el, join, missing, significant
from shoal.report.plots import Series, heatmap, line_chart, ramp
from shoal.report.scales import Axis

TOKENS = Axis(label="tokens trained on", format="compact", low=0)
TIME = Axis(label="time in steps", format="duration", low=0)
_GROUPS = {"muonh": "c1", "adamh": "c5 dash", "adam": "c3 dot"}

_ROUTER = ("load_cv", "load_max", "entropy", "bias_abs_max")


def window(number_of_steps: int) -> int:
    """The odd number of steps that a smoothed curve averages: a fiftieth of the run."""
    return max(1, number_of_steps // 50) | 1


def smooth(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Centered means of `window` finite values; narrower at the start, halting at the end."""
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    width, place = window(len(values)), np.arange(len(values))
    reach = np.minimum(width // 2, place)
    last = np.minimum(place + reach + 1, len(values))
    first = np.minimum(place - reach, max(0, len(values) - width))
    inside = counts[last] - counts[first]
    return np.where(inside > 0, (sums[last] - sums[first]) / np.maximum(inside, 1), np.nan)


def _smoothed(run: RunFolder, key: str, name: str) -> list[Series]:
    """A quantity's curve, and its noise behind it where the curve is a mean."""
    values = run.metrics.column(key)
    if values is None:
        return []
    width = window(len(values))
    if width == 1:
        return [Series(name=name or "each step", x=run.tokens, y=values, style="c1")]
    name = f"{name}, " if name else ""
    return [
        Series(name=f"{name}each step", x=run.tokens, y=values, style="c1", faint=True),
        Series(name=f"{name}mean of {width:,} steps", x=run.tokens, y=smooth(values), style="c1"),
    ]


def training(run: RunFolder) -> Html:
    """Loss over tokens and over time, held-out bits per byte, learning rates."""
    return el(
        "div",
        _loss(run),
        _held_out(run),
        _rates(run),
        _plain(run, "z_loss", "Logit z-loss", "per token, as added to the loss"),
        class_="charts",
    )


def _loss(run: RunFolder) -> list[Html]:
    curves = _smoothed(run, "loss", "train")
    if not curves:
        return [missing("the loss of a step has not been recorded yet.")]
    mean = curves[-1]
    evaluations = over_evaluations(run, "loss")
    axis, note = _frame(mean.y, evaluations)
    charts = [
        line_chart(
            "Loss",
            [*curves, *evaluations],
            x=TOKENS,
            y=axis,
            note=note,
            wide=True,
        )
    ]
    seconds = run.metrics.column("seconds")
    if seconds is not None:
        elapsed = np.cumsum(np.where(np.isfinite(seconds), seconds, 0.0))
        over_time = Series(name=mean.name, x=elapsed, y=mean.y, style="c1")
        charts.append(line_chart("Loss over time", [over_time], x=TIME, y=axis, note=note))
    return charts


def _frame(curve: Float[np.ndarray, " n"], evaluations: list[Series]) -> tuple[Axis, str | None]:
    """The loss axis; a start that would flatten all the rest is cut off, and that is told."""
    axis = Axis(label="nats per token")
    finite = curve[np.isfinite(curve)]
    most = float(np.quantile(finite, 0.97))
    if len(finite) < 50 or finite.max() - finite.min() < 2.5 * (most - finite.min()):
        return axis, None
    most = max([most, *(float(one.y[len(one.y) // 2 :].max()) for one in evaluations)])
    note = f"The start, up to {significant(finite.max())}, lies above the frame."
    return replace(axis, high=most), note


def _held_out(run: RunFolder) -> Html | None:
    """A curve from two evaluations on; a single one is the headline's."""
    series = over_evaluations(run, "bpb")
    if not series:
        return missing("held-out text has not been evaluated yet.")
    if all(len(one.x) < 2 for one in series):
        return None
    axis = Axis(label="bits per byte, macro mean")
    return line_chart("Held-out text", series, x=TOKENS, y=axis, references=references(run))


def _rates(run: RunFolder) -> Html:
    rates = [
        Series(name=name, x=run.tokens, y=values, style=style)
        for name, style in (("muon", "c1"), ("adam", "c3 dot"))
        if (values := run.metrics.column(f"learning_rate/{name}")) is not None
    ]
    if not rates:
        return missing("the learning rate has not been recorded yet.")
    return line_chart("Learning rate", rates, x=TOKENS, y=Axis(label="per update", low=0))


def _plain(run: RunFolder, key: str, title: str, unit: str) -> Html | None:
    """A chart of a quantity that not every run has."""
    curves = _smoothed(run, key, "")
    return line_chart(title, curves, x=TOKENS, y=Axis(label=unit)) if curves else None


def routing(run: RunFolder) -> Html:
    """Where the tokens went, layer by layer."""
    if not run.metrics.load and not any(_per_layer(run, f"router/{key}") for key in _ROUTER):
        return missing("the router has not been recorded yet.")
    charts: list[Html] = []
    load = run.metrics.load
    num_experts = load[1].shape[1] if load else _num_experts(run)
    if load:
        step, values = load
        idle = int((values == 0).sum())
        note = f"{idle:,} of {values.size:,} experts received nothing." if idle else None
        unit = f"tokens over the layer's mean, step {step:,}"
        charts.append(heatmap("Expert load", values, unit=unit, note=note))
    else:
        charts.append(missing("the load of experts has not been recorded yet."))
    uniform = [(f"ln {num_experts} = {math.log(num_experts):.3f}, uniform", math.log(num_experts))]
    for key, title, unit, log, lines in (
        ("load_cv", "Load imbalance", "deviation over mean, log scale", True, ()),
        ("load_max", "Busiest expert", "load over the mean, log scale", True, ()),
        ("entropy", "Router entropy", "nats", False, uniform if num_experts > 1 else ()),
        ("bias_abs_max", "Largest router bias", "absolute", False, ()),
    ):
        series = _per_layer(run, f"router/{key}")
        if not series:
            charts.append(missing(f"the {title.lower()} has not been recorded yet."))
            continue
        axis = Axis(label=unit, log=log)
        family = ("layer 0", str(len(series) - 1)) if len(series) > 1 else None
        charts.append(line_chart(title, series, x=TOKENS, y=axis, references=lines, family=family))
    return join(el("p", _routed(run), class_="lede"), el("div", charts, class_="charts"))


def _per_layer(run: RunFolder, key: str) -> list[Series]:
    found = run.metrics.layers.get(key)
    if found is None or not np.isfinite(found).any():
        return []
    rows = np.isfinite(found).any(axis=1)
    num_layers = found.shape[1]
    return [
        Series(
            name=f"layer {layer}",
            x=run.tokens[rows],
            y=smooth(found[rows, layer]),
            style=ramp(layer, num_layers),
        )
        for layer in range(num_layers)
    ]


def _num_experts(run: RunFolder) -> int:
    found = at(run.run, "config", "model", "num_experts")
    return found if isinstance(found, int) and found > 0 else 1


def _routed(run: RunFolder) -> str:
    """How the curves were made, and how many assignments of a token to an expert found no room."""
    width = window(len(run.metrics.steps))
    told = f"One curve per layer{f', each the mean of {width:,} steps' if width > 1 else ''}."
    totals = {
        side: float(found[np.isfinite(found)].sum())
        for side in ("sender", "receiver")
        if (found := run.metrics.layers.get(f"dropped/{side}")) is not None
    }
    if not totals:
        return told
    if any(totals.values()):
        where = " and ".join(f"{compact(total)} by the {side}" for side, total in totals.items())
        return f"{told} Assignments of a token to an expert that were dropped: {where}."
    return f"{told} No assignment of a token to an expert was dropped."


def optimizer(run: RunFolder) -> Html:
    """Norms of gradients, weights and updates by optimizer group."""
    if not any("_norm" in key for key in run.metrics.scalars):
        return missing("norms have not been recorded yet.")
    weights, updates = _grouped(run, "weight_norm/"), _grouped(run, "update_norm/")
    by_name = {one.name: one.y for one in weights}
    relative: list[Series] = []
    for one in updates:
        if one.name in by_name:
            weight = by_name[one.name]
            ratio = one.y / np.where(weight > 0, weight, np.nan)
            relative.append(Series(name=one.name, x=one.x, y=ratio, style=one.style))
    mean = f", mean of {window(len(run.metrics.steps)):,} steps, log scale"
    charts = [
        line_chart(title, series, x=TOKENS, y=Axis(label=unit, log=True))
        if series
        else missing(f"the {title.lower()} has not been recorded yet.")
        for title, unit, series in (
            ("Gradient norm", f"before the optimizer{mean}", _gradients(run)),
            ("Weight norm", "per group, log scale", weights),
            ("Update norm", f"per group{mean}", updates),
            ("Update over weight", "relative size of a step, log scale", relative),
        )
    ]
    return join(_skipped(run), el("div", charts, class_="charts"))


def _gradients(run: RunFolder) -> list[Series]:
    groups = _grouped(run, "grad_norm/")
    whole = run.metrics.column("grad_norm")
    if whole is None:
        return groups
    raw = Series(name="all, each step", x=run.tokens, y=whole, style="c6", faint=True)
    mean = Series(name="all", x=run.tokens, y=smooth(whole), style="c6")
    return [raw, mean, *groups] if window(len(whole)) > 1 else [mean, *groups]


def _grouped(run: RunFolder, prefix: str) -> list[Series]:
    """One smoothed curve per optimizer group, the known groups first."""
    known = [key.removeprefix(prefix) for key in run.metrics.scalars if key.startswith(prefix)]
    names = [name for name in _GROUPS if name in known]
    names += sorted(set(known) - set(names))
    return [
        Series(name=name, x=run.tokens, y=smooth(values), style=_GROUPS.get(name, "c4"))
        for name in names
        if (values := run.metrics.column(prefix + name)) is not None
    ]


def _skipped(run: RunFolder) -> Html | None:
    applied = run.metrics.column("applied")
    if applied is None:
        return None
    skipped = int((applied == 0).sum())
    if not skipped:
        return el("p", "Every update was applied: all gradients were finite.", class_="lede")
    told = f"{skipped:,} of {len(applied):,} updates were left out: their gradient was not finite."
    return el("p", told, class_="lede")


def speed(run: RunFolder) -> Html:
    """Throughput of every step and how steady it was."""
    curves = _smoothed(run, "tokens_per_s", "")
    if not curves:
        return missing("the throughput has not been recorded yet.")
    rate = curves[0].y
    low, middle, high = np.quantile(rate[np.isfinite(rate)], [0.05, 0.5, 0.95]).tolist()
    told = (
        f"Median {compact(middle)} tokens/s; nine of ten steps between {compact(low)} "
        f"and {compact(high)}."
    )
    seconds = run.metrics.column("seconds")
    if seconds is not None:
        known = seconds[np.isfinite(seconds)]
        middle, most = float(np.median(known)), float(known.max())
        told += f" A step takes {duration(middle)}; the slowest took {duration(most)}."
    axis = Axis(label="tokens per second", format="compact", low=0)
    chart = line_chart("Throughput", curves, x=TOKENS, y=axis, wide=True)
    return join(el("p", told, class_="lede"), el("div", chart, class_="charts"))
