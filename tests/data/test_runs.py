"""Sorting on disk equals sorting in memory, and the file does not know how it was sorted."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.data import runs
from shoal.data.normalize import SCHEMA, document_id
from shoal.data.runs import KEY, merge_runs, write_run

type Row = tuple[Any, ...]


def _rows(count: int, seed: int = 0) -> list[Row]:
    drawn = random.Random(seed)
    rows: list[Row] = []
    for number in range(count):
        # Some texts repeat, so that ids do and the second key decides.
        text = f"text {drawn.randrange(count // 2)} " + "x" * drawn.randrange(300)
        size = len(text)
        rows.append((document_id(text[:9]), text, "one", f"{number:05d}", size, "en", 0.5))
    return rows


def _write(path: Path, rows: list[Row], run_rows: int = 0) -> list[Row]:
    """Through runs of so many rows, or as one whole table."""
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    if run_rows:
        made = [path.with_suffix(f".{start}") for start in range(0, len(rows), run_rows)]
        for number, run in enumerate(made):
            write_run(run, rows[number * run_rows : (number + 1) * run_rows], SCHEMA)
        merge_runs(path, made, SCHEMA, scratch)
        assert all(run.exists() for run in made), "they are the caller's"
    else:
        write_run(path, list(rows), SCHEMA, whole=True)
    assert list(scratch.iterdir()) == []
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize(("run_rows", "fan_in"), [(0, 64), (1_000, 64), (120, 64), (17, 3)])
def test_runs_merged_are_the_rows_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_rows: int, fan_in: int
):
    rows = _rows(1_000)
    monkeypatch.setattr(runs, "RUN_GROUP_BYTES", 1_000)
    monkeypatch.setattr(runs, "FAN_IN", fan_in)
    assert _write(tmp_path / "a.parquet", rows, run_rows) == sorted(rows, key=KEY)


def test_the_file_depends_neither_on_runs_nor_on_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = _rows(1_000)
    monkeypatch.setattr(runs, "GROUP_BYTES", 10_000)
    _write(tmp_path / "whole.parquet", rows)
    random.Random(1).shuffle(rows)
    _write(tmp_path / "runs.parquet", rows, 30)
    whole = (tmp_path / "whole.parquet").read_bytes()
    assert (tmp_path / "runs.parquet").read_bytes() == whole


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "GROUP_BYTES", 2_000)
    monkeypatch.setattr(runs, "GROUP_ROWS", 7)
    big = ("0" * 32, "y" * 9_000, "one", "big", 9_000, "en", 0.5)
    _write(tmp_path / "a.parquet", [*_rows(200), big])
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        groups = [
            file.read_row_group(n, columns=["bytes"])["bytes"].to_pylist()
            for n in range(file.num_row_groups)
        ]
    assert all(len(group) <= 7 for group in groups)
    assert all(sum(group) <= 2_000 or len(group) == 1 for group in groups)


def test_nothing_to_sort_gives_an_empty_table(tmp_path: Path):
    assert _write(tmp_path / "a.parquet", []) == []
    assert pq.read_schema(tmp_path / "a.parquet").equals(SCHEMA)


def test_memory_does_not_grow_with_the_table(tmp_path: Path):
    """Peak of what Arrow and Python hold at 15 and at 60 MB of text, with small runs."""
    code = """
import resource, sys, xxhash
from pathlib import Path
from shoal.data import runs
from shoal.data.normalize import SCHEMA
runs.RUN_GROUP_BYTES, runs.GROUP_BYTES = 2**18, 2**21
def row(n):
    text = f"{n} " + "word " * 2_000
    identity = xxhash.xxh3_128_hexdigest(text.encode())
    return identity, text, "s", str(n), len(text), "en", 0.5
folder, count = Path(sys.argv[1]), int(sys.argv[2])
made = []
for start in range(0, count, 500):
    made.append(folder / str(start))
    runs.write_run(made[-1], [row(n) for n in range(start, start + 500)], SCHEMA)
runs.merge_runs(folder / "out", made, SCHEMA, folder)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""

    def peak_mib(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-c", code, str(folder), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    small, large = peak_mib(1_500), peak_mib(6_000)
    assert large < small + 25, (small, large)


def test_a_schema_is_what_is_written(tmp_path: Path):
    _write(tmp_path / "a.parquet", _rows(10))
    assert pq.read_schema(tmp_path / "a.parquet").field("language_score").type == pa.float32()
