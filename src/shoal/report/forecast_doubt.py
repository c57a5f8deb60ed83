"""The sections about how sure a forecast is: its interval, its law, the rungs, health, the seal."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.report.folder import at
from shoal.report.forecast_folder import ForecastFolder
from shoal.report.forecast_outcome import PLACES, day
from shoal.report.forecast_plots import health_chart, residual_chart, residuals_of, unit_of
from shoal.report.markup import (
    Child,
    Html,
    compact,
    el,
    fixed,
    join,
    missing,
    pairs,
    plain,
    signed,
    significant,
    table,
)
from shoal.report.plots import bar

_PARTS = {
    "residual": "Noise in the law",
    "seed": "One run's own noise",
    "leave_one_out": "Any one rung left out",
    "asymptote": "Where the asymptote E lies",
    "form": "Other forms of the law",
}


def law(found: ForecastFolder) -> Html | None:
    """The law in words and numbers."""
    told, place = found.headline, found.end
    if told is None or place is None:
        return None
    asymptote, scale, alpha = told.law[place].tolist()
    given = at(found.forecast, "settings", "asymptote")
    whence = "not given" if given is None else f"given as {plain(given)}"
    return el(
        "p",
        f"{found.forecast.get('form') or 'The law'}, with E {significant(asymptote)} ({whence}),"
        f" A {significant(scale)} and alpha {significant(alpha)}; C is compute without the head.",
        class_="lede",
    )


def interval(found: ForecastFolder) -> Html:
    """The parts of the interval, and the back-test."""
    told = found.headline
    if told is None or not told.parts:
        return missing("no interval is known at the end of the run.")
    ends = told.outer[-1]
    half = float(ends[1] - ends[0]) / 2
    most = max([*told.parts.values(), half if np.isfinite(half) else 0.0]) or 1.0
    rows: list[list[Child]] = [
        [_PARTS.get(name, name), bar(value / most, f"{value:.4f}"), fixed(value, PLACES)]
        for name, value in told.parts.items()
    ]
    foot = [["The interval", bar(half / most, f"{half:.4f}"), fixed(half, PLACES)]]
    known = bool(np.isfinite(half))
    return join(
        el(
            "p",
            "Each part is what it alone would make of the 90 % interval at the end of the run, as"
            " half its width. They overlap, and a shift counts to"
            " one side only, so they do not add up to the whole.",
            class_="lede",
        ),
        table(
            f"Half widths, {unit_of(found.metric)}",
            {"Part": "", "Size": "s", "Half width": "n"},
            rows,
            foot=foot if known else [],
        ),
        _backtests(found),
    )


def _backtests(found: ForecastFolder) -> Html:
    """The top rung from the lower ones, for every series that has it."""
    tests = {name: told.backtest for name, told in found.series.items() if told.backtest}
    if not tests:
        return missing(
            "the top rung cannot be foretold from the lower ones alone, so no back-test."
        )
    names = sorted(tests, key=lambda name: (name != found.metric, "/macro/" not in name))
    rows = [
        [
            name,
            str(tests[name].get("rung")),
            *(fixed(tests[name].get(key), PLACES) for key in ("predicted", "seen")),
            signed(tests[name].get("error"), PLACES),
        ]
        for name in names
    ]
    columns = {"Series": "", "Rung": "", "From lower rungs": "n", "Seen": "n", "Error": "n"}
    return table("Back-test: the top rung as the lower rungs alone foretell it", columns, rows)


def residuals(found: ForecastFolder) -> Html:
    """Seen minus fitted, as a chart and as a table with every run of every rung."""
    rows: list[list[Child]] = []
    for run, seen, fitted in residuals_of(found):
        known = bool(np.isfinite(seen))
        rows.append(
            [
                str(run.get("rung")),
                plain(run.get("seed")),
                str(run.get("run")),
                compact(run.get("tokens")),
                significant(run.get("flops")),
                fixed(seen, PLACES) if known else None,
                fixed(fitted, PLACES),
                signed(seen - fitted, PLACES) if known else None,
            ]
        )
    if not rows:
        return missing("the ladder's record is not here, or nothing is forecast from it yet.")
    columns = {
        "Rung": "", "Seed": "n", "Run": "value", "Tokens": "n", "FLOPs": "n", "Seen": "n",
        "Law": "n", "Residual": "n",
    }  # fmt: skip
    chart = residual_chart(found)
    return join(
        el("div", chart, class_="charts") if chart else None,
        table(f"Runs of the rungs, {found.metric}", columns, rows),
        _filled(found),
    )


def _filled(found: ForecastFolder) -> Html | None:
    """Which ends are not seen but filled in by the rule for runs that stopped early."""
    data = found.forecast.get("data")
    told = [
        f"{at(run, 'run')} from {at(filled, 'since'):.0%}"
        for run in (data if isinstance(data, list) else [])
        if isinstance(at(filled := at(run, "filled", found.metric), "since"), float)
    ]
    if not told:
        return None
    says = f"Ends that were filled in by a line through 60 to 80 % of the run: {', '.join(told)}."
    return el("p", says, class_="note")


def health(found: ForecastFolder) -> Html:
    """What the rungs' gradients, drops and norms project for the run, and what the run shows."""
    tree = found.forecast.get("health")
    names = sorted(map(str, tree)) if isinstance(tree, Mapping) else []
    made = {name: chart for name in names if (chart := health_chart(found, name)) is not None}
    if not made:
        return missing("the rungs' record has no gradient norms, drops or weight norms.")
    seen = {name: share for name, (_, share) in made.items() if share is not None}
    out = [f"{name} ({share:.0%} of what was seen)" for name, share in seen.items() if share]
    if not seen:
        told = "The run shows nothing of them yet."
    elif out:
        told = f"Outside the band for a part of the run: {', '.join(out)}."
    else:
        told = f"All {len(seen)} that the run shows are inside their bands."
    says = "Straight lines through the rungs over log compute; nine of ten runs lie in the bands."
    return join(
        el("p", f"{says} {told}", class_="lede"),
        el("div", [chart for chart, _ in made.values()], class_="charts"),
    )


