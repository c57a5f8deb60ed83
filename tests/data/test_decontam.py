"""Stage `contamination`: benchmark text is found whatever it wears, cut, and nothing of it left."""

import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.texts import Texts, corpus_of
from shoal.core.artifact import Artifact
from shoal.core.files import canonical_json
from shoal.core.progress import Silent
from shoal.data import boilerplate, suspects, table
from shoal.data.benchmarks import as_table, benchmarks
from shoal.data.decontam import TABLE, contamination, find_runs
from shoal.data.gramindex import build_index
from shoal.data.ngrams import words_of
from shoal.data.planted_items import BENCHMARK, DECOYS, PLANTED, plant_items, score
from shoal.data.scan import SPACE, meanings, scan
from shoal.data.settings import Benchmark, DecontamConfig
from shoal.data.spans import SPACES, apply_spans

ITEM = (
    "A farmer walks seven miles along the river to sell nine baskets of plums at the "
    "old stone market. How many plums does she carry home?"
)


def _run(
    folder: Path,
    sources: dict[str, list[str]],
    items: list[str],
    held: dict[str, dict[str, list[str]]] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], Artifact]:
    folder.mkdir(exist_ok=True)
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps({"question": item}) + "\n" for item in items))
    listed = (Benchmark(name="exam", path=str(path)),)
    config = DecontamConfig(benchmarks=listed, **options)
    split, corpus = Texts(sources, held), corpus_of(*sources)
    read = benchmarks(folder / "root", corpus, config, split, {}, Silent())
    found = contamination(folder / "root", corpus, config, split, read, {}, Silent())
    return table.read(found.path / TABLE).to_pylist(), found


def _after(texts: list[str], rows: list[dict[str, Any]]) -> list[str]:
    left = []
    for number, text in enumerate(texts):
        mine = [row for row in rows if row["source_id"] == str(number)]
        if not any(row["action"] == "drop" for row in mine):
            left.append(apply_spans(text, [(row["start"], row["stop"]) for row in mine]))
    return left


def _naive(texts: list[str], items: list[str], length: int, shortest: int) -> set[tuple[str, ...]]:
    """Every n-gram that a text shares with an item, by sets of words."""
    wanted = set()
    for item in items:
        words = words_of(pa.array([item])).of(0)
        size = min(len(words), length)
        if size >= shortest:
            wanted |= {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
    wanted = {gram for gram in wanted if re.search(r"[^\W\d_]", " ".join(gram))}
    sizes = {len(gram) for gram in wanted}
    shared = set()
    for text in texts:
        words = words_of(pa.array([text])).of(0)
        grams = {tuple(words[i : i + n]) for n in sizes for i in range(len(words) - n + 1)}
        shared |= grams & wanted
    return shared


def test_an_item_is_cut_and_the_row_says_where_and_what(tmp_path: Path, text: Any):
    before, after = text(1, 30).strip(), text(2, 30).strip()
    document = f'{before}\n"{ITEM.upper()}" {after}'
    rows, found = _run(tmp_path, {"web": [document, text(3)]}, [text(4), ITEM])
    assert len(rows) == 1
    row = rows[0]
    assert (row["benchmark"], row["item"], row["source_id"]) == ("exam", "2", "0")
    assert document[row["start"] : row["stop"]] == f'"{ITEM.upper()}"'
    assert (row["num_words"], row["rule"], row["action"]) == (26, "spans", "cut")
    assert row["share"] == 1
    assert row["ngram"] == " ".join(ITEM.split()[:13])
    assert _after([document], rows) == [f"{before}\n\n{after}"]
    facts = found.facts
    assert facts["sources"]["web"] == {
        "documents": 2,
        "contaminated": 1,
        "spans": 1,
        "characters": len(ITEM) + 2,
        "dropped": 0,
    }
    assert facts["benchmarks"] == {"exam": {"items": 1, "spans": 1}}


@pytest.mark.parametrize(
    ("kept", "matches"),
    [(ITEM.split()[:13], True), (ITEM.split()[:12], False), (ITEM.split()[5:18], True)],
)
def test_thirteen_words_of_an_item_are_cut_and_twelve_are_not(
    tmp_path: Path, text: Any, kept: list[str], matches: bool
):
    document = f"{text(1, 20)} {' '.join(kept)} {text(2, 20)}"
    rows, _ = _run(tmp_path, {"web": [document]}, [ITEM])
    assert [row["num_words"] for row in rows] == ([13] if matches else [])


@pytest.mark.parametrize(("num_words", "matches"), [(7, False), (8, True), (12, True)])
def test_a_short_item_counts_from_eight_words_on_and_only_whole(
    tmp_path: Path, text: Any, num_words: int, matches: bool
):
    item = " ".join(ITEM.split()[:num_words])
    whole = f"{text(1, 20)} {item}, {text(2, 20)}"
    part = f"{text(3, 20)} {' '.join(item.split()[1:])} {text(4, 20)}"
    rows, _ = _run(tmp_path, {"web": [whole, part]}, [item])
    assert [row["source_id"] for row in rows] == (["0"] if matches else [])


def test_a_document_of_which_nothing_is_left_is_dropped(tmp_path: Path):
    rows, found = _run(tmp_path, {"web": [f"\n{ITEM}\n ", "something else"]}, [ITEM])
    assert [(row["source_id"], row["action"]) for row in rows] == [("0", "drop")]
    assert found.facts["sources"]["web"]["dropped"] == 1


def test_what_a_cut_brings_together_is_cut_as_well(tmp_path: Path, text: Any):
    words = ITEM.split()
    other = "one two three four five six seven eight nine ten eleven twelve thirteen"
    document = " ".join(["start", *words[:6], other, *words[6:13], "end of it"])
    rows, _ = _run(tmp_path, {"web": [document]}, [ITEM, other])
    assert {row["item"] for row in rows} == {"1", "2"}
    assert _after([document], rows) == ["start\n\nend of it"]


def test_a_cut_never_makes_held_out_text_however_short(tmp_path: Path):
    """Own sets share no n-gram with training text; a cut must not join one of theirs."""
    header = "a b c d e f g h i j k l m"
    texts = ["Red blue green!", *(f"{header} n{n}" for n in range(20))]
    document = f"start red {ITEM} blue green end, then a b c d e f {ITEM} g h i j k l m and on"
    held = {"domains": {"letters": texts}}
    rows, _ = _run(tmp_path, {"web": [document]}, [ITEM], held)
    assert {row["benchmark"] for row in rows} == {"exam", "domains/letters"}
    assert _after([document], rows) == ["start\n\nend, then\n\nand on"]


WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=24)


