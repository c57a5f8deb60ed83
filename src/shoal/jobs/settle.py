"""Job `settle`: a forecast against the run that it was about, from the run's record.

`settlement.json` beside the forecast: what the run came to, how far off the forecast was, and what
changed on the way. A forecast whose seal is not the first event of the run is retroactive.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.core.config import fingerprint
from shoal.core.files import home, write_atomic
from shoal.core.record import METRICS, read_events, verify_chain, verify_link
from shoal.jobs.evaluate import EVALS
from shoal.jobs.findings import FAILS, Findings, spelled
from shoal.jobs.forecast import FORECAST, FORECASTS, LADDER
from shoal.jobs.recheck_attempts import recheck_attempts
from shoal.jobs.recheck_run import recheck_evaluations
from shoal.jobs.runs import find_run, read_config
from shoal.jobs.sealed import contamination_of, find_forecast, forecast_folders
from shoal.scaling.forecast import Forecast, read_forecast
from shoal.scaling.ladder import series_of
from shoal.scaling.records import read_json, read_ladder
from shoal.scaling.seal import SEAL, Seal, ladder_sha256, read_seal
from shoal.scaling.settle import conditions_broken, outcome, premises, sealed_in, without
from shoal.train.config import Config

SETTLEMENT = "settlement.json"
_CHECKPOINTS = "checkpoints/*/manifest.json"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A forecast to settle.

    Attributes:
        folder: where it is, and where its settlement goes.
        seal: None where it was never sealed.
        in_chain: whether the run's record begins with the seal.
    """

    folder: Path
    forecast: Forecast
    seal: Seal | None
    in_chain: bool

    @property
    def retroactive(self) -> str | None:
        """Why it proves nothing of who was first; None where the record does."""
        if self.in_chain:
            return None
        if self.seal is None:
            return "the forecast was not sealed"
        return "the run's record does not begin with the seal"


def settle(
    run: str,
    forecast: str | None = None,
    *,
    extra: Sequence[str] = (),
    contamination: str | None = None,
    write: bool = True,
) -> dict[str, Any]:
    """Score a forecast by its run.

    Args:
        run: name or folder.
        forecast: name or path of the forecast or seal; by default the seal that the run's record
            begins with, or else the one forecast of its config.
        extra: SET/DOMAIN that are left out of the clean macro beside those that the table flags.
        contamination: a table, where none is sealed (`shoal seal`).
        write: put `settlement.json` beside the forecast.

    Returns:
        `forecast run target sealed retroactive finished fraction metric miss headline series
        trajectory unscored clean premises notes date record file` (`scaling.settle`); `retroactive`
        says why, or is None.

    Raises:
        ValueError: another run than the forecast is about, a record or evaluation that was altered,
            a seal that is not the run's or not first, or nothing to score yet.
    """
    folder = find_run(run)
    config, events = read_config(folder), _sound_events(folder)
    claim = _claim(folder, events, forecast, fingerprint(config))
    _check_run(folder, events, config, claim.forecast)
    evals = _sound_evals(folder, config)
    seen = series_of(evals, config.train.num_steps)
    found = outcome(claim.forecast, seen)
    ended = any(e["kind"] == "finish" and e["step"] == config.train.num_steps for e in events)
    clean, notes = _clean(claim, seen, extra, contamination)
    if ended and found["fraction"] < 1:
        notes.append(f"the run is finished and its end not evaluated: `shoal eval {folder.name}`")
    path = claim.folder / SETTLEMENT
    result = {
        "forecast": claim.forecast.ladder,
        "run": folder.name,
        "target": claim.forecast.plain()["target"],
        "sealed": claim.seal and {"sha256": claim.seal.sha256, "date": claim.seal.date},
        "retroactive": claim.retroactive,
        "finished": ended and found["fraction"] == 1,
        **found,
        "clean": clean,
        "premises": [*_conditions(claim.forecast, config, events, evals), *premises(events)],
        "notes": notes,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "record": events[-1]["link"]["link"],
        "file": str(path) if write else None,
    }
    if write:
        kept = {name: value for name, value in result.items() if name != "file"}
        write_atomic(path, json.dumps(kept, indent=1) + "\n")
    return result


