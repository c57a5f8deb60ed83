"""Reading and writing the Parquet tables that stages hand on."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 1_024
BATCH_BYTES = 8 * 2**20


def write(path: Path, table: pa.Table) -> None:
    """Writes one zstd Parquet file, in row groups small enough to stream."""
    mean = max(1, table.nbytes // max(1, table.num_rows))
    rows = max(1, min(65_536, 2 * BATCH_BYTES // mean))
    pq.write_table(table, path, compression="zstd", row_group_size=rows)


def read(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The whole table, or some columns of it."""
    return pq.read_table(path, columns=columns)


def batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The table in order, a bounded number of rows at a time."""
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)


def append(writer: pq.ParquetWriter, path: Path) -> None:
    """Writes a table behind what the writer has, in the row groups that it is in."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group))
