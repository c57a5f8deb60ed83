"""`shoal launch`: write the file that a cluster is given. Nothing is submitted."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.arrays.config import degrees
from shoal.core.files import write_atomic
from shoal.jobs.devices import check_degrees
from shoal.jobs.resolve import resolve
from shoal.plan.launch import MARK, Launch, jobset, skypilot, slurm

_WRITERS: dict[str, tuple[Callable[[Launch], str], str]] = {
    "slurm": (slurm, "sbatch"),
    "jobset": (jobset, "kubectl apply -f"),
    "skypilot": (skypilot, "sky jobs launch"),
}


def launch(
    cluster: str,
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    nodes: int,
    gpus_per_node: int,
    run: str | None = None,
    name: str | None = None,
    out: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the file's text and what to do with it; with `out`, write it there.

    Args:
        cluster: slurm, jobset or skypilot.
        name: of the job; the run's by default.
        options: further fields of `shoal.plan.launch.Launch`.

    Raises:
        ValueError: the recipe, its mesh on so many devices, or an option is wrong; or `out` is
            there and not from here.
    """
    if cluster not in _WRITERS:
        raise ValueError(f"unknown cluster {cluster!r}; use one of {', '.join(_WRITERS)}")
    config = resolve(recipe, overrides)
    run = run or config.name
    job = Launch(
        recipe=recipe,
        run=run,
        overrides=tuple(overrides),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        name=name or _label(run),
        **options,
    )
    mesh = degrees(config.mesh, nodes * gpus_per_node)
    check_degrees(config, mesh)
    write, submit = _WRITERS[cluster]
    text = write(job)
    if out is not None:
        _check_ours(out)
        write_atomic(out, text)
    return {
        "cluster": cluster,
        "run": run,
        "devices": nodes * gpus_per_node,
        "mesh": dict(mesh),
        "file": None if out is None else str(out),
        "submit": None if out is None else f"{submit} {out}",
        "text": text,
    }


def render(result: Mapping[str, Any]) -> str:
    """Return the file itself for a terminal or a pipe, or where it is and how it is submitted."""
    if result["file"] is None:
        return str(result["text"]).removesuffix("\n")
    degrees_of = ", ".join(f"{axis} {degree}" for axis, degree in result["mesh"].items())
    return f"{result['devices']} devices: {degrees_of}\nwritten; submit it: {result['submit']}"


def _label(run: str) -> str:
    """Return a run's name as clusters want names: lower case, short, letters, digits, dashes."""
    return re.sub(r"[^a-z0-9]+", "-", Path(run).name.lower()).strip("-")[:40].strip("-") or "shoal"


def _check_ours(out: Path) -> None:
    if out.exists() and MARK not in out.read_text(errors="replace")[:200]:
        raise ValueError(f"{out} is there already and not from here; choose another --out")
