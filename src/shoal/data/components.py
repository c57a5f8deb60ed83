"""Connected components of documents that share a band.

A group of n candidates is n - 1 edges (a star from its smallest member), never n^2 / 2: there are
at most documents x bands of them, whatever the sizes of groups. All edges of a corpus are held on
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
    pairs: Iterable[tuple[UInt64[np.ndarray, "_"], UInt64[np.ndarray, "_"]]],
) -> Components:
    """Joins the keys of pairs; each item is one end of several pairs, and the other.

    The result depends on the pairs as a set only, not on any order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    left: list[np.ndarray] = [np.empty(0, np.uint64)]
    right: list[np.ndarray] = [np.empty(0, np.uint64)]
    for one, other in pairs:
        # Near copies share many bands, and every one of them is a pair.
        edges = np.unique(np.stack([one, other], axis=1), axis=0)
        left.append(edges[:, 0])
        right.append(edges[:, 1])
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
