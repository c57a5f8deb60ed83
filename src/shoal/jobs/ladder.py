"""Job `ladder`: train the rungs that are missing, and gather what forecasts are made from.

`SHOAL_HOME/forecasts/NAME/ladder.json` (`scaling.records`) holds every run of every rung; rungs are
ordinary runs, in SHOAL_HOME/runs under `NAME-wWIDTH-seedSEED`. What is done is not done again.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.config import diff, fingerprint
from shoal.core.files import home, sha256_file, write_atomic
from shoal.core.progress import Progress, progress_for
from shoal.core.record import read_events, read_metrics
from shoal.jobs.contamination import contamination
from shoal.jobs.evaluate import EVALS, scored_texts
from shoal.jobs.forecast import FORECASTS, LADDER
from shoal.jobs.prepare import Prepared, prepared_for
from shoal.jobs.resolve import overridden, resolve_ladder
from shoal.jobs.runs import find_run, read_config, run_folder
from shoal.jobs.runtime import start_jax
from shoal.jobs.trained import trained
from shoal.scaling.ladder import (
    LadderConfig,
    compute_flops,
    num_seeds,
    plan,
    rung_config,
    rung_run,
)
from shoal.scaling.records import Ladder, RungRun, Target
from shoal.scaling.seal import SEAL, ladder_sha256, read_seal
from shoal.train.checks import check
from shoal.train.config import Config

# What a training step reached of this machine's float32 matrix product (benchmarks/train_step.py).
STEP_SHARE = 0.38
_PRODUCT_SIZE = 1024


def ladder(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    rungs: Sequence[int] = (),
    runs: Sequence[str] = (),
    dry_run: bool = False,
) -> dict[str, Any]:
    """Plan a ladder, or train what is missing of it and write its record.

    Args:
        recipe: of a ladder; the name of the target's recipe will do.
        overrides: for every rung, and for the target.
        rungs: widths; the recipe's by default.
        runs: finished runs that take the place of rungs with their config, wherever they are.
        dry_run: train nothing; return the plan.

    Returns:
        `name`, `rows` (the plan, with `seconds` on this machine); unless it is a dry run also
        `ladder` (the file), `runs` and `reused`.

    Raises:
        ValueError: no such ladder or rung; a given run is none of its rungs, or is not finished.
    """
    found = _overridden(resolve_ladder(recipe), overrides)
    widths = tuple(sorted(rungs)) or found.widths
    rows = plan(found, widths)
    rate = machine_flops_per_s() * STEP_SHARE
    for row in rows:
        row["seconds"] = row["runs"] * row["flops"] / rate
    planned = {"name": found.name, "rows": rows}
    if dry_run:
        return planned
    start_jax(home())
    progress = progress_for()
    prepared = prepared_for(found.target, progress)
    gathered, reused = climb(found, prepared, progress, widths=widths, runs=runs)
    path = write_ladder(gathered)
    name = found.name
    progress.note(f"{path}; next: `shoal forecast {name}`, then `shoal seal {name}`")
    made = [one.run for one in gathered.runs]
    return {**planned, "ladder": str(path), "runs": made, "reused": reused}


def climb(
    found: LadderConfig,
    prepared: Prepared,
    progress: Progress,
    *,
    widths: Sequence[int] = (),
    runs: Sequence[str] = (),
) -> tuple[Ladder, bool]:
    """Train what is missing of a ladder; says whether nothing was.

    Raises:
        ValueError: as `ladder`.
    """
    given = {fingerprint(read_config(folder)): folder for folder in map(find_run, runs)}
    if any(prepared.heldout.values()):
        contamination(prepared.corpus.ref, ())  # a table for the seal
    made: list[RungRun] = []
    reused: list[bool] = []
    for width in widths or found.widths:
        for seed in range(num_seeds(found, width)):
            config = rung_config(found, width, seed)
            check(config)
            folder = given.pop(fingerprint(config), None)
            if folder is None:
                folder = run_folder(config.name)
                done, _ = trained(config, folder, prepared, progress)
                reused.append(done["reused"])
                _forget_programs()
            else:
                _finished(folder, config)
            made.append(record_of(found, config, folder))
    if given:
        odd = next(iter(given.values()))
        raise ValueError(f"run {odd} is no rung of ladder {found.name}: {_nearest(found, odd)}")
    gathered = Ladder(
        name=found.name,
        metric=found.metric,
        runs=tuple(made),
        target=target_of(found),
        conditions=conditions(found.target, prepared),
    )
    return gathered, all(reused)


def write_ladder(found: Ladder) -> Path:
    """Write `ladder.json` where `forecast` and `seal` look for it.

    Raises:
        ValueError: another one is sealed there.
    """
    path = home() / FORECASTS / found.name / LADDER
    seal = path.with_name(SEAL)
    if seal.is_file():
        own = ladder_sha256(Ladder.parse(found.plain()))
        if own != read_seal(seal).ladder_sha256:
            raise ValueError(
                f"{path} is sealed and would change: its runs are not what they were; give the"
                " ladder another name, or put the runs back"
            )
    write_atomic(path, json.dumps(found.plain(), indent=1) + "\n")
    return path


def target_of(ladder: LadderConfig) -> Target:
    """The run that a ladder foretells."""
    config = ladder.target
    return Target(
        name=config.name,
        fingerprint=fingerprint(config),
        width=config.model.embed_dim,
        tokens=config.train.tokens,
        flops=compute_flops(ladder, config),
    )


def record_of(ladder: LadderConfig, config: Config, folder: Path) -> RungRun:
    """What a run's folder says of it."""
    evals = [json.loads(path.read_text()) for path in sorted((folder / EVALS).glob("*.json"))]
    seconds = [
        e["seconds"] for e in read_events(folder) if e["kind"] == "finish" and "seconds" in e
    ]
    return rung_run(
        ladder,
        config,
        run=folder.name,
        fingerprint=fingerprint(config),
        seconds=sum(filter(None, seconds)) or None,
        evals=evals,
        metrics=read_metrics(folder),
    )


