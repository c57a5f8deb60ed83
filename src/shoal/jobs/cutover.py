"""Job `cutover`: the same batches from the same checkpoint under old and new settings; a verdict.

It is written to cutovers/STEP-HASH.json in the run's folder and named by an event. The change is
then made by training on with the new settings and `--change`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.core.config import fingerprint, plain
from shoal.core.files import folder_lock, write_atomic
from shoal.core.record import Record, read_events
from shoal.jobs.replay import Replay, prepare_replay, run_side
from shoal.train.cutover import Limits, verdict

CUTOVERS = "cutovers"


def cutover(
    run: str,
    overrides: Sequence[str],
    *,
    steps: int = 50,
    step: int | None = None,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Replay `steps` steps twice and say go or no-go.

    Args:
        step: the checkpoint, the newest by default.

    Raises:
        ValueError: see `replay.prepare_replay`.
    """
    if steps < 2:
        raise ValueError(f"--steps {steps}: a spread needs 2 or more; tens of steps tell more")
    replay = prepare_replay(run, overrides, step, steps)
    with folder_lock(replay.folder):  # a run in training would delete checkpoints meanwhile
        return _compared(replay, steps, limits or Limits())


def _compared(replay: Replay, steps: int, limits: Limits) -> dict[str, Any]:
    old = run_side(replay, replay.old, "old settings", steps)
    new = run_side(replay, replay.new, "new settings", steps)
    found = verdict(old, new, limits)
    content: dict[str, Any] = {
        "run": replay.folder.name,
        "step": replay.step,
        "steps": steps,
        "differences": json.loads(json.dumps(plain([asdict(d) for d in replay.differences]))),
        "devices": {"old": replay.old.devices.lines, "new": replay.new.devices.lines},
        "losses": {
            name: [float(s["loss"]) for s in arm.steps]
            for name, arm in (("old", old), ("new", new))
        },
        **found,
    }
    kinds = ("identity", "numerics", "placement")
    name = f"{replay.step}-{fingerprint(replay.new.config, kinds)[:12]}.json"
    path = replay.folder / CUTOVERS / name
    attempt = max((event["attempt"] for event in read_events(replay.folder)), default=1)
    with Record.open(replay.folder, attempt=attempt) as record:
        write_atomic(path, json.dumps(content, indent=1))
        record.event(
            "cutover", step=replay.step, steps=steps, go=found["go"], reasons=found["reasons"],
            differences=content["differences"], verdict=f"{CUTOVERS}/{name}",
        )  # fmt: skip
    return {**content, "verdict": str(path)}


def render(result: dict[str, Any]) -> str:
    """Return the verdict as lines."""
    loss, drops, speeds = result["loss"], result["dropped"], result["tokens_per_s"]
    memory = result["bytes_per_device"]
    changed = ", ".join(f"{d['path']} {d['before']} -> {d['after']}" for d in result["differences"])
    low, high = loss["low_95"], loss["high_95"]
    lines = [
        f"{'GO' if result['go'] else 'NO-GO'}: {changed}",
        f"run {result['run']}, {result['steps']} steps from checkpoint {result['step']}, paired",
        "",
        f"loss, new - old   {loss['mean']:+.6f} nats in the mean, 95 % {low:+.6f} to {high:+.6f}",
        f"                  spread {loss['spread']:.6f}, largest {loss['largest']:+.6f}",
    ]
    for group, norms in result["grad_norm"].items():
        lines.append(
            f"gradient norm     {group:<8} {norms['old']:.5g} -> {norms['new']:.5g}"
            f" ({norms['difference']:+.2%})"
        )
    for side, shares in drops.items():
        lines.append(f"dropped           {side:<8} {shares['old']:.4%} -> {shares['new']:.4%}")
    if speeds["old"] and speeds["new"]:
        ratio = speeds["new"] / speeds["old"]
        lines.append(
            f"tokens/s          {speeds['old']:,.0f} -> {speeds['new']:,.0f} ({ratio:.2f}x)"
        )
    lines.append(
        f"memory a device   {memory['old'] / 1e9:.3f} -> {memory['new'] / 1e9:.3f} GB"
        " (arguments and temporaries, as compiled)"
    )
    lines += [f"no-go: {reason}" for reason in result["reasons"]]
    if result["go"]:
        lines.append('to change the run: shoal train RECIPE ... --set ... --change "why"')
    return "\n".join(lines)
