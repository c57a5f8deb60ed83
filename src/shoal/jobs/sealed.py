"""Where forecasts, their seals and their runs are, and what is known of their evaluation text."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.artifact import Artifact, load
from shoal.core.files import home, read_limited
from shoal.jobs.corpora import find_corpus
from shoal.jobs.forecast import FORECAST, FORECASTS
from shoal.scaling.forecast import Forecast
from shoal.scaling.seal import SEAL, Seal, flagged, read_seal

_RUN, _LIMIT_BYTES = "run.json", 16_000_000


def forecast_folders() -> list[Path]:
    """The folders under SHOAL_HOME/forecasts that hold a forecast or a seal, by name."""
    root = home() / FORECASTS
    return sorted({path.parent for name in (FORECAST, SEAL) for path in root.glob(f"*/{name}")})


def find_forecast(name: str) -> Path:
    """The folder of a forecast given by name, by path, or by the path of a file in it.

    Raises:
        ValueError: there is none; those that there are get named.
    """
    given = Path(name)
    named = [given.parent] if given.suffix == ".json" and given.is_file() else [given]
    for folder in (*named, home() / FORECASTS / name):
        if any((folder / file).is_file() for file in (FORECAST, SEAL)):
            return folder
    there = ", ".join(folder.name for folder in forecast_folders())
    raise ValueError(
        f"no forecast {name!r} ({home() / FORECASTS / name} has none); "
        + (f"there are: {there}" if there else "there is none yet; `shoal ladder`")
    )


def find_seal(name: str) -> Seal:
    """The seal of a forecast, given as for `find_forecast`, or by the path of the seal itself.

    Raises:
        ValueError: there is none, or it was altered.
    """
    path = Path(name)
    if not path.is_file():
        folder = find_forecast(name)
        path = folder / SEAL
        if not path.is_file():
            raise ValueError(f"forecast {folder.name} is not sealed; `shoal seal {folder.name}`")
    return read_seal(path)


def runs_of(fingerprint: str) -> list[Path]:
    """The runs under SHOAL_HOME/runs whose config has a fingerprint, by name."""
    found: list[Path] = []
    for path in sorted((home() / "runs").glob(f"*/{_RUN}")):
        try:
            content = json.loads(read_limited(path, _LIMIT_BYTES))
        except ValueError:
            continue  # a damaged run is named by whoever asks for it
        if isinstance(content, dict) and content.get("fingerprint") == fingerprint:
            found.append(path.parent)
    return found


def contamination_of(found: Forecast, table: str | None = None) -> dict[str, Any] | None:
    """What is known of a forecast's evaluation text in its corpus' training text.

    Args:
        found: its domains are looked for.
        table: an artifact of stage `overlap`, by NAME@HASH12 or path; None: of those made for the
            forecast's corpus the one that has most of the domains.

    Returns:
        As `scaling.seal.flagged`; None where no table is named and there is none.

    Raises:
        ValueError: the named table is not there, or has none of the domains.
    """
    domains = {name.rpartition("/")[0] for name in found.series if "/macro/" not in name}
    if table is None:
        tables = [(_known(one, domains), one) for one in _tables(found.conditions.get("corpus"))]
        tables = [(known, one) for known, one in tables if known]
        if not tables:
            return None
        known, made = max(tables, key=lambda pair: (len(pair[0]), pair[1].ref))
        return flagged(made.ref, known)
    path = Path(table) if os.sep in table else home() / "corpora" / table
    made = load(path)
    known = _known(made, domains) if made.manifest["stage"] == "overlap" else {}
    if not known:
        raise ValueError(
            f"{path} says nothing of {', '.join(sorted(domains)[:3])} ...; give a table that"
            " `shoal contamination CORPUS SET/DOMAIN ...` made"
        )
    return flagged(made.ref, known)


def _known(made: Artifact, domains: set[str]) -> dict[str, Mapping[str, Any]]:
    return {name: one for name, one in made.facts["benchmarks"].items() if name in domains}


def _tables(corpus: Any) -> list[Artifact]:
    """The contamination tables that were made from the stages of a corpus."""
    if not isinstance(corpus, str):
        return []
    try:
        folders = find_corpus(corpus).folders
    except ValueError:  # it is not on this machine
        return []
    digests = {stage: load(folder).digest for stage, folder in folders.items()}
    name = corpus.partition("@")[0]
    found: list[Artifact] = []
    for path in sorted((home() / "corpora").glob(f"{name}-overlap@*")):
        made = load(path)
        stages = {k: v for k, v in made.manifest["inputs"].items() if k != "items"}
        if all(digests.get(stage) == digest for stage, digest in stages.items()):
            found.append(made)
    return found
