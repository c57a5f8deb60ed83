"""Near duplicates, and texts that only look like them, made to measure the stage `near`.

Every family of a kind is an original and one changed copy, or, for kinds whose texts must all stay,
several texts that share a frame. What is made depends on the arguments only.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Share of words replaced by others, at random places.
REPLACED = {"1 % replaced": 0.01, "2 % replaced": 0.02, "4 % replaced": 0.04, "8 % replaced": 0.08}
COPIES = (*REPLACED, "truncated", "banner", "case and space")
# Texts of these kinds share at most this part of their words, and must all stay.
SHARED = {"template": 0.6, "rollout": 0.65}
ALONE = "alone"
_STARTS = ("b", "br", "d", "f", "gl", "k", "l", "m", "n", "p", "qu", "r", "s", "st", "t", "v")
_ENDS = ("a", "en", "il", "or", "um", "esh", "ain", "olt")
_WORDS = tuple(f"{a}{b}{c}{d}" for a in _STARTS for b in _ENDS for c in _STARTS for d in _ENDS)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One text; `family` numbers the texts that were made from each other."""

    text: str
    kind: str
    family: int


@dataclass(frozen=True, kw_only=True)
class Score:
    """What became of a kind.

    Attributes:
        texts: planted.
        pairs: of an original and its copy; none for kinds whose texts must stay.
        found: pairs of which one text was removed.
        lost: texts removed that should have stayed: of a pair the second one, else every one.
    """

    texts: int
    pairs: int
    found: int
    lost: int


def plant(
    seed: int, *, families: int = 40, num_words: int = 400, rollouts: int = 12
) -> list[Planted]:
    """Families of every kind in a shuffled order.

    Args:
        seed: another seed gives other texts.
        families: of each kind of `COPIES`, and as many texts of the kind `alone`; of `SHARED`
            there are a quarter.
        num_words: of a text, before it is changed.
        rollouts: texts of each family that shares a frame.
    """
    drawn = random.Random(seed)
    found: list[Planted] = []
    number = 0
    for kind in COPIES:
        for _ in range(families):
            words = _draw(drawn, num_words)
            pair = (prose(words), changed(kind, words, drawn))
            found += [Planted(text=text, kind=kind, family=number) for text in pair]
            number += 1
    for kind, share in SHARED.items():
        for _ in range(max(1, families // 4)):
            texts = _frame(kind, share, drawn, num_words, rollouts)
            found += [Planted(text=text, kind=kind, family=number) for text in texts]
            number += 1
    for _ in range(families):
        found.append(Planted(text=prose(_draw(drawn, num_words)), kind=ALONE, family=number))
        number += 1
    drawn.shuffle(found)
    return found


def score(planted: Sequence[Planted], removed: Iterable[int]) -> dict[str, Score]:
    """Kind -> what became of it, from the places in `planted` of the texts that were removed."""
    gone = set(removed)
    families: dict[tuple[str, int], list[int]] = {}
    for place, item in enumerate(planted):
        families.setdefault((item.kind, item.family), []).append(place)
    result: dict[str, Score] = {}
    for kind in (*COPIES, *SHARED, ALONE):
        mine = [places for (name, _), places in families.items() if name == kind]
        removals = [sum(place in gone for place in places) for places in mine]
        copies = kind in COPIES
        result[kind] = Score(
            texts=sum(map(len, mine)),
            pairs=len(mine) if copies else 0,
            found=sum(map(bool, removals)) if copies else 0,
            lost=sum(max(0, number - copies) for number in removals),
        )
    return result


def changed(kind: str, words: list[str], drawn: random.Random) -> str:
    """The changed copy of words, of one of `COPIES`."""
    if kind in REPLACED:
        changed = list(words)
        for place in drawn.sample(range(len(words)), round(REPLACED[kind] * len(words))):
            changed[place] = drawn.choice(_WORDS)
        return prose(changed)
    if kind == "truncated":
        return prose(words[: len(words) * 9 // 10])
    if kind == "banner":
        return f"{prose(_draw(drawn, max(1, len(words) // 20)))}\n\n{prose(words)}"
    assert kind == "case and space", kind
    return prose(words).upper().replace(" ", "  ").replace(".", " ,")


def prose(words: Sequence[str]) -> str:
    """Words as sentences of twelve and paragraphs of five."""
    sentences = [
        " ".join(words[place : place + 12]).capitalize() + "." for place in range(0, len(words), 12)
    ]
    return "\n\n".join(
        " ".join(sentences[place : place + 5]) for place in range(0, len(sentences), 5)
    )


def _draw(drawn: random.Random, count: int) -> list[str]:
    # Squaring makes the first words common, as words are.
    return [_WORDS[int(len(_WORDS) * drawn.random() ** 2)] for _ in range(count)]


def _frame(kind: str, share: float, drawn: random.Random, num_words: int, count: int) -> list[str]:
    """Texts that share a frame: around the content (template), or between turns (rollout)."""
    frame = _draw(drawn, round(share * num_words))
    own = num_words - len(frame)
    texts = []
    for _ in range(count):
        content = _draw(drawn, own)
        if kind == "template":
            half = len(frame) // 2
            texts.append(prose([*frame[:half], *content, *frame[half:]]))
        else:
            turns = 4
            system, tool = frame[: len(frame) // 2], frame[len(frame) // 2 :]
            step, piece = len(tool) // turns, own // turns
            parts = [f"system: {prose(system)}"]
            for turn in range(turns):
                said = content[turn * piece : (turn + 1) * piece]
                parts.append(f"assistant: {prose(said)}")
                parts.append(f"tool: {prose(tool[turn * step : (turn + 1) * step])}")
            texts.append("\n\n".join(parts))
    return texts
