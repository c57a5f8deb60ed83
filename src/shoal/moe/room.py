"""How many rows each transport's static buffers hold; plain integers, no jax.

A capacity factor is read as the decimal that was written: 1.15 is 23/20, so that rounding up is
exact at any size.
"""

from fractions import Fraction
from itertools import pairwise


def sender_rows(assignments: int, shards: int, waves: int, factor: float) -> int:
    """Return P of `pooled`: rows that a device sends to each other one in a wave."""
    return _share(assignments, factor, shards * waves)


def receiver_rows(assignments: int, experts: int, waves: int, factor: float) -> int:
    """Return R of `pooled`: rows that one of a device's experts takes in a wave."""
    return _share(assignments, factor, experts * waves)


def chunk_bounds(experts: int, chunks: int) -> list[tuple[int, int]]:
    """Cut a device's experts into consecutive chunks, as even as can be and none of them empty."""
    chunks = min(experts, chunks)
    edges = [i * experts // chunks for i in range(chunks + 1)]
    return list(pairwise(edges))


def chunk_rows(
    assignments: int, shards: int, experts: int, chunk_experts: int, factor: float
) -> int:
    """Return the rows that a device takes for one chunk of its experts with `ragged`.

    A chunk has its experts' share of factor * assignments. A factor of the number of shards or
    more asks for room for whatever can come, and then a chunk has exactly that.
    """
    if factor >= shards:
        return shards * assignments
    return _share(assignments * chunk_experts, factor, experts)


def _share(count: int, factor: float, parts: int) -> int:
    exact = Fraction(str(factor)) * count / parts
    return -(-exact.numerator // exact.denominator)
