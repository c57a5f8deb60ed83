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
from shoal.data.runs import KEY, write_sorted

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


def _write(path: Path, rows: list[Row]) -> list[Row]:
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    write_sorted(path, ((row[4], row) for row in rows), SCHEMA, scratch)
    assert list(scratch.iterdir()) == []
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize(("run_bytes", "fan_in"), [(10**9, 64), (20_000, 64), (3_000, 3)])
def test_runs_merged_are_the_rows_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int, fan_in: int
):
    rows = _rows(1_000)
    monkeypatch.setattr(runs, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(runs, "RUN_GROUP_BYTES", 1_000)
    monkeypatch.setattr(runs, "FAN_IN", fan_in)
    assert _write(tmp_path / "a.parquet", rows) == sorted(rows, key=KEY)


def test_the_file_depends_neither_on_runs_nor_on_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = _rows(1_000)
    monkeypatch.setattr(runs, "GROUP_BYTES", 10_000)
    _write(tmp_path / "whole.parquet", rows)
    monkeypatch.setattr(runs, "RUN_BYTES", 5_000)
    random.Random(1).shuffle(rows)
    _write(tmp_path / "runs.parquet", rows)
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
runs.RUN_BYTES, runs.RUN_GROUP_BYTES, runs.GROUP_BYTES = 2**23, 2**18, 2**21
def rows(count):
    for n in range(count):
        text = f"{n} " + "word " * 2_000
        identity = xxhash.xxh3_128_hexdigest(text.encode())
        yield len(text), (identity, text, "s", str(n), len(text), "en", 0.5)
folder = Path(sys.argv[1])
runs.write_sorted(folder / "out", rows(int(sys.argv[2])), SCHEMA, folder)
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
