"""A ladder's forecast of every series over the whole of the target's training.

At each fraction g of training the law L = E + A * C_g^-alpha, C_g = g * C, is fitted to what the
rungs scored at their own fraction g, so the forecast is a trajectory. The same ladder and settings
give the same bytes: numbers are kept to 9 digits, the last of which may differ between processors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float

from shoal.scaling.interval import (
    MIN_RUNGS,
    PARTS,
    Asymptote,
    Estimates,
    Points,
    Settings,
    bounds_of,
    central,
    estimate,
)
from shoal.scaling.records import FRACTIONS, Ladder, RungRun, Target, Values, read_json
from shoal.scaling.tail import Tail, completed

FORM = "L = E + A * C^-alpha"
DIGITS = 9

type Pair = list[float]


@dataclass(frozen=True, kw_only=True)
class SeriesForecast:
    """One series at each fraction; None where fewer than three rungs have a value.

    Attributes:
        central: the forecast.
        interval_50: where one run lies with even odds.
        interval_90: where one run lies nine times in ten.
        alpha: of the law that gives the center.
        A: likewise, for C in FLOPs.
        E: likewise.
        parts: what the 90 % interval at the end comes from, each as its own half width.
        backtest: the top rung as the lower ones foretell it: `rung`, `predicted`, `seen`, and
            `error`, seen minus predicted.
    """

    central: list[float | None]
    interval_50: list[Pair | None]
    interval_90: list[Pair | None]
    alpha: list[float | None]
    A: list[float | None]
    E: list[float | None]
    parts: dict[str, float | None]
    backtest: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What `forecast.json` says.

    Attributes:
        data: the runs it was made from, and which ends of theirs were filled in.
        health: gradient norm and the like -> `central`, `low`, `high` at each fraction.
    """

    ladder: str
    target: Target
    metric: str
    form: str
    settings: dict[str, Any]
    fractions: list[float]
    conditions: dict[str, Any]
    data: list[dict[str, Any]]
    series: dict[str, SeriesForecast]
    health: dict[str, dict[str, list[float | None]]]

    @property
    def headline(self) -> SeriesForecast:
        """The series that the ladder is for."""
        return self.series[self.metric]

    def plain(self) -> dict[str, Any]:
        """The forecast as JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, tree: Any, place: str = "forecast") -> "Forecast":
        """The forecast of a JSON value, as `plain` gave it.

        Raises:
            ValueError: it is none; the message says where.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(tree, dict) or set(tree) != names:
            raise ValueError(f"{place} is no forecast; it needs exactly {', '.join(sorted(names))}")
        try:
            rest = {name: tree[name] for name in names - {"target", "series"}}
            return cls(
                **rest,
                target=Target(**{**tree["target"], "flops": float(tree["target"]["flops"])}),
                series={name: SeriesForecast(**one) for name, one in tree["series"].items()},
            )
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{place} is no forecast: {error}") from error


def read_forecast(path: Any) -> Forecast:
    """The forecast of a file; errors as `Forecast.parse`."""
    return Forecast.parse(read_json(path), str(path))


def forecast(
    ladder: Ladder,
    *,
    asymptote: Asymptote = None,
    noise: float | None = None,
    tail_bias: float | None = None,
) -> Forecast:
    """Forecast the ladder's target.

    Args:
        ladder: its runs and its target.
        asymptote: E in units of the headline: a pin, a range, or None for free. A free E at three
            rungs is taken from 0 to 80 % of their least loss.
        noise: standard deviation of the headline between seeds, if known; None: from the runs.
        tail_bias: added to straight lines through missing ends, as a share of the loss; None:
            what finished runs show.

    Raises:
        ValueError: fewer than three rungs, or settings that do not fit the runs.
    """
    settings = Settings(asymptote=asymptote, noise=noise, tail_bias=tail_bias)
    whole, tails = completed(ladder, tail_bias)
    runs = sorted(whole.runs, key=lambda run: (run.flops, run.seed, run.run))
    _check(ladder, runs)
    names = [
        name for name in sorted({n for run in runs for n in run.series}) if _enough(runs, name)
    ]
    if ladder.metric not in names:
        raise ValueError(
            f"ladder {ladder.name}: fewer than {MIN_RUNGS} rungs have {ladder.metric!r} at any same"
            " fraction; finish or add rungs"
        )
    tables = {name: _table(runs, name) for name in names}
    backtests = _backtests(runs, tables, ladder.metric, settings)
    return Forecast(
        ladder=ladder.name,
        target=ladder.target,
        metric=ladder.metric,
        form=FORM,
        settings=settings.plain(),
        fractions=list(FRACTIONS),
        conditions=dict(ladder.conditions),
        data=[_row(run, tails.get(run.run, [])) for run in runs],
        series=_trajectories(runs, tables, ladder, settings, backtests),
        health=_health(runs, ladder.target),
    )


