"""Benchmark items planted in training text, and decoys that must survive: the set of known answers.

Kinds of planted text, each of a benchmark item of its own:
  verbatim      question, choices and answer as they are
  recased       in upper case, or every other word
  respaced      other white space and punctuation, one choice a line
  embedded      in the middle of a long text, between sentences
  answerless    the question alone
  short         an item of 8 to 12 words, whole
Kinds of decoys, which hold words of a benchmark item and are no contamination:
  quote         a saying of 16 words that is in an item and in many documents
  licence       a notice that is in an item and in many documents
  template      the instructions that every item begins with
  near_miss     12 words of an item, then others
  phrase        a whole item of fewer than 8 words
  background    text that shares nothing

Everything follows from the seed; words are made of syllables, so that nothing overlaps by chance.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.data.ngrams import words_of
from shoal.data.spans import apply_spans

PLANTED = ("verbatim", "recased", "respaced", "embedded", "answerless", "short")
DECOYS = ("quote", "licence", "template", "near_miss", "phrase", "background")
BENCHMARK = "planted"
_COPIES = 12
_TEMPLATE = (
    "Read the following problem with care and choose the one answer among those below that is "
    "right in every case"
)
_NOTICE = (
    "Permission is granted to use and copy this text for any purpose without fee provided that "
    "the notice above appears in all copies and that no warranty of any kind is made"
)


@dataclass(frozen=True, kw_only=True)
class PlantedText:
    """A training document; `item` is the line of the item that it holds, 0 for a decoy."""

    text: str
    kind: str
    item: int


@dataclass(frozen=True, kw_only=True)
class PlantedItems:
    """Benchmark items, as JSON objects in the order of their lines, and training documents."""

    items: Sequence[dict[str, Any]]
    documents: Sequence[PlantedText]

    def jsonl(self) -> str:
        """The benchmark's file."""
        return "".join(json.dumps(item) + "\n" for item in self.items)


