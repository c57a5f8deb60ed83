"""What became of a forecast: its settlement, every series, and the other forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from shoal.report.folder import at
from shoal.report.forecast_folder import (
    ForecastFolder,
    Foretold,
    forecasts_in,
    read_forecast,
    seen_at,
)
from shoal.report.markup import (
    NONE,
    Child,
    Html,
    count,
    el,
    fixed,
    join,
    missing,
    moment,
    number,
    pairs,
    plain,
    signed,
    table,
)

PLACES = 4


def outcome(found: ForecastFolder) -> Html:
    """The settlement, or what to do for one."""
    return settled(found) or missing(
        "the forecast is not settled; shoal settle RUN scores it when its run is evaluated."
    )


def settled(found: ForecastFolder) -> Html | None:
    """The lines of a settlement; None where there is none."""
    tree = found.settlement
    if not isinstance(tree.get("headline"), Mapping):
        return None
    whole = tree.get("finished") is True
    miss = "A miss" if tree.get("miss") else "No miss"
    share = number(tree.get("fraction")) or 0.0
    when = "at its end" if whole else f"so far: {share:.0%} of the run, not its end"
    rows: list[tuple[str, Child]] = [
        (str(tree.get("metric")), _score(tree["headline"])),
        ("Verdict", el("b", f"{miss} {when}", class_="worse" if tree.get("miss") else "better")),
    ]
    clean = tree.get("clean")
    if isinstance(clean, Mapping):
        named = plain(clean.get("flagged") or [])
        scores = clean.get("scores")
        for name, one in scores.items() if isinstance(scores, Mapping) else []:
            rows.append((f"{name} without {named}", _score(one)))
    premises = [one for one in listed(tree.get("premises")) if isinstance(one, Mapping)]
    for one in premises:
        step = "" if one.get("step") is None else f" at step {count(one['step'])}"
        rows.append((f"Premise broken{step}", f"{one.get('what')}: {one.get('says')}"))
    if not premises:
        rows.append(("Premises", "none broken on record"))
    rows += [("Note", str(note)) for note in listed(tree.get("notes"))]
    rows.append(("Run", f"{tree.get('run')}, settled {day(tree.get('date'))}"))
    return pairs(rows)


def _score(one: object) -> str:
    seen, central = at(one, "seen"), at(one, "central")
    factor = number(at(one, "compute_equivalent"))
    worth = "" if factor is None else f", {factor:.2f} times the compute by the law"
    within = "inside 50 %" if at(one, "inside_50") else "inside 90 %, outside 50 %"
    where = within if at(one, "inside_90") else "outside 90 %"
    return (
        f"{fixed(seen, PLACES)}, forecast {fixed(central, PLACES)}:"
        f" {signed(at(one, 'error'), PLACES)} ({signed(at(one, 'percent'), 2)} %{worth}); {where}"
    )


def series(found: ForecastFolder) -> Html:
    """Every series at the end, and so far where the run has not got there."""
    if found.end is None:
        return missing("nothing is forecast yet; shoal forecast makes it.")
    place = last_common(found)
    made = [_series_table(found, found.end)]
    if place is not None and place < found.end:
        made.append(_series_table(found, place))
    return join(made)


def _series_table(found: ForecastFolder, place: int) -> Html:
    columns = {
        "Series": "", "Forecast": "n", "50 % interval": "n", "90 % interval": "n", "Seen": "n",
        "Error": "n", "Inside": "s",
    }  # fmt: skip
    seen = seen_at(found)
    names = sorted(found.series, key=lambda name: (name != found.metric, "/macro/" not in name))
    rows: list[list[Child]] = []
    for name in names:
        told = found.series[name]
        central = float(told.central[place])
        if not np.isfinite(central):
            continue
        value = float(seen[name][place]) if name in seen else float("nan")
        known = bool(np.isfinite(value))
        side = inside(told, place, value) if known else None
        rows.append(
            [
                name,
                fixed(central, PLACES),
                ends_of(told.inner[place]),
                ends_of(told.outer[place]),
                fixed(value, PLACES) if known else None,
                signed(value - central, PLACES) if known else None,
                el("span", side, class_="worse") if side and "outside" in side else side,
            ]
        )
    share = found.fractions[place]
    end = "at the end of the run" if share == 1 else f"after {share:.0%} of the run"
    return table(f"Forecasts {end}", columns, rows)


def last_common(found: ForecastFolder) -> int | None:
    """The last place at which the headline is forecast and seen, or where it was settled."""
    told, seen = found.headline, seen_at(found).get(found.metric)
    if told is None or seen is None:
        return None
    known = np.flatnonzero(np.isfinite(told.central) & np.isfinite(seen))
    return int(known[-1]) if known.size else None


def ends_of(ends: Any) -> str:
    """An interval as the page has it."""
    low, high = (number(float(end)) for end in ends)
    return NONE if low is None else f"{fixed(low, PLACES)} to {fixed(high, PLACES)}"


def inside(told: Foretold, place: int, seen: float) -> str:
    """In which interval a value lies."""
    for name, ends in (("50 %", told.inner[place]), ("90 %", told.outer[place])):
        if ends[0] <= seen <= ends[1]:
            return f"inside {name}"
    return "outside 90 %" if np.isfinite(told.outer[place]).all() else NONE


def day(date: object) -> str:
    """A moment as the page has it."""
    when = moment(date)
    return f"{when.day} {when:%B %Y, %H:%M} UTC" if when else str(date)


def listed(value: object) -> list[Any]:
    """The value where it is a list."""
    return value if isinstance(value, list) else []


def forecasts(folder: Path) -> Html:
    """Every forecast beside this one, and what became of it by its settlement."""
    columns = {
        "Forecast": "", "Of": "", "Said": "n", "90 % interval": "n", "Sealed": "s", "Seen": "n",
        "Error": "n", "Outcome": "",
    }  # fmt: skip
    root = folder.resolve().parent
    rows: list[list[Child]] = []
    sealed: list[bool] = []
    for place in forecasts_in(root):
        one = read_forecast(place, alone=True)
        rows.append(_row(one, current=place.name == folder.resolve().name))
        tree = one.settlement
        if tree.get("finished") is True and one.seal and one.retroactive is None:
            sealed.append(at(tree, "headline", "inside_90") is True)
    if not rows:
        return missing("nothing is forecast here yet; shoal forecast makes it.")
    told = "None that was sealed before its run is settled at its end yet."
    if sealed:
        told = f"{sum(sealed)} of {len(sealed)} that were sealed before their run are inside 90 %."
    return join(el("p", told, class_="lede"), table("All forecasts here", columns, rows))


def _row(one: ForecastFolder, *, current: bool) -> list[Child]:
    told, end, tree = one.headline, one.end, one.settlement
    name: Child = one.name
    if current:
        name = join(name, el("em", "this one"))
    elif (one.folder / "report.html").is_file():
        name = el("a", name, href=f"../{quote(one.folder.name)}/report.html")
    central = None if told is None or end is None else fixed(told.central[end], PLACES)
    interval = None if told is None or end is None else ends_of(told.outer[end])
    score = tree.get("headline")
    return [
        name,
        f"{one.metric} of {at(one.forecast, 'target', 'name')}",
        central,
        interval,
        str(one.seal.get("date"))[:10] if one.seal else "no",
        fixed(at(score, "seen"), PLACES) if score else None,
        signed(at(score, "error"), PLACES) if score else None,
        _became(one),
    ]


def _became(one: ForecastFolder) -> Html:
    tree, told = one.settlement, []
    if one.problems:
        told.append(el("span", f"{one.problems[0]}. ", class_="worse"))
    if one.retroactive:
        told.append(el("span", "Retroactive. ", class_="alert"))
    if not isinstance(tree.get("headline"), Mapping):
        return join(told, "Not settled")
    if tree.get("finished") is not True:
        told.append(f"At {number(tree.get('fraction')) or 0.0:.0%}: ")
    inside = at(tree, "headline", "inside_90") is True
    told.append("inside 90 %" if inside else el("span", "outside 90 %", class_="worse"))
    premises = listed(tree.get("premises"))
    if premises:
        told.append(f", {len(premises)} premise{'s' if len(premises) > 1 else ''} broken")
    return join(told)
