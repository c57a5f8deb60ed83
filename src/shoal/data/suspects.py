"""Matches of benchmark text that may be no contamination: what a person should look at first.

Table `likely_false.parquet`, one row per doubtful row of `contamination.parquet`:
  id, source, source_id, benchmark, item, start, stop, share  as there
  reason  string  `numbers` (half of the words are numbers or single letters), `licence` (words of
                  licences and notices), `quote` (between quotation marks, and little of the item),
                  `many sources` (the same n-gram in three sources or more)
  sample  string  the matching text, up to 300 characters
They are taken out of training text all the same: a benchmark item lost by mistake costs more than
a quotation lost. What boilerplate already covers does not appear here.
"""

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

from shoal.data.ngrams import words_of

TABLE = "likely_false.parquet"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("benchmark", pa.string()),
        ("item", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("share", pa.float32()),
        ("reason", pa.string()),
        ("sample", pa.string()),
    ]
)
MANY_SOURCES = 3
LITTLE_SHARE = 0.5
SAMPLE_CHARACTERS = 300
NUM_SAMPLES = 5
LICENCE = {"license", "licence", "licensed", "copyright", "warranty", "warranties", "liable"}
LICENCE |= {"liability", "redistribution", "redistribute", "permission", "permitted", "rights"}
_QUOTES = "\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u201e"
_KEEP = ("id", "source", "source_id", "benchmark", "item", "start", "stop", "share")


class Suspects:
    """Gathers doubtful rows while a stage writes its table."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        # Kind of n-gram -> the sources that hold it, and the rows that rest on it.
        self._sources: dict[int, set[str]] = defaultdict(set)
        self._by_kind: dict[int, list[dict[str, Any]]] = defaultdict(list)

    def add(self, found: dict[str, Any], kind: int) -> None:
        """Takes what `look` found, and the kind of its first n-gram."""
        if found["reason"]:
            self._rows.append(found)
        self._sources[kind].add(found["source"])
        self._by_kind[kind].append(found)

    def finish(self) -> pa.Table:
        """The table `likely_false.parquet`."""
        for kind, sources in self._sources.items():
            if len(sources) >= MANY_SOURCES:
                for row in self._by_kind[kind]:
                    if not row["reason"]:
                        self._rows.append({**row, "reason": "many sources"})
        key = ("reason", "source", "id", "start", "benchmark", "item")
        rows = sorted(self._rows, key=lambda row: [row[name] for name in key])
        return pa.Table.from_pylist(rows, SCHEMA)


def look(row: dict[str, Any], text: str) -> dict[str, Any]:
    """One row of `contamination.parquet` and its document, as `likely_false.parquet` has it.

    Its reason is empty where this document alone gives none.
    """
    start, stop = row["start"], row["stop"]
    return {
        **{name: row[name] for name in _KEEP},
        "sample": text[start : min(stop, start + SAMPLE_CHARACTERS)],
        "reason": reason(text, start, stop, row["share"]),
    }


def reason(text: str, start: int, stop: int, share: float) -> str:
    """Why a match may be no contamination; empty if nothing speaks for that."""
    words = words_of(pa.array([text[start:stop]])).of(0)
    if 2 * sum(len(word) == 1 or word.isnumeric() for word in words) >= len(words):
        return "numbers"
    if len(LICENCE.intersection(words)) > 1:
        return "licence"
    before, after = text[max(0, start - 2) : start + 2], text[stop - 2 : stop + 2]
    if share < LITTLE_SHARE and _quoted(before) and _quoted(after):
        return "quote"
    return ""


def summary(found: pa.Table) -> dict[str, Any]:
    """Counts by reason, and the first samples of each."""
    reasons = found["reason"].to_pylist()
    samples: dict[str, list[str]] = defaultdict(list)
    for name, sample in zip(reasons, found["sample"].to_pylist(), strict=True):
        if len(samples[name]) < NUM_SAMPLES and sample not in samples[name]:
            samples[name].append(sample)
    return {
        name: {"rows": count, "samples": samples[name]}
        for name, count in sorted(Counter(reasons).items())
    }


def _quoted(edge: str) -> bool:
    return any(character in _QUOTES for character in edge)
