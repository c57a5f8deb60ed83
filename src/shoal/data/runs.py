"""Sorting a table that does not fit in memory: sorted runs on disk, then one merge.

Rows are tuples in the order of a schema, sorted by their first and fourth column (`KEY`). Bound of
memory: the rows of one run, or one row group of each of at most `FAN_IN` runs; how long the table
is does not matter. Row groups of the result are cut by its content alone, so that the
file does not depend on the size of the runs.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RUN_GROUP_BYTES = 2**20
GROUP_BYTES = 16 * 2**20
GROUP_ROWS = 65_536
FAN_IN = 64
KEY = itemgetter(0, 3)

type Row = tuple[Any, ...]


def write_run(path: Path, rows: list[Row], schema: pa.Schema, *, whole: bool = False) -> None:
    """Sorts rows in place and writes them as one run; a `whole` table needs no merge after it."""
    rows.sort(key=KEY)
    _write(path, rows, schema, GROUP_BYTES if whole else RUN_GROUP_BYTES)


def merge_runs(path: Path, runs: Sequence[Path], schema: pa.Schema, scratch: Path) -> None:
    """Writes the rows of sorted runs as one sorted Parquet file; `scratch` is left as it was."""
    own: list[Path] = []
    left = list(runs)
    while len(left) > FAN_IN:
        first, left = left[:FAN_IN], left[FAN_IN:]
        own.append(scratch / f"merged-{len(own)}")
        _write(own[-1], _merged(first), schema, RUN_GROUP_BYTES)
        left.append(own[-1])
        for used in set(first).intersection(own):
            used.unlink()
    _write(path, _merged(left), schema, GROUP_BYTES)
    for used in set(left).intersection(own):
        used.unlink()


def _merged(runs: Sequence[Path]) -> Iterator[Row]:
    yield from heapq.merge(*map(_read, runs), key=KEY)


def _read(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path, memory_map=False) as file:
        for group in range(file.num_row_groups):
            columns = [column.to_pylist() for column in file.read_row_group(group).columns]
            yield from zip(*columns, strict=True)


def _write(path: Path, rows: Iterable[Row], schema: pa.Schema, group_bytes: int) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        group: list[Row] = []
        size = 0
        for row in rows:
            text_bytes = row[4]
            if group and (size + text_bytes > group_bytes or len(group) == GROUP_ROWS):
                writer.write_table(_table(group, schema))
                group, size = [], 0
            group.append(row)
            size += text_bytes
        writer.write_table(_table(group, schema))


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
