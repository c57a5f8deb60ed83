"""Charts as SVG inside the page: they stretch with it, their text does not.

A plot has no view box of its own: labels stand at percentages of it, in the page's type, and the
curves are drawn in a stretched inner view with strokes of constant width. Colors are classes
(`c1` to `c6` for series, `r0` to `r7` for an ordered family, `h0` to `h9` for heat), so that light
and dark differ only in the style sheet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from shoal.report.markup import Child, Html, el, significant
from shoal.report.scales import FORMATS, Axis, Scale, scale, thin

_SPAN = 4000
_BUCKETS = 400
_MOST_POINTS = 4800
_RAMP = 8
# Upper bounds of the heat classes, in expert load over the mean; no load is a class of its own.
HEAT = (0.25, 0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 4.0)
_HEAT_NAMES = (
    "none", "under 0.25", "to 0.5", "to 0.8", "to 0.95", "to 1.05, even", "to 1.25", "to 2", "to 4",
    "over 4",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve.

    Attributes:
        name: stands in the legend.
        x: ascending or not; the curve is drawn in its order.
        y: values; the curve breaks where one is not finite.
        style: its color class, and `dash` or `dot` if it is not solid.
        marks: its points are drawn too.
        faint: it is the noise behind another curve.
    """

    name: str
    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, " n"]
    style: str
    marks: bool = False
    faint: bool = False

    def thinned(self, buckets: int) -> Series:
        """The same curve with as few points as a screen can show."""
        order = np.argsort(self.x, kind="stable")
        keep = order[thin(self.x[order], self.y[order], buckets)]
        return replace(self, x=self.x[keep], y=self.y[keep])

    @property
    def last(self) -> float:
        """The last finite value; NaN where there is none."""
        finite = self.y[np.isfinite(self.y)]
        return float(finite[-1]) if finite.size else math.nan


