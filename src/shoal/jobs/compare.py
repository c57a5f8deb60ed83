"""Job `compare`: what B saves against A, in compute and in time, for the same loss.

A ladder has a law, so a loss becomes compute. Two runs have none: with a third ladder's law they
do, and without one their losses are compared at equal tokens, FLOPs and seconds.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.core.files import read_limited
from shoal.core.record import read_metrics
from shoal.jobs.forecast import NAME, find_ladder, parse_asymptote, public
from shoal.scaling.interval import Asymptote
from shoal.scaling.records import FRACTIONS, HEADLINE, Ladder, RungRun, read_ladder

_LIMIT_BYTES = 2**26
type Side = Ladder | RungRun


def compare(
    first: str, second: str, reference: str | None = None, asymptote: str | None = None
) -> dict[str, Any]:
    """Compare B with A.

    Args:
        first: A: a ladder (a name under SHOAL_HOME/forecasts, a path, `public-535b`) or a run.
        second: B, likewise.
        reference: the ladder whose law turns the losses of two runs into compute.
        asymptote: as for `forecast_ladder`, for every law.

    Returns:
        `a b metric`; `compute` with the speedups where there is a law; `time` with the losses at
        equal time; `runs` with plain differences for two runs; `differs`, the conditions that are
        not the same. What cannot be said stands there as a sentence.

    Raises:
        ValueError: a side does not exist, or the two have no series in common.
    """
    given = None if asymptote is None else parse_asymptote(asymptote)
    a, b = _side(first), _side(second)
    law = None if reference is None else _ladder(reference)
    if law is not None and (isinstance(a, Ladder) or isinstance(b, Ladder)):
        raise ValueError("--ladder is for two runs; a ladder brings its own law")
    metric = _metric([a, b] if law is None else [law, a, b])
    found: dict[str, Any] = {"a": _name(a), "b": _name(b), "metric": metric}
    if isinstance(a, Ladder):
        return {
            **found,
            "compute": _in_compute(a, b, metric, given),
            "time": _in_time(a, b, metric, given),
            "differs": _differs(a, b),
        }
    if isinstance(b, Ladder):
        raise ValueError(
            f"{second} is a ladder and {first} a run; give the ladder first: it is the reference"
        )
    found["runs"] = differences(a, b, metric)
    found["compute"] = (
        "a run has no law: give --ladder LADDER, whose law turns losses into compute"
        if law is None
        else _by_ladder(law, a, b, metric, given)
    )
    return found


def differences(a: RungRun, b: RungRun, metric: str) -> dict[str, Any]:
    """B's loss minus A's at the greatest amount that both reached, in tokens, FLOPs and seconds.

    Between fractions a loss is interpolated in the logarithm of the amount.
    """
    found: dict[str, Any] = {}
    for kind in ("tokens", "flops", "seconds"):
        whole = (getattr(a, kind), getattr(b, kind))
        if None in whole:
            found[kind] = "not recorded for both"
            continue
        curves = [
            _points(run, metric, float(total)) for run, total in zip((a, b), whole, strict=True)
        ]
        low = max(points[0][0] for points in curves)
        high = min(points[-1][0] for points in curves)
        if low > high:
            found[kind] = "the two share no range"
            continue
        at = [_interpolated(points, high) for points in curves]
        found[kind] = {"at": high, "a": at[0], "b": at[1], "difference": at[1] - at[0]}
    return found


def _points(run: RungRun, metric: str, whole: float) -> list[tuple[float, float]]:
    return [
        (fraction * whole, value)
        for fraction, value in zip(FRACTIONS, run.series[metric], strict=True)
        if value is not None
    ]


def _interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    for (low, before), (high, after) in pairwise(points):
        if low <= at <= high:
            weight = math.log(at / low) / math.log(high / low)
            return (1 - weight) * before + weight * after
    return points[0][1] if at <= points[0][0] else points[-1][1]


def _in_compute(a: Ladder, b: Side, metric: str, asymptote: Asymptote) -> dict[str, Any] | str:
    from shoal.scaling.speedup import compared, curve

    reference, other = (curve(_name(side), _runs(side), metric) for side in (a, b))
    if reference is None or other is None or not reference.lawful:
        return "too few finished runs for a law: A needs three rungs, B a run"
    return compared(reference, other, asymptote)


def _in_time(a: Ladder, b: Side, metric: str, asymptote: Asymptote) -> dict[str, Any] | str:
    from shoal.scaling.speedup import at_equal_time, curve

    curves = [curve(_name(side), _runs(side), metric, "seconds") for side in (a, b)]
    reference, other = curves
    if reference is None or other is None:
        return "the wall time of the runs is not on record"
    if not reference.lawful:
        return "fewer than three rungs of A have their wall time on record"
    try:
        return at_equal_time(reference, other, asymptote)
    except ValueError as error:
        return str(error)


def _by_ladder(
    law: Ladder, a: RungRun, b: RungRun, metric: str, asymptote: Asymptote
) -> dict[str, Any] | str:
    """Each run against the law, and the ratio of the two."""
    from shoal.scaling.speedup import curve, ratio

    reference, first, second = (curve(_name(side), _runs(side), metric) for side in (law, a, b))
    if reference is None or not reference.lawful:
        return f"{law.name} has fewer than three finished rungs, too few for a law"
    if first is None or second is None:
        return "a run is not finished: only its end can be held against the law of ends"
    return ratio(reference, first, second, asymptote)


def _side(name: str) -> Side:
    """A ladder where one has the name, else a run."""
    if name == NAME:
        return public()
    try:
        path = find_ladder(name)
    except ValueError:
        return _run(name)
    return read_ladder(path)


def _ladder(name: str) -> Ladder:
    return public() if name == NAME else read_ladder(find_ladder(name))


def _run(name: str) -> RungRun:
    """The record of a run, its evaluations as series."""
    from shoal.jobs.runs import find_run
    from shoal.scaling.ladder import series_of

    folder = find_run(name)
    content = _read(folder / "run.json")
    derived, files = content["derived"], sorted((folder / "evals").glob("*.json"))
    if not files:
        raise ValueError(f"run {folder.name} has no evaluation yet; `shoal eval {folder.name}`")
    steps, lines = int(derived["steps"]), read_metrics(folder)
    timed = [float(line["seconds"]) for line in lines if "seconds" in line]
    return RungRun(
        rung=folder.name,
        run=folder.name,
        fingerprint=content["fingerprint"],
        seed=int(content["config"]["train"]["seed"]),
        width=int(content["config"]["model"]["embed_dim"]),
        tokens=int(derived["tokens"]),
        flops=float(derived["flops_without_head"]),
        seconds=sum(timed) * steps / len(timed) if timed else None,
        series=series_of([_read(path) for path in files], steps),
        health={},
    )


def _read(path: Path) -> Any:
    return json.loads(read_limited(path, _LIMIT_BYTES))


def _runs(side: Side) -> Sequence[RungRun]:
    return side.runs if isinstance(side, Ladder) else [side]


def _name(side: Side) -> str:
    return side.name if isinstance(side, Ladder) else side.run


def _metric(sides: Sequence[Side]) -> str:
    """The first ladder's headline, or the usual one; all sides must have it."""
    metric = next((side.metric for side in sides if isinstance(side, Ladder)), HEADLINE)
    for side in sides:
        known = sorted({name for run in _runs(side) for name in run.series})
        if metric not in known:
            some = ", ".join(known[:6]) or "none"
            raise ValueError(f"{_name(side)} has no series {metric!r}; it has {some}")
    return metric


