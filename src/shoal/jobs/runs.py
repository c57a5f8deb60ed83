"""Run folders: where they are, what config they hold, what may differ when one goes on.

run.json  corpus.json  metrics.jsonl  events.jsonl  checkpoints/  evals/  samples/  report.html
"""

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path

from shoal.core.config import Difference, diff, fingerprint, from_plain, plain
from shoal.core.files import home, read_limited, write_atomic
from shoal.core.record import Record, read_events
from shoal.data.manifest import CORPUS
from shoal.jobs.prepare import Prepared
from shoal.jobs.runtime import environment
from shoal.train.config import Config
from shoal.train.derive import derive

RUN = "run.json"
_LIMIT_BYTES = 16_000_000


def run_folder(run: str) -> Path:
    """Return the folder of a run given by path, or by name under SHOAL_HOME/runs."""
    path = Path(run)
    if path.is_dir() or len(path.parts) > 1 or path.is_absolute():
        return path
    return home() / "runs" / run


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
    path = folder / RUN
    try:
        return from_plain(Config, json.loads(read_limited(path, _LIMIT_BYTES))["config"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); restore it from a copy") from error


def begin(
    folder: Path, config: Config, prepared: Prepared, record: Record, *, change: str | None
) -> None:
    """Write a new run's `run.json`, or check a resumed run's config against it.

    Identity must agree; a numerics difference needs `change` and is recorded; placement is free
    and recorded.

    Raises:
        ValueError: what differs may not.
    """
    path, now = folder / RUN, datetime.now(UTC).isoformat(timespec="seconds")
    if not path.exists():
        if any(event["kind"] == "start" for event in read_events(folder)):
            raise ValueError(f"{folder} has a record but no {RUN}; restore it or remove the folder")
        _write(folder, config, prepared, created=now)
        print_of = fingerprint(config)
        record.event("start", fingerprint=print_of, corpus=prepared.corpus.ref, **environment())
        return
    before = read_config(folder)
    differences = [d for d in diff(before, config) if d.path != "notes"]
    by_kind = {k: [d for d in differences if d.kind == k] for k in ("identity", "numerics")}
    if by_kind["identity"]:
        raise ValueError(
            f"run {folder.name} was started with another config: {_list(by_kind['identity'])};"
            " train under another name with --run NAME, or set these back"
        )
    if by_kind["numerics"] and not change:
        raise ValueError(
            f"run {folder.name} goes on with other numerics: {_list(by_kind['numerics'])};"
            ' say why with --change "...", or set these back'
        )
    if differences:
        created = json.loads(read_limited(path, _LIMIT_BYTES))["created"]
        _write(folder, config, prepared, created=created)
        fields = [dataclasses.asdict(d) for d in differences]
        record.event("change", why=change, differences=json.loads(json.dumps(plain(fields))))


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
