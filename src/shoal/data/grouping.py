"""Spherical k-means, and grouping of its centroids by weighted division.

All rows are of unit length (or zero), and closeness is their product. Letters: N rows, E
dimensions, K centroids, G groups.

Why two steps: few centroids at once give one large remainder and many small groups. Many centroids
follow the density; then the heaviest spread is divided in two, again and again, by 2-means that
may not leave a side below the least weight; at last single centroids move to the group that gains
most by them, as long as any gains.
"""

import heapq

import numpy as np
from jaxtyping import Float32, Float64, Int
from threadpoolctl import threadpool_limits

from shoal.data.lexical import unit

ITERATIONS = 20
STARTS = 10
ROWS = 4_096
GAIN = 1e-9


def nearest(
    rows: Float32[np.ndarray, "N E"], centroids: Float32[np.ndarray, "K E"]
) -> tuple[Int[np.ndarray, " N"], Float32[np.ndarray, " N"]]:
    """The closest centroid of each row (the first of equals), and how close it is."""
    place = np.empty(len(rows), np.int64)
    close = np.empty(len(rows), np.float32)
    with threadpool_limits(1):
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            products = rows[part] @ centroids.T
            place[part] = products.argmax(1)
            close[part] = products.max(1)
    return place, close


def k_means(
    rows: Float32[np.ndarray, "N E"], count: int, seed: int, restarts: int = 1
) -> Float32[np.ndarray, "K E"]:
    """The best of several runs: the highest sum of closeness.

    Raises:
        ValueError: there are fewer rows than centroids asked for.
    """
    if len(rows) < count:
        raise ValueError(f"{count} centroids of {len(rows)} rows; ask for fewer")
    runs = [_k_means(rows, count, np.random.default_rng([seed, n])) for n in range(restarts)]
    return max(runs, key=lambda run: run[1])[0]


def divide(
    centroids: Float32[np.ndarray, "K E"],
    weights: Float64[np.ndarray, " K"],
    count: int,
    min_share: float,
    seed: int,
) -> Int[np.ndarray, " K"]:
    """The group of each centroid; groups are numbered by falling weight.

    There are fewer groups than asked for where no further division leaves both sides their weight.
    """
    least = min_share * weights.sum()
    pulls = centroids.astype(np.float64) * weights[:, None]
    groups = [np.arange(len(centroids))]
    queue = [(-_spread(pulls, weights, groups[0]), 0)]
    while queue and len(groups) < count:
        _, number = heapq.heappop(queue)
        found = _halves(
            pulls, weights, groups[number], least, np.random.default_rng([seed, number])
        )
        if found is None:
            continue
        groups[number], other = found
        groups.append(other)
        for part in (number, len(groups) - 1):
            heapq.heappush(queue, (-_spread(pulls, weights, groups[part]), part))
    group = np.empty(len(centroids), np.int64)
    for number, members in enumerate(groups):
        group[members] = number
    _climb(pulls, weights, group, least)
    order = np.argsort(-np.bincount(group, weights, len(groups)), kind="stable")
    return np.argsort(order)[group]


def names(words: tuple[str, ...], scores: Float64[np.ndarray, "G V"], count: int) -> list[str]:
    """Each group's words of the highest score, joined."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return [" ".join(words[word] for word in row) for row in best.tolist()]


def _k_means(
    rows: Float32[np.ndarray, "N E"], count: int, random: np.random.Generator
) -> tuple[Float32[np.ndarray, "K E"], float]:
    centroids = rows[_spaced(rows, count, random)].copy()
    place, close = nearest(rows, centroids)
    for _ in range(ITERATIONS):
        sums = np.zeros((count, rows.shape[1]), np.float64)
        np.add.at(sums, place, rows)
        empty = ~sums.any(1)
        # A centroid without rows takes the row that is furthest from its own.
        sums[empty] = rows[np.argsort(close, kind="stable")[: int(empty.sum())]]
        centroids = unit(sums.astype(np.float32))
        before, (place, close) = place, nearest(rows, centroids)
        if np.array_equal(before, place):
            break
    return centroids, float(close.sum(dtype=np.float64))


def _spaced(rows: Float32[np.ndarray, "N E"], count: int, random: np.random.Generator) -> list[int]:
    """Rows to begin with (k-means++): each drawn by its squared distance to those before it."""
    chosen = [int(random.integers(len(rows)))]
    distance = np.full(len(rows), np.inf)
    while len(chosen) < count:
        apart = 2 - 2 * (rows @ rows[chosen[-1]]).astype(np.float64)
        distance = np.minimum(distance, np.maximum(apart, 0.0))
        distance[chosen] = 0.0
        total = distance.cumsum()
        if total[-1] <= 0:  # only copies are left
            rest = np.setdiff1d(np.arange(len(rows)), chosen)
            return [*chosen, *rest[: count - len(chosen)].tolist()]
        chosen.append(int(np.searchsorted(total, random.random() * total[-1], side="right")))
    return chosen


def _spread(
    pulls: Float64[np.ndarray, "K E"],
    weights: Float64[np.ndarray, " K"],
    members: Int[np.ndarray, " n"],
) -> float:
    """What a group's centroids lose by sharing one direction."""
    return float(weights[members].sum() - np.linalg.norm(pulls[members].sum(0)))


