"""Stage `overlap`: of every evaluation item, how much stands in the training text.

Table `overlap.parquet`, one row per item, in the order of the items:
  benchmark, item     string
  num_words           int64   of the whole item
  num_ngrams          int64   that are looked for: distinct ones, less question templates; 0 means
                              that the item is too short to be found
  found_ngrams        int64   of these, how many are in training text
  share               double  found_ngrams / num_ngrams
  longest_run         int64   words in a row that one document has of it
  documents           int64   that hold any of it
  id, source, source_id  string  the document with the longest run; empty if there is none
  passage             string  that run as it was written there, in one line, its first 400
                              characters
Facts, per benchmark: items, looked_for, found (any n-gram), half (at least half of them), share
(mean over items looked for), longest_run.

The index is that of stage `contamination`, asked the other way round: which n-grams of an item did
any text hold? What training sources have in common counts here, for it stands in the text.

Letters: E entries of the index, I items, H hits, P pairs of document and item.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from shoal.core.artifact import Artifact, build
from shoal.core.progress import Progress
from shoal.data import boilerplate, table
from shoal.data.boilerplate import all_words, slices
from shoal.data.gramindex import Hits, Index, build_index
from shoal.data.ngrams import words_of
from shoal.data.scan import Scan, scan
from shoal.data.settings import DecontamConfig
from shoal.data.training import Split

REVISION = 3
TABLE = "overlap.parquet"
SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("item", pa.string()),
        ("num_words", pa.int64()),
        ("num_ngrams", pa.int64()),
        ("found_ngrams", pa.int64()),
        ("share", pa.float64()),
        ("longest_run", pa.int64()),
        ("documents", pa.int64()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("passage", pa.string()),
    ]
)
HALF = 0.5
PASSAGE_CHARACTERS = 400
EXAMPLE = ("id", "source", "source_id", "passage")


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Of each document and item that share an n-gram, their longest run, the first of such.

    Attributes:
        begins: the word of the scan at which it begins.
        longest: how many words it has.
    """

    documents: Int64[np.ndarray, "P"]
    items: Int64[np.ndarray, "P"]
    begins: Int64[np.ndarray, "P"]
    longest: Int64[np.ndarray, "P"]