def seal(found: ForecastFolder) -> Html:
    """What was sealed, what counts as a miss, and under which conditions."""
    tree = found.seal
    rows: list[tuple[str, Child]] = []
    if tree:
        rows += [
            ("Sealed", day(tree.get("date"))),
            ("SHA-256", el("code", str(tree.get("sha256")))),
            ("Ladder's SHA-256", el("code", str(tree.get("ladder_sha256")))),
            ("What is a miss", str(at(tree, "miss", "says"))),
            ("Contamination", _contamination(tree.get("contamination"))),
        ]
    fingerprint = at(found.forecast, "target", "fingerprint")
    if fingerprint:
        rows.append(("Config of the run", el("code", str(fingerprint))))
    made: list[Child] = [pairs(rows)] if rows else []
    if not tree:
        command = el("code", f"shoal seal {found.name}")
        told = "This forecast is not sealed: it could still change. "
        made.insert(0, el("p", told, command, " seals it, before its run begins."))
    else:
        command = el("code", f"shoal verify {found.name}")
        made.append(el("p", command, " fits it again and checks every hash.", class_="note"))
    for title, key in (("Conditions", "conditions"), ("Settings of the fit", "settings")):
        values = found.forecast.get(key)
        if isinstance(values, Mapping) and values:
            listing = pairs((str(name), plain(value)) for name, value in values.items())
            made.append(el("details", el("summary", title), listing))
    return join(made)


def _contamination(table_of: object) -> str:
    if not isinstance(table_of, Mapping):
        return "no table was sealed: nothing is known of evaluation text in training text"
    flagged = plain(table_of.get("flagged") or []) or "none"
    return f"{table_of.get('table')}; flagged: {flagged}"
