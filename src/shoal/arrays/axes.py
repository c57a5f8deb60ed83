"""The one table from logical axes to mesh axes: where each dimension of a weight is cut.

Matrices outside the experts are cut along their model dimension over data and expert together;
banks along their expert dimension, never along a matrix dimension; vectors stand whole on every
device. The replica axis holds whole copies of everything.
"""

import math
from collections.abc import Mapping, Sequence

from shoal.arrays.config import DATA, EXPERT

TABLE: Mapping[str, tuple[str, ...]] = {
    "embed": (DATA, EXPERT),
    "expert": (EXPERT, DATA),
    # Whole on every device: batch axes, the inner side of a matrix, vectors, what routing reads.
    "layer": (),
    "shared": (),
    "vocab": (),
    "query": (),
    "kv": (),
    "heads": (),
    "latent": (),
    "expert_ffn": (),
    "shared_ffn": (),
    "rank": (),
    "tap": (),
    "channel": (),
    "choice": (),
}

type Placed = tuple[tuple[str, ...], ...]


def placed(axes: Sequence[str], shape: Sequence[int], degrees: Mapping[str, int]) -> Placed:
    """Return, per dimension, the mesh axes that cut it.

    A mesh axis cuts one dimension of a leaf at most. Where the axes of the table together do not
    divide a size, the last of them are left out, and the leaf is whole along those.

    Args:
        axes: logical axes, one per dimension (`WeightSpec.axes`).
        degrees: mesh axis -> number of devices along it.
    """
    free = {axis for axis, degree in degrees.items() if degree > 1}
    cut: list[tuple[str, ...]] = []
    for axis, size in zip(axes, shape, strict=True):
        wanted = [name for name in TABLE[axis] if name in free]
        while wanted and size % math.prod(degrees[name] for name in wanted):
            wanted.pop()
        free -= set(wanted)
        cut.append(tuple(wanted))
    return tuple(cut)