def conditions(config: Config, prepared: Prepared) -> dict[str, Any]:
    """What a forecast's metric is measured under, exactly."""
    return {
        "sequence_tokens": config.eval.sequence_tokens,
        "drops": "none: an evaluation carries every token to every expert that it chose",
        "windows": "every token once, from the tokens of its own document within one window",
        "tokenizer_sha256": sha256_file(prepared.tokenizer_path),
        "corpus": prepared.corpus.ref,
        "sets": {
            f"{name}/{domain}": {
                "sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
                "documents": len(texts),
                "bytes": sum(len(text.encode()) for text in texts),
            }
            for name, domains in scored_texts(config, prepared).items()
            for domain, texts in domains.items()
        },
    }


def machine_flops_per_s() -> float:
    """The best of a few float32 matrix products on this machine's processor."""
    import numpy as np

    one = np.ones((_PRODUCT_SIZE, _PRODUCT_SIZE), np.float32)
    best, until = float("inf"), time.perf_counter() + 0.5
    while time.perf_counter() < until:
        began = time.perf_counter()
        _ = one @ one
        best = min(best, time.perf_counter() - began)
    return 2 * _PRODUCT_SIZE**3 / best


def _overridden(found: LadderConfig, overrides: Sequence[str]) -> LadderConfig:
    if not overrides:
        return found
    return dataclasses.replace(
        found,
        rung=lambda width: overridden(found.rung(width), overrides),
        target=overridden(found.target, overrides),
    )


def _finished(folder: Path, config: Config) -> None:
    path = folder / EVALS / f"{config.train.num_steps}.json"
    if not path.is_file():
        raise ValueError(
            f"run {folder} has no evaluation at its last step {config.train.num_steps}; finish it"
            " with `shoal train`, then `shoal eval`"
        )


def _nearest(ladder: LadderConfig, folder: Path) -> str:
    config = read_config(folder)
    widths = [width for width in ladder.widths if width == config.model.embed_dim]
    if not widths:
        return f"its width is {config.model.embed_dim}, the rungs' are {list(ladder.widths)}"
    odd = [d for d in diff(config, rung_config(ladder, widths[0])) if d.kind == "identity"]
    return f"{odd[0].path} is {odd[0].before!r}, not {odd[0].after!r}"


def _forget_programs() -> None:
    import jax

    jax.clear_caches()  # every rung compiles its own programs: they would stay in memory


def render(found: dict[str, Any]) -> str:
    """Return the plan for a terminal."""
    head = (
        "rung", "runs", "layers", "batch", "steps", "tokens", "active", "total", "FLOPs",
        "no head", "share", "muon_lr", "adam_lr", "beta2", "eps", "time here",
    )  # fmt: skip
    rows = [head, *(_row(row) for row in found["rows"])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if "ladder" in found:
        lines += ["", f"{len(found['runs'])} runs in {found['ladder']}"]
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        str(row["runs"]),
        str(row["layers"]),
        f"{row['batch_sequences']:,}",
        f"{row['steps']:,}",
        _short(row["tokens"]),
        _short(row["active"]),
        _short(row["total"]),
        f"{row['flops']:.3g}",
        f"{row['flops_without_head']:.4g}",
        f"{row['share']:.2%}",
        f"{row['muon_lr']:.4g}",
        f"{row['adam_lr']:.4g}",
        f"{row['beta2']:.4g}",
        f"{row['eps']:.3g}",
        _spell_time(row["seconds"]),
    )


def _short(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def _spell_time(seconds: float) -> str:
    for size, unit in ((365 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"
