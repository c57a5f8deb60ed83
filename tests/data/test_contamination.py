"""Stage `overlap`: what each evaluation item has in training text, as counted by hand."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from data.texts import Texts
from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.benchmarks import as_table
from shoal.data.contamination import TABLE, contamination_table, overlap, summary
from shoal.data.ngrams import words_of
from shoal.data.settings import DecontamConfig


def _items(texts: list[str]) -> pa.Table:
    return as_table([("exam", str(n), "", text, False) for n, text in enumerate(texts)])


def _table(items: list[str], sources: dict[str, list[str]], **options: int) -> list[dict[str, Any]]:
    config = DecontamConfig(**options)
    split = Texts(sources)
    return contamination_table(_items(items), list(sources), split, config, Silent()).to_pylist()


def test_an_item_is_found_where_it_stands_and_as_much_of_it(text: Any):
    item = " ".join(text(1, 40).split())
    part = " ".join(item.split()[10:30])
    sources = {
        "web": [text(2), f"{text(3, 30)} so {part.upper()}, then {text(4, 30)}"],
        "books": [f"{text(5, 30)} {' '.join(item.split()[:15])} then {text(6)}", text(7)],
    }
    rows = _table([item, text(8)], sources)
    found, other = rows
    # Of 28 n-grams, words 10 to 30 hold eight and the first 15 words three.
    assert (found["num_words"], found["num_ngrams"], found["found_ngrams"]) == (40, 28, 11)
    assert found["share"] == 11 / 28
    assert (found["longest_run"], found["documents"]) == (20, 2)
    assert (found["source"], found["source_id"]) == ("web", "1")
    assert found["passage"] == part.upper()
    assert (other["found_ngrams"], other["longest_run"], other["id"]) == (0, 0, "")


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=16)


def _longest(item: list[str], text: list[str], length: int) -> int:
    grams = {tuple(item[i : i + length]) for i in range(len(item) - length + 1)}
    marks = [tuple(text[i : i + length]) in grams for i in range(len(text) - length + 1)]
    best = 0
    end = begin = -1
    for place, mark in enumerate(marks):
        if mark:
            begin = begin if place <= end else place
            end = place + length
            best = max(best, end - begin)
    return best


@settings(deadline=None, max_examples=200)
@given(items=st.lists(WORDS, min_size=1, max_size=3), texts=st.lists(WORDS, max_size=4))
def test_counts_are_those_of_sets_of_n_grams(items: list[list[str]], texts: list[list[str]]):
    rows = _table(
        [" ".join(words) for words in items],
        {"web": [" ".join(words) for words in texts]},
        ngram_words=3,
        short_words=2,
    )
    for row, item in zip(rows, items, strict=True):
        size = min(3, len(item))
        wanted = {tuple(item[i : i + size]) for i in range(len(item) - size + 1)}
        wanted = wanted if size >= 2 else set()
        each = [
            wanted & {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
            for text in texts
        ]
        assert row["num_words"] == len(item)
        assert row["num_ngrams"] == len(wanted)
        assert row["found_ngrams"] == len(set().union(*each))
        assert row["documents"] == sum(bool(grams) for grams in each)
        longest = max((_longest(item, text, size) for text in texts), default=0)
        assert row["longest_run"] == (longest if wanted else 0)
        run = row["passage"].split()
        assert len(run) == row["longest_run"]
        if run:
            assert _longest(item, run, size) == len(run)
            assert row["passage"] in " ".join(texts[int(row["source_id"])])


def test_indentation_takes_no_room_of_a_passage(text: Any):
    words = text(1, 30).split()
    [row] = _table([" ".join(words)], {"web": [f"{text(2)} {('\n' + 90 * ' ').join(words)}"]})
    assert row["passage"] == " ".join(words).rstrip(".")[:400]


def test_a_question_template_is_not_found_everywhere(text: Any):
    template = "choose of the four answers below the one that is best in all cases here"
    items = [f"{template} {text(n, 30)}" for n in range(20)]
    rows = _table(items, {"web": [f"{text(100)} {template} {text(101)}"]})
    assert {row["found_ngrams"] for row in rows} == {0}
    # 15 words of template hold three n-grams; those that cross into the question stay.
    assert {row["num_ngrams"] for row in rows} == {45 - 12 - 3}
    short = len(words_of(pa.array([template])).of(0))
    assert short == 15


def test_facts_are_those_of_the_rows_and_the_table_is_found_again(tmp_path: Path, text: Any):
    whole, half = (" ".join(text(n, 60).split()) for n in (1, 2))
    items = _items([whole, half, "too short", text(3)])
    cut = " ".join(half.split()[:36])
    split = Texts({"web": [whole, f"{cut} {text(4)}"]})
    arguments = (tmp_path, "small", items, ["web"], split, DecontamConfig(), {"items": "0"})
    made = overlap(*arguments, Silent())
    rows = table.read(made.path / TABLE)
    assert made.facts["benchmarks"] == summary(rows)
    facts = made.facts["benchmarks"]["exam"]
    assert facts == {
        "items": 4,
        "looked_for": 3,
        "found": 2,
        "half": 2,
        "share": (1 + 24 / 48) / 3,
        "longest_run": 60,
    }
    assert overlap(*arguments, Silent()).reused
