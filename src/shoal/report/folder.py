"""What a run folder's records say, read so that a run in progress is as good as a finished one.

Whatever is absent, unknown or of an unexpected type is left out; a file that cannot be read is
named in `problems`, which the page shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from shoal.core.files import read_limited
from shoal.core.record import read_events, read_metrics, verify_chain
from shoal.report.markup import number

_LIMIT_BYTES = 256_000_000
_NOT_VALUES = ("step", "attempt")
_LOAD = "router/load"


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics as columns, one row per step, ascending.

    Attributes:
        steps: the update each row belongs to.
        scalars: one value per row; NaN where a row has none.
        layers: one value per row and layer; NaN where a row has none.
        load: the newest load of every expert over the mean, and its step; None where there is none.
    """

    steps: Int[np.ndarray, " n"]
    scalars: Mapping[str, Float[np.ndarray, " n"]]
    layers: Mapping[str, Float[np.ndarray, "n layers"]]
    load: tuple[int, Float[np.ndarray, "layers experts"]] | None = None

    def column(self, key: str) -> Float[np.ndarray, " n"] | None:
        """A scalar's values; None where no row has a finite one."""
        values = self.scalars.get(key)
        return None if values is None or not np.isfinite(values).any() else values


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """All records of one run; `chain` lists what is wrong with the events' links."""

    run: Mapping[str, Any]
    corpus: Mapping[str, Any]
    metrics: Metrics
    events: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    samples: list[tuple[int, list[dict[str, Any]]]]
    chain: list[str]
    problems: list[str]

    @property
    def tokens(self) -> Float[np.ndarray, " n"]:
        """Tokens trained on after each row's step; the steps themselves where nothing says it."""
        found = self.metrics.column("tokens")
        if found is not None:
            return found
        per_step = number(at(self.run, "derived", "tokens_per_step"))
        return self.metrics.steps.astype(np.float64) * (per_step or 1)

    @property
    def last_step(self) -> int | None:
        """The newest step in the record."""
        return int(self.metrics.steps[-1]) if len(self.metrics.steps) else None

    @property
    def finished(self) -> bool:
        """The run reached its end, and nothing went on after it."""
        kinds = [event.get("kind") for event in self.events]
        later = {"start", "resume", "finish"}
        return next((kind for kind in reversed(kinds) if kind in later), None) == "finish"


def at(value: object, *path: str) -> Any:
    """The value under nested keys; None where the path ends early."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def read(folder: Path) -> RunFolder:
    """Reads a run folder.

    Raises:
        ValueError: `folder` holds no run.json: it is no run folder.
    """
    if not (folder / "run.json").is_file():
        raise ValueError(f"{folder} is not a run folder: it has no run.json; name a run's folder")
    problems: list[str] = []
    run = read_json(folder / "run.json", dict, problems)
    corpus = read_json(folder / "corpus.json", dict, problems)
    lines = _records(read_metrics, folder, problems)
    events = _records(read_events, folder, problems)
    evals = [read_json(path, dict, problems) for path in sorted((folder / "evals").glob("*.json"))]
    samples = [
        (int(path.stem) if path.stem.isdigit() else 0, read_json(path, list, problems))
        for path in sorted((folder / "samples").glob("*.json"))
    ]
    return RunFolder(
        run=run,
        corpus=corpus,
        metrics=columns(lines),
        events=events,
        evals=sorted((found for found in evals if found), key=_step),
        samples=sorted((step, _dicts(found)) for step, found in samples if _dicts(found)),
        chain=verify_chain(folder) if events else [],
        problems=problems,
    )


def _records(
    reader: Callable[[Path], list[dict[str, Any]]], folder: Path, problems: list[str]
) -> list[dict[str, Any]]:
    try:
        return reader(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        problems.append(f"{reader.__name__.removeprefix('read_')}.jsonl: {error!r}")
        return []


def read_json(path: Path, kind: type, problems: list[str]) -> Any:
    """A file's value, empty where there is none; `problems` takes what is wrong with it."""
    if not path.exists():
        return kind()
    try:
        found = json.loads(read_limited(path, _LIMIT_BYTES))
    except ValueError as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return kind()
    if not isinstance(found, kind):
        problems.append(f"{path.name} holds no {'object' if kind is dict else 'list'}")
        return kind()
    return found


def _dicts(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _step(found: Mapping[str, Any]) -> float:
    step = number(found.get("step"))
    return -1 if step is None else step


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns(lines: list[dict[str, Any]]) -> Metrics:
    """Lines of metrics as columns; what is neither a number nor a list of numbers is left out."""
    lines = [line for line in lines if isinstance(line.get("step"), int)]
    scalars: dict[str, np.ndarray] = {}
    layers: dict[str, np.ndarray] = {}
    for row, line in enumerate(lines):
        for key, value in line.items():
            if key in _NOT_VALUES:
                continue
            if isinstance(value, list):
                found = _array(value, 1)
                if found is None:
                    continue
                if key not in layers:
                    layers[key] = np.full((len(lines), len(found)), np.nan)
                if layers[key].shape[1] == len(found):
                    layers[key][row] = found
            elif _is_number(value):
                if key not in scalars:
                    scalars[key] = np.full(len(lines), np.nan)
                scalars[key][row] = value
    loads = ((line["step"], _array(line.get(_LOAD), 2)) for line in reversed(lines))
    known = ((step, found) for step, found in loads if found is not None)
    load = next(((step, found) for step, found in known if np.isfinite(found).all()), None)
    steps = np.array([line["step"] for line in lines], np.int64)
    return Metrics(steps=steps, scalars=scalars, layers=layers, load=load)


def _array(value: object, dimensions: int) -> np.ndarray | None:
    """A list of numbers, or of such lists; None for anything else."""
    if not isinstance(value, list) or not value or isinstance(value[0], list) != (dimensions == 2):
        return None
    try:
        found = np.array(value, np.float64)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == dimensions and found.size else None