class _Author:
    """Makes words, sentences and texts from a seed."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        starts, middles, ends = "bdfgklmnprstvz", "aeiou", "lmnrst"
        parts = [f"{a}{b}{c}" for a in starts for b in middles for c in ends]
        self.vocabulary = [a + b for a in self.drawn.sample(parts, 60) for b in parts[:40]]

    def words(self, count: int) -> list[str]:
        return [self.drawn.choice(self.vocabulary) for _ in range(count)]

    def sentence(self, count: int) -> str:
        return " ".join(self.words(count)).capitalize() + "."

    def text(self, sentences: int) -> str:
        made = [self.sentence(self.drawn.randint(8, 20)) for _ in range(sentences)]
        return "\n\n".join(" ".join(made[i : i + 4]) for i in range(0, sentences, 4))

    def item(self) -> dict[str, Any]:
        question = " ".join(self.words(self.drawn.randint(16, 40))).capitalize() + "?"
        choices = [" ".join(self.words(self.drawn.randint(2, 5))) for _ in range(4)]
        answer = self.drawn.choice(choices)
        return {"task": _TEMPLATE, "question": question, "choices": choices, "answer": answer}


def plant_items(num_each: int = 10, seed: int = 0) -> PlantedItems:
    """A benchmark and training documents: `num_each` documents of every planted kind."""
    author = _Author(seed)
    items: list[dict[str, Any]] = []
    documents: list[PlantedText] = []
    for kind in PLANTED:
        for _ in range(num_each):
            if kind == "short":
                item: dict[str, Any] = {"question": author.sentence(author.drawn.randint(8, 12))}
            else:
                item = author.item()
            items.append(item)
            text = _planted(author, kind, item)
            documents.append(PlantedText(text=text, kind=kind, item=len(items)))
    for kind in DECOYS:
        documents += _decoys(author, kind, num_each, items)
    author.drawn.shuffle(documents)
    return PlantedItems(items=items, documents=documents)


def _whole(item: dict[str, Any]) -> str:
    return "\n".join([item["question"], *item.get("choices", ()), item.get("answer", "")]).strip()


def _planted(author: _Author, kind: str, item: dict[str, Any]) -> str:
    text = _whole(item)
    if kind == "recased":
        words = text.upper().split(" ")
        if author.drawn.random() < 0.5:
            words = [word if n % 2 else word.lower() for n, word in enumerate(words)]
        text = " ".join(words)
    elif kind == "respaced":
        gaps = ("  ", "\n", " \t", ", ", "\u00a0", " - ")
        text = "".join(word + author.drawn.choice(gaps) for word in text.split())
    elif kind == "answerless":
        text = item["question"]
    num_sentences = 40 if kind == "embedded" else 4
    before, after = author.text(num_sentences), author.text(num_sentences)
    glue = " " if kind == "embedded" else "\n\n"
    return f"{before}{glue}{text}{glue}{after}"


def _decoys(
    author: _Author, kind: str, num_each: int, items: list[dict[str, Any]]
) -> list[PlantedText]:
    """Documents of one kind of decoy; the benchmark item whose words they hold is added."""
    texts: list[str] = []
    if kind == "quote":
        for _ in range(max(1, num_each // 5)):
            saying = author.sentence(16)
            first, second = author.item()["question"], author.item()["question"]
            items.append({"question": f'{first} "{saying}" Who said so, and {second}'})
            texts += [f'{author.text(3)} "{saying}" {author.text(3)}' for _ in range(_COPIES)]
    elif kind == "licence":
        items.append({"question": f"{_NOTICE}\n{author.text(4)}"})
        texts = [f"{_NOTICE}\n\n{author.text(4)}" for _ in range(_COPIES)]
    elif kind == "template":
        texts = [f"{author.text(2)}\n\n{_TEMPLATE}\n\n{author.text(3)}" for _ in range(2)]
    elif kind == "near_miss":
        for _ in range(num_each):
            item = author.item()
            items.append(item)
            words = item["question"].split()
            texts.append(" ".join([author.text(2), *words[:12], author.text(2)]))
    elif kind == "phrase":
        for _ in range(num_each):
            items.append({"question": author.sentence(author.drawn.randint(3, 7))})
            texts.append(f"{author.text(2)} {items[-1]['question']} {author.text(2)}")
    else:
        texts = [author.text(author.drawn.randint(3, 12)) for _ in range(4 * num_each)]
    return [PlantedText(text=text, kind=kind, item=0) for text in texts]


def score(
    planted: PlantedItems, rows: Iterable[dict[str, Any]], order: Sequence[str]
) -> dict[str, Any]:
    """Recall and survival by kind, and precision over all documents.

    Args:
        rows: of `contamination.parquet`.
        order: the `source_id` of each planted document.

    Returns:
        {"kinds": {KIND: {"documents", "right"}}, "recall": over planted kinds, "precision": of the
        marked documents, how many are planted and are marked with their own item}. A planted
        document is right if it is marked with its item and the item's question is gone from it.
    """
    marked: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["benchmark"] == BENCHMARK:
            marked.setdefault(row["source_id"], []).append(row)
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    true = 0
    for document, source_id in zip(planted.documents, order, strict=True):
        mine = marked.get(source_id, [])
        total[document.kind] += 1
        if not document.item:
            right[document.kind] += not mine
            continue
        named = any(row["item"].split(":")[0] == str(document.item) for row in mine)
        true += named
        right[document.kind] += named and not _left(planted, document, mine)
    kinds = {k: {"documents": total[k], "right": right[k]} for k in (*PLANTED, *DECOYS)}
    return {
        "kinds": kinds,
        "recall": sum(right[k] for k in PLANTED) / sum(total[k] for k in PLANTED),
        "precision": true / len(marked) if marked else 1.0,
    }


def _left(planted: PlantedItems, document: PlantedText, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether the item's question is still in the document."""
    if any(row["action"] == "drop" for row in rows):
        return False
    text = apply_spans(document.text, [(row["start"], row["stop"]) for row in rows])
    question = planted.items[document.item - 1]["question"]
    words = [" ".join(_words(part)) for part in (question, text)]
    return words[0] in words[1]


def _words(text: str) -> list[str]:
    """The words of one text."""
    return words_of(pa.array([text])).of(0)