def _check(ladder: Ladder, runs: Sequence[RungRun]) -> None:
    rungs = {run.rung for run in runs}
    if len(rungs) < MIN_RUNGS:
        raise ValueError(
            f"ladder {ladder.name} has {len(rungs)} rungs; a law needs at least {MIN_RUNGS}"
        )


def points_of(
    runs: Sequence[RungRun],
    losses: Float[np.ndarray, "P N"],
    scale: Float[np.ndarray, " P"],
    target: Target | RungRun,
) -> Points:
    """Runs as `interval` takes them, as seen from a target."""
    order = {rung: number for number, rung in enumerate(dict.fromkeys(run.rung for run in runs))}
    return Points(
        compute=np.log([run.flops / target.flops for run in runs]),
        tokens=np.log([run.tokens / target.tokens for run in runs]),
        rung=np.array([order[run.rung] for run in runs]),
        losses=losses,
        scale=scale,
    )


def _table(runs: Sequence[RungRun], name: str) -> Float[np.ndarray, "F N"]:
    missing: Values = (None,) * len(FRACTIONS)
    rows = [run.series.get(name, missing) for run in runs]
    return np.array([[np.nan if v is None else v for v in row] for row in rows]).T


def _usable(runs: Sequence[RungRun], table: Float[np.ndarray, "F N"]) -> list[int]:
    """The fractions at which three rungs have a value."""
    return [
        place
        for place, row in enumerate(table)
        if len({run.rung for run, value in zip(runs, row, strict=True) if not math.isnan(value)})
        >= MIN_RUNGS
    ]


def _enough(runs: Sequence[RungRun], name: str) -> bool:
    return bool(_usable(runs, _table(runs, name)))


def _trajectories(
    runs: Sequence[RungRun],
    tables: Mapping[str, Float[np.ndarray, "F N"]],
    ladder: Ladder,
    settings: Settings,
    backtests: Mapping[str, dict[str, Any] | None],
) -> dict[str, SeriesForecast]:
    """All series at all fractions in one batch."""
    keys = [(name, place) for name in tables for place in _usable(runs, tables[name])]
    losses = np.stack([tables[name][place] for name, place in keys])
    scale = _scales(tables, ladder.metric)
    points = points_of(runs, losses, np.array([scale[name] for name, _ in keys]), ladder.target)
    found = estimate(points, settings)
    rows = {key: number for number, key in enumerate(keys)}
    return {
        name: _series(found, name, rows, ladder.target.flops, backtests[name]) for name in tables
    }


def _scales(tables: Mapping[str, Float[np.ndarray, "F N"]], metric: str) -> dict[str, float]:
    least = {name: float(np.nanmin(table)) for name, table in tables.items()}
    return {name: value / least[metric] for name, value in least.items()}


def _series(
    found: Estimates,
    name: str,
    rows: Mapping[tuple[str, int], int],
    flops: float,
    backtest: dict[str, Any] | None,
) -> SeriesForecast:
    at = [rows.get((name, place)) for place in range(len(FRACTIONS))]

    def each(values: Float[np.ndarray, " P"]) -> list[float | None]:
        return [None if row is None else rounded(values[row]) for row in at]

    def pairs(level: float) -> list[Pair | None]:
        low, high = (each(side) for side in found.intervals[level])
        return [None if a is None or b is None else [a, b] for a, b in zip(low, high, strict=True)]

    law = found.law
    scale = [
        None if row is None else rounded(law.gap[row] * (g * flops) ** law.alpha[row])
        for g, row in zip(FRACTIONS, at, strict=True)
    ]
    end = at[-1]
    parts = {part: None if end is None else rounded(found.parts[part][end]) for part in PARTS}
    return SeriesForecast(
        central=each(found.central),
        interval_50=pairs(0.5),
        interval_90=pairs(0.9),
        alpha=each(law.alpha),
        A=scale,
        E=each(law.asymptote),
        parts=parts,
        backtest=backtest,
    )


