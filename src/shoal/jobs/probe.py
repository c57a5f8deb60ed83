"""Job `probe`: gradients of two settings on the same batches; nothing is updated or written."""

from collections.abc import Sequence
from typing import Any

from shoal.jobs.replay import Replay, Side, prepare_replay
from shoal.jobs.runs import restored


def probe(
    run: str, overrides: Sequence[str], *, steps: int = 1, step: int | None = None
) -> dict[str, Any]:
    """Compare raw gradients at a checkpoint, over the batches of the `steps` steps after it.

    Returns:
        Per batch, and over all: norms under old and new settings, their ratio and the cosine, per
        optimizer group and per weight. Over all, the gradients of the batches count as one.
    """
    import jax
    import numpy as np

    from shoal.train.probe import compare, products
    from shoal.train.step import describe_model

    replay = prepare_replay(run, overrides, step, steps)
    described = describe_model(replay.old.config)
    gradients = [_gradients(replay, side) for side in (replay.old, replay.new)]
    multiply = jax.jit(products)
    batches, total = [], None
    with replay.progress.task("probe", steps, "batches") as task:
        for index in range(replay.step, replay.step + steps):
            (old, old_loss), (new, new_loss) = (taken(index) for taken in gradients)
            # The two may stand on different meshes.
            new = jax.tree.map(lambda a, b: jax.device_put(b, a.sharding), old, new)
            sums = jax.tree.map(np.asarray, multiply(old, new))
            total = sums if total is None else jax.tree.map(np.add, total, sums)
            found = compare(described, sums)["groups"]
            batches.append({"step": index, "loss": [old_loss, new_loss], "groups": found})
            task.advance()
    return {
        "run": replay.folder.name,
        "step": replay.step,
        "differences": [f"{d.path}: {d.before} -> {d.after}" for d in replay.differences],
        **compare(described, total),
        "batches": batches,
    }


def _gradients(replay: Replay, side: Side) -> Any:
    """Return index -> (gradients of the batch, its loss) under one side's settings."""
    import jax

    from shoal.arrays.mesh import on_device, settled
    from shoal.model.lm import On
    from shoal.train.step import accumulate, describe_model

    config, mesh = side.config, side.devices.mesh
    state = restored(replay.folder, config, replay.step, mesh)
    params, grid = state.params, state.grid
    del state  # moments are not needed

    def taken(params: Any, grid: Any, batch: Any) -> Any:
        gradients, sums, _ = accumulate(
            on_device(params, mesh),
            batch,
            config.model,
            context=config.train.sequence_tokens,
            parts=config.train.accumulation,
            on=On(mesh=mesh, moe=config.moe),
            grid=grid,
        )
        return settled(gradients, describe_model(config), mesh), sums["nats"]

    jitted = jax.jit(taken)

    def at(index: int) -> Any:
        gradients, loss = jitted(params, grid, side.batch(index))
        return gradients, float(loss)

    return at


def render(result: dict[str, Any]) -> str:
    """Return the groups, and the weights that differ most, as lines."""
    head = f"{'':<36} {'old':>12} {'new':>12} {'ratio':>9} {'1 - cosine':>11}"
    changed, count = "; ".join(result["differences"]), len(result["batches"])
    lines = [
        f"run {result['run']}, checkpoint {result['step']}, {count} batches; {changed}",
        "",
        head,
    ]
    furthest = sorted(result["weights"].items(), key=lambda item: item[1]["cosine"])[:5]
    for name, row in [*result["groups"].items(), *furthest]:
        lines.append(
            f"{name:<36} {row['old']:>12.5g} {row['new']:>12.5g} {row['ratio']:>9.5f}"
            f" {1 - row['cosine']:>11.2e}"
        )
    return "\n".join(lines)
