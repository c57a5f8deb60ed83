"""Cutting long records: nothing lost, nothing longer than allowed, cuts where a reader would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.config import Reader
from shoal.data.split import split
from shoal.recipes.corpus import DRAMA_HEADINGS

TEXTS = st.text(st.sampled_from("ab é漢\n\r\t😀"), max_size=400)


@given(
    text=TEXTS, low=st.integers(0, 30), high=st.integers(0, 80), heads=st.sampled_from(["", "^a"])
)
def test_the_pieces_joined_are_the_text(text: str, low: int, high: int, heads: str):
    pieces = split(text, headings=heads, min_bytes=low, max_bytes=high)
    assert "".join(pieces) == text
    assert all(pieces)


@given(text=TEXTS, high=st.integers(4, 80))
def test_no_piece_is_longer_than_allowed(text: str, high: int):
    pieces = split(text, headings="", min_bytes=high // 2, max_bytes=high)
    assert max((len(piece.encode()) for piece in pieces), default=0) <= high


def test_a_long_text_is_cut_between_paragraphs():
    paragraphs = [f"paragraph {number} " + "word " * 20 + "\n\n" for number in range(10)]
    pieces = split("".join(paragraphs), headings="", min_bytes=0, max_bytes=300)
    assert len(pieces) == 5
    assert all(piece.endswith("\n\n") for piece in pieces)


def test_a_long_paragraph_is_cut_between_lines_then_words():
    lines = "a line of words\n" * 20
    assert all(p.endswith("\n") for p in split(lines, headings="", min_bytes=0, max_bytes=100))
    words = "word " * 100
    assert all(p.endswith(" ") for p in split(words, headings="", min_bytes=0, max_bytes=99))


def test_short_pieces_join_the_next():
    text = "ACT I\n\nSCENE I\n" + "x" * 50 + "\nSCENE II\n" + "y" * 50
    pieces = split(text, headings=r"^(?:act|scene)\b", min_bytes=30, max_bytes=0)
    assert [piece[:8] for piece in pieces] == ["ACT I\n\nS", "SCENE II"]


@pytest.mark.parametrize(
    "line",
    ["ACT I.", "Act II. Scene I", "  SCENE 2. The same.", "ACT FIRST.", "PROLOGUE", "CHORUS.",
     "Scene IV. The platform.", "SCENE I.--Another part of the island", "XIV", "  II."],
)  # fmt: skip
def test_a_heading_of_a_play_or_sonnet_is_seen(line: str):
    assert (
        len(split(f"before\n{line}\nafter", headings=DRAMA_HEADINGS, min_bytes=0, max_bytes=0)) == 2
    )


@pytest.mark.parametrize(
    "line", ["Act well your part", "scene individable, or poem", "I am no orator", "civil blood"]
)
def test_a_line_of_verse_is_no_heading(line: str):
    assert (
        len(split(f"before\n{line}\nafter", headings=DRAMA_HEADINGS, min_bytes=0, max_bytes=0)) == 1
    )


def test_a_reader_that_cannot_keep_both_limits_is_refused():
    with pytest.raises(ValueError, match="min_bytes=60 is more than half of max_bytes=100"):
        Reader(members=("*",), min_bytes=60, max_bytes=100)
    with pytest.raises(ValueError, match="no regular expression"):
        Reader(members=("*",), headings="(")
