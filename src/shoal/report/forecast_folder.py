"""What a forecast's folder says: ladder, forecast, seal and settlement, whichever of them there is.

`report` stands below the floor that fits and seals: it takes their files as plain values, leaves
out what is of an unexpected type, and checks of a seal only that its hash is that of its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from shoal.core.files import canonical_json
from shoal.report.evaluation import sets
from shoal.report.folder import RunFolder, at, read, read_json
from shoal.report.markup import number

FILES = ("ladder", "forecast", "seal", "settlement")
_FRACTIONS = tuple(round(0.05 * step, 2) for step in range(1, 21))


@dataclass(frozen=True, kw_only=True)
class Foretold:
    """One series at each fraction; NaN where nothing is forecast.

    Attributes:
        central: the forecast.
        inner: the 50 % interval.
        outer: the 90 % interval.
        law: E, A and alpha.
        parts: name -> half width at the end.
        backtest: the top rung as the lower ones foretell it; empty where they do not.
    """

    central: Float[np.ndarray, " n"]
    inner: Float[np.ndarray, "n 2"]
    outer: Float[np.ndarray, "n 2"]
    law: Float[np.ndarray, "n 3"]
    parts: Mapping[str, float]
    backtest: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ForecastFolder:
    """All files of one forecast, and the run that it is about, as far as that is here.

    Attributes:
        folder: where the files are.
        forecast: the sealed one where there is a seal.
        series: name -> forecast.
        run: None where it is not here or has not begun.
        run_folder: where it is.
        problems: what cannot be read or does not fit.
    """

    folder: Path
    forecast: Mapping[str, Any]
    ladder: Mapping[str, Any]
    seal: Mapping[str, Any]
    settlement: Mapping[str, Any]
    fractions: Float[np.ndarray, " n"]
    series: Mapping[str, Foretold]
    run: RunFolder | None
    run_folder: Path | None
    problems: list[str]

    @property
    def name(self) -> str:
        """The ladder's name."""
        return str(self.forecast.get("ladder") or self.ladder.get("name") or self.folder.name)

    @property
    def metric(self) -> str:
        """The headline series."""
        return str(self.forecast.get("metric") or self.ladder.get("metric") or "")

    @property
    def headline(self) -> Foretold | None:
        """The headline's forecast; None where nothing of it is finite."""
        return self.series.get(self.metric)

    @property
    def end(self) -> int | None:
        """The last place at which the headline is forecast."""
        known = [] if self.headline is None else np.flatnonzero(np.isfinite(self.headline.central))
        return int(known[-1]) if len(known) else None

    @property
    def retroactive(self) -> str | None:
        """Why the record does not show that the forecast came first; None where it does, or may.

        A forecast whose run has not begun is not retroactive yet.
        """
        told = self.settlement.get("retroactive")
        if isinstance(told, str) and told:
            return told
        if self.run is not None and (self.run.events or len(self.run.metrics.steps)):
            if not self.seal:
                return "the forecast was not sealed"
            if not begins_with(self.run.events, self.seal.get("sha256")):
                return "the run's record does not begin with the seal"
        elif self.forecast and not self.seal and not at(self.forecast, "target", "fingerprint"):
            return "its target is no config, so that no record can show which came first"
        return None


def begins_with(events: Sequence[Mapping[str, Any]], sha256: object) -> bool:
    """Whether a seal is the first event of a record."""
    first = next((event for event in events if event.get("kind") != "torn"), {})
    return first.get("kind") == "seal" and bool(sha256) and first.get("sha256") == sha256


