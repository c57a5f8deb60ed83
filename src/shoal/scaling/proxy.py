"""Which mixture is best, from many small runs with different ones.

A proxy is a small run with one mix (shares of cells that sum to 1) and what it scored on each
evaluation set, in bits per byte. Per set a mixing law is fitted, `loss = c + exp(b + t . mix)`, or
a straight line where that predicts better. For a given c the logarithm of `loss - c` is linear in
the mix, so every candidate is a ridge regression whose leave-one-out errors are exact and cheap;
c and the penalty are those with the least such error in the loss itself. The errors that are
reported are of another kind: a proxy is left out of that choice as well.

The chosen mix has the least mean predicted loss over the sets, within a share per cell (caps of
repetition) and within a Kullback-Leibler divergence from the natural mix, beyond which a law that
was fitted near it says little. Both sets are convex and the laws are, so this is the one minimum.

Files of `run_proxies`: FOLDER/NUMBER-HASH12.json {"key", "mix", "seed", "metrics"}, one per proxy;
the hash is of the first three, so another experiment in the same folder is not taken for this one.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from shoal.core.files import canonical_json, read_limited, write_atomic
from shoal.core.progress import Progress, Silent
from shoal.data.mix import capped

MIN_PROXIES = 24
MIN_CELLS = 6
MAX_FITS = 200
CONCENTRATIONS = (0.5, 8.0)
PENALTIES = np.geomspace(1e-9, 1.0, 10)
FLOORS = np.geomspace(0.02, 50.0, 14)
FILE_LIMIT_BYTES = 2**20
# Quantiles 0.975 of Student's distribution with 1, 2, ... degrees of freedom; 1.96 beyond.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

type Shares = Mapping[str, float]
type Scores = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """One small run: its mix, its seed, and evaluation set -> bits per byte."""

    mix: Shares
    seed: int
    metrics: Scores


def designs(
    natural: Shares, number: int, *, seed: int, max_shares: Shares | None = None
) -> list[dict[str, float]]:
    """Mixes to try: the natural one, then draws around it, from close to it to far from it.

    Design k is the same however many are asked for.

    Args:
        natural: what each cell weighs by itself, on any scale.
        number: of designs, the natural one included.
        seed: of the draws.
        max_shares: of each cell at most; a draw above is moved to the nearest mix within.

    Raises:
        ValueError: the shares cannot be kept.
    """
    cells = sorted(natural)
    base = _normal(np.array([natural[cell] for cell in cells], np.float64))
    limits = _limits(cells, max_shares)
    found = [_within(base, limits)]
    for index in range(1, number):
        rng = np.random.default_rng([seed, index])
        low, high = np.log(CONCENTRATIONS)
        strength = len(cells) * np.exp(rng.uniform(low, high))
        center = _normal(base ** rng.uniform(0.3, 1.0))
        found.append(_within(rng.dirichlet(np.maximum(strength * center, 1e-3)), limits))
    return [dict(zip(cells, mix.tolist(), strict=True)) for mix in found[:number]]


def run_proxies(
    mixes: Sequence[Shares],
    run: Callable[[dict[str, float], int], Scores],
    folder: Path,
    *,
    seed: int,
    key: str,
    progress: Progress | None = None,
) -> list[Proxy]:
    """Runs what was not run before, one after the other; a killed call goes on with the next.

    Args:
        mixes: as `designs` returns them.
        run: a mix and a seed -> evaluation set -> bits per byte.
        folder: one file per proxy.
        seed: given to every run, so that mixes differ and nothing else.
        key: what else decides the result, such as the proxy config's fingerprint.
        progress: where the work reports.

    Raises:
        ValueError: a metric is not finite, or a file is damaged; the message names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Proxy] = []
    with (progress or Silent()).task("proxies", len(mixes), "runs") as task:
        for number, mix in enumerate(mixes):
            identity = {"key": key, "mix": dict(mix), "seed": seed}
            digest = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:12]
            path = folder / f"{number:04d}-{digest}.json"
            if not path.exists():
                metrics = {name: float(value) for name, value in run(dict(mix), seed).items()}
                _check_metrics(metrics, f"proxy {number}")
                write_atomic(path, json.dumps({**identity, "metrics": metrics}, indent=1) + "\n")
            found.append(_read(path, identity))
            task.advance()
    return found