def _differs(a: Side, b: Side) -> list[str]:
    """Conditions that are not the same on both sides, or known on one alone."""
    if not (isinstance(a, Ladder) and isinstance(b, Ladder)):
        return []
    names = sorted(set(a.conditions) | set(b.conditions))
    return [name for name in names if a.conditions.get(name) != b.conditions.get(name)]


def render(result: Mapping[str, Any]) -> str:
    """Speedups, then losses at equal time, then plain differences."""
    lines = [f"{result['b']} against {result['a']}, {result['metric']}"]
    lines += _compute_lines(result["compute"])
    if "time" in result:
        lines += _time_lines(result["time"])
    for kind, one in result.get("runs", {}).items():
        if isinstance(one, str):
            lines.append(f"  at equal {kind}: {one}")
        else:
            lines.append(
                f"  at {one['at']:.4g} {kind}: {one['a']:.4f} and {one['b']:.4f}"
                f" ({one['difference']:+.4f})"
            )
    if result.get("differs"):
        lines.append(f"  not under the same conditions: {', '.join(result['differs'])}")
    return "\n".join(lines)


def _compute_lines(compute: Mapping[str, Any] | str) -> list[str]:
    if isinstance(compute, str):
        return [f"  compute: {compute}"]
    if "ratio" in compute:
        return [f"  compute-equivalent speedup {_times(compute['ratio'])}"]
    lines = [f"  compute: {compute['why']}"] if compute["why"] else []
    if compute["top"]:
        lines.append(f"  compute-equivalent speedup {_times(compute['top'])}")
    for one in compute["at"]:
        beyond = "" if one["inside"] else "  (beyond A's rungs)"
        lines.append(f"    at {one['amount']:.3g} FLOPs: {_times(one)}{beyond}")
    return lines


def _time_lines(time: Mapping[str, Any] | str) -> list[str]:
    if isinstance(time, str):
        return [f"  equal time: {time}"]
    low, high = time["interval_90"]
    first, second = time["losses"].values()
    return [
        f"  at {time['seconds']:.4g} s: {first:.4f} and {second:.4f}",
        f"    difference {time['difference']:+.4f} (90 %: {low:+.4f} to {high:+.4f})",
        f"    speedup in time {_times(time['speedup'])}",
    ]


def _times(one: Mapping[str, Any]) -> str:
    ends = ["no end" if end is None else f"{end:.2f}x" for end in one["interval_90"]]
    central = "beyond any compute" if one["speedup"] is None else f"{one['speedup']:.2f}x"
    return f"{central} (90 %: {ends[0]} to {ends[1]})"
