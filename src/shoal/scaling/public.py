"""The public 535B run's ladder and forecast, as far as its record prints them.

`public-535b.json` holds what was assumed, forecast and seen; sizes and losses of the rungs are
those of the recipes and come from the caller.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from shoal.scaling.forecast import Forecast, forecast, rounded
from shoal.scaling.outcome import equivalent, score
from shoal.scaling.records import FRACTIONS, Ladder, RungRun, Target

NAME = "public-535b"


def public_record() -> dict[str, Any]:
    """What `public-535b.json` says."""
    return json.loads(files("shoal.scaling").joinpath(f"{NAME}.json").read_text())


def public_ladder(rungs: Mapping[str, Mapping[str, Any]]) -> Ladder:
    """The three finished rungs and the flagship.

    Args:
        rungs: the published sizes and losses: name -> `embed_dim batch_sequences sequence_tokens
            steps flops_without_head loss loss_source`.
    """
    record = public_record()
    before_end: tuple[float | None, ...] = (None,) * (len(FRACTIONS) - 1)
    target = rungs[record["target"]]
    return Ladder(
        name=NAME,
        metric=record["metric"],
        runs=tuple(
            RungRun(
                rung=name,
                run=f"{name}: {rungs[name]['loss_source']}",
                fingerprint="",
                seed=0,
                width=rungs[name]["embed_dim"],
                tokens=_tokens(rungs[name]),
                flops=float(rungs[name]["flops_without_head"]),
                seconds=None,
                series={record["metric"]: (*before_end, float(rungs[name]["loss"]))},
                health={},
            )
            for name in record["rungs"]
        ),
        target=Target(
            name=record["target"],
            fingerprint="",
            width=target["embed_dim"],
            tokens=_tokens(target),
            flops=float(target["flops_without_head"]),
        ),
        conditions=record["conditions"],
    )


def public_check(ladder: Ladder, found: Forecast) -> dict[str, Any]:
    """The forecast held against what was published and seen.

    Returns:
        `fitted` at the rungs, `published`, `range` (E -> center), `outcomes` scored, and
        `mixture_swap`: the compute-equivalent speedup, at the ends of the range too.
    """
    record, law = public_record(), found.headline
    swap = record["mixture_swap"]
    ends = {value: forecast(ladder, asymptote=value).headline for value in record["range"]}
    speedups = [
        equivalent(one.E[-1] or 0.0, one.alpha[-1] or 0.0, swap["before"], swap["after"])
        for one in (law, *ends.values())
    ]
    central, *others = [None if value is None else rounded(value) for value in speedups]
    return {
        "fitted": {run.rung: fitted(found, run.flops) for run in ladder.runs},
        "published": record["published"],
        "range": {str(value): one.central[-1] for value, one in ends.items()},
        "outcomes": {
            name: {**score(law, one["value"]), "source": one["source"]}
            for name, one in record["outcomes"].items()
        },
        "mixture_swap": {**swap, "speedup": central, "over_range": others},
    }


def fitted(found: Forecast, flops: float) -> float | None:
    """The headline's law at the end of a run of this size."""
    law = found.headline
    asymptote, scale, alpha = law.E[-1], law.A[-1], law.alpha[-1]
    if asymptote is None or scale is None or alpha is None:
        return None
    return rounded(asymptote + scale * flops**-alpha)


def _tokens(rung: Mapping[str, Any]) -> int:
    return rung["batch_sequences"] * rung["sequence_tokens"] * rung["steps"]
