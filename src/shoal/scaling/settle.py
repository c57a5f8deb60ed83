"""A forecast against the run that it was about: errors, intervals, and what changed on the way.

Everything here is a function of what is on record: the forecast, its ladder, the run's evaluations
at the twenty fractions of its training, and its events.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.scaling.forecast import Forecast, SeriesForecast
from shoal.scaling.outcome import score
from shoal.scaling.records import FRACTIONS, Ladder, RungRun, Values
from shoal.scaling.seal import refit

# What may stand in a record before a run's seal: the remains of a first line that was cut.
_BEFORE_SEAL = {"torn"}
# A macro is the unweighted mean of its domains, as `eval.domains` has it.
_MEAN = 1e-6
# Events of whole kinds that a forecast did not foresee: kind -> what to call them.
_BREAKS = {
    "mixture": "mixture swap",
    "context": "context change",
    "horizon": "horizon change",
    "phase": "phase begun",
    "rewind": "rewind",
    "dropped": "tokens dropped",
    "mismatch": "record altered",
}
_CALLED = (
    ("moe.transport", "transport"),
    ("moe.", "routing"),
    ("mesh.", "mesh"),
    ("data.mix", "mixture swap"),
    ("train.sequence_tokens", "context change"),
    ("eval.", "evaluation"),
)
_OWN = {"kind", "time", "attempt", "link"}


def sealed_in(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The seal event of a run; None where the run began without one.

    Raises:
        ValueError: it is not the first event, or there are several.
    """
    seals = [number for number, event in enumerate(events) if event["kind"] == "seal"]
    if not seals:
        return None
    before = [event["kind"] for event in events[: seals[0]] if event["kind"] not in _BEFORE_SEAL]
    if before or len(seals) > 1:
        where = f"after {before[0]!r}" if before else f"{len(seals)} times"
        raise ValueError(
            f"the seal stands in the run's events {where}; only a seal that is the first event"
            " shows that the forecast came before the run"
        )
    return events[seals[0]]


def last_common(found: Forecast, seen: Mapping[str, Values]) -> int:
    """The last fraction with a forecast and a value of the headline, as its place.

    Raises:
        ValueError: there is none.
    """
    values = seen.get(found.metric, (None,) * len(FRACTIONS))
    places = [
        place
        for place, (said, value) in enumerate(zip(found.headline.central, values, strict=True))
        if said is not None and value is not None
    ]
    if not places:
        raise ValueError(
            f"the run has no value of {found.metric!r} at any fraction of its training at which"
            f" forecast {found.ladder} has one; evaluate it further on"
        )
    return places[-1]


def outcome(found: Forecast, seen: Mapping[str, Values]) -> dict[str, Any]:
    """Scores of every series at the last common fraction, and of the headline on the way.

    Args:
        found: the forecast.
        seen: what the run's evaluations say, by series.

    Returns:
        `fraction metric headline miss series trajectory unscored`: a score is that of
        `scaling.outcome`, `miss` is whether the headline is outside its 90 % interval, and
        `unscored` names the series that have no value or no forecast there.
    """
    place = last_common(found, seen)
    scores: dict[str, dict[str, Any]] = {}
    for name, said in found.series.items():
        value = seen[name][place] if name in seen else None
        if value is not None and said.central[place] is not None:
            scores[name] = score(said, value, place)
    headline = scores[found.metric]
    return {
        "fraction": FRACTIONS[place],
        "metric": found.metric,
        "headline": headline,
        "miss": not headline["inside_90"],
        "series": scores,
        "trajectory": _trajectory(found.headline, seen[found.metric]),
        "unscored": sorted(set(found.series) - set(scores)),
    }


def _trajectory(said: SeriesForecast, values: Values) -> list[dict[str, Any] | None]:
    return [
        None if value is None or said.central[place] is None else score(said, value, place)
        for place, value in enumerate(values)
    ]


