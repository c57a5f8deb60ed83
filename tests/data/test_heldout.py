"""Stage `heldout`: whole documents, within budget, sharing no long n-gram with training."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.core.artifact import Artifact
from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.config import CorpusConfig, HeldoutConfig, Source
from shoal.data.dedup import TABLE as DUPLICATES
from shoal.data.dedup import duplicates
from shoal.data.heldout import TABLE, Unique, choose, heldout
from shoal.data.ngrams import ngram_hashes, words_of
from shoal.data.normalize import documents
from shoal.data.source import source_artifact
from shoal.data.training import Split


def _held(tmp_path: Path, corpus: CorpusConfig) -> tuple[Split, list[dict[str, Any]], Artifact]:
    root = tmp_path / "root"
    made = {s.name: source_artifact(root, s, tmp_path, Silent()) for s in corpus.sources}
    written = documents(root, corpus, made, Silent())
    repeated = duplicates(root, corpus, written, Silent())
    unique = Unique(written, [repeated.path / DUPLICATES])
    found = heldout(root, corpus, unique, {"duplicates": repeated.digest}, Silent())
    split = Split(unique, found)
    return split, table.read(found.path / TABLE).to_pylist(), found


def _training(split: Split, corpus: CorpusConfig) -> dict[str, str]:
    return {
        row["id"]: row["text"]
        for source in corpus.training
        for batch in split.batches(source.name, ["id", "text"])
        for row in batch.to_pylist()
    }


def test_no_kept_document_shares_an_n_gram_with_training(tmp_path: Path, tiny: CorpusConfig):
    split, rows, _ = _held(tmp_path, tiny)
    training = words_of(pa.array(list(_training(split, tiny).values())))
    kept = [
        text
        for domains in split.heldout_texts(tiny).values()
        for texts in domains.values()
        for text in texts
    ]
    assert len(kept) == sum(row["kept"] for row in rows) > 5
    for text in kept:
        words = words_of(pa.array([text]))
        length = min(tiny.heldout.ngram_words, len(words.hashes))
        shared = np.isin(ngram_hashes(words, length)[0], ngram_hashes(training, length)[0])
        assert not shared.any()


def test_a_dropped_document_shows_the_n_gram_and_the_training_document(
    tmp_path: Path, tiny: CorpusConfig
):
    split, rows, found = _held(tmp_path, tiny)
    training = _training(split, tiny)
    dropped = [row for row in rows if row["rule"] == "overlap"]
    assert {row["source"] for row in dropped} == {"gamma"}
    assert found.facts["sources"]["gamma"] == {
        "candidates": 3,
        "candidate_bytes": sum(row["bytes"] for row in rows if row["source"] == "gamma"),
        "kept": 1,
        "kept_bytes": next(
            row["bytes"] for row in rows if row["source"] == "gamma" and row["kept"]
        ),
        "overlap_dropped": 2,
    }
    assert sorted(len(row["ngram"].split()) for row in dropped) == [3, 13]
    for row in dropped:
        words = words_of(pa.array([training[row["training_id"]]])).of(0)
        assert row["ngram"] in " ".join(words)


def test_every_document_is_trained_on_or_listed(tmp_path: Path, tiny: CorpusConfig):
    split, rows, _ = _held(tmp_path, tiny)
    training = _training(split, tiny)
    listed = {row["id"] for row in rows}
    assert not listed & training.keys()
    unique = {
        identity
        for source in tiny.sources
        for batch in split.unique.batches(source.name, ["id"])
        for identity in batch["id"].to_pylist()
    }
    assert listed | training.keys() == unique


def test_each_training_source_stays_within_its_budget(tmp_path: Path, tiny: CorpusConfig):
    _, rows, found = _held(tmp_path, tiny)
    for source in tiny.training:
        mine = [row for row in rows if row["source"] == source.name]
        assert 0 < sum(row["bytes"] for row in mine) <= tiny.heldout.budget_bytes
        assert {row["set"] for row in mine} == {"sources"}
        assert found.facts["sources"][source.name]["candidates"] == len(mine)


def test_the_choice_follows_the_key_not_the_order_of_documents():
    config = HeldoutConfig(budget_bytes=1_000, max_share=0.5, max_document_share=0.5)
    sizes = {f"{number:032x}": 100 + number for number in range(50)}
    first = choose(sizes, -1, config)
    assert first == choose(dict(reversed(sizes.items())), -1, config)
    assert first != choose(sizes, -1, replace(config, key=1))
    assert sum(sizes[name] for name in first) <= 1_000
    assert choose(sizes, -1, replace(config, budget_bytes=2_000))[: len(first)] == first


def test_a_budget_is_a_share_of_a_small_source_and_leaves_long_documents_alone():
    config = HeldoutConfig(budget_bytes=10_000, max_share=0.1, max_document_share=0.25)
    sizes = {"long": 9_000, **{f"{number}": 100 for number in range(10)}}
    chosen = choose(sizes, -1, config)
    assert "long" not in chosen
    assert len(chosen) == 10
    assert choose(sizes, 0, config) == []
    assert choose({}, -1, config) == []


def _two(
    tmp_path: Path, source: Callable[..., Source], training: str, evaluation: str
) -> CorpusConfig:
    for name, text in (("training", training), ("evaluation", evaluation)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text}))
    return CorpusConfig(
        name="two",
        sources=(
            source(tmp_path / "training.jsonl", name="training", lines="json"),
            source(
                tmp_path / "evaluation.jsonl",
                name="evaluation",
                lines="json",
                usage="evaluation",
                domain="other",
            ),
        ),
    )


FIFTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"


@pytest.mark.parametrize(
    ("training", "evaluation", "rule"),
    [
        (f"x {FIFTEEN} y", f"before {FIFTEEN} after", "overlap"),
        (FIFTEEN.upper().replace(" ", ", "), FIFTEEN, "overlap"),
        (f"{FIFTEEN} y", " ".join([*FIFTEEN.split()[:12], "else", *FIFTEEN.split()[12:]]), ""),
        (f"x {FIFTEEN}", "Five, six.", "overlap"),
        (f"x {FIFTEEN}", "five seven", ""),
        (FIFTEEN, "?!", "no words"),
    ],
)
def test_thirteen_shared_words_or_a_whole_short_text_drop_a_document(
    tmp_path: Path, source: Callable[..., Source], training: str, evaluation: str, rule: str
):
    _, rows, _ = _held(tmp_path, _two(tmp_path, source, training, evaluation))
    assert [row["rule"] for row in rows] == [rule]
    assert rows[0]["kept"] == (not rule)


def test_a_hash_collision_drops_nothing(
    tmp_path: Path, source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
):
    def same(words: object, length: int) -> tuple[np.ndarray, np.ndarray]:
        hashes, begins = ngram_hashes(words, length)
        return np.zeros_like(hashes), begins

    monkeypatch.setattr("shoal.data.heldout.ngram_hashes", same)
    other = " ".join(f"w{number}" for number in range(20))
    _, rows, _ = _held(tmp_path, _two(tmp_path, source, FIFTEEN, other))
    assert [row["kept"] for row in rows] == [True]
    _, rows, _ = _held(tmp_path / "again", _two(tmp_path, source, FIFTEEN, FIFTEEN + " more"))
    assert [row["rule"] for row in rows] == ["overlap"]


def test_a_corpus_without_anything_to_hold_out_is_trained_on_whole(
    tmp_path: Path, source: Callable[..., Source]
):
    path = tmp_path / "training.jsonl"
    path.write_text(json.dumps({"text": FIFTEEN}))
    corpus = CorpusConfig(name="one", sources=(source(path, lines="json"),))
    split, rows, _ = _held(tmp_path, corpus)
    assert rows == []
    assert split.heldout_texts(corpus) == {}
    assert list(_training(split, corpus).values()) == [FIFTEEN]
