"""Which documents a context phase reads: more of the long ones, inside every cell.

A phase of long context learns from documents that are longer than the context before it. Reading
long documents `skew` times as often as short ones, over all text, would also change what the text
is about, since some cells are full of them and some have none. So the skew acts inside a cell, and
the cell keeps its tokens: with L tokens in long documents and S in short ones, a long document is
read skew x (L + S) / (skew x L + S) times and a short one (L + S) / (skew x L + S) times.

A cell whose share of long tokens is p then has skew p / (skew p + 1 - p), and the whole mixture the
mean of that over its cells, by their mass. It is concave in p: the more cells differ in length, the
less a skew can do. The public long-context runs show it, with 14.943 % of tokens in documents above
65,536: one cell of that share would have 26 % at a skew of 2 and 58 % at 8, their 200 cells have
22.6 % and 43.4 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from shoal.data.order import permute


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What of a cell is read.

    Attributes:
        copies: how often each document is there.
        order: documents in the order in which they are to be read, each as often as it is there.
        tokens: in all, the cell's own within one document.
        long_tokens: of these, in documents above the threshold.
    """

    copies: Int[np.ndarray, " N"]
    order: Int[np.ndarray, " M"]
    tokens: int
    long_tokens: int


def factors(long_tokens: int, short_tokens: int, skew: float) -> tuple[float, float]:
    """How often long and short documents of a cell are read, on average.

    Raises:
        ValueError: the skew is not positive.
    """
    if not 0 < skew < np.inf:
        raise ValueError(f"skew={skew}: use a number above 0; 1 changes nothing")
    total = long_tokens + short_tokens
    weighted = skew * long_tokens + short_tokens
    if weighted == 0:
        return 0.0, 0.0
    return skew * total / weighted, total / weighted


def long_share(cells: Mapping[str, tuple[float, float]], skew: float) -> float:
    """The share of long tokens in a mixture.

    Args:
        cells: cell -> (its mass in the mixture, its own share of long tokens).
        skew: as everywhere in this module.
    """
    masses = np.array([mass for mass, _ in cells.values()])
    shares = np.array([share for _, share in cells.values()])
    return float(masses / masses.sum() @ (skew * shares / (skew * shares + 1 - shares)))


def select(
    tokens: Int[np.ndarray, " N"], *, threshold_tokens: int, skew: float, seed: int
) -> Layout:
    """The documents of one cell, skewed towards the long ones.

    Every document gets the whole part of its factor; the rest goes to the first documents, long and
    short apart, while tokens are left. Documents stand in the order of their ids, which are hashes,
    so the first are a sample.

    Args:
        tokens: of each document, in id order.
        threshold_tokens: documents of more tokens are long.
        skew: how often a long one is read against a short one.
        seed: of the order.
    """
    is_long = tokens > threshold_tokens
    long_tokens = int(tokens[is_long].sum())
    total = int(tokens.sum())
    wanted = factors(long_tokens, total - long_tokens, skew)
    copies = np.zeros(len(tokens), np.int64)
    short = 0
    # The short ones fill up what the long ones leave, so the cell's mass is missed only once.
    for kind, factor in ((is_long, wanted[0]), (~is_long, wanted[1])):
        sizes = tokens[kind]
        target = sizes.sum() * factor + short
        whole = int(factor)
        left = target - whole * sizes.sum()
        # A document more, if that comes nearer to what is wanted than leaving it out.
        extra = np.cumsum(sizes) - sizes / 2 <= left
        copies[kind] = whole + extra
        short = target - float((sizes * copies[kind]).sum())
    places = np.repeat(np.arange(len(tokens)), copies)
    keys = np.random.Philox(seed).random_raw(8).reshape(8, 1)
    order = places[permute(np.arange(len(places)), np.array([max(1, len(places))]), keys)]
    return Layout(
        copies=copies,
        order=order,
        tokens=int(tokens @ copies),
        long_tokens=int(tokens[is_long] @ copies[is_long]),
    )
