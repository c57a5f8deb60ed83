"""Stages `topic_model` and `topics`, and the lexical embeddings below them."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from shoal.core.artifact import load
from shoal.core.progress import Silent
from shoal.data import lexical, table
from shoal.data import topics as stage
from shoal.data.settings import CellsConfig, TopicsConfig
from shoal.data.training import Split

FIELDS = {
    "sea": "harbor anchor sail tide captain deck wave keel",
    "law": "statute clause court judge appeal verdict treaty oath",
    "kitchen": "flour butter oven whisk onion pepper simmer dough",
}


def document(field, seed):
    random = np.random.default_rng([len(field), seed])
    own, all_words = FIELDS[field].split(), " ".join(FIELDS.values()).split()
    words = random.choice(own, 60).tolist() + random.choice(all_words, 6).tolist()
    return " ".join(random.permutation(words)) + f" {seed}"


class Texts(Split):
    """A split of one source per field."""

    def __init__(self, count=40):
        self.rows = {
            field: [
                {"id": f"{n:032x}", "source": field, "text": document(field, n)}
                for n in range(count)
            ]
            for field in FIELDS
        }
        for rows in self.rows.values():
            for row in rows:
                row["bytes"] = len(row["text"])

    def batches(self, source, columns):
        rows = self.rows[source]
        for start in range(0, len(rows), 7):
            yield pa.RecordBatch.from_pylist(rows[start : start + 7]).select(columns)

    def sizes(self, source):
        return {row["id"]: row["bytes"] for row in self.rows[source]}


@pytest.fixture
def corpus(tiny, source, tmp_path):
    (tmp_path / "x.txt").write_text("x")
    sources = tuple(source(tmp_path / "x.txt", name=field) for field in FIELDS)
    config = TopicsConfig(dimensions=8, centroids=12, num_topics=3, min_share=0.1)
    return replace(tiny, sources=sources, cells=CellsConfig(topics=config))


@pytest.fixture
def fitted(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(lexical, "MAX_SHARE", 0.9)
    split = Texts()
    model = stage.topic_model(tmp_path, corpus, split, {}, Silent())
    return split, model, stage.topics(tmp_path, corpus, split, model, {}, Silent())


def test_planted_topics_are_found_and_named(fitted):
    _, model, found = fitted
    rows = table.read(found.path / stage.TABLE).to_pylist()
    assert [row["source"] for row in rows] == [f for f in FIELDS for _ in range(40)]
    by_source = {f: {row["topic"] for row in rows if row["source"] == f} for f in FIELDS}
    assert sorted(len(topics) for topics in by_source.values()) == [1, 1, 1]
    assert set.union(*by_source.values()) == {0, 1, 2}
    for field, (topic,) in by_source.items():
        assert set(model.facts["topics"][topic]["name"].split()) <= set(FIELDS[field].split())
    assert [one["documents"] for one in found.facts["topics"]] == [40, 40, 40]
    assert all(0.5 < row["score"] <= 1.0001 for row in rows)


def test_fewer_centroids_than_asked_are_said(fitted):
    _, model, _ = fitted
    assert model.facts["sampled_documents"] == 120
    assert model.facts["centroids"] == 12 == min(12, 120 // stage.ROWS_PER_CENTROID)
    assert model.facts["topics_asked"] == 3
    shares = [one["share"] for one in model.facts["topics"]]
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    assert min(shares) >= 0.1


def test_the_model_is_the_same_again(fitted, corpus, tmp_path):
    split, model, _ = fitted
    other = tmp_path / "again"
    other.mkdir()
    texts, sizes = stage._sample(corpus, split, corpus.cells.topics)
    stage._fit(other, corpus.cells.topics, texts, sizes)
    with np.load(model.path / stage.MODEL) as one, np.load(other / stage.MODEL) as two:
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])
    assert load(model.path).digest == model.digest


def test_embeddings_do_not_depend_on_the_batch_and_know_only_their_words(monkeypatch):
    texts = [document(field, n) for n in range(30) for field in FIELDS]
    monkeypatch.setattr(lexical, "MAX_SHARE", 0.6)
    fitted = lexical.fit(texts, 8, seed=1)
    whole = fitted.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-5)
    monkeypatch.setattr(lexical, "BATCH_DOCUMENTS", 3)
    np.testing.assert_array_equal(fitted.embed(texts), whole)
    assert not fitted.embed(["zzz yyy", ""]).any()
    assert fitted.embed([]).shape == (0, 8)
    with pytest.raises(ValueError, match="share no words"):
        lexical.fit(["one", "two", "three"], 8, seed=1)


def test_weights_are_log_counts_times_idf_of_unit_length(monkeypatch):
    monkeypatch.setattr(lexical, "MAX_SHARE", 1.0)
    texts = ["Cat cat dog", "cat bird", "dog bird!", "cat dog bird"]
    fitted = lexical.fit(texts, 2, seed=0)
    order = {word: n for n, word in enumerate(fitted.words)}
    assert set(order) == {"cat", "dog", "bird"}
    idf = {"cat": np.log(5 / 4) + 1, "dog": np.log(5 / 4) + 1, "bird": np.log(5 / 4) + 1}
    row = np.array([np.log(3) * idf["cat"], np.log(2) * idf["dog"], 0.0])
    found = fitted.weights(texts).toarray()[0]
    expected = row / np.linalg.norm(row)
    got = [found[order[word]] for word in ("cat", "dog", "bird")]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_topics_json_says_what_the_facts_say(fitted):
    _, model, _ = fitted
    assert json.loads((model.path / stage.TOPICS).read_text()) == model.facts["topics"]


@pytest.mark.parametrize("weight", ["bytes", "documents"])
def test_the_sample_stands_for_all_text_or_all_documents(corpus, weight):
    split = Texts()
    config = replace(corpus.cells.topics, weight=weight, sample_documents=30)
    texts, stands = stage._sample(corpus, split, config)
    assert 30 <= len(texts) == len(stands) <= 33
    total = sum(sum(split.sizes(f).values()) for f in FIELDS) if weight == "bytes" else 120
    assert stands.sum() == pytest.approx(total)
