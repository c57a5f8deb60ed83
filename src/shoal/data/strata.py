"""Strata: groups of cells, few enough that small runs can find what each is worth.

A mixture over 200 cells has more shares than anybody can try. Topics that lie near each other are
merged (by Ward, on the centers of unit length), and levels fall into a low and a high band;
within a stratum every cell weighs by its size. Where cells are sources, each is a stratum.

Names: the most telling word of the stratum's largest topic, the number of the merged group, and the
band, as `sonnet-3-high`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from shoal.data.lexical import unit
from shoal.data.topics import MODEL

type Strata = Mapping[str, tuple[str, ...]]

_CELL = re.compile(r"^t(\d+)-q(\d+)$")


def strata(
    units: Mapping[str, int], model: Path | None, names: Sequence[str], count: int
) -> dict[str, tuple[str, ...]]:
    """Stratum -> its cells, of those that hold a unit.

    Args:
        units: cell -> how many units it holds.
        model: the folder of the topic model; None where cells are sources.
        names: of the topics, by number.
        count: of merged groups; each gives two strata, or one if it has one band only.

    Raises:
        ValueError: fewer topics than groups.
    """
    held = sorted(cell for cell, number in units.items() if number > 0)
    if model is None:
        return {cell: (cell,) for cell in held}
    places = {cell: _place(cell) for cell in held}
    topics, levels = zip(*places.values(), strict=True)
    if not 1 <= count <= len(set(topics)):
        raise ValueError(
            f"{count} groups of {len(set(topics))} topics: merge at least one, at most all"
        )
    group = _groups(model, sorted(set(topics)), count)
    size = np.zeros((count, len(names)))
    for cell, (topic, _) in places.items():
        size[group[topic], topic] += units[cell]
    words = [names[int(row.argmax())].split()[0] for row in size]
    middle = (max(levels) + min(levels)) / 2
    found: dict[str, list[str]] = {}
    for cell, (topic, level) in places.items():
        band = "high" if level > middle else "low"
        found.setdefault(f"{words[group[topic]]}-{group[topic]}-{band}", []).append(cell)
    return {name: tuple(cells) for name, cells in sorted(found.items())}


def sizes(groups: Strata, units: Mapping[str, int]) -> dict[str, int]:
    """Stratum -> the units of its cells."""
    return {name: sum(units[cell] for cell in cells) for name, cells in groups.items()}


def table(
    shares: Mapping[str, float], groups: Strata, units: Mapping[str, int]
) -> tuple[tuple[str, float, float], ...]:
    """Rows for `MixConfig.table`: shares spread over the strata's cells, in both phases alike."""
    total = sizes(groups, units)
    rows = {
        cell: share * units[cell] / total[name]
        for name, share in shares.items()
        for cell in groups[name]
    }
    return tuple((cell, weight, weight) for cell, weight in sorted(rows.items()))


def _place(cell: str) -> tuple[int, int]:
    found = _CELL.match(cell)
    assert found, f"cell {cell!r} is no topic and level"
    return int(found[1]), int(found[2])


def _groups(model: Path, topics: Sequence[int], count: int) -> dict[int, int]:
    """Topic -> number of its group, in the order in which the topics are met."""
    from scipy.cluster.hierarchy import fcluster, linkage

    with np.load(model / MODEL, allow_pickle=False) as found:
        centers = _centers(found["centroids"], found["topic"])[list(topics)]
    if len(topics) == 1:
        return {topics[0]: 0}
    merged = fcluster(linkage(centers, "ward"), count, "maxclust")
    order: dict[int, int] = {}
    return {
        topic: order.setdefault(int(label), len(order))
        for topic, label in zip(topics, merged, strict=True)
    }


def _centers(
    centroids: Float[np.ndarray, "K E"], topic: Int[np.ndarray, " K"]
) -> Float[np.ndarray, "G E"]:
    sums = np.zeros((int(topic.max()) + 1, centroids.shape[1]), np.float32)
    np.add.at(sums, topic, centroids)
    return unit(sums)
