"""One digest of a state, the same on every mesh and for any number of processes.

Each element is mixed with its position in its leaf, and the results are added up modulo 2^64, twice
over with other constants. A sum does not ask who adds which part, so every process reads only what
its own devices hold, and nothing travels but the sums. It tells states apart and finds damage; it
is no shield against a forger: for that, a checkpoint's manifest lists the SHA-256 of every file.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped, UInt64

from shoal.core.files import canonical_json
from shoal.train.together import ALONE, PATIENCE_S, Together

_LANES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_ROWS_AT_ONCE_ELEMENTS = 1 << 20


def leaves_of(state: Any) -> dict[str, Any]:
    """Return every leaf of a state by its dotted path, in tree order."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


def census(state: Any, together: Together = ALONE) -> dict[str, dict[str, Any]]:
    """Return shape, dtype and sum (128 bits, hexadecimal) of every leaf.

    All processes of a run call this together.
    """
    leaves = leaves_of(state)
    sums = {
        path: _hexadecimal(_own_sum(leaf, number))
        for number, (path, leaf) in enumerate(leaves.items())
    }
    parts = together.gather(sums, PATIENCE_S)
    total = {
        path: _hexadecimal(sum((_numbers(part[path]) for part in parts), np.zeros(2, np.uint64)))
        for path in leaves
    }
    return {
        path: {"shape": list(np.shape(leaf)), "dtype": str(leaf.dtype), "sum": total[path]}
        for path, leaf in leaves.items()
    }


def digest(counted: Mapping[str, Any]) -> str:
    """Return one digest of a census: parameters, optimizer, router bias, grid and step."""
    return hashlib.sha256(canonical_json(dict(counted)).encode()).hexdigest()


def _own_sum(leaf: Any, number: int) -> UInt64[np.ndarray, "2"]:
    """Sum what this process holds of a leaf; of copies one counts, another for each next leaf."""
    if not isinstance(leaf, jax.Array):
        return _sum(np.asarray(leaf), [0] * np.ndim(leaf), np.shape(leaf))
    total = np.zeros(2, np.uint64)
    shards = len(leaf.sharding.device_set)
    copies = shards * math.prod(leaf.sharding.shard_shape(leaf.shape)) // max(leaf.size, 1)
    for shard in leaf.addressable_shards:
        if shard.replica_id == number % max(copies, 1):
            starts = [
                cut.indices(size)[0] for cut, size in zip(shard.index, leaf.shape, strict=True)
            ]
            total = total + _sum(np.asarray(shard.data), starts, leaf.shape)
    return total


def _sum(
    part: Shaped[np.ndarray, "..."], starts: list[int], shape: tuple[int, ...]
) -> UInt64[np.ndarray, "2"]:
    """Sum a part of a leaf of `shape` that begins at `starts`."""
    total = np.zeros(2, np.uint64)
    if part.size == 0:
        return total
    if not shape:
        part, starts, shape = part.reshape(1), [0], (1,)
    rows = np.zeros(part.shape[:-1], np.uint64)
    stride = shape[-1]
    for axis in reversed(range(len(shape) - 1)):
        places = (starts[axis] + np.arange(part.shape[axis], dtype=np.uint64)) * np.uint64(stride)
        rows = rows + places.reshape((-1,) + (1,) * (part.ndim - 2 - axis))
        stride *= shape[axis]
    bits = np.ascontiguousarray(part).view(f"u{part.dtype.itemsize}").reshape(-1, part.shape[-1])
    first, columns = rows.reshape(-1, 1), np.arange(part.shape[-1], dtype=np.uint64)[None, :]
    columns = columns + np.uint64(starts[-1])
    step = max(_ROWS_AT_ONCE_ELEMENTS // part.shape[-1], 1)
    for begin in range(0, len(bits), step):
        place = first[begin : begin + step] + columns
        value = bits[begin : begin + step].astype(np.uint64)
        total = total + np.array([_mixed(place, value, lane) for lane in _LANES], np.uint64)
    return total


def _mixed(
    place: UInt64[np.ndarray, "R C"], value: UInt64[np.ndarray, "R C"], lane: np.uint64
) -> np.uint64:
    mixed = (place + np.uint64(1)) * lane
    mixed ^= mixed >> np.uint64(29)
    mixed = (mixed ^ value) * _MIX[0]
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX[1]
    mixed ^= mixed >> np.uint64(31)
    return np.sum(mixed, dtype=np.uint64)


def _hexadecimal(sums: UInt64[np.ndarray, "2"]) -> str:
    return "".join(f"{int(value):016x}" for value in sums)


def _numbers(text: str) -> UInt64[np.ndarray, "2"]:
    return np.array([int(text[:16], 16), int(text[16:], 16)], np.uint64)
