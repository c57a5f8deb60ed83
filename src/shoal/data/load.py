"""The token store on disk, and the batch of a step: a pure function, so a resume needs no state.

A store is a folder with `store.json` and `cells/CELL.bin`: little-endian token ids, documents
each followed by EOS. Its last `tail_tokens`, less than a unit, are never read.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float32, Int32, Int64, Integer

from shoal.core.files import read_limited
from shoal.data.mix import spread
from shoal.data.order import Order

STORE = "store.json"
STORE_LIMIT_BYTES = 16 * 2**20
_DTYPES = {"uint16": "<u2", "uint32": "<u4"}


class Batch(NamedTuple):
    """One step's rows. A target's input is the token before it in its cell's stream."""

    inputs: Int32[np.ndarray, "B S"]
    targets: Int32[np.ndarray, "B S"]
    segments: Int32[np.ndarray, "B S"]
    """From 0 in each row; a new one where the input is EOS, which is where a document begins."""
    weights: Float32[np.ndarray, "B S"]
    """Of each target in the loss."""


@dataclass(frozen=True, kw_only=True)
class TokenStore:
    """Memory maps of every cell's stream; `units` is what an `Order` needs.

    Attributes:
        kept: cell -> the units that stand in for all of it; a cell that is not there has all.
    """

    folder: Path
    eos: int
    vocab_size: int
    unit_tokens: int
    units: Mapping[str, int]
    streams: Mapping[str, Integer[np.ndarray, "_"]]
    kept: Mapping[str, Int64[np.ndarray, "_"]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> "TokenStore":
        """Maps a store; token ids are checked as they are read.

        Raises:
            ValueError: a file is missing or does not have the size that `store.json` says.
        """
        path = folder / STORE
        data = read_limited(path, STORE_LIMIT_BYTES)
        try:
            facts = cast("dict[str, Any]", json.loads(data))
            dtype = np.dtype(_DTYPES[facts["dtype"]])
            unit_tokens = int(facts["unit_tokens"])
            sizes = {cell: int(entry["tokens"]) for cell, entry in facts["cells"].items()}
            units = {cell: int(entry["units"]) for cell, entry in facts["cells"].items()}
            eos, vocab_size = int(facts["eos"]), int(facts["vocab_size"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a token store ({error!r}); prepare it again"
            ) from error
        for cell, size in sizes.items():
            if units[cell] != size // unit_tokens:
                raise ValueError(
                    f"{path}: cell {cell!r} has {size} tokens, which is not {units[cell]} units of "
                    f"{unit_tokens}; prepare the corpus again"
                )
        return cls(
            folder=folder,
            eos=eos,
            vocab_size=vocab_size,
            unit_tokens=unit_tokens,
            units=units,
            streams={cell: _map(folder, cell, size, dtype) for cell, size in sizes.items()},
        )

    def thinned(self, units: Mapping[str, int]) -> "TokenStore":
        """The same store with so many units of each cell, spread evenly over it."""
        assert all(0 <= units[cell] <= held for cell, held in self.units.items())
        kept = {cell: spread(units[cell], held) for cell, held in self.units.items()}
        return replace(self, units=dict(units), kept=kept)


def _map(
    folder: Path, cell: str, num_tokens: int, dtype: np.dtype[Any]
) -> Integer[np.ndarray, "_"]:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", cell):
        raise ValueError(f"{folder / STORE}: {cell!r} is not a cell name; prepare the corpus again")
    path = folder / "cells" / f"{cell}.bin"
    if not path.is_file():
        raise ValueError(f"{path} is missing; prepare the corpus again")
    size = path.stat().st_size
    if size != num_tokens * dtype.itemsize:
        raise ValueError(
            f"{path} has {size} bytes, not {num_tokens * dtype.itemsize}; prepare the corpus again"
        )
    if not num_tokens:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    # A plain view of the map: slicing np.memmap itself costs several times more.
    return np.asarray(np.memmap(path, dtype, mode="r"))


def batch_at(store: TokenStore, order: Order, step: int, rows: slice = slice(None)) -> Batch:
    """The batch of a step, or some rows of it.

    Raises:
        ValueError: the store holds a token id outside the vocabulary.
    """
    assert order.unit_tokens == store.unit_tokens, "the order was built for another store"
    found = order.locate_step(step)
    size = order.phase(step).sequence_tokens
    units = [
        store.kept[found.cells[cell]][unit] if found.cells[cell] in store.kept else unit
        for cell, unit in zip(found.cell[rows].tolist(), found.unit[rows].tolist(), strict=True)
    ]
    starts = np.asarray(units, np.int64) * order.unit_tokens + found.slice * size
    block = np.empty((len(starts), size + 1), np.int32)
    cells = found.cell[rows].tolist()
    for row, (cell, start) in enumerate(zip(cells, starts.tolist(), strict=True)):
        stream = store.streams[found.cells[cell]]
        if start:
            block[row] = stream[start - 1 : start + size]
        else:
            block[row, 0] = store.eos
            block[row, 1:] = stream[:size]
    _check_ids(store, order, step, block, range(len(found.cell))[rows].start)
    inputs, targets = block[:, :-1].copy(), block[:, 1:].copy()
    begins = inputs == store.eos
    begins[:, 0] = False
    segments = np.cumsum(begins, axis=1, dtype=np.int32)
    return Batch(inputs, targets, segments, np.ones(inputs.shape, np.float32))


def _check_ids(
    store: TokenStore, order: Order, step: int, block: Int32[np.ndarray, "B S1"], first: int
) -> None:
    # uint32 ids beyond int32 turn negative, so both ends count.
    wrong = (block < 0) | (block >= store.vocab_size)
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        where = order.locate(step, first + row)
        path = store.folder / "cells" / f"{where.cell}.bin"
        raise ValueError(
            f"{path}: unit {where.unit} holds token id {block[row][wrong[row]][0]}, but the "
            f"vocabulary has {store.vocab_size}; the file is damaged: prepare the corpus again"
        )