@settings(deadline=None, max_examples=100)
@given(
    texts=st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", "\n\n", " -- "])), max_size=3),
    items=st.lists(WORDS, min_size=1, max_size=3),
)
def test_no_indexed_n_gram_is_left_after_the_cut(
    texts: list[tuple[list[str], str]], items: list[list[str]]
):
    written = [glue.join(words) for words, glue in texts]
    asked = [" ".join(words) for words in items]
    listed = as_table([("exam", str(n), "", item, False) for n, item in enumerate(asked)])
    index = build_index(listed, length=4, short_words=2)
    found = scan(pa.array(written, pa.string()))
    left = []
    for number, text in enumerate(written):
        spans = []
        for run in find_runs(index, found, number):
            begin, end = found.begins[run.first], found.ends[run.last - 1]
            start, stop = found.characters(number, np.array([begin, end])).tolist()
            spans.append((start, stop))
        left.append(apply_spans(text, spans))
        assert bool(spans) == bool(_naive([text], asked, 4, 2))
    assert _naive(left, asked, 4, 2) == set()


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("ab ,.\n\u00a0"), max_size=30),
    cuts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=4),
)
def test_cutting_keeps_all_else_and_marks_the_place(text: str, cuts: list[tuple[int, int]]):
    spans = [(start, min(len(text), start + size)) for start, size in cuts if start <= len(text)]
    gone = {place for start, stop in spans for place in range(start, stop)}
    kept = [c for place, c in enumerate(text) if place not in gone and c not in SPACES]
    result = apply_spans(text, spans)
    assert [c for c in result if c not in SPACES] == kept
    if not spans:
        assert result == text
    assert apply_spans(text, reversed(spans)) == result


def test_white_space_for_cutting_is_that_of_words():
    assert set(SPACES) == {chr(code) for code in np.flatnonzero(meanings() == SPACE)}


def test_planted_items_are_found_and_decoys_survive(tmp_path: Path):
    planted = plant_items(10, seed=1)
    path = tmp_path / "planted.jsonl"
    path.write_text(planted.jsonl())
    config = DecontamConfig(benchmarks=(Benchmark(name=BENCHMARK, path=str(path)),))
    texts = [document.text for document in planted.documents]
    split, corpus = Texts({"web": texts}), corpus_of("web")
    read = benchmarks(tmp_path, corpus, config, split, {}, Silent())
    found = contamination(tmp_path, corpus, config, split, read, {}, Silent())
    rows = table.read(found.path / TABLE).to_pylist()
    result = score(planted, rows, [str(number) for number in range(len(texts))])
    kinds = result["kinds"]
    assert {k: v["right"] for k, v in kinds.items()} == {
        k: v["documents"] for k, v in kinds.items()
    }
    assert all(kinds[kind]["documents"] >= 2 for kind in (*PLANTED, *DECOYS))
    assert result["recall"] == 1
    assert result["precision"] >= 0.95
    why = table.read(found.path / boilerplate.TABLE)
    assert set(why["reason"].to_pylist()) == {"template", "source"}