@dataclass(frozen=True, kw_only=True)
class Band:
    """What lies between two curves: a surface, or a bar where a point stands alone.

    Attributes:
        name: stands in the legend.
        x: ascending.
        low, high: it breaks where either is not finite.
        style: its color class.
    """

    name: str
    x: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    style: str


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    bands: Sequence[Band] = (),
    references: Sequence[tuple[str, float]] = (),
    family: tuple[str, str] | None = None,
    note: str | None = None,
    wide: bool = False,
) -> Html:
    """Curves over one x, with a legend whose numbers follow the pointer.

    Args:
        title: names the quantity.
        series: at least one with a point.
        x: the shared axis.
        y: the axis of the values.
        bands: lie behind the curves, the widest first.
        references: name and height of constant lines.
        family: names of the first and last of an ordered family, shown instead of each series.
        note: stands below the chart.
        wide: takes the page's whole width.
    """
    buckets = min(_BUCKETS, max(60, _MOST_POINTS // (2 * len(series))))
    shown = [one.thinned(buckets) for one in series]
    heights = [one.y for one in shown] + [np.array([value for _, value in references])]
    heights += [side for band in bands for side in (band.low, band.high)]
    across = scale(x, np.concatenate([one.x for one in [*shown, *bands]]))
    upward = scale(y, np.concatenate(heights), pad=0.06)
    plot = el(
        "svg",
        _grid(across, upward, x, y),
        [_reference(name, value, upward, shown) for name, value in references],
        el(
            "svg",
            [_band(one, across, upward) for one in bands],
            [_curve(one, across, upward) for one in shown],
            width="100%", height="100%", viewBox=f"0 0 {_SPAN} {_SPAN}", preserveAspectRatio="none",
        ),
        [_marks(one, across, upward) for one in shown if one.marks],
        class_="plot", role="img", aria_label=_spoken(title, shown, x, y),
    )  # fmt: skip
    data = {
        "x": [across.low, across.high, across.log, x.format],
        "y": [upward.low, upward.high, upward.log, y.format],
        "unit": x.label,
        "family": bool(family),
        "series": [
            {"x": _numbers(one.x), "y": _numbers(one.y), "style": one.style} for one in shown
        ],
    }
    legend = _family_legend(shown, y, family) if family else _legend(shown, y, bands)
    return _figure(title, y.label, legend, plot, data, kind="line", note=note, wide=wide)


def _figure(
    title: str,
    unit: str,
    legend: Child,
    plot: Html,
    data: object,
    *,
    kind: str,
    note: str | None,
    wide: bool,
) -> Html:
    # "<" would end the script element early if it stood in a name.
    payload = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return el(
        "figure",
        el(
            "figcaption",
            el("span", title, class_="title"),
            " ",
            el("span", unit, class_="unit"),
            el("output", class_="where"),
        ),
        legend,
        el("div", plot, class_="frame", tabindex=0),
        el("p", note, class_="note") if note else None,
        el("script", Html(payload), type="application/json"),
        class_="chart wide" if wide else "chart",
        data_kind=kind,
    )


def _numbers(values: Float[np.ndarray, " n"]) -> list[float | int | None]:
    """Five digits, which no eye exceeds; None where a value is not finite."""
    rounded = [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]
    return [int(v) if v is not None and v == int(v) else v for v in rounded]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _grid(across: Scale, upward: Scale, x: Axis, y: Axis) -> list[Html]:
    marks: list[Html] = []
    for tick, text in upward.ticks(5, y.format):
        height = _percent(1 - upward.at(tick))
        marks.append(el("line", x1="0", x2="100%", y1=height, y2=height, class_="rule"))
        marks.append(_label(text, "0", height, "tick y"))
    for tick, text in across.ticks(5, x.format):
        marks.append(_label(text, _percent(across.at(tick)), "100%", "tick x"))
    marks.append(el("line", x1="0", x2="100%", y1="100%", y2="100%", class_="base"))
    marks.append(_label(x.label, "100%", "100%", "tick axis"))
    return marks


def _label(text: object, x: str, y: str, kind: str) -> Html:
    dx, dy = {"tick y": ("-8", "0.32em"), "tick x": (None, "18"), "tick axis": (None, "34")}[kind]
    return el("text", str(text), x=x, y=y, dx=dx, dy=dy, class_=kind)


def _reference(name: str, value: float, upward: Scale, series: Sequence[Series]) -> Html:
    height = upward.at(value)
    # The label stands above the line, at the end where the curves keep away from it.
    room = [
        min(
            (abs(upward.at(float(y)) - height - 0.04) for y in ends if math.isfinite(y)),
            default=1.0,
        )
        for ends in ([one.y[0] for one in series], [one.y[-1] for one in series])
    ]
    left = room[0] > room[1]
    place = _percent(1 - height)
    return el(
        "g",
        el("line", x1="0", x2="100%", y1=place, y2=place, class_="reference"),
        el(
            "text",
            name,
            x="0" if left else "100%",
            y=place,
            dy="-5",
            class_="tick" if left else "tick axis",
        ),
    )


def _curve(one: Series, across: Scale, upward: Scale) -> Html:
    points = np.stack([across.place(one.x), 1 - upward.place(one.y)], axis=1) * _SPAN
    # Far outside the frame a coordinate only has to be outside.
    points = np.clip(points, -_SPAN, 2 * _SPAN)
    parts: list[str] = []
    pen_down = False
    for horizontal, vertical in points.tolist():
        if math.isnan(horizontal) or math.isnan(vertical):
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{horizontal:.0f} {vertical:.0f}")
        pen_down = True
    return el("path", d="".join(parts), class_=f"line {one.style}{' faint' if one.faint else ''}")


def _band(one: Band, across: Scale, upward: Scale) -> Html:
    x = across.place(one.x) * _SPAN
    sides = np.stack([x, *((1 - upward.place(y)) * _SPAN for y in (one.low, one.high))], axis=1)
    known = np.isfinite(sides).all(axis=1)
    starts = np.flatnonzero(np.diff(known, prepend=False, append=False)).tolist()
    parts: list[Html] = []
    for first, last in zip(starts[::2], starts[1::2], strict=True):
        piece = np.clip(sides[first:last], -_SPAN, 2 * _SPAN)
        edge = [*piece[:, :2].tolist(), *piece[::-1][:, [0, 2]].tolist()]
        path = "L".join(f"{right:.0f} {down:.0f}" for right, down in edge)
        kind = "band" if last - first > 1 else "whisker"
        parts.append(el("path", d=f"M{path}", class_=f"{kind} {one.style}"))
    return el("g", parts)


def _marks(one: Series, across: Scale, upward: Scale) -> Html:
    places = zip(across.place(one.x).tolist(), upward.place(one.y).tolist(), strict=True)
    dots = [
        el("circle", cx=_percent(right), cy=_percent(1 - up), r="3.5")
        for right, up in places
        if math.isfinite(right) and math.isfinite(up)
    ]
    return el("g", dots, class_=f"marks {one.style}")


def _legend(series: Sequence[Series], y: Axis, bands: Sequence[Band] = ()) -> Html:
    write = FORMATS[y.format]
    keys = [
        el("span", _swatch(one), one.name, el("output", write(one.last)), class_="key")
        for one in series
    ]
    for one in bands:
        drawn = el("rect", width="24", height="10", class_=f"band {one.style}")
        keys.append(el("span", el("svg", drawn, width="24", height="10"), one.name, class_="key"))
    return el("div", keys, class_="legend")


def _swatch(one: Series) -> Html:
    style = f"{one.style}{' faint' if one.faint else ''}"
    return el(
        "svg",
        el("line", x1="1", x2="23", y1="5", y2="5", class_=f"line {style}"),
        el("circle", cx="12", cy="5", r="3.5") if one.marks else None,
        width="24",
        height="10",
        class_=f"marks {style}",
        aria_hidden="true",
    )


def _family_legend(series: Sequence[Series], y: Axis, family: tuple[str, str]) -> Html:
    """A ramp from the first to the last of a family, and the reach of their values."""
    write = FORMATS[y.format]
    final = [one.last for one in series if math.isfinite(one.last)]
    steps = [
        el("rect", x=place * 12, width="12", height="8", class_=f"r{place}")
        for place in range(_RAMP)
    ]
    return el(
        "div",
        family[0],
        el("svg", steps, width=12 * _RAMP, height="8", class_="ramp", aria_hidden="true"),
        family[1],
        el("output", f"{write(min(final))} to {write(max(final))}" if final else ""),
        class_="legend",
    )


def ramp(place: int, number: int) -> str:
    """The class of one of an ordered family."""
    return f"r{round(place * (_RAMP - 1) / max(1, number - 1))}"


def _spoken(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    write = FORMATS[y.format]
    told = [f"{one.name} from {write(one.y[0])} to {write(one.last)}" for one in series[:6]]
    more = f"; and {len(series) - 6} more" if len(series) > 6 else ""
    return f"{title}, {y.label}, over {x.label}: {'; '.join(told)}{more}"


def heatmap(
    title: str, values: Float[np.ndarray, "layers experts"], *, unit: str, note: str | None = None
) -> Html:
    """Load of each expert over the mean, one row per layer; the color bounds are `HEAT`."""
    num_layers, num_experts = values.shape
    classes = np.where(values == 0, 0, 1 + np.searchsorted(HEAT, values, side="right"))
    every_row = max(1, math.ceil(num_layers / 12))
    every_column = 2 ** max(0, math.ceil(math.log2(num_experts / 16)))
    inner = el(
        "svg",
        _cells(classes),
        el("path", d=_seams(num_layers, num_experts), class_="seam"),
        width="100%",
        height="100%",
        viewBox=f"0 0 {num_experts} {num_layers}",
        preserveAspectRatio="none",
    )
    plot = el(
        "svg",
        inner,
        [
            _label(row, "0", _percent((row + 0.5) / num_layers), "tick y")
            for row in range(0, num_layers, every_row)
        ],
        [
            _label(column, _percent((column + 0.5) / num_experts), "100%", "tick x")
            for column in range(0, num_experts, every_column)
        ],
        _label("expert, one row per layer", "100%", "100%", "tick axis"),
        class_="plot heat",
        role="img",
        height=num_layers * (26 if num_layers <= 12 else 9),
        aria_label=f"{title}: {num_layers} layers of {num_experts} experts, from "
        f"{significant(values.min())} to {significant(values.max())} times the mean",
    )
    data = {"values": [_numbers(row) for row in values]}
    legend = _heat_legend(some_idle=bool((classes == 0).any()))
    return _figure(title, unit, legend, plot, data, kind="heat", note=note, wide=True)


def _cells(classes: np.ndarray) -> list[Html]:
    """One path per class; neighbors in a row are one rectangle."""
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(classes):
        starts = np.flatnonzero(np.diff(line, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
            rectangle = f"M{start} {row}h{end - start}v1h-{end - start}z"
            paths.setdefault(int(line[start]), []).append(rectangle)
    return [el("path", d="".join(paths[key]), class_=f"h{key}") for key in sorted(paths)]


def _seams(num_layers: int, num_experts: int) -> str:
    """Lines between cells, where cells are wide enough to have some."""
    columns = range(1, num_experts) if num_experts <= 64 else range(0)
    lines = [f"M{column} 0V{num_layers}" for column in columns]
    return "".join(lines + [f"M0 {row}H{num_experts}" for row in range(1, num_layers)])


def _heat_legend(*, some_idle: bool) -> Html:
    keys = [
        el(
            "span",
            el(
                "svg",
                el("rect", width="14", height="10", class_=f"h{place}"),
                width="14",
                height="10",
                aria_hidden="true",
            ),
            name,
            class_="key",
        )
        for place, name in enumerate(_HEAT_NAMES)
        if place or some_idle
    ]
    return el("div", keys, class_="legend close")


def strip(ours: float | None, others: Sequence[tuple[str, float]], low: float, high: float) -> Html:
    """Our value as a dot among the others' ticks, on one scale for all rows of a table."""

    def place(value: float) -> str:
        return _percent((value - low) / (high - low))

    told = "".join(f"; {name} {value:.2f}" for name, value in others)
    best = min((value for _, value in others), default=None)
    gap = None
    if ours is not None and best is not None:
        style = "gap better" if ours < best else "gap worse"
        gap = el("line", x1=place(ours), x2=place(best), y1="50%", y2="50%", class_=style)
    return el(
        "svg",
        el("line", x1="0", x2="100%", y1="50%", y2="50%", class_="rule"),
        gap,
        [_tick(place(value), which) for which, (_, value) in reversed(list(enumerate(others)))],
        el("circle", cx=place(ours), cy="50%", r="5", class_="ours") if ours is not None else None,
        class_="strip",
        role="img",
        aria_label=f"ours {'missing' if ours is None else f'{ours:.2f}'}{told}",
    )


def _tick(place: str, which: int) -> Html:
    reach = ("12%", "88%") if which == 0 else ("30%", "70%")
    return el("line", x1=place, x2=place, y1=reach[0], y2=reach[1], class_=f"other o{which}")


def strip_key(names: Sequence[str]) -> Html:
    """What the marks of `strip` mean."""

    def key(mark: Html, name: str) -> Html:
        drawn = el("svg", mark, width="12", height="18", class_="marker", aria_hidden="true")
        return el("span", drawn, name, class_="key")

    ours = el("circle", cx="50%", cy="50%", r="5", class_="ours")
    others = [key(_tick("50%", which), name) for which, name in enumerate(names)]
    return el("div", key(ours, "ours"), others, class_="legend close")


def bar(share: float, label: str) -> Html:
    """A share of 1 as a bar in a table's cell."""
    return el(
        "svg",
        el("rect", width="100%", height="100%", class_="track"),
        el("rect", width=_percent(max(0.0, min(1.0, share))), height="100%", class_="fill"),
        class_="bar",
        role="img",
        aria_label=label,
    )