def _backtests(
    runs: Sequence[RungRun],
    tables: Mapping[str, Float[np.ndarray, "F N"]],
    metric: str,
    settings: Settings,
) -> dict[str, dict[str, Any] | None]:
    """The top rung's end from the lower rungs alone: three of them, or two and a pinned E."""
    top = runs[-1]
    lower = [place for place, run in enumerate(runs) if run.rung != top.rung]
    below, scale = [runs[place] for place in lower], _scales(tables, metric)
    needed = 2 if isinstance(settings.asymptote, float) else MIN_RUNGS
    found: dict[str, dict[str, Any] | None] = {}
    for name, table in tables.items():
        end = table[-1]
        seen = [end[p] for p, run in enumerate(runs) if run.rung == top.rung and end[p] == end[p]]
        known = {
            run.rung for place, run in zip(lower, below, strict=True) if end[place] == end[place]
        }
        if not seen or len(known) < needed:
            found[name] = None
            continue
        points = points_of(below, end[lower][None], np.array([scale[name]]), top)
        bounds, pins = bounds_of(points, settings)
        said = float(central(points, bounds, pins, settings=settings).central[0])
        mean = float(np.mean(seen))
        found[name] = {
            "rung": top.rung,
            "predicted": rounded(said),
            "seen": rounded(mean),
            "error": rounded(mean - said),
        }
    return found


def _row(run: RungRun, tails: Sequence[Tail]) -> dict[str, Any]:
    filled = {
        tail.series: {
            "since": tail.since,
            "bias": rounded(tail.bias),
            "measured": tail.measured,
        }
        for tail in tails
    }
    return {
        "rung": run.rung,
        "run": run.run,
        "fingerprint": run.fingerprint,
        "seed": run.seed,
        "tokens": run.tokens,
        "flops": run.flops,
        "filled": filled,
    }


def _health(runs: Sequence[RungRun], target: Target) -> dict[str, dict[str, list[float | None]]]:
    """Health series as straight lines in ln C, their logarithms where all are above 0.

    The band holds one run nine times in ten, by the line's own scatter.
    """
    from scipy.special import stdtrit

    x = np.log([run.flops / target.flops for run in runs])
    missing: Values = (None,) * len(FRACTIONS)
    found: dict[str, dict[str, list[float | None]]] = {}
    for name in sorted({name for run in runs for name in run.health}):
        sides: dict[str, list[float | None]] = {"central": [], "low": [], "high": []}
        for place in range(len(FRACTIONS)):
            row = [run.health.get(name, missing)[place] for run in runs]
            seen = np.array([np.nan if value is None else value for value in row])
            use = ~np.isnan(seen)
            values: tuple[float | None, ...] = (None, None, None)
            if len({run.rung for run, kept in zip(runs, use, strict=True) if kept}) >= MIN_RUNGS:
                values = _banded(x[use], seen[use], lambda df: float(stdtrit(df, 0.95)))
            for side, value in zip(sides, values, strict=True):
                sides[side].append(value)
        found[name] = sides
    return found


def _banded(x: Any, seen: Any, quantile: Any) -> tuple[float, float, float]:
    """The line at x = 0 with its prediction interval."""
    positive = bool((seen > 0).all())
    y = np.log(seen) if positive else seen
    middle = x.mean()
    spread = float(((x - middle) ** 2).sum())
    slope = float((x - middle) @ y / spread)
    level = float(y.mean() - slope * middle)
    freedom = len(x) - 2
    scatter = math.sqrt(float(((y - level - slope * x) ** 2).sum()) / freedom)
    half = quantile(freedom) * scatter * math.sqrt(1 + 1 / len(x) + middle**2 / spread)
    ends = (level, level - half, level + half)
    if positive:
        ends = tuple(math.exp(min(end, 700.0)) for end in ends)
    else:
        ends = tuple(max(end, min(0.0, float(seen.min()))) for end in ends)
    return rounded(ends[0]), rounded(ends[1]), rounded(ends[2])


def rounded(value: float) -> float:
    """To the digits that a forecast keeps."""
    return float(f"{float(value):.{DIGITS}g}")