def _sound_events(folder: Path) -> list[dict[str, Any]]:
    """A run's events, once its chain holds and the checkpoints that are kept agree with it."""
    odd = verify_chain(folder)
    for path in sorted(folder.glob(_CHECKPOINTS)):
        found = read_json(path).get("link", {})
        odd += [f"checkpoint {path.parent.name}: {one}" for one in verify_link(folder, found)]
    if odd:
        raise ValueError(f"the record of run {folder.name} is broken: {odd[0]}; nothing is settled")
    return read_events(folder)


def _sound_evals(folder: Path, config: Config) -> list[dict[str, Any]]:
    """The evaluations, once they and the attempts that they are of are what the record says."""
    findings = Findings()
    recheck_evaluations(folder, config, findings)
    with findings.check("attempts", METRICS) as check:
        recheck_attempts(folder, config, check)
    for line in findings.lines:
        if line["state"] == FAILS:
            raise ValueError(f"run {folder.name}: {spelled(line)}; nothing is settled")
    paths = sorted((folder / EVALS).glob("*.json"), key=lambda path: int(path.stem))
    return [read_json(path) for path in paths]


def _claim(folder: Path, events: Sequence[Mapping[str, Any]], name: str | None, own: str) -> Claim:
    """The forecast that a run settles."""
    try:
        event = sealed_in(events)
    except ValueError as error:
        raise ValueError(f"run {folder.name}: {error}") from error
    if name is None and event is not None:
        return _sealed_claim(folder, event)
    place = _only(own, folder) if name is None else find_forecast(name)
    given = Path(name or "")
    path = given if given.is_file() and given.name != FORECAST else place / SEAL
    seal = read_seal(path) if path.is_file() else None
    found = read_forecast(place / FORECAST) if seal is None else seal.forecast
    in_chain = event is not None and seal is not None and seal.sha256 == event["sha256"]
    if event is not None and event["forecast"] == found.ladder and not in_chain:
        raise ValueError(
            f"the record of run {folder.name} begins with seal {event['sha256'][:12]} of forecast"
            f" {event['forecast']}, and {place} "
            + ("has none" if seal is None else f"has seal {seal.sha256[:12]}")
            + ": another seal, or this one altered as a whole"
        )
    return Claim(folder=place, forecast=found, seal=seal, in_chain=in_chain)


def _sealed_claim(folder: Path, event: Mapping[str, Any]) -> Claim:
    """By the seal that a record begins with: under SHOAL_HOME, or the copy beside the record."""
    other = None
    for place in (home() / FORECASTS / str(event["forecast"]), folder):
        if not (place / SEAL).is_file():
            continue
        seal = read_seal(place / SEAL)
        if seal.sha256 == event["sha256"]:
            return Claim(folder=place, forecast=seal.forecast, seal=seal, in_chain=True)
        other = other or f"; {place / SEAL} is {seal.sha256[:12]}"
    raise ValueError(
        f"the record of run {folder.name} begins with seal {event['sha256'][:12]} of forecast"
        f" {event['forecast']}, which is not here{other or ''}; give it with --forecast PATH"
    )


def _only(own: str, run: Path) -> Path:
    known = {
        place: read_seal(place / SEAL).forecast
        if (place / SEAL).is_file()
        else read_forecast(place / FORECAST)
        for place in forecast_folders()
    }
    found = [place for place, one in known.items() if one.target.fingerprint == own]
    if len(found) == 1:
        return found[0]
    names = ", ".join(place.name for place in found or known) or "none"
    raise ValueError(
        f"{len(found)} forecasts are about the config of run {run.name}; name one with --forecast"
        f" (there are: {names})"
    )


def _check_run(
    folder: Path, events: Sequence[Mapping[str, Any]], config: Config, found: Forecast
) -> None:
    starts = [event["fingerprint"] for event in events if event["kind"] == "start"]
    for own in (*starts, fingerprint(config)):
        if own != found.target.fingerprint:
            raise ValueError(
                f"run {folder.name} has a config with fingerprint {own[:12]}, and forecast"
                f" {found.ladder} is about {found.target.name} with"
                f" {found.target.fingerprint[:12]}: another run, which settles nothing"
            )