def read_forecast(
    folder: Path,
    *,
    run: RunFolder | None = None,
    run_folder: Path | None = None,
    alone: bool = False,
) -> ForecastFolder:
    """Reads a forecast's folder.

    Args:
        folder: of the forecast.
        run: its run, where it was read before; else it is looked for beside the forecasts.
        run_folder: where that is.
        alone: look for no run.

    Raises:
        ValueError: `folder` holds none of the files: it is no forecast's folder.
    """
    if not any((folder / f"{name}.json").is_file() for name in FILES[:3]):
        raise ValueError(
            f"{folder} is no forecast: it has no ladder.json, forecast.json or seal.json; name the"
            " folder of a forecast"
        )
    problems: list[str] = []
    files = {name: read_json(folder / f"{name}.json", dict, problems) for name in FILES}
    seal, forecast = files["seal"], files["forecast"]
    if seal:
        problems += _seal_problems(seal, forecast)
        forecast = seal.get("forecast") if isinstance(seal.get("forecast"), dict) else forecast
    settlement = files["settlement"]
    if settlement and at(settlement, "sealed", "sha256") != seal.get("sha256"):
        problems.append("settlement.json is about another seal; settle the run again")
        settlement = {}
    if run is None and not alone:
        run, run_folder = _run_of(folder, forecast, seal, settlement)
    fractions = numbers(forecast.get("fractions"), None)
    if not fractions.size or not ((fractions > 0) & (fractions <= 1)).all():
        fractions = np.array(_FRACTIONS)
    return ForecastFolder(
        folder=folder,
        forecast=forecast,
        ladder=files["ladder"],
        seal=seal,
        settlement=settlement,
        fractions=fractions,
        series=_series(forecast.get("series"), len(fractions)),
        run=run,
        run_folder=run_folder,
        problems=problems,
    )


def _seal_problems(seal: Mapping[str, Any], forecast: Mapping[str, Any]) -> list[str]:
    rest = {key: value for key, value in seal.items() if key != "sha256"}
    own = hashlib.sha256(canonical_json(rest).encode()).hexdigest()
    odd: list[str] = []
    if own != seal.get("sha256"):
        odd.append("seal.json is not as it was sealed: its hash is that of another content")
    sealed = seal.get("forecast")
    if forecast and sealed and canonical_json(forecast) != canonical_json(sealed):
        odd.append("forecast.json is not the one that was sealed; the sealed one is shown")
    return odd


def _run_of(
    folder: Path, forecast: Mapping[str, Any], seal: Mapping[str, Any], settled: Mapping[str, Any]
) -> tuple[RunFolder | None, Path | None]:
    """The run that settled a forecast, or that begins with its seal, or else has its config."""
    fingerprint = at(forecast, "target", "fingerprint")
    if not fingerprint:
        return None, None
    runs = folder.resolve().parent.parent / "runs"
    found: list[tuple[tuple[bool, bool, bool], str, RunFolder, Path]] = []
    for path in sorted(runs.glob("*/run.json")):
        if read_json(path, dict, []).get("fingerprint") != fingerprint:
            continue
        run = read(path.parent)
        first = begins_with(run.events, seal.get("sha256"))
        rank = (path.parent.name != settled.get("run"), not first, not run.finished)
        found.append((rank, path.parent.name, run, path.parent))
    if not found:
        return None, None
    _, _, run, where = min(found, key=lambda one: one[:2])
    return run, where


def forecast_of(folder: Path, run: RunFolder) -> ForecastFolder | None:
    """The forecast that a run is about: by its seal, or else by its config.

    It is looked for in the `forecasts` beside the run's `runs`; a run that was moved away still has
    a copy of its seal.
    """
    root = folder.resolve().parent.parent / "forecasts"
    seals = [event for event in run.events if event.get("kind") == "seal"]
    if seals:
        name, sha256 = str(seals[0].get("forecast")), seals[0].get("sha256")
        for place in [*([root / name] if Path(name).name == name else []), folder]:
            if sha256 and read_json(place / "seal.json", dict, []).get("sha256") == sha256:
                return read_forecast(place, run=run, run_folder=folder)
        return None
    fingerprint = run.run.get("fingerprint")
    for path in forecasts_in(root) if fingerprint else []:
        known = [read_json(path / f"{name}.json", dict, []) for name in ("forecast", "seal")]
        whole = known[0] or at(known[1], "forecast")
        if at(whole, "target", "fingerprint") == fingerprint:
            return read_forecast(path, run=run, run_folder=folder)
    return None


def forecasts_in(root: Path) -> list[Path]:
    """The folders below `root` that hold a forecast or a seal, by name."""
    names = ("forecast", "seal")
    return sorted({path.parent for name in names for path in root.glob(f"*/{name}.json")})


def numbers(value: object, size: int | None) -> Float[np.ndarray, " n"]:
    """A list of numbers, NaN for what is none; of another length than `size` it is all NaN."""
    found = [number(one) for one in value] if isinstance(value, list) else []
    if size is not None and len(found) != size:
        found = [None] * size
    return np.array([np.nan if one is None else one for one in found], np.float64)


def _pairs(value: object, size: int) -> Float[np.ndarray, "n 2"]:
    rows = value if isinstance(value, list) and len(value) == size else [None] * size
    return np.stack([numbers(row, 2) for row in rows]).reshape(size, 2)


