"""The student: gives every document the quality that a judge gave a few.

A ridge regression on the words of a text (TF-IDF brought down to a few directions) and on how it
looks (`data.surface`), then a monotone calibration per kind of text, then cut points per kind.
Its aim is the *rank* of a label among those of its kind, 0 to 1: a judge that likes code better
than verse as such has no say in that. Beside the labels stand *anchors*: the labelled documents
damaged on purpose, with aim 0 and `ANCHOR_WEIGHT`.

Without enough labels it learns from anchors alone: documents have aim 1, damaged ones 0.

Letters: N texts, F features, P points of a calibration.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Float64, Int64, UInt8
from threadpoolctl import threadpool_limits

from shoal.data.agreement import rank_correlation, separation
from shoal.data.damage import DAMAGES, damaged
from shoal.data.lexical import Lexical
from shoal.data.surface import NAMES, shorten, surface

DIRECTIONS = 32
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0)
FOLDS = 5
ANCHOR_WEIGHT = 0.25
LIMIT = 4.0
MIN_KIND_LABELS = 30
DIGITS = 6
# Steps of a calibration are flat; inside them the raw order goes on with this slope.
SLOPE = 1e-2
ALL = ""
SHORT_WORDS = 20


@dataclass(frozen=True, kw_only=True)
class Example:
    """A text with its aim; `group` keeps what belongs to one document in one fold."""

    text: str
    kind: str
    group: str
    aim: float
    weight: float = 1.0
    control: str = ""


@dataclass(frozen=True, kw_only=True)
class Features:
    """What turns texts into numbers: words to directions, and the familiar pairs of words."""

    words: Lexical
    pairs: UInt8[np.ndarray, " buckets"]

    def of(self, texts: Sequence[str]) -> Float64[np.ndarray, "N F"]:
        """One row per text, which no other text changes."""
        short = shorten(texts)
        embedded = self.words.embed(short).astype(np.float64)
        return np.hstack([surface(short, self.pairs), embedded])


@dataclass(frozen=True, kw_only=True)
class Line:
    """A ridge regression on standardized features."""

    means: Float64[np.ndarray, " F"]
    scales: Float64[np.ndarray, " F"]
    slopes: Float64[np.ndarray, " F"]
    start: float

    def of(self, features: Float64[np.ndarray, "N F"]) -> Float64[np.ndarray, " N"]:
        """Raw scores. A row's sum has one order, whatever rows stand beside it."""
        # What is far outside of what was seen counts as just outside.
        z = np.clip((features - self.means) / self.scales, -LIMIT, LIMIT)
        return (z * self.slopes).sum(1) + self.start


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A rising calibration: raw scores to aims, straight between its points."""

    raw: Float64[np.ndarray, " P"]
    aim: Float64[np.ndarray, " P"]

    def of(self, raw: Float64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
        """Calibrated scores from 0 to 1, rounded; a higher raw score never has a lower one."""
        steps = np.interp(raw, self.raw, self.aim)
        slope = 1 / (1 + np.exp(-np.clip(raw, -30.0, 30.0)))
        return np.round((1 - SLOPE) * np.clip(steps, 0.0, 1.0) + SLOPE * slope, DIGITS)


@dataclass(frozen=True, kw_only=True)
class Student:
    """The fitted student.

    Attributes:
        steps: kind -> calibration; `ALL` for kinds with few labels.
        cuts: kind -> the lowest score of every level but the first; `ALL` for rare kinds.
    """

    features: Features
    line: Line
    steps: dict[str, Steps]
    cuts: dict[str, tuple[float, ...]]

    def scores(self, texts: Sequence[str], kind: str) -> Float64[np.ndarray, " N"]:
        """Calibrated scores of texts of one kind, lowered for very short ones."""
        rows = self.features.of(texts)
        scores = self.steps.get(kind, self.steps[ALL]).of(self.line.of(rows))
        return np.round(scores * fullness(rows), DIGITS)

    def levels(self, scores: Float64[np.ndarray, " N"], kind: str) -> Int64[np.ndarray, " N"]:
        """0 for the lowest."""
        cuts = self.cuts.get(kind, self.cuts[ALL])
        return np.array([bisect_right(cuts, score) for score in scores.tolist()], np.int64)


def fullness(rows: Float64[np.ndarray, "N F"]) -> Float64[np.ndarray, " N"]:
    """1, or less for a text of so few words that there is not much to judge."""
    words = np.expm1(rows[:, NAMES.index("words")])
    return np.minimum(1.0, words / SHORT_WORDS)


def labelled(
    texts: Sequence[str], kinds: Sequence[str], ids: Sequence[str], scores: Sequence[float]
) -> list[Example]:
    """Examples of labelled documents and their anchors; aims are ranks within a kind."""
    aims = ranks_within(scores, kinds)
    found = [
        Example(text=text, kind=kind, group=one, aim=aim)
        for text, kind, one, aim in zip(texts, kinds, ids, aims, strict=True)
    ]
    return [*found, *_anchors(texts, kinds, ids, ANCHOR_WEIGHT)]


def ranks_within(scores: Sequence[float], kinds: Sequence[str]) -> list[float]:
    """What share of its kind each score is above, ties counted half, itself too."""
    values = np.asarray(scores, np.float64)
    ranks = np.zeros(len(values))
    for kind in sorted(set(kinds)):
        mine = np.array([one == kind for one in kinds])
        ordered = np.sort(values[mine])
        low = np.searchsorted(ordered, values[mine], side="left")
        high = np.searchsorted(ordered, values[mine], side="right")
        ranks[mine] = (low + high) / (2 * len(ordered))
    return ranks.tolist()


def unlabelled(texts: Sequence[str], kinds: Sequence[str], ids: Sequence[str]) -> list[Example]:
    """Examples without a judge: documents against their anchors."""
    found = [
        Example(text=text, kind=kind, group=one, aim=1.0)
        for text, kind, one in zip(texts, kinds, ids, strict=True)
    ]
    return [*found, *_anchors(texts, kinds, ids, 1.0)]


def fit(
    examples: Sequence[Example], features: Features, seed: int
) -> tuple[Line, dict[str, Steps], dict[str, Any]]:
    """The line, its calibrations, and how held-out examples were scored.

    Every example is scored once by a line that was fitted without its document; penalty,
    calibration and what is reported come from those scores, the final line from all examples.
    What is reported is measured before the calibration: that one has seen every label, and would
    give shuffled ones a rank correlation of 0.14.
    """
    rows = features.of([one.text for one in examples])
    aims = np.array([one.aim for one in examples])
    weights = np.array([one.weight for one in examples])
    folds = np.array(
        [xxhash.xxh3_64_intdigest(one.group.encode(), seed=seed) % FOLDS for one in examples]
    )
    with threadpool_limits(1):
        tried = [_left_out(rows, aims, weights, folds, penalty) for penalty in PENALTIES]
        losses = [float((weights * (aims - one) ** 2).sum() / weights.sum()) for one in tried]
        best = int(np.argmin(losses))
        line = _line(rows, aims, weights, PENALTIES[best])
        steps = _calibrations(examples, tried[best], aims, weights)
    agreement = _agreement(examples, tried[best], fullness(rows), aims)
    return line, steps, {"penalty": PENALTIES[best], **agreement}


def cut_points(
    scores: Float64[np.ndarray, " N"], sizes: Float64[np.ndarray, " N"], num_levels: int
) -> tuple[float, ...]:
    """The lowest score of every level but the first, so that levels hold about equal text.

    No level is empty where there are as many different scores as levels.
    """
    values, place = np.unique(scores, return_inverse=True)
    if len(values) < num_levels:
        return tuple(values[1:].tolist())
    mass = np.cumsum(np.bincount(place, sizes, len(values)))
    cuts: list[float] = []
    low = 1
    for level in range(1, num_levels):
        wanted = int(np.searchsorted(mass, mass[-1] * level / num_levels, side="left")) + 1
        low = min(max(wanted, low), len(values) - num_levels + level)
        cuts.append(float(values[low]))
        low += 1
    return tuple(cuts)


def _anchors(
    texts: Sequence[str], kinds: Sequence[str], ids: Sequence[str], weight: float
) -> list[Example]:
    damages = cycle(DAMAGES)
    return [
        Example(
            text=damaged(text, damage, one),
            kind=kind,
            group=one,
            aim=0.0,
            weight=weight,
            control=damage,
        )
        for text, kind, one, damage in zip(shorten(texts), kinds, ids, damages, strict=False)
    ]


def _line(
    rows: Float64[np.ndarray, "N F"],
    aims: Float64[np.ndarray, " N"],
    weights: Float64[np.ndarray, " N"],
    penalty: float,
) -> Line:
    from sklearn.linear_model import Ridge

    means = np.average(rows, axis=0, weights=weights)
    spread = np.sqrt(np.average((rows - means) ** 2, axis=0, weights=weights))
    scales = np.where(spread > 1e-9, spread, 1.0)
    z = np.clip((rows - means) / scales, -LIMIT, LIMIT)
    model = Ridge(alpha=penalty, solver="cholesky").fit(z, aims, sample_weight=weights)
    slopes = np.asarray(model.coef_, np.float64)
    return Line(means=means, scales=scales, slopes=slopes, start=float(model.intercept_))


def _left_out(
    rows: Float64[np.ndarray, "N F"],
    aims: Float64[np.ndarray, " N"],
    weights: Float64[np.ndarray, " N"],
    folds: np.ndarray,
    penalty: float,
) -> Float64[np.ndarray, " N"]:
    """Raw scores of all examples, each by a line without its fold."""
    found = np.zeros(len(rows))
    for fold in range(FOLDS):
        out = folds == fold
        if out.any() and not out.all():
            found[out] = _line(rows[~out], aims[~out], weights[~out], penalty).of(rows[out])
        elif out.any():
            found[out] = aims.mean()
    return found


def _calibrations(
    examples: Sequence[Example],
    raw: Float64[np.ndarray, " N"],
    aims: Float64[np.ndarray, " N"],
    weights: Float64[np.ndarray, " N"],
) -> dict[str, Steps]:
    from sklearn.isotonic import IsotonicRegression

    def steps(mine: np.ndarray) -> Steps:
        model = IsotonicRegression(y_min=0.0, y_max=1.0, increasing=True, out_of_bounds="clip")
        model.fit(raw[mine], aims[mine], sample_weight=weights[mine])
        return Steps(
            raw=np.asarray(model.X_thresholds_, np.float64),
            aim=np.asarray(model.y_thresholds_, np.float64),
        )

    kinds = [one.kind for one in examples]
    own = {
        kind: np.array([one == kind for one in kinds])
        for kind in sorted(set(kinds))
        if sum(one.kind == kind and not one.control for one in examples) >= MIN_KIND_LABELS
    }
    return {ALL: steps(np.ones(len(raw), bool)), **{kind: steps(m) for kind, m in own.items()}}


def _agreement(
    examples: Sequence[Example],
    raw: Float64[np.ndarray, " N"],
    full: Float64[np.ndarray, " N"],
    aims: Float64[np.ndarray, " N"],
) -> dict[str, Any]:
    """Of held-out examples: order and levels against their labels, and documents above anchors.

    `rank_correlation` is the line's own; all else is of scores lowered for very short texts.
    """
    good = np.array([not one.control for one in examples])
    kinds = np.array([one.kind for one in examples])
    scored = np.maximum(raw, 0.0) * full
    bad = {
        name: scored[[one.control == name for one in examples]].tolist()
        for name in sorted({one.control for one in examples} - {""})
    }
    result: dict[str, Any] = {
        "separation": separation(scored[good].tolist(), scored[~good].tolist()),
        "separation_by_damage": {
            name: separation(scored[good].tolist(), them) for name, them in bad.items()
        },
    }
    if len(set(aims[good].tolist())) > 1:
        aimed, of = aims[good].tolist(), kinds[good].tolist()
        levels, mine = _fifths(aims[good], kinds[good]), _fifths(scored[good], kinds[good])
        apart = np.abs(levels[:, None] - mine[None, :])
        result |= {
            "rank_correlation": rank_correlation(ranks_within(raw[good].tolist(), of), aimed),
            "rank_correlation_of_scores": rank_correlation(
                ranks_within(scored[good].tolist(), of), aimed
            ),
            "same_level": round(float((levels == mine).mean()), 4),
            "within_one_level": round(float((np.abs(levels - mine) <= 1).mean()), 4),
            "within_one_level_by_chance": round(float((apart <= 1).mean()), 4),
        }
    return result


def _fifths(values: Float64[np.ndarray, " n"], kinds: np.ndarray) -> np.ndarray:
    level = np.zeros(len(values), np.int64)
    for kind in sorted(set(kinds.tolist())):
        mine = kinds == kind
        cuts = cut_points(values[mine], np.ones(int(mine.sum())), 5)
        level[mine] = [bisect_right(cuts, value) for value in values[mine].tolist()]
    return level


def check(student: Student) -> None:
    """Raises AssertionError if a calibration or a row of cut points falls."""
    for steps in student.steps.values():
        assert (np.diff(steps.aim) >= 0).all()
    for cuts in student.cuts.values():
        assert all(low < high for low, high in pairwise(cuts))
