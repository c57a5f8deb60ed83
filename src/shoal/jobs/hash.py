"""Job `hash`: one digest of a run's newest complete state."""

from typing import Any

from shoal.core.files import home
from shoal.jobs.runs import find_run, read_config
from shoal.jobs.runtime import start_jax
from shoal.train.derive import peak_rates


def hash_run(run: str) -> dict[str, Any]:
    """Restore the newest complete checkpoint and digest its parameters, optimizer, bias and step.

    Raises:
        ValueError: there is no checkpoint, or its bytes are not those that were saved.
    """
    from shoal.train import checkpoint
    from shoal.train.step import abstract_state

    folder = find_run(run)
    config = read_config(folder)
    start_jax(home())
    step = checkpoint.newest(folder)
    state = checkpoint.restore(folder, step, abstract_state(config, peak_rates(config)))
    return {"run": str(folder), "step": step, "digest": checkpoint.digest(checkpoint.census(state))}
