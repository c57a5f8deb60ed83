"""What a ladder's runs left: the values that a forecast is made from.

A ladder is one file, `ladder.json`: `Ladder.plain()` as JSON. Series are named SET/DOMAIN/MEASURE
or SET/macro/MEASURE, MEASURE being `loss` (nats a token) or `bpb` (bits per byte), and hold a value
at each of `FRACTIONS` of the run, None where it is missing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from shoal.core.files import read_limited

FRACTIONS = tuple(round(0.05 * step, 2) for step in range(1, 21))
HEADLINE = "sources/macro/bpb"
LIMIT_BYTES = 2**26

type Values = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class RungRun:
    """One run of one rung; runs of the same rung differ in their seed only.

    Attributes:
        rung: such as `w64`.
        run: the run's folder, or where its figures were published.
        fingerprint: of its config; empty where only figures were published.
        tokens: of the whole run.
        flops: of the whole run, without the head.
        seconds: of training, wall time; None where it is not known.
        series: evaluation series -> value at each fraction.
        health: gradient norm, drops, router entropy, norms: the same.
    """

    rung: str
    run: str
    fingerprint: str
    seed: int
    width: int
    tokens: int
    flops: float
    seconds: float | None
    series: Mapping[str, Values]
    health: Mapping[str, Values]

    def __post_init__(self) -> None:
        """Checks sizes and values."""
        _check_size(self.run, tokens=self.tokens, flops=self.flops)
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(
                f"run {self.run}: seconds={self.seconds}; give a time above 0, or null"
            )
        for kind in ("series", "health"):
            for name, values in getattr(self, kind).items():
                _check_values(f"run {self.run}: {kind} {name!r}", values)
        for name, values in self.series.items():
            if any(value is not None and value <= 0 for value in values):
                raise ValueError(
                    f"run {self.run}: series {name!r} has a value of 0 or less; losses are above 0"
                )


@dataclass(frozen=True, kw_only=True)
class Target:
    """The run that is forecast; `flops` without the head, `tokens` of the whole run."""

    name: str
    fingerprint: str
    width: int
    tokens: int
    flops: float

    def __post_init__(self) -> None:
        """Checks its size."""
        _check_size(self.name, tokens=self.tokens, flops=self.flops)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The runs of all rungs, and what they are to foretell.

    Attributes:
        metric: the headline series.
        conditions: what the values hold under: sequence length, drop rule, tokenizer, hashes.
    """

    name: str
    metric: str
    runs: tuple[RungRun, ...]
    target: Target
    conditions: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Checks that runs of a rung are of one size, and rungs of different ones."""
        sizes: dict[str, tuple[int, int, float]] = {}
        for run in self.runs:
            size = (run.width, run.tokens, run.flops)
            if sizes.setdefault(run.rung, size) != size:
                raise ValueError(
                    f"ladder {self.name}: run {run.run} has (width, tokens, FLOPs) {size}, another"
                    f" of rung {run.rung} {sizes[run.rung]}; runs of a rung differ in the seed only"
                )
        compute = [size[2] for size in sizes.values()]
        if len(set(compute)) < len(compute):
            raise ValueError(f"ladder {self.name}: two rungs have the same FLOPs; name them alike")
        runs = [run.run for run in self.runs]
        twice = sorted({name for name in runs if runs.count(name) > 1})
        if twice:
            raise ValueError(f"ladder {self.name}: run {twice[0]} stands in it twice")
        if not any(self.metric in run.series for run in self.runs):
            known = sorted({name for run in self.runs for name in run.series})
            raise ValueError(f"ladder {self.name}: no run has series {self.metric!r}, only {known}")

    def plain(self) -> dict[str, Any]:
        """What `ladder.json` says."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))

    @classmethod
    def parse(cls, tree: Any, place: str = "ladder") -> "Ladder":
        """The ladder of a JSON value.

        Raises:
            ValueError: something is missing, unknown or of the wrong kind; the message says where.
        """
        found = _object(cls, tree, place)
        runs = found["runs"]
        if not isinstance(runs, list):
            raise ValueError(f"{place}.runs is {_kind(runs)}; give a list")
        if not isinstance(found["conditions"], dict):
            raise ValueError(f"{place}.conditions is {_kind(found['conditions'])}; give an object")
        return cls(
            name=_text(found["name"], f"{place}.name"),
            metric=_text(found["metric"], f"{place}.metric"),
            runs=tuple(_run(run, f"{place}.runs[{number}]") for number, run in enumerate(runs)),
            target=_target(found["target"], f"{place}.target"),
            conditions=found["conditions"],
        )