def overlap(
    root: Path,
    name: str,
    items: pa.Table,
    sources: Sequence[str],
    split: Split,
    config: DecontamConfig,
    inputs: Mapping[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the table of evaluation items in training text.

    Args:
        items: in the schema of `data.benchmarks`.
        sources: whose text is looked through.
        inputs: the digests behind `split` and `items`.
    """

    def make(folder: Path) -> dict[str, Any]:
        found = contamination_table(items, sources, split, config, progress)
        table.write(folder / TABLE, found)
        return {"benchmarks": summary(found)}

    names = ("ngram_words", "short_words", "template_items", "template_share")
    return build(
        root,
        f"{name}-overlap",
        stage="overlap",
        revision=REVISION,
        literals={
            "settings": {key: getattr(config, key) for key in names},
            "sources": list(sources),
        },
        inputs=inputs,
        make=make,
    )


def contamination_table(
    items: pa.Table,
    sources: Sequence[str],
    split: Split,
    config: DecontamConfig,
    progress: Progress,
) -> pa.Table:
    """The rows of `overlap.parquet`; memory grows with the items, not with the text."""
    index = build_index(items, length=config.ngram_words, short_words=config.short_words)
    bad, _ = boilerplate.templates(index, config, frozenset())
    index = index.without(bad)
    held = np.zeros(len(index.items), np.bool_)
    longest = np.zeros(len(index.totals), np.int64)
    documents = np.zeros(len(index.totals), np.int64)
    examples: dict[int, dict[str, str]] = {}
    with progress.task("contamination", len(sources), "sources") as task:
        for source in sources:
            task.say(source)
            for batch in split.batches(source, ["id", "text", "source", "source_id"]):
                for piece in slices(batch):
                    found = scan(piece["text"])
                    hits = index.find(found, all_words(found), found.starts)
                    held[hits.entries] = True
                    runs = _longest_runs(index, found, hits)
                    np.add.at(documents, runs.items, 1)
                    for place in np.flatnonzero(runs.longest > longest[runs.items]).tolist():
                        item, words = int(runs.items[place]), int(runs.longest[place])
                        if words > longest[item]:
                            longest[item] = words
                            row, begin = int(runs.documents[place]), int(runs.begins[place])
                            passage = " ".join(found.text(begin, begin + words - 1).split())
                            named = {name: piece[name][row].as_py() for name in EXAMPLE[:-1]}
                            examples[item] = {**named, "passage": passage[:PASSAGE_CHARACTERS]}
            task.advance()
    counts = np.bincount(index.items[held], minlength=len(index.totals))
    return _table(items, index, counts, longest, documents, examples)


def summary(found: pa.Table) -> dict[str, dict[str, Any]]:
    """The facts of each benchmark."""
    facts: dict[str, dict[str, Any]] = {}
    for row in found.to_pylist():
        mine = facts.setdefault(
            row["benchmark"],
            {"items": 0, "looked_for": 0, "found": 0, "half": 0, "share": 0.0, "longest_run": 0},
        )
        mine["items"] += 1
        mine["looked_for"] += row["num_ngrams"] > 0
        mine["found"] += row["found_ngrams"] > 0
        mine["half"] += row["share"] >= HALF
        mine["share"] += row["share"]
        mine["longest_run"] = max(mine["longest_run"], row["longest_run"])
    for mine in facts.values():
        mine["share"] = mine["share"] / max(1, mine["looked_for"])
    return facts


def _longest_runs(index: Index, found: Scan, hits: Hits) -> Runs:
    """Overlapping or touching n-grams of an item in a document are one run."""
    owners = found.owners(hits.at)
    groups = owners * len(index.totals) + index.items[hits.entries]
    order = np.lexsort((hits.at, groups))
    groups, begins = groups[order], hits.at[order]
    ends = begins + hits.lengths[order]
    distinct, mine = np.unique(groups, return_inverse=True)
    # Every group on a stretch of its own, so that one running maximum serves them all.
    shift = mine.astype(np.int64) * (len(found.hashes) + 1)
    reach = np.maximum.accumulate(ends + shift)
    fresh = np.ones(len(begins), np.bool_)
    fresh[1:] = begins[1:] + shift[1:] > reach[:-1]
    starts = np.flatnonzero(fresh)
    last = np.concatenate([starts[1:], [len(begins)]])[: len(starts)] - 1
    sizes = reach[last] - shift[starts] - begins[starts]
    owner = mine[starts]
    best = np.lexsort((begins[starts], -sizes, owner))
    best = best[np.unique(owner[best], return_index=True)[1]]
    return Runs(
        documents=distinct // max(1, len(index.totals)),
        items=distinct % max(1, len(index.totals)),
        begins=begins[starts][best],
        longest=sizes[best],
    )


def _table(
    items: pa.Table,
    index: Index,
    found: Int64[np.ndarray, "I"],
    longest: Int64[np.ndarray, "I"],
    documents: Int64[np.ndarray, "I"],
    examples: Mapping[int, Mapping[str, str]],
) -> pa.Table:
    whole = items.filter(pa.array([part == "" for part in items["part"].to_pylist()]))
    sizes = np.diff(words_of(pa.array(whole["text"].to_pylist(), pa.string())).starts)
    keys = zip(whole["benchmark"].to_pylist(), whole["item"].to_pylist(), strict=True)
    words = dict(zip(keys, sizes.tolist(), strict=True))
    rows = []
    for number, (benchmark, item) in enumerate(index.names):
        total = int(index.totals[number])
        rows.append(
            {
                "benchmark": benchmark,
                "item": item,
                "num_words": words.get((benchmark, item), 0),
                "num_ngrams": total,
                "found_ngrams": int(found[number]),
                "share": int(found[number]) / max(1, total),
                "longest_run": int(longest[number]),
                "documents": int(documents[number]),
                **(examples.get(number) or dict.fromkeys(EXAMPLE, "")),
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)
