"""The engine: names, one runner per process, and the same bytes on Ray as in this process."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.data import engine
from shoal.data.engine import Engine

# Sockets of this process are left open to this machine only, those of Ray are its own.
PROBE = """
import hashlib, json, sys
from pathlib import Path

import pyarrow as pa

from shoal.core.progress import Silent
from shoal.data import config, near, settings, table
from shoal.data.dedup import duplicates
from shoal.data.normalize import document_id
from shoal.core.artifact import build
from shoal.data.planted_near import plant

root, engine = Path(sys.argv[1]), sys.argv[2]
texts = {"one": [], "two": [], "three": []}
for place, item in enumerate(plant(1, families=4, num_words=80)):
    texts[list(texts)[place % 3]].append(item.text)

def source(name):
    archive = config.Archive(form="file", sha256="0" * 64, path="none")
    card = {"origin": "a test", "license": "CC0-1.0", "license_evidence": "written here"}
    return config.Source(name=name, kind="prose", archive=archive,
                         reader=config.Reader(members=("*",)), **card)

def make(folder):
    for name, mine in texts.items():
        rows = [(document_id(t), t, name, f"{n:04d}", len(t)) for n, t in enumerate(sorted(mine))]
        columns = zip(*sorted(rows))
        names = ["id", "text", "source", "source_id", "bytes"]
        table.write(folder / f"{name}.parquet", pa.table(dict(zip(names, map(list, columns)))))
    return {"sources": {n: {"documents": len(t), "bytes": 1} for n, t in texts.items()}}

corpus = config.CorpusConfig(name="small", sources=tuple(map(source, texts)))
documents = build(root, "documents", stage="t", revision=1, literals={}, inputs={}, make=make)
twins = duplicates(root, corpus, documents, Silent())
made = near.near(root, corpus, documents, twins, Silent(), config=settings.NearConfig(),
                 engine=engine)
import daft
files = {p.relative_to(root).as_posix().partition("@")[0] + p.name:
         hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*.parquet")}
print(json.dumps({"runner": daft.runners._get_runner().name, "rows": made.facts, "files": files}))
"""


def write(path: Path, columns: dict) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=50)
    return path


def lengths(column: pa.Array) -> pa.Array:
    """A batch function: of every text a list with its length, or of a long one none."""
    return pa.array([[len(text)] if len(text) < 7 else [] for text in column.to_pylist()])


def test_a_function_is_applied_to_every_row_in_batches(tmp_path: Path):
    texts = [f"é{'x' * (n % 11)}" for n in range(500)]
    path = write(tmp_path / "in.parquet", {"text": texts, "id": list(range(500)), "more": texts})
    into = pa.field("size", pa.list_(pa.uint64()))
    for rows in (7, 256):
        found = Engine().map(
            path, lengths, over="text", into=into, keep=["id", "more"], batch_rows=rows
        )
        assert found.column_names == ["id", "more", "size"]
        assert found.schema.field("size") == into
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
            {"id": n, "more": text, "size": [len(text)] if len(text) < 7 else []}
            for n, text in enumerate(texts)
        ]


@pytest.mark.parametrize("passes", [1, 4])
def test_pairs_are_those_of_a_dictionary_over_all_files(tmp_path: Path, passes: int):
    drawn = random.Random(0)
    lists = [[drawn.randrange(2**64 - 300, 2**64) for _ in range(n % 4)] for n in range(300)]
    values = [drawn.getrandbits(64) for _ in lists]
    kinds = (pa.list_(pa.uint64()), pa.uint64())
    paths = [
        write(
            tmp_path / f"{part}.parquet",
            {
                "bands": pa.array(lists[part::2], kinds[0]),
                "key": pa.array(values[part::2], kinds[1]),
            },
        )
        for part in range(2)
    ]
    expected = defaultdict(list)
    for items, value in zip(lists, values, strict=True):
        for item in items:
            expected[item].append(value)
    pairs = {
        (min(group), value) for group in expected.values() for value in group if value > min(group)
    }
    found = set()
    for one, other in Engine().pairs(paths, lists="bands", value="key", passes=passes):
        found |= set(zip(other.to_pylist(), one.to_pylist(), strict=True))
    assert found == pairs
    assert len(found) > 50


@pytest.mark.parametrize("name", ["spark", "", "ray:/host", "Ray"])
def test_an_unknown_name_is_refused_with_those_that_are_known(name: str):
    with pytest.raises(ValueError, match="use native, ray or ray://ADDRESS"):
        Engine(name)


def test_ray_that_is_not_installed_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed; install 'shoal\[ray\]'"):
        Engine("ray://head:10001")
    assert Engine("native").name == "native"


def test_a_process_that_runs_one_engine_refuses_another(monkeypatch):
    monkeypatch.setattr(engine, "_started", ["native"])
    with pytest.raises(ValueError, match="already runs 'native'"):
        Engine("ray")


def test_telemetry_is_off_before_daft_is_imported():
    code = (
        "import os, sys\n"
        "from shoal.data.engine import Engine\n"
        "assert 'daft' not in sys.modules\n"
        "Engine()._daft()\n"
        "import daft.scarf_telemetry as telemetry\n"
        "print(telemetry.opted_out(), os.environ['RAY_USAGE_STATS_ENABLED'])\n"
    )
    off = {"DO_NOT_TRACK", "SCARF_NO_ANALYTICS", "DAFT_ANALYTICS_ENABLED"}
    clean = {name: value for name, value in os.environ.items() if name not in off}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean
    )
    assert said.stdout == "True 0\n"


@pytest.mark.slow
def test_the_near_stage_writes_the_same_bytes_on_ray_as_in_this_process(tmp_path: Path):
    found = {}
    for name in ("native", "ray"):
        command = [sys.executable, "-c", PROBE, str(tmp_path / name), name]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
        assert said.returncode == 0, said.stderr[-3000:]
        found[name] = json.loads(said.stdout.splitlines()[-1])
        assert found[name].pop("runner") == name
    assert found["native"] == found["ray"]
    assert found["native"]["rows"]["candidates"] > 20
    assert len(found["native"]["files"]) == 8