def _clean(
    claim: Claim, seen: Mapping[str, Any], extra: Sequence[str], contamination: str | None
) -> tuple[dict[str, Any] | None, list[str]]:
    """The macros without flagged domains, None where none is flagged; and what to know of it."""
    sealed = claim.seal.contamination if claim.seal else None
    table = sealed or contamination_of(claim.forecast, contamination)
    if sealed and contamination:
        raise ValueError(f"a contamination table is sealed already: {sealed['table']}; leave yours")
    unknown = sorted(one for one in extra if not any(n.startswith(f"{one}/") for n in seen))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no domain of this run, as SET/DOMAIN")
    named: list[str] = sorted({*(table["flagged"] if table else []), *extra})
    if not named:
        return None, [] if table else ["no contamination table: nothing is known of that"]
    whence = "the sealed table" if sealed and not extra else "named or found after the seal"
    kept = {"flagged": named, "table": table and table["table"], "whence": whence}
    path = claim.folder / LADDER
    if not path.is_file():
        return {**kept, "scores": {}}, [f"{path} is missing, which macros without domains need"]
    ladder = read_ladder(path)
    if claim.seal and ladder_sha256(ladder) != claim.seal.ladder_sha256:
        raise ValueError(f"{path} is not the ladder that was sealed; restore it")
    return {**kept, "scores": without(claim.forecast, ladder, seen, named)}, []


def _conditions(
    found: Forecast,
    config: Config,
    events: Sequence[Mapping[str, Any]],
    evals: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    start = next((event for event in events if event["kind"] == "start"), {})
    texts = {
        f"{name}/{domain}": scores
        for name, one in (evals[-1]["sets"] if evals else {}).items()
        for domain, scores in one["domains"].items()
    }
    return conditions_broken(
        found.conditions,
        sequence_tokens=config.eval.sequence_tokens,
        corpus=start.get("corpus"),
        texts=texts,
    )


def scored(one: Mapping[str, Any]) -> str:
    """A score in words."""
    factor = one["compute_equivalent"]
    worth = "" if factor is None else f", {factor:.2f}x the compute by the law"
    inside = "inside 50 %" if one["inside_50"] else "inside 90 %, outside 50 %"
    return (
        f"{one['seen']:.4f}, forecast {one['central']:.4f}: {one['error']:+.4f}"
        f" ({one['percent']:+.2f} %{worth}); {inside if one['inside_90'] else 'outside 90 %'}"
    )


def render(result: Mapping[str, Any]) -> str:
    """A settlement for a terminal."""
    at = "its end" if result["finished"] else f"{result['fraction']:.0%} of it, not its end"
    lines = [f"forecast {result['forecast']} against run {result['run']}, at {at}"]
    if result["retroactive"]:
        lines.append(f"RETROACTIVE: {result['retroactive']}")
    else:
        lines.append(f"sealed {result['sealed']['date']}, first in the run's record")
    verdict = "a miss" if result["miss"] else "no miss"
    lines += ["", f"{result['metric']}: {scored(result['headline'])}"]
    lines.append(f"  {verdict}" + ("" if result["finished"] else " so far"))
    clean = result["clean"]
    if clean:
        lines += ["", f"without {', '.join(clean['flagged'])} ({clean['whence']})"]
        lines += [f"  {name}: {scored(one)}" for name, one in clean["scores"].items()]
    lines += ["", "premises broken" if result["premises"] else "no broken premise is on record"]
    for one in result["premises"]:
        where = "" if one["step"] is None else f" at step {one['step']:,}"
        lines.append(f"  {one['what']}{where}: {one['says']}")
    series = {name: one for name, one in result["series"].items() if name != result["metric"]}
    if series:
        inside = sum(bool(one["inside_90"]) for one in series.values())
        lines += ["", f"{inside} of {len(series)} other series are inside 90 %"]
        lines.append(f"{'series':<40} {'seen':>8} {'central':>8} {'error':>9}  inside")
    for name, one in series.items():
        inside = "50 %" if one["inside_50"] else "90 %" if one["inside_90"] else "no"
        figures = f"{one['seen']:>8.4f} {one['central']:>8.4f} {one['error']:>+9.4f}"
        lines.append(f"{name:<40} {figures}  {inside}")
    lines += [f"note: {note}" for note in result["notes"]]
    return "\n".join(lines + ([f"written: {result['file']}"] if result["file"] else []))
