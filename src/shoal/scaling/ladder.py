"""A scaling ladder: small runs that one width decides, and the run that they are to foretell.

A ladder recipe gives a function from a width to a whole config. What makes a rung comparable with
its target is set here, not there: the target's mixture over cells that are repeated as often as the
target repeats them, the target's evaluation, and one for each 5 % of the run (or fewer).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.config import Difference, diff
from shoal.scaling.records import FRACTIONS, HEADLINE, RungRun, Values
from shoal.train.config import Config
from shoal.train.derive import derive, peak_rates

HEALTH = ("grad_norm", "dropped/fraction", "router/entropy", "router/load_max", "z_loss")
NORMS = "weight_norm/"


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
    """What a ladder recipe returns.

    Attributes:
        rung: width -> the run of that width; its seeds are set by whoever trains it.
        widths: of the rungs, in ascending order.
        seeds: width -> how many runs that differ in their seed only; 1 where it is not named.
        metric: the headline series (`scaling.records`).
        evaluations: of a rung, evenly over its steps; the forecast has a value at these only.
        published: count FLOPs as the public ladder does.
    """

    name: str
    rung: Callable[[int], Config]
    widths: tuple[int, ...]
    target: Config
    seeds: Mapping[int, int] = field(default_factory=dict[int, int])
    metric: str = HEADLINE
    evaluations: int = len(FRACTIONS)
    published: bool = False

    def __post_init__(self) -> None:
        if not self.widths or list(self.widths) != sorted(set(self.widths)):
            raise ValueError(f"ladder {self.name}: widths={self.widths}; give them in order, once")
        if self.widths[-1] >= self.target.model.embed_dim:
            raise ValueError(
                f"ladder {self.name}: a rung of width {self.widths[-1]} is no smaller than the"
                f" target's {self.target.model.embed_dim}; drop it"
            )


def rung_name(width: int) -> str:
    """What records call the rung of a width."""
    return f"d{width}"


def rung_config(ladder: LadderConfig, width: int, seed: int = 0) -> Config:
    """The run of a rung with a seed, ready to train.

    Raises:
        ValueError: it reads another corpus than the target, or is scored otherwise.
    """
    made, target = ladder.rung(width), ladder.target
    config = dataclasses.replace(
        made,
        name=f"{ladder.name}-{rung_name(width)}-seed{seed}",
        data=dataclasses.replace(
            made.data,
            mix=target.data.mix,
            seed=seed,
            simulated_tokens=max(target.train.tokens, made.train.tokens),
        ),
        train=dataclasses.replace(made.train, seed=seed),
        eval=dataclasses.replace(
            made.eval, every_steps=max(1, made.train.num_steps // ladder.evaluations)
        ),
        notes={**made.notes, **_NOTES},
    )
    for path, one, other in (
        ("data.corpus", config.data.corpus, target.data.corpus),
        ("eval", config.eval, target.eval),
    ):
        odd = [found for found in diff(one, other) if _matters(found)]
        if odd:
            raise ValueError(
                f"ladder {ladder.name}: {path}.{odd[0].path} is {odd[0].before!r} on the rung of"
                f" width {width} and {odd[0].after!r} on the target; a rung differs in size alone"
            )
    return config


_NOTES = {
    "name": "derived: ladder, width and seed",
    "data.mix.*": "derived: the target's",
    "data.seed": "derived: the rung's seed",
    "data.simulated_tokens": "derived: the target's tokens",
    "train.seed": "derived: the rung's seed",
    "eval.every_steps": "derived: as often as the ladder evaluates a run",
}


def _matters(found: Difference) -> bool:
    """Units follow the longest context that a run plans, and cut the same text."""
    return found.kind == "identity" and found.path != "unit_tokens"


def plan(ladder: LadderConfig, widths: Sequence[int] = ()) -> list[dict[str, Any]]:
    """One row per rung and one for the target: size, rates and compute, from the configs alone.

    `flops` are with the head, `flops_without_head` the axis of the law; `share` is of the target's
    compute, all seeds of the rung together; `seconds` is left to whoever knows the machine.
    """
    chosen = [rung_config(ladder, width) for width in widths or ladder.widths]
    whole = _flops(ladder, ladder.target)["flops"]
    rows: list[dict[str, Any]] = []
    for config in [*chosen, ladder.target]:
        model, train, flops = config.model, config.train, _flops(ladder, config)
        is_target = config is ladder.target
        num_runs = 1 if is_target else num_seeds(ladder, model.embed_dim)
        rates = peak_rates(config)
        rows.append(
            {
                "name": ladder.target.name if is_target else rung_name(model.embed_dim),
                "target": is_target,
                "runs": num_runs,
                "width": model.embed_dim,
                "layers": model.num_layers,
                "heads": model.num_heads,
                "kv_heads_local": model.kv_heads_local,
                "kv_heads_global": model.kv_heads_global,
                "batch_sequences": train.batch_sequences,
                "sequence_tokens": train.sequence_tokens,
                "steps": train.num_steps,
                "tokens": train.tokens,
                "active": derive(config)["active"],
                "total": derive(config)["published_total"],
                **flops,
                "share": num_runs * flops["flops"] / whole,
                "muon_lr": rates.muon_lr,
                "adam_lr": rates.adam_lr,
                "beta2": rates.beta2,
                "eps": rates.eps,
            }
        )
    return rows


def num_seeds(ladder: LadderConfig, width: int) -> int:
    """How many runs a rung has."""
    return ladder.seeds.get(width, 1)


def compute_flops(ladder: LadderConfig, config: Config) -> float:
    """The law's axis: FLOPs of the whole run without the head, as the ladder counts them."""
    return _flops(ladder, config)["flops_without_head"]


