"""Cutting one long record into documents, so that whole documents of it can be held out.

Law: the pieces of a text, joined, are the text.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

PARAGRAPH = re.compile(r"(?:\r?\n[ \t]*){2,}")
LINE = re.compile(r"\r?\n")
SPACE = re.compile(r"\s+")


def split(text: str, *, headings: str, min_bytes: int, max_bytes: int) -> list[str]:
    """The pieces of `text` in order.

    A text is cut before every line that matches `headings` (a regular expression, searched at
    line starts, case ignored). Pieces shorter than `min_bytes` are joined to the next one. A piece
    longer than `max_bytes` is filled paragraph by paragraph; a paragraph that is longer itself is
    filled line by line, then word by word, then cut between characters. 0 switches a rule off.
    """
    pieces = (
        _before(text, re.compile(headings, re.IGNORECASE | re.MULTILINE)) if headings else [text]
    )
    if max_bytes:
        pieces = [part for piece in pieces for part in _fill(piece, max_bytes)]
    return list(_join_short(pieces, min_bytes, max_bytes))


def _before(text: str, heading: re.Pattern[str]) -> list[str]:
    cuts = [0, *(match.start() for match in heading.finditer(text)), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if b > a]


def _after(text: str, separator: re.Pattern[str]) -> list[str]:
    cuts = [0, *(match.end() for match in separator.finditer(text)), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if b > a]


def _fill(text: str, max_bytes: int, level: int = 0) -> Iterator[str]:
    if _size(text) <= max_bytes:
        yield text
        return
    separators = (PARAGRAPH, LINE, SPACE)
    if level == len(separators):
        yield from _by_character(text, max_bytes)
        return
    parts = _after(text, separators[level])
    held: list[str] = []
    held_bytes = 0
    for part in parts:
        size = _size(part)
        if held and held_bytes + size > max_bytes:
            yield "".join(held)
            held, held_bytes = [], 0
        if size > max_bytes:
            yield from _fill(part, max_bytes, level + 1)
        else:
            held.append(part)
            held_bytes += size
    if held:
        yield "".join(held)


def _by_character(text: str, max_bytes: int) -> Iterator[str]:
    # A character has at most four bytes in UTF-8.
    width = max(1, max_bytes // 4)
    yield from (text[start : start + width] for start in range(0, len(text), width))


def _join_short(pieces: list[str], min_bytes: int, max_bytes: int) -> Iterator[str]:
    held, held_bytes = "", 0
    for piece in pieces:
        size = _size(piece)
        full = max_bytes and held_bytes + size > max_bytes
        if held and (held_bytes >= min_bytes or full):
            yield held
            held, held_bytes = "", 0
        held, held_bytes = held + piece, held_bytes + size
    if held:
        yield held


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
