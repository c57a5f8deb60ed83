"""`report.html` of a forecast: what was said of a run, how sure, and what became of it.

Made of the files of a forecast's folder and of its run's record, so it is the same for one that is
not sealed yet, one whose run is in progress and one that is settled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import shoal
from shoal.core.files import write_atomic
from shoal.report import forecast_doubt as doubt
from shoal.report import forecast_outcome as became
from shoal.report.folder import at
from shoal.report.forecast_folder import (
    ForecastFolder,
    Foretold,
    planned_steps,
    read_forecast,
    seen_at,
)
from shoal.report.forecast_outcome import PLACES, day, ends_of, inside, last_common, settled
from shoal.report.forecast_plots import (
    Corridor,
    ladder_chart,
    training_chart,
    trajectory_charts,
    unit_of,
)
from shoal.report.frame import frame
from shoal.report.markup import (
    NONE,
    Html,
    compact,
    el,
    fixed,
    join,
    number,
    signed,
    significant,
)
from shoal.report.plots import bar

_SEALS = (
    "A forecast shows something only if it came first. So it is sealed: one hash is taken over all"
    " of it, its numbers, what they come from and what counts as a miss. The run's record begins"
    " with that hash, and each later line is chained to the one before. Where the hash was also"
    " published elsewhere before the run, anyone can see that the forecast is the older of the two."
)
_FOOT = f"Made by Shoal {shoal.__version__} from the forecast's own files and its run's record."


def write_forecast(folder: Path, corridor: Corridor = ()) -> Path:
    """Writes `report.html` into the forecast's folder, whole or not at all; errors as `render`."""
    path = folder / "report.html"
    write_atomic(path, render(folder, corridor))
    return path


def render(folder: Path, corridor: Corridor = ()) -> str:
    """The page of a forecast's folder.

    Args:
        folder: with any of ladder.json, forecast.json and seal.json.
        corridor: see `forecast_plots.ladder_chart`.

    Raises:
        ValueError: it has none of them.
    """
    found = read_forecast(folder)
    sections = [
        (
            "ladder",
            "Ladder",
            join(doubt.law(found), el("div", ladder_chart(found, corridor), class_="charts")),
        ),
        ("trajectory", "Trajectory", _trajectory(found)),
        ("outcome", "Outcome", became.outcome(found)),
        ("series", "All series", became.series(found)),
        ("interval", "Interval", doubt.interval(found)),
        ("residuals", "Residuals", doubt.residuals(found)),
        ("health", "Health", doubt.health(found)),
        ("seal", "Seal", doubt.seal(found)),
        ("forecasts", "All forecasts", became.forecasts(folder)),
    ]
    return frame(f"{found.name} · Shoal forecast", _header(found), sections, _FOOT)


def section(found: ForecastFolder) -> Html:
    """The forecast on the page of its run."""
    date = found.seal.get("date")
    link: Html | None = None
    if found.run_folder is not None and found.folder.resolve() != found.run_folder.resolve():
        address = f"../../forecasts/{quote(found.folder.resolve().name)}/report.html"
        link = join(" ", el("a", f"The whole forecast, {found.name}", href=address), ".")
    sealed = f" Sealed {day(date)}." if found.seal else " Not sealed."
    return join(
        _warnings(found),
        el("p", _sentence(found), sealed, link, class_="lede"),
        el("div", trajectory_charts(found), class_="charts"),
        settled(found),
    )


def _header(found: ForecastFolder) -> Html:
    return el(
        "header",
        el("p", "Shoal forecast", class_="brand"),
        el("h1", found.name),
        el("p", _sentence(found), class_="summary"),
        _state(found),
        _warnings(found),
        _facts(found),
        el("p", _SEALS, class_="lede"),
    )


