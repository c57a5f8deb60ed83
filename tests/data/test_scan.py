"""The fast scan finds the words, places and n-grams that the slow one finds."""

import re

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.ngrams import words_of
from shoal.data.scan import LETTER, PARAGRAPH, meanings, ngram_hashes, same_ngrams, scan

ALPHABET = "aAbBé9'\u2019,. \n\t\u00a0_-\u0130\u0301\u200b\u3000字\U0001f600\u0085\x0b"
TEXTS = st.lists(st.text(st.sampled_from(ALPHABET), max_size=40), max_size=6)
ANY_TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=4)


def _check_words(texts: list[str]) -> None:
    array = pa.array(texts, pa.string())
    slow, fast = words_of(array), scan(array)
    assert fast.starts.tolist() == slow.starts.tolist()
    words = [words_of(pa.array([fast.text(w, w)])).of(0) for w in range(len(fast.hashes))]
    assert [word for [word] in words] == slow.words.to_pylist()
    alike = {word: value for [word], value in zip(words, fast.hashes.tolist(), strict=True)}
    assert [alike[word] for [word] in words] == fast.hashes.tolist()
    assert len(set(alike.values())) == len(alike)


@settings(deadline=None)
@given(texts=TEXTS)
def test_a_scan_has_the_words_of_the_slow_way(texts: list[str]):
    _check_words(texts)


@settings(deadline=None)
@given(texts=ANY_TEXTS)
def test_a_scan_has_the_words_of_the_slow_way_in_any_script(texts: list[str]):
    _check_words(texts)


def test_a_scan_of_a_slice_of_an_array_is_that_of_its_texts():
    texts = pa.array(["one", "two  words", "", "three"])
    part, own = scan(texts.slice(1, 2)), scan(pa.array(["two  words", ""]))
    assert part.starts.tolist() == own.starts.tolist() == [0, 2, 2]
    assert part.hashes.tolist() == own.hashes.tolist()
    assert part.text(0, 1) == "two  words"
    for nothing in ([], [""], ["", ""]):
        assert scan(pa.array(nothing, pa.string())).starts.tolist() == [0] * (len(nothing) + 1)


def test_places_of_bytes_become_places_of_characters():
    texts = pa.array(["a", "é 字字 \U0001f600x y"])
    found = scan(texts)
    begins = found.characters(1, found.begins[1:])
    ends = found.characters(1, found.ends[1:])
    text = texts[1].as_py()
    assert [text[b:e] for b, e in zip(begins, ends, strict=True)] == ["é", "字字", "x", "y"]
    assert found.owners(np.arange(5)).tolist() == [0, 1, 1, 1, 1]


def test_flags_say_where_paragraphs_begin_and_which_words_have_letters():
    found = scan(pa.array(["a 1\nb\n \t\n2\n--\n3\n--\n\n4c"]))
    assert [bool(flag & PARAGRAPH) for flag in found.flags] == [False] * 3 + [True, False, True]
    letters = [True, False, True, False, False, True]
    assert [bool(flag & LETTER) for flag in found.flags] == letters


def test_letters_in_the_table_are_those_of_unicode():
    table = meanings()
    letters = "aZé字ßЖא"
    assert all(table[ord(letter)] >> 31 for letter in letters)
    assert not any(table[ord(other)] >> 31 for other in "1_ -\u0301")


@settings(deadline=None)
@given(texts=TEXTS, length=st.integers(1, 4))
def test_n_grams_have_one_hash_for_the_same_words_and_stay_in_their_text(
    texts: list[str], length: int
):
    array = pa.array(texts, pa.string())
    found, slow = scan(array), words_of(array)
    hashes, places = ngram_hashes(found.hashes, found.starts, length)
    wanted = [
        place
        for first, last in zip(slow.starts[:-1].tolist(), slow.starts[1:].tolist(), strict=True)
        for place in range(first, last - length + 1)
    ]
    assert places.tolist() == wanted
    grams = [tuple(slow.words[place : place + length].to_pylist()) for place in wanted]
    assert len(set(zip(grams, hashes.tolist(), strict=True))) == len(set(grams))
    assert len(set(hashes.tolist())) == len(set(grams))
    if wanted:
        others = np.roll(places, 1)
        same = same_ngrams(found, places, found, others, length)
        shifted = grams[-1:] + grams[:-1]
        assert same.tolist() == [one == two for one, two in zip(grams, shifted, strict=True)]


def test_a_word_is_the_same_whatever_is_dropped_from_it():
    found = scan(pa.array(["Don't stop", "don\u2019t STOP!", "dont stopp", "don stop"]))
    at = np.array([0, 0, 0])
    assert same_ngrams(found, at, found, np.array([2, 4, 6]), 2).tolist() == [True, False, False]
    assert re.sub("'", "", found.text(0, 0)) == "Dont"