def _halves(
    pulls: Float64[np.ndarray, "K E"],
    weights: Float64[np.ndarray, " K"],
    members: Int[np.ndarray, " n"],
    least: float,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The best division that leaves both sides their weight, if any."""
    if len(members) < 2 or weights[members].sum() < 2 * least:
        return None
    mine, heavy = pulls[members], weights[members]
    best: tuple[float, np.ndarray] | None = None
    for _ in range(STARTS):
        pair = mine[random.choice(len(members), 2, replace=False)]
        side = _two_means(mine, heavy, pair, least)
        if side is None:
            continue
        gain = sum(float(np.linalg.norm(mine[side == s].sum(0))) for s in (False, True))
        if best is None or gain > best[0] + GAIN:
            best = gain, side
    return None if best is None else (members[~best[1]], members[best[1]])


def _two_means(
    pulls: Float64[np.ndarray, "n E"],
    weights: Float64[np.ndarray, " n"],
    pair: Float64[np.ndarray, "2 E"],
    least: float,
) -> np.ndarray | None:
    side = np.zeros(len(pulls), bool)
    for _ in range(ITERATIONS):
        lengths = np.linalg.norm(pair, axis=1, keepdims=True)
        if not lengths.all():
            return None
        lean = pulls @ (pair[1] / lengths[1] - pair[0] / lengths[0])
        before, side = side, _balanced(lean, weights, least)
        if np.array_equal(before, side):
            break
        pair = np.stack([pulls[~side].sum(0), pulls[side].sum(0)])
    light = min(weights[side].sum(), weights[~side].sum())
    return side if light >= least and side.any() and not side.all() else None


def _balanced(
    lean: Float64[np.ndarray, " n"], weights: Float64[np.ndarray, " n"], least: float
) -> np.ndarray:
    """Who leans to the second side; a side below the least takes those that lean away least."""
    per_weight = lean / np.maximum(weights, 1e-300)
    order = np.argsort(-per_weight, kind="stable")
    total = weights[order].cumsum()
    wanted = int((lean > 0).sum())
    low = int(np.searchsorted(total, least)) + 1
    high = int(np.searchsorted(total, total[-1] - least, side="right"))
    cut = min(max(wanted, low), high)
    side = np.zeros(len(lean), bool)
    side[order[:cut]] = True
    return side


def _climb(
    pulls: Float64[np.ndarray, "K E"],
    weights: Float64[np.ndarray, " K"],
    group: Int[np.ndarray, " K"],
    least: float,
) -> None:
    """Move single centroids, in order, while a move raises the sum of the groups' lengths."""
    count = int(group.max()) + 1
    sums = np.zeros((count, pulls.shape[1]))
    np.add.at(sums, group, pulls)
    mass = np.bincount(group, weights, count)
    moved = True
    while moved:
        moved = False
        for one in range(len(group)):
            home = int(group[one])
            if mass[home] - weights[one] < least or mass[home] <= weights[one]:
                continue
            lengths = np.linalg.norm(sums, axis=1)
            gains = np.linalg.norm(sums + pulls[one], axis=1) - lengths
            gains += np.linalg.norm(sums[home] - pulls[one]) - lengths[home]
            gains[home] = 0.0
            best = int(gains.argmax())
            if gains[best] > GAIN * max(1.0, float(weights.sum())):
                sums[home] -= pulls[one]
                sums[best] += pulls[one]
                mass[home] -= weights[one]
                mass[best] += weights[one]
                group[one] = best
                moved = True