def _sentence(found: ForecastFolder) -> str:
    told, target = found.headline, at(found.forecast, "target", "name")
    if told is None or found.end is None:
        return "A ladder of small runs. Nothing is forecast from it yet."
    rungs = len({str(at(run, "rung")) for run in _data(found)})
    when = "at its end" if _at_end(found) else f"after {found.fractions[found.end]:.0%} of it"
    return (
        f"What {found.metric} of run {target or 'unnamed'} will be {when},"
        f" from {len(_data(found))} smaller runs of {rungs} sizes."
    )


def _data(found: ForecastFolder) -> list[Any]:
    data = found.forecast.get("data")
    return data if isinstance(data, list) else []


def _at_end(found: ForecastFolder) -> bool:
    return found.end == len(found.fractions) - 1


def _warnings(found: ForecastFolder) -> Html | None:
    """What is to be known before any number: a forecast that proves nothing, files that differ."""
    reason = found.retroactive
    made: list[Html] = []
    if reason:
        says = f"Nothing shows that this forecast came before the run: {reason}."
        made.append(el("p", el("b", "Retroactive. ", class_="alert"), says))
    made += [el("p", problem) for problem in found.problems]
    return el("div", made, class_="problems") if made else None


def _state(found: ForecastFolder) -> Html:
    """Sealed or not, and how far the run is."""
    date = found.seal.get("date")
    sealed = f"Sealed {day(date)}" if found.seal else "Not sealed"
    run, progress = found.run, None
    if run is None:
        settled = found.settlement.get("run")
        told = f"settled by run {settled}, which is not here" if settled else "its run is not here"
    elif run.last_step is None:
        told = "its run has not begun"
    elif run.finished:
        told = f"its run finished after {run.last_step:,} steps"
    else:
        steps = planned_steps(run)
        told = f"its run is at step {run.last_step:,}" + (f" of {steps:,.0f}" if steps else "")
        share = run.last_step / steps if steps else None
        progress = None if share is None else bar(share, f"{share:.0%} of the steps")
    link: Html | None = None
    if found.run_folder is not None:
        address = f"../../runs/{quote(found.run_folder.name)}/report.html"
        link = join(" (", el("a", found.run_folder.name, href=address), ")")
    return el("p", progress, el("b", sealed), f"; {told}", link, ".", class_="state")


def _facts(found: ForecastFolder) -> Html | None:
    told, place = found.headline, found.end
    if told is None or place is None:
        return None
    flops = number(at(found.forecast, "target", "flops"))
    tokens = at(found.forecast, "target", "tokens")
    top = max((number(at(run, "flops")) or 0.0 for run in _data(found)), default=0.0)
    far = f"{flops / top:,.1f} times the top rung" if flops and top else ""
    facts = {
        "Forecast": (fixed(told.central[place], PLACES), unit_of(found.metric)),
        "90 % interval": (ends_of(told.outer[place]), f"50 %: {ends_of(told.inner[place])}"),
        "Seen": _seen_fact(found, told),
        "Target": (str(at(found.forecast, "target", "name")), f"{compact(tokens)} tokens"),
        "Compute": (f"{significant(flops)} FLOPs", far),
        "Sealed": (
            (day(found.seal.get("date")).partition(",")[0], str(found.seal.get("sha256"))[:16])
            if found.seal
            else ("no", "it could still change")
        ),
    }
    return el(
        "dl",
        [
            el("div", el("dt", name), el("dd", value), el("dd", note, class_="note"))
            for name, (value, note) in facts.items()
        ],
        class_="facts",
    )


def _seen_fact(found: ForecastFolder, told: Foretold) -> tuple[str, str]:
    place = last_common(found)
    if place is None:
        return NONE, "no evaluation of the run yet"
    seen = float(seen_at(found)[found.metric][place])
    side = inside(told, place, seen)
    at_share = "" if place == len(found.fractions) - 1 else f"at {found.fractions[place]:.0%}, "
    error = signed(seen - told.central[place], PLACES)
    return fixed(seen, PLACES), f"{at_share}{error} against the forecast; {side}"


def _trajectory(found: ForecastFolder) -> Html:
    charts = [*trajectory_charts(found), training_chart(found)]
    return el("div", charts, class_="charts")
