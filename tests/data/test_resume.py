"""Killed at any part of any stage, a preparation goes on there and ends with the same bytes."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core import parts
from shoal.core.artifact import load
from shoal.core.progress import Silent
from shoal.data import encode, lexical, shards, table
from shoal.data import source as source_stage
from shoal.data.archive import content_digest
from shoal.data.config import CorpusConfig
from shoal.data.settings import Benchmark, CellsConfig, DecontamConfig, QualityConfig, TopicsConfig
from shoal.jobs.prepare import prepare

STREAMED = ("documents", "near", "heldout", "contamination", "topics", "quality", "tokens")


class Killed(BaseException):
    """Stands for a signal: nothing in the program catches it."""


class Watch:
    """Records the parts that are made, as ARTIFACT/PART, and dies after so many of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.reused: list[str] = []
        self.die_after = 0
        real = parts._read

        def read(path: Path, *, verify: bool = True) -> Any:
            found = real(path, verify=verify)
            name = f"{path.parent.name.partition('@')[0][1:]}/{path.name}"
            (self.reused if verify else self.made).append(name)
            if not verify and self.die_after and len(self.made) % self.die_after == 0:
                raise Killed
            return found

        monkeypatch.setattr(parts, "_read", read)


def contents(root: Path) -> dict[str, Any]:
    """Artifact -> digest, facts and files; those of the corpus itself hold times."""
    found = {path.name: load(path).manifest for path in root.iterdir()}
    return {
        name: {key: one[key] for key in ("digest", "facts", "files")}
        for name, one in found.items()
        if one["stage"] != "corpus"
    }


@pytest.fixture
def topical(tiny: CorpusConfig, tmp_path: Path, text: Callable[..., str]) -> CorpusConfig:
    """The tiny corpus by topic and quality, with near duplicates and benchmark items in it."""
    for number in range(3):
        near = text(number) + text(700 + number, 20)
        (tmp_path / "alpha" / f"near{number}.txt").write_text(near)
    alpha = tiny.sources[0]
    letters = " ".join(f"{letter} {number}" for number, letter in enumerate("abcdefghij"))
    (tmp_path / "alpha" / "letters.txt").write_text(text(800) + letters)
    digest = content_digest(tmp_path / "alpha")
    alpha = replace(alpha, archive=replace(alpha.archive, sha256=digest))
    cells = CellsConfig(
        by="topic_quality",
        topics=TopicsConfig(dimensions=4, centroids=4, num_topics=2, sample_documents=60),
        quality=QualityConfig(num_buckets=2),
    )
    items = tmp_path / "exam.txt"
    exam = [letters, *(" ".join(text(n).split()[9:40]) for n in (12, 1003, 30))]
    items.write_text("\n".join(exam))
    decontam = DecontamConfig(benchmarks=(Benchmark(name="exam", form="text", path=str(items)),))
    sources = (alpha, *tiny.sources[1:])
    return replace(tiny, sources=sources, cells=cells, decontam=decontam)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards and batches per source."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 12_000)
    monkeypatch.setattr(source_stage, "SHARD_BYTES", 12_000)
    monkeypatch.setattr(source_stage, "GROUP_BYTES", 5_000)
    monkeypatch.setattr(table, "BATCH_ROWS", 6)
    monkeypatch.setattr(lexical, "MAX_SHARE", 1.0)
    # The fast encoder refuses what is more than one text, as it may.
    real = encode._flat_fast
    monkeypatch.setattr(encode, "_flat_fast", lambda e, t: None if len(t) > 1 else real(e, t))


@pytest.mark.parametrize("die_after", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_killed_after_every_part_it_makes_none_of_them_twice(
    tmp_path: Path, topical: CorpusConfig, monkeypatch: pytest.MonkeyPatch, die_after: int
):
    watch, whole = Watch(monkeypatch), tmp_path / "whole" / "corpora"
    prepare(topical, whole.parent, Silent())
    expected, watch.made = watch.made, []
    per_stage = Counter(name.partition("/")[0] for name in expected)
    assert all(per_stage[f"tiny-{stage}"] >= 3 for stage in STREAMED), per_stage
    assert per_stage["source-alpha"] >= 3
    assert watch.reused == []
    facts = {name.partition("@")[0]: one["facts"] for name, one in contents(whole).items()}
    assert facts["tiny-near"]["candidates"]
    assert facts["tiny-heldout"]["sources"]["gamma"]["overlap_dropped"]
    assert facts["tiny-contamination"]["benchmarks"]["exam"]["items"] == 4
    assert facts["tiny-contamination"]["likely_false"]["numbers"]["rows"] == 1
    assert facts["tiny-tokens"]["encoders"]["alpha"]["fallbacks"] > 20
    watch.die_after = die_after
    deaths = 0
    while True:
        try:
            prepare(topical, tmp_path / "killed", Silent())
            break
        except Killed:
            deaths += 1
    assert deaths == len(expected) // die_after
    assert watch.made == expected
    assert watch.reused
    assert contents(tmp_path / "killed/corpora") == contents(whole)


def test_files_do_not_depend_on_the_size_of_shards(
    tmp_path: Path, topical: CorpusConfig, monkeypatch: pytest.MonkeyPatch
):
    prepare(topical, tmp_path / "small", Silent())
    monkeypatch.setattr(shards, "SHARD_BYTES", 10**9)
    monkeypatch.setattr(source_stage, "SHARD_BYTES", 10**9)
    prepare(topical, tmp_path / "large", Silent())
    assert contents(tmp_path / "small/corpora") == contents(tmp_path / "large/corpora")


@pytest.mark.parametrize("limit_bytes", [5_000, 20_000])
def test_a_cap_keeps_the_same_whether_the_source_is_read_in_shards_or_not(
    tmp_path: Path, topical: CorpusConfig, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
):
    alpha = replace(topical.sources[0], limit_bytes=limit_bytes)
    for number in range(4):
        copy = tmp_path / "alpha" / f"copy{number}.txt"
        shutil.copyfile(tmp_path / "alpha" / "03.txt", copy)
    archive = replace(alpha.archive, sha256=content_digest(tmp_path / "alpha"))
    alpha = replace(alpha, archive=archive)
    found = []
    for size in (1, 12_000, 10**9):
        monkeypatch.setattr(source_stage, "SHARD_BYTES", size)
        made = source_stage.source_artifact(tmp_path / str(size), alpha, tmp_path, Silent())
        found.append((made.path / source_stage.TABLE).read_bytes())
    assert found[0] == found[1] == found[2]