def test_the_score_sees_what_is_missed_and_what_is_marked_for_nothing():
    planted = plant_items(4, seed=2)
    order = [str(number) for number in range(len(planted.documents))]
    assert score(planted, [], order)["recall"] == 0
    wrong = next(n for n, d in enumerate(planted.documents) if d.kind == "background")
    row = {"benchmark": BENCHMARK, "source_id": str(wrong), "item": "1", "action": "drop"}
    assert score(planted, [row], order)["precision"] == 0


def test_without_boilerplate_rules_the_decoys_are_lost(tmp_path: Path):
    """What the rules are for: the same set with the rules switched off."""
    planted = plant_items(4, seed=1)
    path = tmp_path / "planted.jsonl"
    path.write_text(planted.jsonl())
    config = DecontamConfig(
        benchmarks=(Benchmark(name=BENCHMARK, path=str(path)),),
        common_documents=10_000,
        template_items=10_000,
    )
    split = Texts({"web": [document.text for document in planted.documents]})
    corpus = corpus_of("web")
    read = benchmarks(tmp_path, corpus, config, split, {}, Silent())
    found = contamination(tmp_path, corpus, config, split, read, {}, Silent())
    rows = table.read(found.path / TABLE).to_pylist()
    result = score(planted, rows, [str(number) for number in range(len(planted.documents))])
    assert result["precision"] < 0.6
    for kind in ("quote", "licence", "template"):
        assert result["kinds"][kind]["right"] == 0


def test_an_item_planted_in_many_documents_is_no_boilerplate(tmp_path: Path, text: Any):
    texts = [f"{text(n, 30)} {ITEM} {text(100 + n, 30)}" for n in range(30)]
    rows, found = _run(tmp_path, {"web": texts}, [ITEM, text(999, 60)])
    assert {row["source_id"] for row in rows} == {str(n) for n in range(30)}
    assert found.facts["boilerplate"] == {}


def test_text_common_to_several_sources_is_boilerplate(tmp_path: Path, text: Any):
    saying = " ".join(text(7, 15).split())
    item = f"{text(8, 40)} {saying} {text(9, 40)}"
    sources = {
        name: [f"{text(1000 * n + k, 30)} {saying} {text(2000 * n + k, 30)}" for k in range(4)]
        for n, name in enumerate(("one", "two", "three"), 1)
    }
    rows, _ = _run(tmp_path / "a", sources, [item], across_documents=12)
    assert rows == []
    rows, found = _run(tmp_path / "b", sources, [item], across_documents=13)
    assert len(rows) == 12
    doubtful = table.read(found.path / suspects.TABLE).to_pylist()
    assert {row["reason"] for row in doubtful} == {"many sources"}
    assert found.facts["likely_false"]["many sources"]["rows"] == 12


def test_doubtful_matches_are_reported_with_their_reason(tmp_path: Path, text: Any):
    notice = (
        "This copyright notice and this permission notice shall be included in all copies or "
        "substantial portions of the software without warranty"
    )
    numbers = "table a 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"
    saying = " ".join(text(5, 14).split())
    long = text(6, 120)
    documents = [
        f"{text(1, 20)}\n{notice}",
        f"{text(2, 20)}\n{numbers}",
        f"{text(3, 20)} \u201c{saying}\u201d {text(4, 20)}",
        f"{text(7, 20)} {long}",
    ]
    items = [notice + " " + text(8, 40), numbers, f"{long} {saying}"]
    _, found = _run(tmp_path, {"web": documents}, items)
    doubtful = table.read(found.path / suspects.TABLE).to_pylist()
    assert {(row["source_id"], row["reason"]) for row in doubtful} == {
        ("0", "licence"),
        ("1", "numbers"),
        ("2", "quote"),
    }
    assert notice[:40] in found.facts["likely_false"]["licence"]["samples"][0]


def test_a_row_of_numbers_proves_nothing(tmp_path: Path):
    numbers = " ".join(str(number) for number in range(40))
    rows, _ = _run(tmp_path, {"web": [f"so {numbers} it is"]}, [f"sum up {numbers} please"])
    assert rows == []


