"""Replays of a run's batches from one of its checkpoints, under its own settings and others.

Nothing of the run changes: no checkpoint, no metric; what a replay finds is written beside them.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.config import Difference, diff
from shoal.core.files import home
from shoal.core.progress import Progress, progress_for
from shoal.data.load import TokenStore, batch_at
from shoal.jobs.devices import Devices, devices_of
from shoal.jobs.place import recognize
from shoal.jobs.prepare import prepare
from shoal.jobs.resolve import overridden
from shoal.jobs.runs import check_corpus, find_run, read_config, restored
from shoal.jobs.runtime import start_jax
from shoal.jobs.train import order_of, store_of
from shoal.train.checks import check
from shoal.train.config import Config
from shoal.train.cutover import Arm
from shoal.train.derive import peak_rates


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two settings, ready to run; `batch` gives the batch of a step's index."""

    config: Config
    devices: Devices
    batch: Callable[[int], Any]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A run, a checkpoint of it, and the two settings."""

    folder: Path
    step: int
    differences: list[Difference]
    old: Side
    new: Side
    progress: Progress


def prepare_replay(run: str, overrides: Sequence[str], step: int | None, num_steps: int) -> Replay:
    """Make a replay of a run's own settings and of the overridden ones.

    Raises:
        ValueError: no such run or checkpoint; nothing differs, or what makes the run what it is
            does; the replay would go past the end of the run.
    """
    from shoal.train import checkpoint

    place = recognize(os.environ)
    if place.count > 1:
        raise ValueError(
            f"a replay runs in one process, and this is {place.origin}; start it on one host, whose"
            " devices make up the mesh"
        )
    folder, progress = find_run(run), progress_for()
    before = read_config(folder)
    after = overridden(before, overrides)
    check(after)
    differences = [found for found in diff(before, after) if found.path != "notes"]
    fixed = [found for found in differences if found.kind == "identity"]
    if fixed:
        raise ValueError(
            f"{fixed[0].path} cannot change within run {folder.name}: it makes the run what it is;"
            " replay a change of numerics (moe.*, model.remat, train.memory, ...) or of the mesh"
        )
    if not differences:
        raise ValueError("nothing would change; say what with --set, as --set moe.transport=ragged")
    at = checkpoint.newest(folder) if step is None else step
    last = before.train.num_steps
    if num_steps < 1 or at + num_steps > last:
        raise ValueError(
            f"--steps {num_steps} from checkpoint {at}: the run ends at step {last}; use 1 to"
            f" {last - at}" + ("" if at < last else ", or an earlier checkpoint with --step")
        )
    start_jax(home())
    prepared = prepare(before.data.corpus, home(), progress)
    check_corpus(folder, prepared)
    store = store_of(before, prepared.store)
    checkpoint.manifest_of(folder, at)
    old, new = (side_of(config, store) for config in (before, after))
    return Replay(
        folder=folder, step=at, differences=differences, old=old, new=new, progress=progress
    )


def side_of(config: Config, store: TokenStore) -> Side:
    """Lay a config out on this machine's devices, over a store.

    Raises:
        ValueError: its mesh does not fit them.
    """
    from shoal.train.state import global_batch

    devices, order = devices_of(config), order_of(config, store)
    rows, length = config.train.batch_sequences, config.train.sequence_tokens

    def batch(index: int) -> Any:
        return global_batch(
            devices.mesh, rows, length, lambda cut: batch_at(store, order, index, cut)
        )

    return Side(config=config, devices=devices, batch=batch)


def run_side(replay: Replay, side: Side, name: str, num_steps: int) -> Arm:
    """Restore the checkpoint and run steps; the weights are dropped at the end."""
    import jax

    from shoal.train.loop import jitted_step
    from shoal.train.state import shardings
    from shoal.train.step import make_step

    config, mesh = side.config, side.devices.mesh
    peak = peak_rates(config)
    state = restored(replay.folder, config, replay.step, mesh)
    step = jitted_step(make_step(config, peak, mesh), shardings(config, peak, mesh))
    compiled = step.lower(state, side.batch(replay.step)).compile()
    memory = compiled.memory_analysis()
    used = 0 if memory is None else memory.argument_size_in_bytes + memory.temp_size_in_bytes
    metrics, seconds = [], []
    with replay.progress.task(name, num_steps, "steps") as task:
        for index in range(replay.step, replay.step + num_steps):
            batch, begun = side.batch(index), time.perf_counter()
            state, found = compiled(state, batch)
            metrics.append(jax.device_get(found))
            seconds.append(time.perf_counter() - begun)
            task.say(f"loss {float(metrics[-1]['loss']):.4f}")
            task.advance()
    return Arm(
        steps=metrics,
        seconds=seconds,
        tokens_per_step=config.train.tokens_per_step,
        bytes_per_device=used,
    )
