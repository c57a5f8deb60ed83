"""Hub data sets: a commit and a hash, or nothing; the hub itself is replaced by a local folder."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.config import Archive, Reader, Source
from shoal.data.hub import pinned
from shoal.data.source import TABLE, source_artifact

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the hub serves; every call is written down in `calls.jsonl` beside it."""
    served = tmp_path / "served"
    (served / "data").mkdir(parents=True)
    for number in range(2):
        rows = pa.table({"text": [f"row {number} {n}" for n in range(3)]})
        pq.write_table(rows, served / "data" / f"train-{number}.parquet")
    (served / "loader.py").write_text("raise SystemExit('never run')")

    def snapshot_download(repo: str, **options: Any) -> str:
        with (tmp_path / "calls.jsonl").open("a") as file:
            file.write(json.dumps([repo, options["repo_type"], options["revision"]]) + "\n")
        if repo != "owner/name":
            raise OSError("404 Client Error")
        place = Path(options["local_dir"])
        for path in sorted(p for p in served.rglob("*") if p.is_file()):
            name = path.relative_to(served).as_posix()
            if any(fnmatchcase(name, pattern) for pattern in options["allow_patterns"]):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(path.read_bytes())
        (place / ".cache").mkdir(parents=True, exist_ok=True)
        (place / ".cache" / "lock").write_text("hidden")
        return str(place)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return served


READER = Reader(members=("data/*.parquet",), lines="parquet")


def _archive(**changes: str) -> Archive:
    fields = {"form": "hub", "package": "owner/name", "version": COMMIT, "sha256": "0" * 64}
    return Archive(**{**fields, **changes})


def _source(archive: Archive) -> Source:
    return Source(
        name="hub",
        kind="web",
        archive=archive,
        reader=READER,
        origin="a test",
        license="CC0-1.0",
        license_evidence="written here",
    )


def test_a_data_set_is_read_from_its_files_at_the_commit(hub: Path, tmp_path: Path):
    archive = pinned(_archive(), READER, tmp_path / "pins", Silent())
    made = source_artifact(tmp_path / "root", _source(archive), tmp_path / "d", Silent())
    rows = table.read(made.path / TABLE).to_pylist()
    assert [row["source_id"] for row in rows][:2] == [
        "data/train-0.parquet:1",
        "data/train-0.parquet:2",
    ]
    assert [row["raw"] for row in rows] == [b"row %d %d" % (f, n) for f in (0, 1) for n in range(3)]
    assert made.facts["revision"] == f"owner/name=={COMMIT} sha256:{archive.sha256}"
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert calls == [["owner/name", "dataset", COMMIT]] * 2
    assert not list(tmp_path.rglob("d/**/loader.py"))


def test_a_changed_upstream_fails_by_hash(hub: Path, tmp_path: Path):
    archive = pinned(_archive(), READER, tmp_path / "pins", Silent())
    pq.write_table(pa.table({"text": ["other"]}), hub / "data" / "train-1.parquet")
    with pytest.raises(
        ValueError, match=rf"expected sha256 {archive.sha256}, got .*not the pinned"
    ):
        source_artifact(tmp_path / "root", _source(archive), tmp_path / "d", Silent())


@pytest.mark.parametrize("version", ["main", "v1.0", "refs/convert/parquet", COMMIT[:12]])
def test_a_branch_or_tag_is_refused(version: str):
    with pytest.raises(ValueError, match=r"is no commit: a branch or tag can move"):
        _archive(version=version)


def test_a_name_without_an_owner_is_refused():
    with pytest.raises(ValueError, match="give OWNER/NAME"):
        _archive(package="name")


def test_what_cannot_be_downloaded_or_holds_nothing_is_named(hub: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"owner/other at 0123.*cannot be downloaded \(404"):
        pinned(_archive(package="owner/other"), READER, tmp_path / "d", Silent())
    nothing = replace(READER, members=("*.csv",))
    with pytest.raises(ValueError, match=r"has no file that matches \['\*\.csv'\]"):
        pinned(_archive(), nothing, tmp_path / "d", Silent())
