"""A config trained to its end and scored there: what the jobs above single runs are made of."""

import json
from pathlib import Path
from typing import Any

from shoal.core.progress import Progress
from shoal.jobs.evaluate import EVALS, evaluate_at
from shoal.jobs.prepare import Prepared
from shoal.jobs.train import train_config
from shoal.scaling.seal import Seal
from shoal.train.config import Config


def trained(
    config: Config,
    folder: Path,
    prepared: Prepared,
    progress: Progress,
    *,
    seal: Seal | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train and evaluate, going on from whatever of it is done.

    Args:
        seal: as in `train_config`.

    Returns:
        What `train_config` says, with `evaluated_before`; the sets of `evals/STEP.json`.
    """
    done = train_config(config, folder, prepared, progress, seal=seal)
    path = folder / EVALS / f"{done['step']}.json"
    evaluated_before = path.is_file()
    if not evaluated_before:
        evaluate_at(config, folder, prepared, done["step"], progress)
    return {**done, "evaluated_before": evaluated_before}, json.loads(path.read_text())["sets"]