def test_a_hash_collision_proves_nothing(tmp_path: Path, text: Any, monkeypatch: Any):
    """Every word has the same hash: only the words tell what matches."""

    def same(texts: pa.StringArray) -> Any:
        found = scan(texts)
        found.hashes[:] = 5
        return found

    monkeypatch.setattr("shoal.data.decontam.scan", same)
    monkeypatch.setattr("shoal.data.boilerplate.scan", same)
    monkeypatch.setattr("shoal.data.gramindex.scan", same)
    texts = [text(1, 60), f"{text(2, 20)} {ITEM} {text(3, 20)}"]
    rows, _ = _run(tmp_path, {"web": texts}, [text(4, 40), ITEM])
    assert [(row["source_id"], row["item"], row["share"]) for row in rows] == [("1", "2", 1)]


def _paragraph(words: list[str], matching: int, seed: int) -> str:
    drawn = random.Random(seed)
    return " ".join([*words[:matching], *(f"w{drawn.random()}" for _ in range(20 - matching))])


@pytest.mark.parametrize(
    ("matching", "dropped"),
    [(16, True), (15, False)],
)
def test_the_documents_rule_drops_where_half_of_a_paragraph_matches(
    tmp_path: Path, text: Any, matching: int, dropped: bool
):
    """Of 20 words there are eight 13-grams: 16 matching words are four of them, 15 are three."""
    paragraph = _paragraph(ITEM.split(), matching, 1)
    document = f"{text(1, 50)}\n\n{paragraph}\n \n{text(2, 50)}"
    rows, found = _run(tmp_path, {"web": [document]}, [ITEM], rule="documents")
    assert [(row["action"], row["rule"]) for row in rows] == [("drop", "documents")] * dropped
    assert found.facts["sources"]["web"]["dropped"] == dropped
    for row in rows:
        assert document[row["start"] : row["stop"]] == paragraph
        assert row["num_words"] == 16


@pytest.mark.parametrize(
    ("written", "dropped"),
    [
        ("the heron, the Lantern", True),
        ("and the heron the lantern", False),
        ("the heron", False),
    ],
)
def test_the_documents_rule_takes_a_short_paragraph_as_one_n_gram(
    tmp_path: Path, text: Any, written: str, dropped: bool
):
    document = f"{text(1, 50)}\n\n{written}\n\n{text(2, 50)}"
    items = [f"{text(3, 30)}\n\nThe heron the lantern", "the heron"]
    rows, _ = _run(tmp_path, {"web": [document]}, items, rule="documents")
    assert bool(rows) == dropped


def test_boilerplate_is_on_neither_side_of_the_documents_ratio(tmp_path: Path, text: Any):
    """A notice before an item does not hide it, and alone it drops nothing.

    Of the 56 words' 44 13-grams 18 are the notice's and 14 the item's: 14 of 26, not 14 of 44.
    """
    notice = " ".join(text(5, 30).split())
    texts = [f"{notice} {ITEM}", *(f"{text(50 + n, 20)}\n\n{notice}" for n in range(9))]
    items = [ITEM, f"{notice}\n\n{text(9, 90)}"]
    rows, found = _run(tmp_path, {"web": texts}, items, rule="documents")
    assert found.facts["boilerplate"] == {"source": 18}
    assert [(row["source_id"], row["item"]) for row in rows] == [("0", "1")]


def test_the_same_input_gives_the_same_bytes_whatever_the_batches(tmp_path: Path):
    planted = plant_items(3, seed=5)
    path = tmp_path / "planted.jsonl"
    path.write_text(planted.jsonl())
    config = DecontamConfig(benchmarks=(Benchmark(name=BENCHMARK, path=str(path)),))
    corpus = corpus_of("web", "books")
    texts = [document.text for document in planted.documents]
    sources = {"web": texts[::2], "books": texts[1::2]}
    found = []
    for rows in (1, 50):
        split = Texts(sources, rows=rows)
        root = tmp_path / str(rows)
        read = benchmarks(root, corpus, config, split, {}, Silent())
        made = contamination(root, corpus, config, split, read, {}, Silent())
        tables = (TABLE, boilerplate.TABLE, suspects.TABLE)
        found.append(([table.read(made.path / name).to_pylist() for name in tables], made.facts))
    assert found[0] == found[1]
    digest = hashlib.sha256(canonical_json(found[0][0]).encode()).hexdigest()
    # Another digest is another output: raise REVISION in data/decontam.py with it.
    assert digest[:16] == "b484b22fe81e60c7"
