"""A home with a forecast and its run, made of arithmetic: the same on every call."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any
from unittest import mock

from report import fake_run
from scaling.ladders import made
from shoal.core import record
from shoal.scaling.forecast import Forecast, forecast
from shoal.scaling.ladder import series_of
from shoal.scaling.records import Ladder
from shoal.scaling.seal import Seal, make_seal
from shoal.scaling.settle import outcome

FINGERPRINT = fake_run.run_json()["fingerprint"]
DATE = "2026-11-03T08:00:00+00:00"


@functools.cache
def ladder(name: str = "rise") -> Ladder:
    """Four rungs with 3, 3, 1 and 1 seeds whose law ends near the run's bits per byte."""
    found = made(name, asymptote=0.9, gap=2.6, alpha=0.12, noise=0.01)
    target = dataclasses.replace(found.target, fingerprint=FINGERPRINT, name="quickstart")
    return dataclasses.replace(found, target=target)


@functools.cache
def foretold(name: str = "rise") -> Forecast:
    return forecast(ladder(name))


@functools.cache
def sealed(name: str = "rise") -> Seal:
    return make_seal(foretold(name), ladder(name), date=DATE)


def put(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        tree = value.plain() if hasattr(value, "plain") else value
        (folder / f"{name}.json").write_text(json.dumps(tree))
    return folder


def begin(folder: Path, seal: Seal | None, **options: Any) -> Path:
    """A run that begins with a seal, evaluated at each 5 % unless it is said otherwise."""
    folder.mkdir(parents=True)
    if seal is not None:
        with (
            mock.patch.object(record, "datetime", fake_run.Clock),
            record.Record.open(folder) as log,
        ):
            log.event("seal", forecast=seal.name, sha256=seal.sha256, sealed=seal.date)
        put(folder, seal=seal)
    return fake_run.make(folder, **{"evaluate": 24, **options})


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((run / "evals").glob("*.json"))]


def settlement(run: Path, seal: Seal, **other: Any) -> dict[str, Any]:
    found = outcome(seal.forecast, series_of(evaluations(run), fake_run.STEPS))
    return {
        "forecast": seal.name,
        "run": run.name,
        "sealed": {"sha256": seal.sha256, "date": seal.date},
        "retroactive": None,
        "finished": True,
        **found,
        "clean": {"flagged": ["sources/owt"], "scores": {found["metric"]: found["headline"]}},
        "premises": [{"what": "transport", "step": 120, "says": "moe.transport is 'ragged'"}],
        "notes": ["a note"],
        "date": "2026-11-04T09:00:00+00:00",
        **other,
    }


def make(home: Path, **options: Any) -> tuple[Path, Path]:
    """A sealed forecast, its run and its settlement: the forecast's folder and the run's."""
    run = begin(home / "runs" / "quickstart", sealed(), **options)
    folder = put(home / "forecasts" / "rise", ladder=ladder(), forecast=foretold(), seal=sealed())
    return put(folder, settlement=settlement(run, sealed())), run
