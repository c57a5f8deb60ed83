"""Quality: what a judge says of a few documents, given to all of them."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from shoal.core.artifact import Artifact
from shoal.core.progress import Silent
from shoal.data import quality as stage
from shoal.data import student, surface, table
from shoal.data.agreement import rank_correlation, separation
from shoal.data.config import CorpusConfig, Source
from shoal.data.judge import Label, read_labels, with_levels
from shoal.data.normalize import document_id
from shoal.data.quality import TABLE, labels_path, load_student, quality, quality_model
from shoal.data.settings import CellsConfig, QualityConfig
from shoal.data.student import Example, Steps, cut_points
from shoal.data.training import Split

KINDS = ("prose", "code", "drama")
EACH = 150
INPUTS = {"documents": "0" * 64}


class Texts(Split):
    """Training text out of memory."""

    def __init__(self, texts: dict[str, list[str]], rows: int = 64) -> None:
        self.rows_at_once = rows
        self.held = {
            source: sorted((document_id(text), text) for text in found)
            for source, found in texts.items()
        }

    def batches(self, source: str, columns: list[str]):
        held = self.held[source]
        for start in range(0, len(held), self.rows_at_once):
            rows = [
                {"id": one, "text": text, "source": source, "bytes": len(text.encode())}
                for one, text in held[start : start + self.rows_at_once]
            ]
            yield pa.RecordBatch.from_pylist(rows).select(columns)


def planted(kind: str, number: int) -> tuple[str, float]:
    """A text and how good it is, 0 to 1: the worse, the more of it is one word."""
    drawn = random.Random(f"{kind} {number}")
    good = drawn.random()
    words = [
        drawn.choice(("the", "of", "and", "is", "to"))
        if drawn.random() < 0.4
        else f"{kind}{drawn.randrange(400)}"
        for _ in range(drawn.randint(120, 200))
    ]
    marred = [word if drawn.random() < 0.3 + 0.7 * good else "spam" for word in words]
    text = " ".join(marred[:80]) + ".\n" + " ".join(marred[80:]) + f" {number}."
    return text, good


def _texts() -> dict[str, dict[str, float]]:
    """Source -> text -> how good it is."""
    return {kind: dict(planted(kind, n) for n in range(EACH)) for kind in KINDS}


def _split(rows: int = 64) -> Texts:
    return Texts({kind: list(found) for kind, found in _texts().items()}, rows)


def _labels(path: Path, share: float = 0.6) -> Path:
    """Labels of a judge that sees what is planted, but likes code much better than drama."""
    lines = []
    for kind, found in _texts().items():
        for number, (text, good) in enumerate(found.items()):
            if number < share * len(found):
                score = 0.3 * good + {"prose": 0.3, "code": 0.6, "drama": 0.0}[kind]
                one = Label(id=document_id(text), score=round(score, 6), model="planted")
                lines.append(one)
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in with_levels(lines)))
    return path


@pytest.fixture
def corpus(tmp_path: Path, source: Callable[..., Source]) -> CorpusConfig:
    sources = tuple(source(tmp_path / kind, name=kind, kind=kind, form="file") for kind in KINDS)
    settings = QualityConfig(labels=str(_labels(tmp_path / "labels.jsonl")))
    return CorpusConfig(name="small", sources=sources, cells=CellsConfig(quality=settings))


def _run(root: Path, corpus: CorpusConfig, split: Split) -> tuple[Artifact, Artifact]:
    model = quality_model(root, corpus, split, INPUTS, Silent())
    return model, quality(root, corpus, split, model, INPUTS, Silent())


def _with(corpus: CorpusConfig, **changes: object) -> CorpusConfig:
    chosen = replace(corpus.cells.quality, **changes)
    return replace(corpus, cells=replace(corpus.cells, quality=chosen))


def _digests(*artifacts: Artifact) -> list[str]:
    return [
        hashlib.sha256(path.read_bytes()).hexdigest()
        for artifact in artifacts
        for path in sorted(artifact.path.iterdir())
        if path.name != "manifest.json"
    ]


def test_levels_follow_what_the_judge_saw_inside_every_kind(tmp_path: Path, corpus: CorpusConfig):
    model, found = _run(tmp_path / "root", corpus, _split())
    assert model.facts["student"] == "labels"
    assert model.facts["labels"] == {"all": 270, "found": 270, "missing": 0, "rejected": 0}
    assert model.facts["held_out"]["rank_correlation"] > 0.7
    assert model.facts["held_out"]["within_one_level"] > 0.85
    assert 0.4 < model.facts["held_out"]["within_one_level_by_chance"] < 0.6
    rows = table.read(found.path / TABLE).to_pylist()
    for kind, texts in _texts().items():
        good = {document_id(text): one for text, one in texts.items()}
        mine = [row for row in rows if row["kind"] == kind]
        levels = [row["level"] for row in mine]
        assert spearmanr(levels, [good[row["id"]] for row in mine]).statistic > 0.7
        # Code is not better than drama: each kind has every level.
        assert all(20 <= n <= 40 for n in Counter(levels).values())
        assert set(levels) == {0, 1, 2, 3, 4}


def test_the_table_holds_every_training_document_once_in_order(
    tmp_path: Path, corpus: CorpusConfig
):
    _, found = _run(tmp_path / "root", corpus, _split())
    rows = table.read(found.path / TABLE)
    assert rows.schema.equals(stage.SCHEMA)
    expected = [(kind, one) for kind in KINDS for one, _ in _split().held[kind]]
    assert list(zip(rows["source"].to_pylist(), rows["id"].to_pylist(), strict=True)) == expected
    assert all(0 <= score <= 1 for score in rows["score"].to_pylist())
    levels = Counter(rows["level"].to_pylist())
    assert [one["documents"] for one in found.facts["levels"]] == [levels[n] for n in range(5)]
    sizes = sum(len(text.encode()) for texts in _texts().values() for text in texts)
    assert sum(one["bytes"] for one in found.facts["levels"]) == sizes


def test_a_rerun_and_another_size_of_batch_give_the_same_bytes(
    tmp_path: Path, corpus: CorpusConfig
):
    first = _run(tmp_path / "one", corpus, _split())
    assert _digests(*first) == _digests(*_run(tmp_path / "two", corpus, _split()))
    model, found = _run(tmp_path / "three", corpus, _split(rows=7))
    assert _digests(first[0]) == _digests(model)
    one, other = (table.read(a.path / TABLE) for a in (first[1], found))
    assert one.equals(other)
    again = quality(tmp_path / "one", corpus, _split(), first[0], INPUTS, Silent())
    assert again.reused


def test_other_labels_make_another_model(tmp_path: Path, corpus: CorpusConfig):
    first = quality_model(tmp_path / "root", corpus, _split(), INPUTS, Silent())
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes((tmp_path / "labels.jsonl").read_bytes())
    same = quality_model(
        tmp_path / "root", _with(corpus, labels=str(moved)), _split(), INPUTS, Silent()
    )
    assert same.reused
    assert same.digest == first.digest
    _labels(moved, share=0.5)
    other = quality_model(
        tmp_path / "root", _with(corpus, labels=str(moved)), _split(), INPUTS, Silent()
    )
    assert other.digest != first.digest


def test_labels_of_other_documents_are_counted_as_missing(tmp_path: Path, corpus: CorpusConfig):
    path = tmp_path / "labels.jsonl"
    extra = [
        Label(id="a" * 32, score=0.5, level=3),
        Label(id="b" * 32, valid=False, rejected="no answer: ReadTimeout"),
        Label(id="a" * 32, control="junk", score=0.1, level=1),
    ]
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(one)) + "\n" for one in extra)
    model = quality_model(tmp_path / "root", corpus, _split(), INPUTS, Silent())
    assert model.facts["labels"] == {"all": 272, "found": 270, "missing": 1, "rejected": 1}
    assert model.facts["judge_separation"]["own_copy"] == 1.0


def test_without_enough_labels_damaged_documents_teach(tmp_path: Path, corpus: CorpusConfig):
    path = tmp_path / "few.jsonl"
    lines = (tmp_path / "labels.jsonl").read_text().splitlines(keepends=True)[:99]
    path.write_text("".join(lines))
    model, found = _run(tmp_path / "root", _with(corpus, labels=str(path)), _split())
    assert model.facts["student"] == "controls"
    assert model.facts["labels"]["found"] == 99
    assert "damaged" in model.facts["weakness"]
    assert model.facts["held_out"]["separation"] > 0.9
    assert "rank_correlation" not in model.facts["held_out"]
    assert set(table.read(found.path / TABLE)["level"].to_pylist()) == {0, 1, 2, 3, 4}
    fitted = load_student(model.path)
    text = planted("prose", 10_000)[0]
    junk = " ".join(str(n * 7919) for n in range(200))
    clean, broken = fitted.scores([text, junk], "prose")
    assert clean > broken


@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["dice", "all-alike"])
def test_labels_that_teach_nothing_are_not_followed(
    tmp_path: Path, corpus: CorpusConfig, spread: float
):
    path = tmp_path / "dice.jsonl"
    drawn = random.Random(3)
    labels = read_labels(tmp_path / "labels.jsonl")
    thrown = [replace(one, score=round(spread * drawn.random(), 6)) for one in labels]
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in thrown))
    model, _ = _run(tmp_path / "root", _with(corpus, labels=str(path)), _split())
    assert model.facts["labels"]["found"] == len(labels)
    tried = model.facts["labels_held_out"]
    assert tried.get("rank_correlation", 0.0) < stage.MIN_CORRELATION
    assert model.facts["student"] == "controls"
    assert "not followed" in model.facts["weakness"]
    assert "rank_correlation" not in model.facts["held_out"]
    assert model.facts["held_out"]["separation"] > 0.9


def test_one_document_gets_the_same_score_in_any_company(tmp_path: Path, corpus: CorpusConfig):
    fitted = load_student(quality_model(tmp_path, corpus, _split(), INPUTS, Silent()).path)
    texts = [planted("prose", n)[0] for n in range(40)] + ["", "word", "日本語 テキスト"]
    together = fitted.scores(texts, "prose")
    alone = np.concatenate([fitted.scores([text], "prose") for text in texts])
    assert np.array_equal(together, alone)
    assert np.array_equal(fitted.scores(texts[::-1], "prose"), together[::-1])


def test_a_text_of_few_words_scores_no_more_than_its_share(tmp_path: Path, corpus: CorpusConfig):
    fitted = load_student(quality_model(tmp_path, corpus, _split(), INPUTS, Silent()).path)
    few = ["", "the", "the prose1 of prose2 and", " ".join(["the prose1 of prose2 and"] * 4)]
    assert student.fullness(fitted.features.of(few)) == pytest.approx([0, 1 / 20, 5 / 20, 1])
    scores = fitted.scores(few, "prose")
    assert scores[0] == 0
    assert scores[1] <= 1 / 20
    assert 0 < scores[2] <= 5 / 20


def test_labels_without_sense_are_not_learned():
    texts = [planted("prose", n)[0] for n in range(200)]
    drawn = random.Random(1)
    ids = [document_id(text) for text in texts]
    examples = student.labelled(texts, ["prose"] * 200, ids, [drawn.random() for _ in texts])
    told = student.fit(examples, _features(texts), 0)[2]
    assert abs(told["rank_correlation"]) < 0.2
    assert abs(told["within_one_level"] - told["within_one_level_by_chance"]) < 0.1


def test_what_is_held_out_gains_nothing_from_calibration():
    """Of dice labels the mean is not above zero; pooled calibrated scores would give 0.09."""
    kinds = [kind for kind in KINDS for _ in range(50)]
    texts = [planted(kind, n)[0] for n, kind in enumerate(kinds)]
    ids = [document_id(text) for text in texts]
    drawn = random.Random(5)
    features = _features(texts)
    told = [
        student.fit(
            student.labelled(texts, kinds, ids, [drawn.random() for _ in texts]), features, 0
        )[2]
        for _ in range(6)
    ]
    for name in ("rank_correlation", "rank_correlation_of_scores"):
        assert sum(one[name] for one in told) / 6 < 0.02
    gain = [one["within_one_level"] - one["within_one_level_by_chance"] for one in told]
    assert sum(gain) / 6 < 0.04


def test_a_copy_of_a_text_is_never_scored_by_a_line_that_saw_it():
    """Held-out scores of noise stay noise though each document is there three times."""
    texts = [planted("prose", n)[0] for n in range(45)]
    drawn = random.Random(2)
    scores = [drawn.random() for _ in texts]
    ids = [document_id(text) for text in texts]
    examples = student.labelled(texts * 3, ["prose"] * 135, ids * 3, scores * 3)
    told = student.fit(examples, _features(texts), 0)[2]
    assert told["rank_correlation"] < 0.15  # 0.33 if copies stand in several folds


def _features(texts: list[str]) -> student.Features:
    from shoal.data import lexical

    return student.Features(words=lexical.fit(texts, 8, 0), pairs=surface.pair_table(texts))


def test_aims_are_ranks_within_a_kind():
    kinds = ["code", "drama"] * 3
    found = student.labelled(list("abcdef"), kinds, list("abcdef"), [9, 1, 7, 2, 8, 2])
    aims = {one.text: one.aim for one in found if not one.control}
    assert aims == pytest.approx(
        {"c": 1 / 6, "e": 3 / 6, "a": 5 / 6, "b": 1 / 6, "d": 4 / 6, "f": 4 / 6}
    )
    anchors = [one for one in found if one.control]
    assert [one.group for one in anchors] == list("abcdef")
    assert {one.aim for one in anchors} == {0.0}
    assert {one.weight for one in anchors} == {student.ANCHOR_WEIGHT}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1_000)), min_size=1, max_size=80),
    st.integers(1, 7),
)
def test_cuts_rise_and_leave_no_level_empty(rows: list[tuple[int, int]], num_levels: int):
    scores = np.array([score / 50 for score, _ in rows])
    sizes = np.array([float(size) for _, size in rows])
    cuts = cut_points(scores, sizes, num_levels)
    assert list(cuts) == sorted(set(cuts))
    levels = np.searchsorted(cuts, scores, side="right")
    distinct = len(set(scores.tolist()))
    assert set(levels.tolist()) == set(range(min(num_levels, distinct)))


def test_levels_hold_equal_text():
    drawn = np.random.default_rng(0)
    scores, sizes = drawn.random(4_000), drawn.integers(1, 9_000, 4_000).astype(np.float64)
    levels = np.searchsorted(cut_points(scores, sizes, 5), scores, side="right")
    shares = np.bincount(levels, sizes) / sizes.sum()
    assert np.abs(shares - 0.2).max() < 0.002


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=2, max_size=30),
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
)
def test_a_calibration_never_turns_an_order_round(raw: list[float], aims: list[float]):
    steps = Steps(raw=np.arange(len(aims), dtype=np.float64), aim=np.sort(np.array(aims)))
    found = steps.of(np.sort(np.array(raw)))
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() <= 1


def test_inside_a_flat_step_the_raw_order_goes_on():
    flat = Steps(raw=np.array([0.0, 1.0]), aim=np.array([0.5, 0.5]))
    assert (np.diff(flat.of(np.linspace(-1, 2, 31))) > 0).all()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
)
def test_separation_is_the_share_of_pairs_in_order(good: list[int], bad: list[int]):
    pairs = [(a > b) + (a == b) / 2 for a in good for b in bad]
    assert separation(good, bad) == pytest.approx(sum(pairs) / len(pairs), abs=1e-4)
    assert separation(good, []) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=40))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]):
    one, other = zip(*pairs, strict=True)
    found = rank_correlation(one, other)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(one, other).statistic, abs=1e-4)


def test_the_looks_of_a_text_are_the_numbers_that_they_are_named_for():
    pairs = surface.pair_table(["one two three"] * 3)
    texts = ["one two three.\nONE 12 | <b>\n\none two three.", "one two three", "three two one", ""]
    rows = [dict(zip(surface.NAMES, row, strict=True)) for row in surface.surface(texts, pairs)]
    first = rows[0]
    size = len(texts[0])
    assert first["digits"] == pytest.approx(2 / size)
    assert first["bars"] == pytest.approx(1 / size)
    assert first["angles"] == pytest.approx(2 / size)
    assert first["sentence_ends"] == pytest.approx(2 / size)
    assert first["lines"] == pytest.approx(np.log1p(3))
    assert first["repeated_lines"] == pytest.approx(1 / 3)
    assert rows[1]["familiar_pairs"] == 1.0
    assert rows[2]["familiar_pairs"] == 0.0
    assert np.isfinite([list(row.values()) for row in rows]).all()


def test_only_the_beginning_of_a_text_is_looked_at():
    pairs = surface.pair_table([])
    text = "word and word. " * 1_000
    more = text + "ÄÖ<>|" * 1_000
    assert np.array_equal(surface.surface([text], pairs), surface.surface([more], pairs))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"quality.labels='nowhere.jsonl' is no file"):
        labels_path("nowhere.jsonl")


def test_examples_know_their_document():
    found = student.unlabelled(["a b c"], ["prose"], ["id"])
    assert [(one.aim, one.group, bool(one.control)) for one in found] == [
        (1.0, "id", False),
        (0.0, "id", True),
    ]
    assert isinstance(found[0], Example)


def test_the_packaged_labels_are_whole():
    labels = read_labels(labels_path("packaged"))
    assert len({one.key for one in labels}) == len(labels)
    judged = [one for one in labels if not one.rejected]
    assert sum(not one.control for one in judged) >= 300
    assert sum(bool(one.control) for one in judged) >= 45
    assert {one.level for one in judged} == {1, 2, 3, 4, 5}
    assert len({(one.rubric, one.model, one.prompt) for one in labels}) == 1