class _Law(NamedTuple):
    """`floor + exp(intercept + (mix - center) . slopes)`, or without floor and exp."""

    kind: Literal["log-linear", "linear"]
    floor: float
    intercept: float
    slopes: Float[np.ndarray, " C"]
    center: Float[np.ndarray, " C"]

    def at(self, mixes: Float[np.ndarray, "N C"]) -> Float[np.ndarray, " N"]:
        line = self.intercept + (mixes - self.center) @ self.slopes
        return line if self.kind == "linear" else self.floor + np.exp(line)

    def slope_at(self, mix: Float[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
        if self.kind == "linear":
            return self.slopes
        return self.slopes * float(np.exp(self.intercept + (mix - self.center) @ self.slopes))


@dataclass(frozen=True, kw_only=True)
class Regression:
    """Laws of all evaluation sets.

    Attributes:
        errors: set -> `law`, `left_out` (root mean square error on a proxy that neither the fit nor
            the choice of its form saw), `mean` (the same of predicting the others' mean) and their
            `ratio`: below 1 the law knows something.
    """

    cells: tuple[str, ...]
    laws: Mapping[str, Any]
    errors: Mapping[str, Mapping[str, Any]]

    def predict(self, mix: Shares) -> dict[str, float]:
        """Set -> predicted bits per byte."""
        row = _row(mix, self.cells)[None]
        return {name: float(law.at(row)[0]) for name, law in self.laws.items()}


def fit(proxies: Sequence[Proxy], *, allow_few: bool = False) -> Regression:
    """Fits a law per evaluation set.

    Raises:
        ValueError: fewer than 24 proxies or 6 cells (unless `allow_few`), or proxies that do not
            have the same cells and evaluation sets.
    """
    cells = tuple(sorted({cell for proxy in proxies for cell in proxy.mix}))
    if not allow_few and (len(proxies) < MIN_PROXIES or len(cells) < MIN_CELLS):
        raise ValueError(
            f"{len(proxies)} proxies over {len(cells)} cells: a regression needs at least "
            f"{MIN_PROXIES} over {MIN_CELLS}; run more, or say that few are enough (allow_few)"
        )
    if len(proxies) < 3:
        raise ValueError(f"{len(proxies)} proxies: nothing can be left out; run at least 3")
    names = tuple(proxies[0].metrics)
    for number, proxy in enumerate(proxies):
        if set(proxy.metrics) != set(names):
            odd = sorted(set(proxy.metrics) ^ set(names))
            raise ValueError(f"proxy {number} differs in the evaluation set {odd[0]!r}; score all")
        _check_metrics(proxy.metrics, f"proxy {number}")
    mixes = np.stack([_row(proxy.mix, cells) for proxy in proxies])
    laws: dict[str, Any] = {}
    errors: dict[str, dict[str, Any]] = {}
    for name in names:
        losses = np.array([proxy.metrics[name] for proxy in proxies])
        laws[name] = _fitted(mixes, losses)
        errors[name] = {"law": laws[name].kind, **_left_out(mixes, losses)}
    return Regression(cells=cells, laws=laws, errors=errors)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen mix beside the natural one; `divergence` is KL(mix | natural) in nats."""

    mix: dict[str, float]
    divergence: float
    predicted: dict[str, float]
    predicted_natural: dict[str, float]


def choose(
    regression: Regression,
    natural: Shares,
    *,
    max_divergence: float,
    max_shares: Shares | None = None,
) -> Choice:
    """The mix with the least mean predicted loss within the bounds.

    Args:
        regression: over the same cells.
        natural: on any scale.
        max_divergence: KL(mix | natural) at most, in nats.
        max_shares: of each cell at most, such as max_epochs x its tokens / the run's tokens.

    Raises:
        ValueError: no mix is within the bounds.
    """
    cells = regression.cells
    base = _normal(_row(natural, cells))
    limits = np.where(base > 0, _limits(cells, max_shares), 0.0)
    start = _within(base, limits)
    if _divergence(start, base) > max_divergence:
        raise ValueError(
            f"max_divergence={max_divergence}: the shares that cells may have are "
            f"{_divergence(start, base):.3g} from the natural mix already; raise it, or the caps"
        )
    best = _least(list(regression.laws.values()), start, base, limits, max_divergence)
    chosen = dict(zip(cells, best.tolist(), strict=True))
    return Choice(
        mix=chosen,
        divergence=_divergence(best, base),
        predicted=regression.predict(chosen),
        predicted_natural=regression.predict(dict(zip(cells, base.tolist(), strict=True))),
    )


def _least(
    laws: Sequence[_Law],
    start: Float[np.ndarray, " C"],
    base: Float[np.ndarray, " C"],
    limits: Float[np.ndarray, " C"],
    max_divergence: float,
) -> Float[np.ndarray, " C"]:
    """The mix within the bounds that the laws' mean is least for; `start` is one within them."""
    from scipy.optimize import minimize

    used = base > 0
    floor = 1e-9 * base[used]

    def full(part: Float[np.ndarray, " U"]) -> Float[np.ndarray, " C"]:
        mix = np.zeros(len(base))
        mix[used] = part
        return mix

    def loss(part: Float[np.ndarray, " U"]) -> float:
        return float(np.mean([law.at(full(part)[None])[0] for law in laws]))

    def slope(part: Float[np.ndarray, " U"]) -> Float[np.ndarray, " U"]:
        return np.mean([law.slope_at(full(part)) for law in laws], axis=0)[used]

    scale = max(float(np.abs(slope(start[used])).max()), 1e-12)
    near = {
        "type": "ineq",
        "fun": lambda part: max_divergence - _divergence(full(part), base),
        "jac": lambda part: -(np.log(np.maximum(part, floor) / base[used]) + 1),
    }
    whole = {"type": "eq", "fun": lambda part: part.sum() - 1, "jac": np.ones_like}
    found = minimize(
        lambda part: loss(part) / scale,
        np.maximum(start[used], floor),
        jac=lambda part: slope(part) / scale,
        method="SLSQP",
        bounds=list(zip(floor, np.minimum(limits[used], 1.0), strict=True)),
        constraints=[whole, near],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    mix = _pulled(_within(full(np.maximum(found.x, 0.0)), limits), start, base, max_divergence)
    return mix if loss(mix[used]) < loss(start[used]) else start


def compare(chosen: Sequence[Scores], natural: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """Two mixes run with the same seeds, in the same order: what one gains, and how surely.

    Returns:
        Set, and `mean` over the sets, -> `differences` (chosen minus natural, per seed), their
        `mean`, their `spread` (sample standard deviation), and `margin`, half the width of the
        95 % interval of the mean; `better` where the whole interval is below 0.

    Raises:
        ValueError: not the same number of runs, or fewer than two.
    """
    if len(chosen) != len(natural) or len(chosen) < 2:
        raise ValueError(
            f"{len(chosen)} chosen and {len(natural)} natural runs: give one of each per seed, and "
            "at least two seeds"
        )
    names = list(chosen[0])
    rows = {
        name: [a[name] - b[name] for a, b in zip(chosen, natural, strict=True)] for name in names
    }
    rows["mean"] = np.mean([rows[name] for name in names], axis=0).tolist()
    return {name: _paired(np.array(row)) for name, row in rows.items()}


def _paired(row: Float[np.ndarray, " N"]) -> dict[str, Any]:
    spread = float(row.std(ddof=1))
    quantile = STUDENT[len(row) - 2] if len(row) - 2 < len(STUDENT) else 1.96
    margin = quantile * spread / math.sqrt(len(row))
    mean = float(row.mean())
    return {
        "differences": row.tolist(),
        "mean": mean,
        "spread": spread,
        "margin": margin,
        "better": mean + margin < 0,
    }


def _fitted(mixes: Float[np.ndarray, "N C"], losses: Float[np.ndarray, " N"]) -> _Law:
    """The candidate with the least leave-one-out error, in the loss itself."""
    spread = float(np.ptp(losses)) or 1e-12
    best = _ridge(mixes, losses, None)
    gaps = FLOORS
    for _ in range(2):
        floors = [floor for gap in gaps if (floor := float(losses.min() - spread * gap)) >= 0]
        found = [_ridge(mixes, losses, floor) for floor in floors]
        if not found:
            break
        place = min(range(len(found)), key=lambda one: found[one][0])
        best = min(best, found[place], key=lambda one: one[0])
        around = gaps[max(0, place - 1) : place + 2]
        gaps = np.geomspace(around[0], around[-1], 9)[1:-1]
    return best[1]


def _ridge(
    mixes: Float[np.ndarray, "N C"], losses: Float[np.ndarray, " N"], floor: float | None
) -> tuple[float, _Law]:
    """The best penalty for one floor, or for a straight line: leave-one-out error and law.

    The same error in the loss is a smaller one in its logarithm where the loss is far above the
    floor, so points weigh by their squared distance from it.
    """
    gap = np.ones_like(losses) if floor is None else losses - floor
    target = losses if floor is None else np.log(gap)
    root = gap / np.sqrt(np.mean(gap**2))
    share = root**2 / (root**2).sum()
    center, mean = share @ mixes, float(share @ target)
    left, sizes, right = np.linalg.svd(root[:, None] * (mixes - center), full_matrices=False)
    inside = left.T @ (root * (target - mean))
    penalties = PENALTIES * max(float(sizes[0]) ** 2, 1e-30)
    shrink = sizes[:, None] ** 2 / (sizes[:, None] ** 2 + penalties)
    leverage = np.minimum(share[:, None] + left**2 @ shrink, 1 - 1e-9)
    smooth = mean + left @ (shrink * inside[:, None]) / root[:, None]
    predicted = target[:, None] - (target[:, None] - smooth) / (1 - leverage)
    if floor is not None:
        # A far extrapolation is an error like any other, and no overflow.
        predicted = floor + np.exp(np.minimum(predicted, 50.0))
    wrong = ((predicted - losses[:, None]) ** 2).sum(0)
    place = int(wrong.argmin())
    slopes = right.T @ (sizes / (sizes**2 + penalties[place]) * inside)
    kind = "linear" if floor is None else "log-linear"
    return float(wrong[place]), _Law(kind, floor or 0.0, mean, slopes, center)


def _left_out(mixes: Float[np.ndarray, "N C"], losses: Float[np.ndarray, " N"]) -> dict[str, float]:
    """Errors on proxies that took no part; one is left out at a time, of many a few."""
    groups = min(len(losses), MAX_FITS)
    law_errors, mean_errors = np.zeros_like(losses), np.zeros_like(losses)
    for group in range(groups):
        out = np.arange(len(losses)) % groups == group
        law = _fitted(mixes[~out], losses[~out])
        law_errors[out] = law.at(mixes[out]) - losses[out]
        mean_errors[out] = losses[~out].mean() - losses[out]
    left_out, mean = (
        math.sqrt(float(np.mean(np.square(errors)))) for errors in (law_errors, mean_errors)
    )
    return {"left_out": left_out, "mean": mean, "ratio": left_out / mean if mean else 1.0}


def _normal(weights: Float[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
    total = weights.sum()
    if not (np.isfinite(total) and total > 0 and (weights >= 0).all()):
        raise ValueError(f"weights {weights.tolist()} are no mix; give finite weights of 0 or more")
    return weights / total


def _limits(cells: Sequence[str], max_shares: Shares | None) -> Float[np.ndarray, " C"]:
    return np.array([(max_shares or {}).get(cell, math.inf) for cell in cells])


def _within(
    mix: Float[np.ndarray, " C"], limits: Float[np.ndarray, " C"]
) -> Float[np.ndarray, " C"]:
    room = float(limits[mix > 0].sum())
    if room < 1:
        raise ValueError(f"max_shares allow {room:.3g} of a whole mix; raise them")
    return capped(mix[None], np.ones(1), limits)[0]


def _divergence(mix: Float[np.ndarray, " C"], base: Float[np.ndarray, " C"]) -> float:
    held = mix > 0
    return float(mix[held] @ np.log(mix[held] / base[held]))


def _pulled(
    mix: Float[np.ndarray, " C"],
    start: Float[np.ndarray, " C"],
    base: Float[np.ndarray, " C"],
    max_divergence: float,
) -> Float[np.ndarray, " C"]:
    """The mix, drawn towards one within the bound as far as rounding has taken it out."""
    share = 0.0
    while _divergence((1 - share) * mix + share * start, base) > max_divergence and share < 1:
        share = min(1.0, 2 * share or 1e-9)
    return (1 - share) * mix + share * start


def _row(mix: Shares, cells: Sequence[str]) -> Float[np.ndarray, " C"]:
    unknown = sorted(set(mix) - set(cells))
    if unknown:
        raise ValueError(f"the mix names {unknown[0]!r}, which is no cell of the proxies")
    return np.array([mix.get(cell, 0.0) for cell in cells], np.float64)


def _check_metrics(metrics: Scores, what: str) -> None:
    if not metrics:
        raise ValueError(f"{what} has no evaluation set; return at least one")
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"{what} scored {value} on {name!r}; look at that run")


def _read(path: Path, identity: Mapping[str, Any]) -> Proxy:
    try:
        content = json.loads(read_limited(path, FILE_LIMIT_BYTES))
        if {name: content[name] for name in identity} != dict(identity):
            raise ValueError("another mix or seed")
        proxy = Proxy(mix=content["mix"], seed=content["seed"], metrics=content["metrics"])
        _check_metrics(proxy.metrics, "it")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to run it again") from error
    return proxy
