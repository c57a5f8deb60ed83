"""Job `hash`: one digest of a run's newest complete state."""

from typing import Any

from shoal.core.files import home
from shoal.core.progress import progress_for
from shoal.jobs.devices import mesh_or_none
from shoal.jobs.runs import find_run, read_config, restored
from shoal.jobs.runtime import start_jax


def hash_run(run: str) -> dict[str, Any]:
    """Restore the newest complete checkpoint and digest its parameters, optimizer, bias and step.

    Raises:
        ValueError: there is no checkpoint, or its bytes are not those that were saved.
    """
    folder = find_run(run)
    config = read_config(folder)
    start_jax(home())
    from shoal.train.digest import census, digest  # jax loads only after start_jax

    state = restored(folder, config, mesh=mesh_or_none(config, progress_for()))
    return {"run": str(folder), "step": int(state.step), "digest": digest(census(state))}