def without(
    found: Forecast, ladder: Ladder, seen: Mapping[str, Values], flagged: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Scores of every macro mean over the domains that are not flagged.

    Both sides are recomputed from values per domain: the run's, and the forecast, by a fit with the
    same settings to the rungs' own means over these domains.

    Args:
        found: the forecast.
        ladder: what it was made from.
        seen: the run's values.
        flagged: SET/DOMAIN.

    Returns:
        Macro series -> score, for the sets that have a flagged domain and others beside it.

    Raises:
        ValueError: a macro of the ladder is not the mean of its domains.
    """
    place, made = last_common(found, seen), {}
    for name in found.series:
        kept, dropped = _domains(found, name, flagged)
        if not (kept and dropped):
            continue
        runs = tuple(_with_mean(run, name, kept, dropped) for run in ladder.runs)
        value = _mean([seen[one][place] if one in seen else None for one in kept])
        again = refit(found, dataclasses.replace(ladder, runs=runs))
        said = again.series.get(_CLEAN)
        if value is not None and said is not None and said.central[place] is not None:
            made[name] = score(said, value, place)
    return made


_CLEAN = "without/macro/flagged"


def _domains(found: Forecast, macro: str, flagged: Sequence[str]) -> tuple[list[str], list[str]]:
    """The series of a macro's domains: those that are not flagged, and those that are."""
    group, _, rest = macro.partition("/")
    domain, _, measure = rest.rpartition("/")
    if domain != "macro":
        return [], []
    inside = [
        name
        for name in found.series
        if name.startswith(f"{group}/") and name.endswith(f"/{measure}") and name != macro
    ]
    dropped = [name for name in inside if name.removesuffix(f"/{measure}") in flagged]
    return [name for name in inside if name not in dropped], dropped


def _with_mean(run: RungRun, macro: str, kept: Sequence[str], dropped: Sequence[str]) -> RungRun:
    """A rung's run with the mean over `kept` as series `_CLEAN`."""
    if macro not in run.series:
        return run
    everything = _means(run, [*kept, *dropped])
    for place, (one, mean) in enumerate(zip(run.series[macro], everything, strict=True)):
        if one is not None and mean is not None and not math.isclose(one, mean, rel_tol=_MEAN):
            raise ValueError(
                f"run {run.run}: {macro} is {one:.6f} at {FRACTIONS[place]:.0%}, and the mean of"
                f" its {len(kept) + len(dropped)} domains {mean:.6f}; nothing can be left out of it"
            )
    # The headline stays: what is known of E is in its units.
    return dataclasses.replace(run, series={**run.series, _CLEAN: _means(run, kept)}, health={})


def _means(run: RungRun, names: Sequence[str]) -> Values:
    missing: Values = (None,) * len(FRACTIONS)
    rows = [run.series.get(name, missing) for name in names]
    return tuple(_mean(list(column)) for column in zip(*rows, strict=True))


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if len(there) == len(values) else None


def premises(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What changed in a run after it began, in the order of its events.

    Changes of placement (paths, cadences) change no number and are left out; a mesh is told, since
    another one sums in another order.

    Returns:
        `what` (`transport`, `mixture swap`, `steps not applied`, ...), `step`, the last that was on
        record before it or None, and `says`.
    """
    found: list[dict[str, Any]] = []
    skipped: list[int] = []
    told: set[str] = set()
    last = None
    for number, event in enumerate(events):
        last = event.get("step", last)
        if event["kind"] == "change":
            at = _next_step(events[number + 1 :], last)
            found += [_changed(one, at, event) for one in event["differences"] if _matters(one)]
        elif event["kind"] == "nonfinite":
            skipped.append(event["step"])
        elif event["kind"] == "resume":
            found += [one for one in _environment(event) if one["says"] not in told]
            told |= {one["says"] for one in found}
        elif event["kind"] in _BREAKS:
            rest = {k: v for k, v in event.items() if k not in _OWN | {"step"}}
            says = ", ".join(f"{key} {value}" for key, value in rest.items())
            found.append({"what": _BREAKS[event["kind"]], "step": last, "says": says})
    if skipped:
        shown = ", ".join(map(str, skipped[:5])) + (", ..." if len(skipped) > 5 else "")
        says = f"{len(skipped)} with a loss or gradient that was not finite: {shown}"
        found.append({"what": "steps not applied", "step": skipped[0], "says": says})
    return found


def _next_step(events: Sequence[Mapping[str, Any]], last: int | None) -> int | None:
    """A change is told before the event that says from which step the run goes on."""
    return events[0].get("step", last) if events and events[0]["kind"] == "resume" else last


def _matters(difference: Mapping[str, Any]) -> bool:
    return difference["kind"] != "placement" or difference["path"].startswith("mesh.")


def _changed(
    difference: Mapping[str, Any], step: int | None, event: Mapping[str, Any]
) -> dict[str, Any]:
    path = difference["path"]
    called = next((name for start, name in _CALLED if path.startswith(start)), "numerics")
    says = f"{path} was {difference['before']!r}, is {difference['after']!r}"
    return {"what": called, "step": step, "says": f"{says} ({event.get('why') or 'no reason'})"}


def _environment(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    new = {key: value for key, value in event.items() if key not in _OWN | {"step"}}
    says = ", ".join(f"{key} is {value} now" for key, value in new.items())
    return [{"what": "environment", "step": event.get("step"), "says": says}] if new else []


def conditions_broken(
    conditions: Mapping[str, Any],
    *,
    sequence_tokens: int,
    corpus: str | None,
    texts: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Where a run was not measured under the conditions of the forecast, as far as it shows.

    Args:
        conditions: of the forecast; what it does not name is not compared.
        sequence_tokens: of the run's evaluation.
        corpus: NAME@HASH12 that the run was trained on.
        texts: SET/DOMAIN -> `bytes` and `documents` that the run's last evaluation scored.

    Returns:
        As `premises`.
    """
    said, seen = {}, {}
    for name, value in (("sequence_tokens", sequence_tokens), ("corpus", corpus)):
        if name in conditions and value is not None:
            said[name], seen[name] = conditions[name], value
    if "corpus" in said:  # the name is free, the hash is not
        said["corpus"], seen["corpus"] = (
            str(ref).rpartition("@")[2] for ref in (said["corpus"], seen["corpus"])
        )
    sets = conditions.get("sets")
    for name, one in sets.items() if isinstance(sets, Mapping) else []:
        for key in ("bytes", "documents"):
            if isinstance(one, Mapping) and key in one and name in texts:
                said[f"{name} {key}"], seen[f"{name} {key}"] = one[key], texts[name].get(key)
    return [
        {
            "what": "condition",
            "step": None,
            "says": f"{name} was to be {said[name]}, is {seen[name]}",
        }
        for name in said
        if said[name] != seen[name]
    ]
