"""Stage `duplicates`: one copy of every text stays, in the source that stands first."""

from dataclasses import replace
from pathlib import Path

from shoal.core.artifact import Artifact
from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.data.dedup import TABLE, duplicates
from shoal.data.normalize import documents
from shoal.data.source import source_artifact


def _stages(tmp_path: Path, corpus: CorpusConfig) -> tuple[Artifact, Artifact]:
    root = tmp_path / "root"
    made = {s.name: source_artifact(root, s, tmp_path, Silent()) for s in corpus.sources}
    written = documents(root, corpus, made, Silent())
    return written, duplicates(root, corpus, written, Silent())


def test_copies_within_and_across_sources_are_listed_with_their_keeper(
    tmp_path: Path, tiny: CorpusConfig
):
    _, found = _stages(tmp_path, tiny)
    rows = table.read(found.path / TABLE).to_pylist()
    told = [
        (
            row["source"],
            row["source_id"],
            row["keeper_source"],
            row["keeper_source_id"],
            row["rule"],
        )
        for row in rows
    ]
    assert sorted(told) == [
        ("beta", "beta.jsonl:1", "alpha", "07.txt", "exact across sources"),
        ("beta", "beta.jsonl:3", "beta", "beta.jsonl:2", "exact within source"),
    ]
    assert found.facts["sources"] == {"alpha": 0, "beta": 2, "gamma": 0}


def test_the_order_of_sources_decides_who_keeps_a_copy(tmp_path: Path, tiny: CorpusConfig):
    alpha, beta, gamma = tiny.sources
    _, found = _stages(tmp_path, replace(tiny, sources=(beta, alpha, gamma)))
    assert found.facts["sources"] == {"beta": 1, "alpha": 1, "gamma": 0}


def test_what_stays_holds_every_text_once(tmp_path: Path, tiny: CorpusConfig):
    written, found = _stages(tmp_path, tiny)
    dropped = {
        (row["source"], row["source_id"])
        for row in table.read(found.path / TABLE, ["source", "source_id"]).to_pylist()
    }
    everything: set[str] = set()
    kept: list[str] = []
    for source in tiny.sources:
        for row in table.read(written.path / f"{source.name}.parquet").to_pylist():
            everything.add(row["text"])
            if (source.name, row["source_id"]) not in dropped:
                kept.append(row["text"])
    assert len(kept) == len(set(kept))
    assert set(kept) == everything