def read_ladder(path: Path) -> Ladder:
    """The ladder of a file.

    Raises:
        ValueError: it cannot be read, or is no ladder.
    """
    return Ladder.parse(read_json(path), str(path))


def read_json(path: Path) -> Any:
    """The JSON value of a file.

    Raises:
        ValueError: it cannot be read, is no JSON, or holds a number that is not finite.
    """
    try:
        return json.loads(read_limited(path, LIMIT_BYTES), parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _refuse(spelled: str) -> Any:
    raise ValueError(f"it holds {spelled}; write null where a value is missing")


def _run(tree: Any, place: str) -> RungRun:
    found = _object(RungRun, tree, place)
    seconds = found["seconds"]
    return RungRun(
        rung=_text(found["rung"], f"{place}.rung"),
        run=_text(found["run"], f"{place}.run"),
        fingerprint=_text(found["fingerprint"], f"{place}.fingerprint"),
        seed=_whole(found["seed"], f"{place}.seed"),
        width=_whole(found["width"], f"{place}.width"),
        tokens=_whole(found["tokens"], f"{place}.tokens"),
        flops=_number(found["flops"], f"{place}.flops"),
        seconds=None if seconds is None else _number(seconds, f"{place}.seconds"),
        series=_all_values(found["series"], f"{place}.series"),
        health=_all_values(found["health"], f"{place}.health"),
    )


def _target(tree: Any, place: str) -> Target:
    found = _object(Target, tree, place)
    return Target(
        name=_text(found["name"], f"{place}.name"),
        fingerprint=_text(found["fingerprint"], f"{place}.fingerprint"),
        width=_whole(found["width"], f"{place}.width"),
        tokens=_whole(found["tokens"], f"{place}.tokens"),
        flops=_number(found["flops"], f"{place}.flops"),
    )


def _all_values(tree: Any, place: str) -> dict[str, Values]:
    if not isinstance(tree, dict):
        raise ValueError(f"{place} is {_kind(tree)}; give an object")
    found: dict[str, Values] = {}
    for name, values in tree.items():
        if not isinstance(values, list):
            raise ValueError(f"{place}.{name} is {_kind(values)}; give a list")
        found[name] = tuple(
            None if value is None else _number(value, f"{place}.{name}[{number}]")
            for number, value in enumerate(values)
        )
        _check_values(f"{place}.{name}", found[name])
    return found


def _object(kind: type, tree: Any, place: str) -> dict[str, Any]:
    """The object of a dataclass: exactly its fields."""
    if not isinstance(tree, dict):
        raise ValueError(f"{place} is {_kind(tree)}; give an object")
    wanted = {field.name for field in fields(kind)}
    if missing := sorted(wanted - set(tree)):
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    if unknown := sorted(set(tree) - wanted):
        raise ValueError(f"{place} has {', '.join(unknown)}, which mean nothing here; remove them")
    return tree


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{place} is {_kind(value)}; give a text")
    return value


def _whole(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{place} is {_kind(value)}; give a whole number")
    return value


def _number(value: Any, place: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{place} is {_kind(value)}; give a finite number")
    return float(value)


def _kind(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__


def _check_size(name: str, *, tokens: int, flops: float) -> None:
    if tokens <= 0:
        raise ValueError(f"{name}: tokens={tokens}; give those of the whole run")
    if not (math.isfinite(flops) and flops > 0):
        raise ValueError(f"{name}: flops={flops}; give those of the whole run, without the head")


def _check_values(place: str, values: Sequence[float | None]) -> None:
    if len(values) != len(FRACTIONS):
        raise ValueError(f"{place} has {len(values)} values; give one for each of 20 fractions")
    for fraction, value in zip(FRACTIONS, values, strict=True):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{place} is {value} at {fraction:.0%}; give null where it is missing")
