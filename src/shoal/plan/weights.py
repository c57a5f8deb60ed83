"""What a chip holds, gathers and sums of the weights: everything that depends on how they are cut.

Only the data and expert axes cut weights, so a search over layouts asks for few different ones.
"""

from dataclasses import dataclass
from functools import lru_cache

from shoal.arrays.config import AXES, EXPERT
from shoal.plan.layout import GROUPS, Layout, Leaf, Workload

MASTER_BYTES = 4
_NEWTON_SCHULZ_ITERATIONS = 5

type Axes = tuple[str, ...]
type Table = dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Sums over all weight declarations, for one chip.

    Attributes:
        state: `numbers`, `parameters` and `optimizer` (bytes), each by group of `GROUPS`.
        gathered: (inside the layers, mesh axes) -> bytes of the whole that is gathered over them.
        summed: mesh axes that hold copies -> bytes of gradients that a chip has of these weights.
        spread_bytes: float32 bytes of matrices that are orthogonalized elsewhere than they rest.
        largest_numbers: numbers of the largest leaf that is orthogonalized.
        used_bytes: of all weights as the layers and the head use them.
        newton_schulz_flops: of a chip's share of the matrices.
        newton_schulz_all_flops: of all chips of one replica.
    """

    state: Table
    gathered: dict[tuple[bool, Axes], float]
    summed: dict[Axes, float]
    spread_bytes: float
    largest_numbers: int
    used_bytes: float
    newton_schulz_flops: float
    newton_schulz_all_flops: float

    @property
    def parameters_bytes(self) -> int:
        return sum(self.state["parameters"].values())

    @property
    def optimizer_bytes(self) -> int:
        return sum(self.state["optimizer"].values())


def weights_of(work: Workload, layout: Layout) -> Weights:
    """Return the sums for a layout's chips."""
    return _weights_of(work, layout.data, layout.expert)


@lru_cache(maxsize=4096)
def _weights_of(work: Workload, data: int, expert: int) -> Weights:
    layout = Layout(data=data, expert=expert)
    state: Table = {
        name: dict.fromkeys(GROUPS, 0) for name in ("numbers", "parameters", "optimizer")
    }
    gathered: dict[tuple[bool, Axes], float] = {}
    summed: dict[Axes, float] = {}
    spread = used = 0.0
    largest = 0
    for leaf in work.leaves:
        cut = layout.cut(leaf)
        numbers = leaf.size // layout.over(cut)
        state["numbers"][leaf.kind] += numbers
        state["parameters"][leaf.kind] += MASTER_BYTES * numbers
        state["optimizer"][leaf.kind] += leaf.moment_bytes * numbers

        whole, axes = _gathered(work, layout, leaf, cut)
        if axes:
            inner = leaf.name not in ("embed", "head")
            gathered[inner, axes] = gathered.get((inner, axes), 0.0) + whole
        copies = tuple(axis for axis in AXES if axis not in cut)
        summed[copies] = summed.get(copies, 0.0) + numbers * _use_bytes(work, leaf)
        if leaf.name != "embed":
            used += whole
        if leaf.group == "muonh":
            largest = max(largest, numbers)
            spread += 0 if leaf.is_bank else MASTER_BYTES * numbers
    banks, others = _newton_schulz_flops(work, layout)
    return Weights(
        state=state,
        gathered=gathered,
        summed=summed,
        spread_bytes=spread,
        largest_numbers=largest,
        used_bytes=used,
        newton_schulz_flops=banks + others,
        newton_schulz_all_flops=_newton_schulz_flops(work, Layout())[0] + layout.shards * others,
    )


def _use_bytes(work: Workload, leaf: Leaf) -> int:
    """Bytes of a number as it is used: matrices in the compute dtype, all else in float32."""
    return work.compute_bytes if leaf.is_matrix and leaf.name != "embed" else MASTER_BYTES


def _gathered(work: Workload, layout: Layout, leaf: Leaf, cut: Axes) -> tuple[float, Axes]:
    """Bytes of a weight as one chip uses it, and the axes that it is gathered over for that.

    A bank stays cut over the expert axis, unless every chip computes every expert (`local`).
    """
    whole = float(leaf.size * _use_bytes(work, leaf))
    if leaf.is_bank and work.moe.transport != "local":
        return whole / layout.expert, tuple(axis for axis in cut if axis != EXPERT)
    return whole, cut


def _newton_schulz_flops(work: Workload, layout: Layout) -> tuple[float, float]:
    """Return one chip's operations of five iterations, on banks and on other matrices.

    Banks are orthogonalized where they stand; other matrices of one shape are spread whole over
    data and expert, padded to a multiple of these.
    """
    spread: dict[tuple[int, int], int] = {}
    banks = others = 0.0
    for leaf in work.leaves:
        if leaf.group != "muonh":
            continue
        rows, columns = sorted(leaf.shape[-2:])
        count = leaf.size // (rows * columns)
        if leaf.is_bank:
            banks += count // layout.over(layout.cut(leaf)) * _iterations_flops(rows, columns)
        else:
            spread[rows, columns] = spread.get((rows, columns), 0) + count
    for (rows, columns), count in spread.items():
        others += -(-count // layout.shards) * _iterations_flops(rows, columns)
    return banks, others


def _iterations_flops(rows: int, columns: int) -> float:
    each = 4 * rows * rows * columns + 2 * rows**3
    return float(_NEWTON_SCHULZ_ITERATIONS * each)
