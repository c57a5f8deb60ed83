"""Run folders: where they are, what config they hold, what may differ when one goes on.

run.json  corpus.json  metrics.jsonl  events.jsonl  checkpoints/  evals/  samples/  report.html,
and seal.json where the run is one that was forecast.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.core.config import Difference, diff, fingerprint, from_plain, plain
from shoal.core.files import canonical_json, home, read_limited, write_atomic
from shoal.core.record import Record, read_events
from shoal.data.manifest import CORPUS
from shoal.jobs.prepare import Prepared
from shoal.jobs.runtime import environment
from shoal.scaling.seal import SEAL, Seal
from shoal.scaling.settle import sealed_in
from shoal.train.config import Config
from shoal.train.derive import derive, peak_rates

RUN = "run.json"
_LIMIT_BYTES = 16_000_000


def run_folder(run: str) -> Path:
    """Return the folder of a run given by path, or by name under SHOAL_HOME/runs.

    A lone name means a folder where we stand only if that holds a run and SHOAL_HOME does not.
    """
    path, named = Path(run), home() / "runs" / run
    if os.sep in run or run in (".", ".."):
        return path
    return path if (path / RUN).is_file() and not named.exists() else named


def find_run(run: str) -> Path:
    """Return the folder of a run that exists.

    Raises:
        ValueError: there is none; the runs that there are get named.
    """
    folder = run_folder(run)
    if (folder / RUN).is_file():
        return folder
    runs = home() / "runs"
    names = sorted(path.parent.name for path in runs.glob(f"*/{RUN}")) if runs.is_dir() else []
    there = f"there are: {', '.join(names)}" if names else "there is none yet; `shoal quickstart`"
    raise ValueError(f"no run {run!r} ({folder / RUN} is missing); {there}")


def read_config(folder: Path) -> Config:
    """Read the config that a run was last started with.

    Raises:
        ValueError: `run.json` is damaged or not of this version.
    """
    content = _read(folder)
    if not isinstance(content.get("config"), dict):
        raise ValueError(_unreadable(folder, "it holds no config"))
    try:
        return from_plain(Config, content["config"])
    except (TypeError, ValueError) as error:
        raise ValueError(_unreadable(folder, error)) from error


def restored(folder: Path, config: Config, step: int | None = None, mesh: Any = None) -> Any:
    """Load the `State` of a run's checkpoint, the newest by default, as its config shapes it.

    Args:
        mesh: where to put it; None is this machine's first device, whatever the run had.

    Raises:
        ValueError: there is no such checkpoint, or its bytes are not those that were saved.
    """
    from shoal.train import checkpoint
    from shoal.train.state import abstract_state

    step = checkpoint.newest(folder) if step is None else step
    return checkpoint.restore(folder, step, abstract_state(config, peak_rates(config), mesh))


def check_corpus(folder: Path, prepared: Prepared) -> None:
    """Refuse a corpus that is not the run's: the same settings can give another one later.

    Raises:
        ValueError: it is another corpus.
    """
    trained, found = str(_read(folder).get("corpus")), prepared.corpus.ref
    if trained.rpartition("@")[2] != found.rpartition("@")[2]:
        raise ValueError(
            f"run {folder.name} was trained on corpus {trained}, and its settings now make {found}:"
            " a stage of the corpus has changed since; use the version of shoal that began the run"
            f" (environment in {folder / RUN}), or train under another name with --run NAME"
        )


def begin(
    folder: Path,
    config: Config,
    prepared: Prepared,
    record: Record,
    *,
    change: str | None,
    seal: Seal | None = None,
) -> None:
    """Write a new run's `run.json`, or check a resumed run's config against it.

    Identity and the corpus that came of it must agree; a numerics difference needs `change` and is
    recorded; placement is free and recorded.

    Args:
        seal: of the run's forecast. Its hash is the first event; a copy is kept in the folder.

    Raises:
        ValueError: what differs may not, or the seal is for another config, or the run began
            without it.
    """
    path, now = folder / RUN, datetime.now(UTC).isoformat(timespec="seconds")
    started = any(event["kind"] == "start" for event in read_events(folder))
    if seal is not None:
        _put_first(folder, config, record, seal, started=started)
    if not path.exists():
        if started:
            raise ValueError(f"{folder} has a record but no {RUN}; restore it or remove the folder")
        _write(folder, config, prepared, created=now)
    differences = _allowed(folder, config, change)
    check_corpus(folder, prepared)
    if not started:
        print_of, told = fingerprint(config), settings_sha256(_read(folder)["config"])
        facts = {"corpus": prepared.corpus.ref, "settings": told, **environment()}
        record.event("start", fingerprint=print_of, **facts)
    if differences:
        fields = [dataclasses.asdict(d) for d in differences]
        named = json.loads(json.dumps(plain(fields)))
        told = settings_sha256(plain(config))
        here = environment()
        record.event("change", why=change, differences=named, settings=told, environment=here)
        _write(folder, config, prepared, created=_read(folder).get("created", now))


def _put_first(folder: Path, config: Config, record: Record, seal: Seal, *, started: bool) -> None:
    seal.check_target(fingerprint(config))
    there = sealed_in(read_events(folder))
    if there is None and started:
        raise ValueError(
            f"run {folder.name} began without seal {seal.name}, so it cannot show that the forecast"
            " came first; settle it as it is, or train under another name with --run NAME"
        )
    if there is not None and there["sha256"] != seal.sha256:
        raise ValueError(
            f"run {folder.name} was started with seal {there['sha256'][:12]} of forecast"
            f" {there['forecast']}, not with {seal.sha256[:12]} of {seal.name}; give that one, or"
            " train under another name with --run NAME"
        )
    write_atomic(folder / SEAL, json.dumps(seal.plain(), indent=1) + "\n")
    if there is None:
        record.event("seal", forecast=seal.name, sha256=seal.sha256, sealed=seal.date)


def settings_sha256(config: Mapping[str, Any]) -> str:
    """Return the hash of a config as `run.json` holds it, without its notes.

    Unlike the fingerprint it covers numerics and placement too; the record's `start` and `change`
    events state it.
    """
    told = {name: value for name, value in config.items() if name != "notes"}
    return hashlib.sha256(canonical_json(told).encode()).hexdigest()


def new_environment(folder: Path) -> dict[str, Any]:
    """Return what is other than when `run.json` was written: versions, devices, cores."""
    before = _read(folder).get("environment", {})
    return {key: value for key, value in environment().items() if before.get(key) != value}


def _allowed(folder: Path, config: Config, change: str | None) -> list[Difference]:
    """Return how a config differs from the run's, if it may."""
    differences = [d for d in diff(read_config(folder), config) if d.path != "notes"]
    identity = [d for d in differences if d.kind == "identity"]
    if identity:
        raise ValueError(
            f"run {folder.name} was started with another config: {_list(identity)};"
            " train under another name (--run NAME, or --set name=NAME), or set these back"
        )
    numerics = [d for d in differences if d.kind == "numerics"]
    if numerics and not change:
        raise ValueError(
            f"run {folder.name} goes on with other numerics: {_list(numerics)};"
            ' say why with --change "...", or set these back'
        )
    return differences


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(folder / RUN, _LIMIT_BYTES))
    except ValueError as error:
        raise ValueError(_unreadable(folder, error)) from error
    if not isinstance(content, dict):
        raise ValueError(_unreadable(folder, "it holds no object"))
    return content


def _unreadable(folder: Path, why: object) -> str:
    return f"{folder / RUN} cannot be read ({why}); restore it from a copy"


def _write(folder: Path, config: Config, prepared: Prepared, *, created: str) -> None:
    from shoal.model.count import num_active, num_tensors

    write_atomic(folder / CORPUS, json.dumps(prepared.facts, indent=1))
    content = {
        "name": folder.name,
        "fingerprint": fingerprint(config),
        "config": plain(config),
        "notes": dict(config.notes),
        "environment": environment(),
        "created": created,
        "corpus": prepared.corpus.ref,
        "derived": derive(config),
        "parameters": {"tensors": num_tensors(config.model), "active": num_active(config.model)},
    }
    write_atomic(folder / RUN, json.dumps(content, indent=1))


def _list(differences: list[Difference]) -> str:
    shown = ", ".join(f"{d.path} was {d.before!r}, is {d.after!r}" for d in differences[:4])
    return shown + (f" and {len(differences) - 4} more" if len(differences) > 4 else "")