def _flops(ladder: LadderConfig, config: Config) -> dict[str, float]:
    found, kind = derive(config), "_published" if ladder.published else ""
    return {
        "flops": float(found[f"flops{kind}"]),
        "flops_without_head": float(found[f"flops{kind}_without_head"]),
    }


def series_of(evals: Sequence[Mapping[str, Any]], num_steps: int) -> dict[str, Values]:
    """Series from the contents of a run's `evals/STEP.json`: SET/DOMAIN/MEASURE -> values.

    Between two evaluations a value is interpolated over the steps; before the first and after the
    last there is none.
    """
    points: dict[str, dict[int, float]] = {}
    for content in evals:
        step = int(content["step"])
        for name, one in content["sets"].items():
            for domain, scores in [*one["domains"].items(), ("macro", one["macro"])]:
                for measure in ("loss", "bpb"):
                    points.setdefault(f"{name}/{domain}/{measure}", {})[step] = scores[measure]
    return {name: _at_fractions(found, num_steps) for name, found in sorted(points.items())}


def health_of(lines: Sequence[Mapping[str, Any]], num_steps: int) -> dict[str, Values]:
    """Medians of what training logged over each 5 % of its steps; lists count by their mean."""
    names = sorted(
        {name for line in lines for name in line if name in HEALTH or name.startswith(NORMS)}
    )
    width = num_steps / len(FRACTIONS)
    found: dict[str, list[list[float]]] = {name: [[] for _ in FRACTIONS] for name in names}
    for line in lines:
        place = min(int((int(line["step"]) - 1) / width), len(FRACTIONS) - 1)
        for name in names:
            if name in line:
                found[name][place].append(_mean(line[name]))
    return {
        name: tuple(sorted(part)[len(part) // 2] if part else None for part in parts)
        for name, parts in found.items()
    }


def rung_run(
    ladder: LadderConfig,
    config: Config,
    *,
    run: str,
    fingerprint: str,
    seconds: float | None,
    evals: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
) -> RungRun:
    """The record of a run, finished or not, as forecasts read it."""
    return RungRun(
        rung=rung_name(config.model.embed_dim),
        run=run,
        fingerprint=fingerprint,
        seed=config.train.seed,
        width=config.model.embed_dim,
        tokens=config.train.tokens,
        flops=compute_flops(ladder, config),
        seconds=seconds,
        series=series_of(evals, config.train.num_steps),
        health=health_of(metrics, config.train.num_steps),
    )


def _at_fractions(points: Mapping[int, float], num_steps: int) -> Values:
    steps = sorted(points)
    found: list[float | None] = []
    for fraction in FRACTIONS:
        step = fraction * num_steps
        before = [known for known in steps if known <= step + 1e-9]
        after = [known for known in steps if known >= step - 1e-9]
        if not before or not after:
            found.append(None)
            continue
        low, high = before[-1], after[0]
        weight = (step - low) / (high - low) if high > low else 0.0
        found.append((1 - weight) * points[low] + weight * points[high])
    return tuple(found)


def _mean(value: Any) -> float:
    if isinstance(value, list):
        flat = [_mean(item) for item in value]
        return sum(flat) / len(flat)
    return float(value)