def _series(tree: object, size: int) -> dict[str, Foretold]:
    found: dict[str, Foretold] = {}
    for name, one in tree.items() if isinstance(tree, Mapping) else []:
        central = numbers(at(one, "central"), size)
        if not np.isfinite(central).any():
            continue
        parts, back = at(one, "parts"), at(one, "backtest")
        known = parts.items() if isinstance(parts, Mapping) else ()
        found[str(name)] = Foretold(
            central=central,
            inner=_pairs(at(one, "interval_50"), size),
            outer=_pairs(at(one, "interval_90"), size),
            law=np.stack([numbers(at(one, key), size) for key in ("E", "A", "alpha")], axis=1),
            parts={str(k): half for k, v in known if (half := number(v)) is not None},
            backtest=back if isinstance(back, Mapping) else {},
        )
    return found


def seen_at(found: ForecastFolder) -> dict[str, Float[np.ndarray, " n"]]:
    """What the run came to, by series, at each fraction: interpolated between its evaluations.

    Without the run it is what the settlement says. NaN where nothing is known.
    """
    known: dict[str, list[tuple[float, float]]] = {}
    for share, name, value in evaluated(found.run) if found.run else []:
        known.setdefault(name, []).append((share, value))
    if known:
        return {
            name: np.interp(found.fractions + 1e-9, *np.array(points).T, left=np.nan, right=np.nan)
            for name, points in ((name, _reaching(points)) for name, points in known.items())
        }
    size = len(found.fractions)
    told: dict[str, Float[np.ndarray, " n"]] = {}
    scores = found.settlement.get("series")
    place = settled_place(found)
    for name, one in scores.items() if isinstance(scores, Mapping) and place is not None else []:
        told[name] = np.full(size, np.nan)
        told[name][place] = number(at(one, "seen")) or np.nan
    way = found.settlement.get("trajectory")
    if isinstance(way, list) and len(way) == size:
        told[found.metric] = numbers([at(one, "seen") for one in way], size)
    return told


def _reaching(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points in order; the last one holds a hair further, where rounding put a fraction past it."""
    points = sorted(points)
    return [*points, (points[-1][0] + 2e-9, points[-1][1])]


def settled_place(found: ForecastFolder) -> int | None:
    """The place of the fraction at which a forecast was settled."""
    fraction = number(found.settlement.get("fraction"))
    if fraction is None:
        return None
    near = np.flatnonzero(np.abs(found.fractions - fraction) < 1e-6)
    return int(near[0]) if near.size else None


def evaluated(run: RunFolder) -> list[tuple[float, str, float]]:
    """Every evaluation's values: share of training, series, value."""
    steps = planned_steps(run)
    found: list[tuple[float, str, float]] = []
    for content in run.evals if steps else []:
        step = number(content.get("step"))
        if step is None:
            continue
        for name, one in sets(content).items():
            domains = one.get("domains")
            scores = dict(domains) if isinstance(domains, Mapping) else {}
            for domain, values in {**scores, "macro": one.get("macro")}.items():
                for measure in ("loss", "bpb"):
                    value = number(at(values, measure))
                    if value is not None:
                        found.append((step / steps, f"{name}/{domain}/{measure}", value))
    return found


def planned_steps(run: RunFolder) -> float:
    """Updates of the whole run; 0 where its record does not say."""
    return number(at(run.run, "derived", "steps")) or 0.0


def medians(found: ForecastFolder, name: str) -> Float[np.ndarray, " n"]:
    """A logged quantity of the run, as the forecast of health takes it.

    The median of what was logged up to each fraction since the one before; layers count by their
    mean. NaN where nothing was logged.
    """
    size = len(found.fractions)
    run, steps = found.run, planned_steps(found.run) if found.run else 0.0
    if run is None or not steps or not len(run.metrics.steps):
        return np.full(size, np.nan)
    values = run.metrics.scalars.get(name)
    layers = run.metrics.layers.get(name)
    if values is None:
        values = np.full(len(run.metrics.steps), np.nan) if layers is None else layers.mean(axis=1)
    part = np.minimum((run.metrics.steps - 1) / (steps / size), size - 1).astype(np.int64)
    parts = [values[(part == place) & np.isfinite(values)] for place in range(size)]
    return np.array([np.sort(part)[len(part) // 2] if part.size else np.nan for part in parts])
