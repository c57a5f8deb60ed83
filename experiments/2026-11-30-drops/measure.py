"""Measures what drops do, on eight fake devices, from the runs of `recipe.py`.

    .venv/bin/python experiments/2026-11-30-drops/measure.py

Trains what is missing (five runs of minutes on two cores) and prints every number of NOTE.md. A run
that is finished is reused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "recipe.py"
SHOAL = Path(sys.executable).with_name("shoal")
RUNS = ("base", "shared_whole", "shared_forced", "alone_whole", "alone_forced")
FROM_STEP, REPLAYED = 400, 50
DEVICES = 8


def shoal(*words: str, devices: int = 1) -> dict[str, Any]:
    """Run one verb and return its result."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [SHOAL, *words, "--json"], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "XLA_FLAGS": flags},
    )  # fmt: skip
    return json.loads(done.stdout)


def train() -> None:
    """Train the runs that are not there yet, and score the forced ones."""
    for name in RUNS:
        shoal("train", f"{RECIPE}:{name}")


def transports() -> None:
    """Replay the base run's last batches under pooled and ragged on eight expert shards."""
    import numpy as np

    losses, shares = {}, {}
    for name in ("pooled", "ragged"):
        try:
            found = shoal(
                "cutover", "drops-base", "--step", str(FROM_STEP), "--steps", str(REPLAYED),
                "--set", f"moe.transport={name}", "--set", "mesh.expert=8", "--set", "mesh.data=1",
                devices=DEVICES,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            found = json.loads(error.stdout)  # a no-go has status 1 and says all the same
        losses[name] = np.array(found["losses"]["new"])
        losses["local"] = np.array(found["losses"]["old"])
        shares[name] = found["dropped"]
    for name, drops in shares.items():
        told = ", ".join(f"{side} {row['new']:.4%}" for side, row in drops.items())
        print(f"dropped over {REPLAYED} steps, {name}: {told}")
    for one, other in (("ragged", "pooled"), ("pooled", "local"), ("ragged", "local")):
        gaps = losses[one] - losses[other]
        error = gaps.std(ddof=1) / len(gaps) ** 0.5
        print(f"train loss, {one} - {other}: {gaps.mean():+.5f} nats, standard error {error:.5f}")


def evaluation_and_lengths() -> None:
    """Score the base run's weights with and without drops, and count drops by sequence length."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    import jax
    import numpy as np

    from shoal.arrays.config import AXES
    from shoal.arrays.mesh import make_mesh
    from shoal.core.config import replace
    from shoal.core.files import home
    from shoal.core.progress import Silent
    from shoal.data.load import TokenStore, batch_at
    from shoal.jobs.prepare import prepare
    from shoal.jobs.runs import find_run, read_config, restored
    from shoal.jobs.runtime import start_jax
    from shoal.jobs.train import order_of
    from shoal.model.lm import On, losses
    from shoal.moe.config import MoEConfig
    from shoal.train.state import global_batch

    folder = find_run("drops-base")
    config = read_config(folder)
    start_jax(home())
    store = TokenStore.open(prepare(config.data.corpus, home(), Silent()).store)
    mesh = make_mesh(dict(zip(AXES, (1, 1, DEVICES, 1), strict=True)))
    params = restored(folder, config, FROM_STEP, mesh).params
    context = config.train.sequence_tokens

    def over(transport: str, rows: int, length: int, num_batches: int) -> tuple[float, float]:
        """Mean loss, and share of assignments dropped, over later batches of the run's order."""
        shaped = replace(config, "train.batch_sequences", rows)
        shaped = replace(shaped, "train.sequence_tokens", length)
        order = order_of(shaped, store)
        on = On(mesh=mesh, moe=MoEConfig(transport=transport))

        @jax.jit
        def run(params: Any, batch: Any) -> Any:
            return losses(
                params, batch.inputs, batch.targets, batch.segments, config.model,
                context=context, on=on,
            )  # fmt: skip

        nats, dropped, total = [], 0, 0
        for index in range(500, 500 + num_batches):
            batch = global_batch(
                mesh, rows, length, lambda cut, n=index: batch_at(store, order, n, cut)
            )
            found, stats = jax.device_get(run(params, batch))
            nats.append(found.nats.mean())
            lost = int(np.sum(stats.sender) + np.sum(stats.receiver))
            dropped, total = dropped + lost, total + lost + int(np.sum(stats.delivered))
        return float(np.mean(nats)), dropped / total

    for name in ("local", "pooled", "ragged"):
        loss, share = over(name, 8, context, 40)
        print(f"evaluated on 40 later batches with {name}: {loss:.4f} nats, {share:.4%} dropped")
    for times, rows, length in ((1, 128, 64), (4, 32, 256), (16, 8, 1024)):
        shares = {name: over(name, rows, length, 10)[1] for name in ("pooled", "ragged")}
        told = ", ".join(f"{name} {share:.4%}" for name, share in shares.items())
        print(f"8,192 tokens a step, S x {times} ({rows} rows of {length}): {told}")


def forced() -> None:
    """Print drops, spikes and the last loss of the runs with and without room."""
    import numpy as np

    from shoal.core.record import read_metrics
    from shoal.jobs.runs import find_run

    for name in RUNS[1:]:
        run = f"drops-{name.replace('_', '-')}"
        lines = read_metrics(find_run(run))
        loss = np.array([line["loss"] for line in lines])
        floor = np.array([loss[max(0, i - 20) : i].min() for i in range(21, len(loss))])
        rise = loss[21:] - floor
        dropped = np.mean([line["dropped/fraction"] for line in lines])
        skipped = sum(line["applied"] < 1 for line in lines)
        scored = shoal("eval", run)["sets"]["sources"]["macro"]["bpb"]
        print(
            f"{run:<20} dropped {dropped:.2%}, {skipped} steps skipped, loss of the last 50"
            f" {loss[-50:].mean():.4f}, highest above the 20 before {rise.max():.3f}, dropless"
            f" bits per byte {scored:.4f}"
        )


def main() -> None:
    """Measure all of it; what needs fake devices runs in a process of its own."""
    if sys.argv[1:] == ["--devices"]:
        evaluation_and_lengths()
        return
    train()
    transports()
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, "--devices"], check=True)
    forced()


if __name__ == "__main__":
    main()
