"""Cutting stretches out of a text: what stage `contamination` finds and every reader applies."""

from collections.abc import Iterable

CONTAMINATION = "contamination.parquet"
CUT, DROP = "cut", "drop"
# White space as `data.ngrams` sees it; a test compares it with the table of characters.
SPACES = "\t\n\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    chr(code) for code in range(0x2000, 0x200B)
)
BREAK = "\n\n"


def apply_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """A text less some of its characters, with a paragraph break where something was cut.

    White space beside a cut goes, and at either end of the text no break is left.
    """
    pieces: list[str] = []
    place = 0
    for start, stop in merged(spans):
        pieces.append(text[place:start])
        place = stop
    pieces.append(text[place:])
    last = len(pieces) - 1
    for number in range(len(pieces)):
        if number > 0:
            pieces[number] = pieces[number].lstrip(SPACES)
        if number < last:
            pieces[number] = pieces[number].rstrip(SPACES)
    return BREAK.join(piece for piece in pieces if piece)


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that overlap or touch as one."""
    """Overlapping or touching stretches as one, in order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found
