"""Connected components of documents that share a band.

A group of n candidates is n - 1 edges (a star from its first member), never n^2 / 2: the number of
edges is at most documents x bands, whatever the sizes of groups. All edges of a corpus are held on
one machine, sixteen bytes each.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt64


@dataclass(frozen=True, kw_only=True)
class Components:
    """Which keys are joined; a key that is not in `keys` is joined to none.

    Attributes:
        keys: sorted.
        labels: of each key, the smallest key of its component.
    """

    keys: UInt64[np.ndarray, "keys"]
    labels: UInt64[np.ndarray, "keys"]

    def find(self, keys: UInt64[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """Where each key stands in `keys`; -1 where it does not."""
        if len(self.keys) == 0:
            return np.full(len(keys), -1, np.int64)
        places = np.searchsorted(self.keys, keys).astype(np.int64)
        places[places == len(self.keys)] = 0
        return np.where(self.keys[places] == keys, places, -1)


def components(
    groups: Iterable[tuple[UInt64[np.ndarray, "_"], Int[np.ndarray, "_"]]],
) -> Components:
    """Joins the members of groups; each item is the members of several groups, and their sizes.

    The result depends on the groups as sets only, not on any order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    left: list[np.ndarray] = [np.empty(0, np.uint64)]
    right: list[np.ndarray] = [np.empty(0, np.uint64)]
    for members, sizes in groups:
        firsts = members[np.concatenate([[0], np.cumsum(sizes)[:-1]])] if len(sizes) else members
        centers = np.repeat(firsts, sizes)
        edges = centers != members
        pairs = np.unique(np.stack([centers[edges], members[edges]], axis=1), axis=0)
        left.append(pairs[:, 0])
        right.append(pairs[:, 1])
    ends = np.concatenate([*left, *right])
    keys, places = np.unique(ends, return_inverse=True)
    half = len(ends) // 2
    graph = coo_array(
        (np.ones(half, np.int8), (places[:half], places[half:])), shape=(len(keys), len(keys))
    )
    if len(keys) == 0:
        return Components(keys=keys, labels=keys)
    _, numbers = connected_components(graph, directed=False)
    # Keys are sorted, so the first key of each component is its smallest.
    _, firsts = np.unique(numbers, return_index=True)
    return Components(keys=keys, labels=keys[firsts[numbers]])
