"""The verdict on a change of a live run: two replays of the same batches from one checkpoint.

Losses are paired by step, so what is common to both (the batch, the state) cancels. Thresholds are
of the size that a change of transport or kernel may have and a corrupted restore has not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom, then the normal's.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_Z95 = 1.96

type Steps = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a go may not exceed.

    Attributes:
        loss: nats that the mean paired difference may be above zero.
        loss_step: nats that one step may be above.
        grad_norm: relative distance of a group's gradient norms, in the mean.
        dropped: by how much the share of dropped assignments may rise.
        speed: by how much tokens/s may fall, relative.
    """

    loss: float = 1e-3
    loss_step: float = 2e-2
    grad_norm: float = 0.1
    dropped: float = 1e-3
    speed: float = 0.05


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One replay: its metrics by step, seconds of every step, bytes per device.

    The first step's seconds hold what it takes to begin and are left out of the speed.
    """

    steps: Steps
    seconds: Sequence[float]
    tokens_per_step: int
    bytes_per_device: int

    @property
    def tokens_per_s(self) -> float | None:
        timed = self.seconds[1:]
        return self.tokens_per_step / float(np.median(timed)) if timed else None

    def mean(self, name: str) -> float:
        return float(np.mean([np.mean(step[name]) for step in self.steps]))


def verdict(old: Arm, new: Arm, limits: Limits) -> dict[str, Any]:
    """Compare two replays; `go` is whether no limit is passed, `reasons` those that are."""
    gaps = np.array(
        [float(b["loss"]) - float(a["loss"]) for a, b in zip(old.steps, new.steps, strict=True)]
    )
    groups = sorted(name for name in old.steps[0] if name.startswith("grad_norm"))
    norms = {
        name.partition("/")[2] or "all": {
            "old": old.mean(name),
            "new": new.mean(name),
            "difference": _relative(new.mean(name), old.mean(name)),
        }
        for name in groups
    }
    drops = {
        side: {"old": _share(old, side), "new": _share(new, side)}
        for side in ("sender", "receiver", "all")
    }
    speeds = {"old": old.tokens_per_s, "new": new.tokens_per_s}
    applied = [min(float(step["applied"]) for step in arm.steps) for arm in (old, new)]
    found = {
        "loss": _paired(gaps),
        "grad_norm": norms,
        "dropped": drops,
        "tokens_per_s": speeds,
        "bytes_per_device": {"old": old.bytes_per_device, "new": new.bytes_per_device},
        "limits": asdict(limits),
    }
    reasons = _reasons(found, gaps, applied[1] < 1.0, limits)
    return {"go": not reasons, "reasons": reasons, **found}


def _paired(gaps: np.ndarray) -> dict[str, float]:
    """Return mean, spread and 95 % interval of new minus old."""
    count = len(gaps)
    assert count > 1, "a spread needs two pairs"
    spread = float(np.std(gaps, ddof=1))
    t = _T95[count - 2] if count < len(_T95) + 2 else _Z95
    half = t * spread / math.sqrt(count)
    mean = float(np.mean(gaps))
    return {
        "mean": mean,
        "spread": spread,
        "low_95": mean - half,
        "high_95": mean + half,
        "largest": float(gaps[np.argmax(np.abs(gaps))]),
    }


def _share(arm: Arm, side: str) -> float:
    """Return the share of all assignments of real tokens that a gate dropped."""
    sides = ("sender", "receiver") if side == "all" else (side,)
    dropped = sum(float(np.sum(step[f"dropped/{s}"])) for step in arm.steps for s in sides)
    both = ("dropped/sender", "dropped/receiver", "delivered")
    total = sum(float(np.sum(step[name])) for step in arm.steps for name in both)
    return dropped / total if total else 0.0


def _relative(new: float, old: float) -> float:
    if old:
        return (new - old) / old
    return math.copysign(math.inf, new) if new else 0.0


def _reasons(
    found: Mapping[str, Any], gaps: np.ndarray, skipped: bool, limits: Limits
) -> list[str]:
    reasons = []
    if not np.all(np.isfinite(gaps)) or skipped:
        reasons.append("a step was not applied, or its loss is not finite")
    mean, worst = found["loss"]["mean"], float(np.max(gaps))
    if not mean <= limits.loss:
        reasons.append(f"the loss is {mean:+.5f} nats in the mean, above {limits.loss:g}")
    if not worst <= limits.loss_step:
        reasons.append(f"the loss of a step is {worst:+.5f} nats, above {limits.loss_step:g}")
    for group, norms in found["grad_norm"].items():
        if not abs(norms["difference"]) <= limits.grad_norm:
            reasons.append(
                f"the gradient norm of {group} is {norms['difference']:+.1%}, beyond"
                f" {limits.grad_norm:.1%}"
            )
    drops = found["dropped"]["all"]
    if drops["new"] - drops["old"] > limits.dropped:
        reasons.append(
            f"{drops['new']:.3%} of the assignments are dropped, {drops['old']:.3%} before: more"
            f" than {limits.dropped:.3%} above"
        )
    old, new = found["tokens_per_s"]["old"], found["tokens_per_s"]["new"]
    if old and new and new < old * (1.0 - limits.speed):
        reasons.append(f"{new:,.0f} tokens/s, {_relative(new, old):+.1%} of {old:,.0f}")
    return reasons
