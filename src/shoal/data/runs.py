"""Sorting a table that does not fit in memory: sorted runs on disk, then one merge.

Rows are tuples in the order of a schema, sorted by their first and fourth column (`KEY`). Bound of
memory: one run of `RUN_BYTES` of text, or one row group of each of at most `FAN_IN` runs; how long
the table is does not matter. Row groups of the result are cut by its content alone, so that the
file does not depend on the size of the runs.
"""

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RUN_BYTES = 64 * 2**20
RUN_GROUP_BYTES = 2**20
GROUP_BYTES = 16 * 2**20
GROUP_ROWS = 65_536
FAN_IN = 64
KEY = itemgetter(0, 3)

type Row = tuple[Any, ...]


def write_sorted(
    path: Path, rows: Iterable[tuple[int, Row]], schema: pa.Schema, scratch: Path
) -> None:
    """Writes (size in bytes, row) pairs as one Parquet file, sorted; `scratch` is left empty."""
    runs: list[Path] = []
    held: list[Row] = []
    held_bytes = 0
    for size, row in rows:
        held.append(row)
        held_bytes += size
        if held_bytes >= RUN_BYTES:
            runs.append(_write_run(scratch / f"run-{len(runs)}", held, schema))
            held, held_bytes = [], 0
    held.sort(key=KEY)
    if not runs:
        _write(path, held, schema, GROUP_BYTES)
        return
    runs.append(_write_run(scratch / f"run-{len(runs)}", held, schema))
    held = []
    made = len(runs)
    while len(runs) > FAN_IN:
        first, runs = runs[:FAN_IN], runs[FAN_IN:]
        merged = scratch / f"run-{made}"
        _write(merged, _merged(first), schema, RUN_GROUP_BYTES)
        runs.append(merged)
        made += 1
        for run in first:
            run.unlink()
    _write(path, _merged(runs), schema, GROUP_BYTES)
    for run in runs:
        run.unlink()


def _write_run(path: Path, rows: list[Row], schema: pa.Schema) -> Path:
    rows.sort(key=KEY)
    _write(path, rows, schema, RUN_GROUP_BYTES)
    return path


def _merged(runs: list[Path]) -> Iterator[Row]:
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
