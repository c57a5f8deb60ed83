"""Job `forecast --list`: every forecast, and what became of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.jobs.forecast import FORECAST
from shoal.jobs.seal import beside
from shoal.jobs.sealed import forecast_folders, runs_of
from shoal.jobs.settle import SETTLEMENT, settle
from shoal.scaling.forecast import Forecast, read_forecast
from shoal.scaling.records import read_json
from shoal.scaling.seal import SEAL, Seal, read_seal


def outcomes() -> dict[str, Any]:
    """Every forecast under SHOAL_HOME/forecasts with its score.

    A forecast that has no final settlement is scored here and now if its run is in SHOAL_HOME;
    nothing is written.

    Returns:
        `forecasts`: per forecast `name metric target central interval_90 sealed problem` and
        `outcome`: None, or `run finished fraction seen error percent compute_equivalent inside_50
        inside_90 retroactive clean premises`. `problem` is what is wrong with its files.
    """
    return {"forecasts": [_row(folder) for folder in forecast_folders()]}


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("metric", "target", "central", "interval_90", "sealed", "problem", "outcome")
    )
    row["name"] = folder.name
    try:
        seal = read_seal(folder / SEAL) if (folder / SEAL).is_file() else None
        found = seal.forecast if seal else read_forecast(folder / FORECAST)
    except ValueError as error:
        return {**row, "problem": str(error)}
    row |= {
        "metric": found.metric,
        "target": found.target.name,
        "central": found.headline.central[-1],
        "interval_90": found.headline.interval_90[-1],
        "sealed": seal and seal.date,
    }
    try:
        odd = beside(folder, seal) if seal else []
        return {**row, "problem": odd[0] if odd else None, "outcome": _outcome(folder, found, seal)}
    except ValueError as error:
        return {**row, "problem": str(error)}


def _outcome(folder: Path, found: Forecast, seal: Seal | None) -> dict[str, Any] | None:
    settled = read_json(folder / SETTLEMENT) if (folder / SETTLEMENT).is_file() else None
    sealed = seal and {"sha256": seal.sha256, "date": seal.date}
    if settled is not None and settled.get("finished"):
        if settled.get("sealed") != sealed:
            raise ValueError(f"{folder / SETTLEMENT} is about another seal; settle it again")
    else:
        runs = runs_of(found.target.fingerprint) if found.target.fingerprint else []
        settled = _best(runs, folder)
    if settled is None:
        return None
    clean = settled["clean"] and settled["clean"]["scores"].get(settled["metric"])
    kept = ("seen", "error", "percent", "compute_equivalent", "inside_50", "inside_90")
    return {
        **{name: settled[name] for name in ("run", "finished", "fraction", "retroactive")},
        **{name: settled["headline"][name] for name in kept},
        "clean": clean,
        "premises": [one["what"] for one in settled["premises"]],
    }


def _best(runs: list[Path], folder: Path) -> dict[str, Any] | None:
    """The settlement of a run that began with the seal, or else of any that has a score."""
    found: list[dict[str, Any]] = []
    for run in runs:
        try:
            found.append(settle(str(run), str(folder), write=False))
        except ValueError:
            continue  # of another seal, or without a score yet: `shoal settle RUN` says which
    found.sort(key=lambda one: (one["retroactive"] is not None, not one["finished"]))
    return found[0] if found else None


def render(result: Mapping[str, Any]) -> str:
    """All forecasts for a terminal, two lines each."""
    rows = result["forecasts"]
    if not rows:
        return "no forecast yet; `shoal ladder`, then `shoal forecast`"
    lines: list[str] = []
    for row in rows:
        lines.append(f"{row['name']}: {_said(row)}")
        lines.append(f"  {_became(row['outcome'])}")
        if row["problem"]:
            lines.append(f"  PROBLEM: {row['problem']}")
    scored = [row["outcome"] for row in rows if row["outcome"] and row["outcome"]["finished"]]
    first = [one for one in scored if not one["retroactive"]]
    held = sum(bool(one["inside_90"]) for one in first)
    if first:
        lines += ["", f"{held} of {len(first)} that were sealed before their run are inside 90 %"]
    return "\n".join(lines)


def _said(row: Mapping[str, Any]) -> str:
    if row["central"] is None or row["interval_90"] is None:
        return "no forecast of its end"
    low, high = row["interval_90"]
    sealed = f"sealed {row['sealed']}" if row["sealed"] else "not sealed"
    said = f"{row['central']:.4f} (90 %: {low:.4f} to {high:.4f})"
    return f"{row['metric']} of {row['target']} {said}, {sealed}"


def _became(outcome: Mapping[str, Any] | None) -> str:
    if outcome is None:
        return "not settled"
    inside = "inside 50 %" if outcome["inside_50"] else "inside 90 %"
    where = inside if outcome["inside_90"] else "outside 90 %"
    at = "" if outcome["finished"] else f" at {outcome['fraction']:.0%} of it"
    said = f"run {outcome['run']}{at}: {outcome['seen']:.4f} ({outcome['error']:+.4f}, {where})"
    if outcome["clean"]:
        clean = outcome["clean"]
        side = "inside" if clean["inside_90"] else "outside"
        said += (
            f"; without flagged domains {clean['seen']:.4f} ({clean['error']:+.4f}, {side} 90 %)"
        )
    if outcome["premises"]:
        said += f"; premises broken: {', '.join(dict.fromkeys(outcome['premises']))}"
    return said + (f"; RETROACTIVE: {outcome['retroactive']}" if outcome["retroactive"] else "")
