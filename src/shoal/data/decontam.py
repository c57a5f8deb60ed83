"""Stage `contamination`: benchmark text in training text, and what is taken out because of it.

Table `contamination.parquet`, one row per document, item and run of matching words:
  id, source, source_id  string  the document
  benchmark, item        string  what it holds (`data.benchmarks`)
  start, stop            int64   characters of the document's text: what is cut, or the paragraph
  num_words              int32   from the first to the last matching word
  ngram                  string  the first n-gram that matches, as the item has it
  share                  float   of the item's n-grams, how many are in the document
  rule                   string  `spans` or `documents`
  action                 string  `cut`, or `drop`: the whole document goes
Table `likely_false.parquet`: rows that a person should look at first (`data.suspects`).
Table `boilerplate.parquet`: n-grams that prove nothing (`data.boilerplate`).
Facts, per source and per benchmark: documents, spans, cut characters or dropped documents; counts
of likely false positives by reason, with samples; n-grams in the index and boilerplate by reason.

Words are those of `data.ngrams`: case and punctuation hide nothing. An item of fewer words than the
n-gram counts as one n-gram of its own length if it has `short_words`. N-grams without a letter do
not count.

Rule `spans`: overlapping matches of an item are one run. A run is cut with the punctuation that is
glued to its words, white space beside it goes, and a paragraph break is left. What a cut brings
together is looked at again, until nothing matches: no indexed n-gram is left in the text.
Rule `documents` is the public run's, on normalized words: a document goes if one of its paragraphs
(between blank lines) has at least `paragraph_overlap` of its n-grams in a benchmark; a paragraph of
3 words or more, but fewer than the n-gram, counts as one n-gram.

Training text streams past the index, so memory does not grow with it. A killed stage goes on at the
shard that it was at.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Int64

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.files import write_atomic
from shoal.core.progress import Progress
from shoal.data import boilerplate, suspects, table
from shoal.data.benchmarks import TABLE as ITEMS
from shoal.data.boilerplate import all_words, slices
from shoal.data.config import CorpusConfig
from shoal.data.gramindex import (
    SHORTEST_PARAGRAPH,
    Hits,
    Index,
    build_index,
    has_letter,
    paragraph_starts,
)
from shoal.data.scan import Scan, scan
from shoal.data.settings import DecontamConfig
from shoal.data.shards import shards
from shoal.data.spans import CONTAMINATION as TABLE
from shoal.data.spans import CUT, DROP, SPACES, apply_spans, merged
from shoal.data.training import Split

REVISION = 1
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("benchmark", pa.string()),
        ("item", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("num_words", pa.int32()),
        ("ngram", pa.string()),
        ("share", pa.float32()),
        ("rule", pa.string()),
        ("action", pa.string()),
    ]
)
DOUBTS = "doubts.json"
_SETTINGS = {"benchmarks", "allow_uncovered"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A stretch of a document's words, from first to the one before last, that one item matches."""

    item: int
    first: int
    last: int
    entry: int


def contamination(
    root: Path,
    corpus: CorpusConfig,
    config: DecontamConfig,
    split: Split,
    items: Artifact,
    inputs: dict[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the table of benchmark text in training text.

    Args:
        split: the training text before this stage.
        items: the artifact of stage `benchmarks`.
        inputs: the digests behind `split`.
    """

    def make(folder: Path) -> dict[str, Any]:
        texts = table.read(items.path / ITEMS)
        index, bad, rows = indexed(texts, corpus, config, split, progress)
        table.write(folder / boilerplate.TABLE, pa.Table.from_pylist(rows, boilerplate.SCHEMA))
        doubts = suspects.Suspects()
        look = partial(_look, index=index, bad=bad, config=config)
        matched = _matches(folder, look, corpus, split, doubts, progress)
        facts = _write(folder / TABLE, matched)
        doubtful = doubts.finish()
        table.write(folder / suspects.TABLE, doubtful)
        kinds = np.unique([row["reason"] for row in rows], return_counts=True)
        return {
            **facts,
            "ngrams": len(index.items),
            "boilerplate": {str(k): int(n) for k, n in zip(*kinds, strict=True)},
            "likely_false": suspects.summary(doubtful),
        }

    settings = {key: value for key, value in plain(config).items() if key not in _SETTINGS}
    return build(
        root,
        f"{corpus.name}-contamination",
        stage="contamination",
        revision=REVISION,
        literals={"decontam": settings, "sources": [s.name for s in corpus.training]},
        inputs={**inputs, "benchmarks": items.digest},
        make=make,
    )


def indexed(
    items: pa.Table, corpus: CorpusConfig, config: DecontamConfig, split: Split, progress: Progress
) -> tuple[Index, Bool[np.ndarray, "E"], list[dict[str, Any]]]:
    """The index, which entries of it are boilerplate, and the rows of `boilerplate.parquet`.

    With rule `spans` boilerplate is taken out of the index already, so none is marked.
    """
    whole = config.rule == "documents"
    index = build_index(
        items, length=config.ngram_words, short_words=config.short_words, paragraphs=whole
    )
    own = frozenset(
        name
        for name, mine in zip(items["benchmark"].to_pylist(), items["own"].to_pylist(), strict=True)
        if mine
    )
    bad, rows = boilerplate.templates(index, config, own)
    rest = index.without(bad)
    common, more = boilerplate.common(rest, corpus, config, split, progress)
    if not whole:
        left = rest.without(common)
        return left, np.zeros(len(left.items), np.bool_), rows + more
    bad[np.flatnonzero(~bad)[common]] = True
    return index, bad, rows + more


def find_runs(index: Index, found: Scan, text: int) -> list[Run]:
    """Everything to cut from one text of a scan, by item and place, until no n-gram is left."""
    first = int(found.starts[text])
    kept = np.arange(first, found.starts[text + 1])
    cut = np.zeros(len(kept), np.bool_)
    runs: list[Run] = []
    while True:
        hits = index.find(found, kept, np.array([0, len(kept)]))
        if len(hits.at) == 0:
            break
        begins, ends = kept[hits.at], kept[hits.at + hits.lengths - 1] + 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            cut[begin - first : end - first] = True
        for place, begin in enumerate(begins.tolist()):
            entry = int(hits.entries[place])
            item = int(index.items[entry])
            runs.append(Run(item=item, first=begin, last=int(ends[place]), entry=entry))
        kept = np.arange(first, first + len(cut))[~cut]
    return _joined(runs)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Overlapping or touching runs of one item as one run, with the evidence of the first."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda r: (r.item, r.first, r.last, r.entry)):
        if found and found[-1].item == run.item and run.first <= found[-1].last:
            last = max(found[-1].last, run.last)
            found[-1] = Run(item=run.item, first=found[-1].first, last=last, entry=found[-1].entry)
        else:
            found.append(run)
    return found


def _spans(
    index: Index, found: Scan, text: int, entries: Int64[np.ndarray, "H"]
) -> Iterator[dict[str, Any]]:
    """The rows of one document under rule `spans`, less what names the document."""
    runs = find_runs(index, found, text)
    written = bytes(found.data[found.offsets[text] : found.offsets[text + 1]]).decode()
    begins = found.characters(text, found.begins[[run.first for run in runs]])
    ends = found.characters(text, found.ends[[run.last - 1 for run in runs]])
    places = [_widened(written, b, e) for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
    action = CUT if apply_spans(written, places).strip(SPACES) else DROP
    shares = _shares(index, entries)
    for run, (start, stop) in zip(runs, places, strict=True):
        yield {
            "item": run.item,
            "start": start,
            "stop": stop,
            "num_words": run.last - run.first,
            "entry": run.entry,
            "share": shares.get(run.item, 0.0),
            "action": action,
        }


def _widened(text: str, start: int, stop: int) -> tuple[int, int]:
    """To the white space on either side: punctuation goes with its word."""
    while start > 0 and text[start - 1] not in SPACES:
        start -= 1
    while stop < len(text) and text[stop] not in SPACES:
        stop += 1
    return start, stop


def _shares(index: Index, entries: Int64[np.ndarray, "H"]) -> dict[int, float]:
    """Of each item that a document holds entries of, the share of its n-grams."""
    items, counts = np.unique(index.items[np.unique(entries)], return_counts=True)
    shares = counts / index.totals[items]
    return dict(zip(items.tolist(), shares.tolist(), strict=True))


def _paragraphs(
    index: Index, bad: Bool[np.ndarray, "E"], found: Scan, config: DecontamConfig
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a batch under rule `documents`, each with its document."""
    length = config.ngram_words
    starts = paragraph_starts(found)
    hits = index.find(found, all_words(found), starts, whole_below=length)
    sizes = np.diff(starts)
    grams = np.where(sizes >= length, sizes - length + 1, sizes >= SHORTEST_PARAGRAPH)
    # N-grams of a long paragraph that hold no letter, and those that are boilerplate only.
    begins = np.flatnonzero(np.repeat(starts[1:], sizes) - np.arange(len(found.hashes)) >= length)
    empty = begins[~has_letter(found, begins.astype(np.int64), length)]
    good = np.unique(hits.at[~bad[hits.entries]])
    null = np.union1d(empty, np.setdiff1d(hits.at[bad[hits.entries]], good))
    owner = np.searchsorted(starts, good, side="right") - 1
    counted = grams - np.bincount(
        np.searchsorted(starts, null, side="right") - 1, minlength=len(sizes)
    )
    matched = np.bincount(owner, minlength=len(sizes))
    over = (matched > 0) & (matched >= config.paragraph_overlap * counted)
    mine = over[np.searchsorted(starts, hits.at, side="right") - 1] & ~bad[hits.entries]
    yield from _paragraph_rows(index, found, starts, hits, mine)


def _paragraph_rows(
    index: Index,
    found: Scan,
    starts: Int64[np.ndarray, "paragraphs_plus_one"],
    hits: Hits,
    mine: Bool[np.ndarray, "H"],
) -> Iterator[tuple[int, dict[str, Any]]]:
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for hit in np.flatnonzero(mine).tolist():
        paragraph = int(np.searchsorted(starts, hits.at[hit], side="right")) - 1
        groups[paragraph, int(index.items[hits.entries[hit]])].append(hit)
    for (paragraph, item), members in groups.items():
        first, last = int(starts[paragraph]), int(starts[paragraph + 1])
        text = int(found.owners(np.array([first]))[0])
        start, stop = found.characters(
            text, np.array([found.begins[first], found.ends[last - 1]])
        ).tolist()
        ends = [int(hits.at[hit] + hits.lengths[hit]) for hit in members]
        distinct = len({int(hits.entries[hit]) for hit in members})
        yield (
            text,
            {
                "item": item,
                "start": start,
                "stop": stop,
                "num_words": max(ends) - int(hits.at[members[0]]),
                "entry": int(hits.entries[members[0]]),
                "share": distinct / int(index.totals[item]),
                "action": DROP,
            },
        )


def _rows(
    piece: pa.RecordBatch,
    index: Index,
    bad: Bool[np.ndarray, "E"],
    config: DecontamConfig,
    doubts: list[tuple[dict[str, Any], int]],
) -> Iterator[dict[str, Any]]:
    """The rows of a batch of documents of one source."""
    found = scan(piece["text"])
    if config.rule == "documents":
        numbered = sorted(_paragraphs(index, bad, found, config), key=lambda pair: pair[0])
    else:
        hits = index.find(found, all_words(found), found.starts)
        borders = np.searchsorted(hits.at, found.starts)
        numbered = [
            (text, row)
            for text in np.flatnonzero(np.diff(borders)).tolist()
            for row in _spans(index, found, text, hits.entries[borders[text] : borders[text + 1]])
        ]
    for text, found_row in numbered:
        benchmark, item = index.names[found_row.pop("item")]
        entry = found_row.pop("entry")
        row = {
            "id": piece["id"][text].as_py(),
            "source": piece["source"][text].as_py(),
            "source_id": piece["source_id"][text].as_py(),
            "benchmark": benchmark,
            "item": item,
            "ngram": index.ngram(entry),
            "rule": config.rule,
            **found_row,
        }
        found_doubt = suspects.look(row, piece["text"][text].as_py())
        doubts.append((found_doubt, int(index.kinds[entry])))
        yield row


type Counted = tuple[str, int, list[dict[str, Any]]]


def _look(
    folder: Path,
    batches: Iterable[pa.RecordBatch],
    index: Index,
    bad: Bool[np.ndarray, "E"],
    config: DecontamConfig,
) -> dict[str, Any]:
    """One shard: its rows in the groups in which they are found, and what speaks against them."""
    documents = 0
    doubts: list[tuple[dict[str, Any], int]] = []
    with pq.ParquetWriter(folder / TABLE, SCHEMA, compression="zstd") as writer:
        for batch in batches:
            for piece in slices(batch):
                documents += piece.num_rows
                rows = list(_rows(piece, index, bad, config, doubts))
                if rows:
                    writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    write_atomic(folder / DOUBTS, json.dumps(doubts))
    return {"documents": documents}


def _matches(
    folder: Path,
    look: Callable[[Path, Iterable[pa.RecordBatch]], dict[str, Any]],
    corpus: CorpusConfig,
    split: Split,
    doubts: suspects.Suspects,
    progress: Progress,
) -> Iterator[Counted]:
    """Streams training text past the index: source, number of documents, and their rows."""
    with progress.task("decontaminate", len(corpus.training), "sources") as task:
        for source in corpus.training:
            task.say(source.name)
            batches = split.batches(source.name, ["id", "text", "source", "source_id"])
            for shard in shards(folder, source.name, batches, look):
                if shard.facts["documents"]:
                    yield source.name, shard.facts["documents"], []
                with pq.ParquetFile(shard.path / TABLE) as file:
                    for group in range(file.num_row_groups):
                        yield source.name, 0, file.read_row_group(group).to_pylist()
                for found, kind in json.loads((shard.path / DOUBTS).read_text()):
                    doubts.add(found, kind)
            task.advance()


def _write(path: Path, matched: Iterable[Counted]) -> dict[str, Any]:
    """Writes the rows as they come; returns counts per source and benchmark."""
    sources: dict[str, Counter[str]] = defaultdict(Counter)
    spans: Counter[str] = Counter()
    items: dict[str, set[str]] = defaultdict(set)
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for source, num_documents, rows in matched:
            sources[source] += Counter(documents=num_documents)
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                sources[source] += _counts(rows)
            for row in rows:
                spans[row["benchmark"]] += 1
                items[row["benchmark"]].add(row["item"])
    names = ("documents", "contaminated", "spans", "characters", "dropped")
    return {
        "sources": {name: {key: mine[key] for key in names} for name, mine in sources.items()},
        "benchmarks": {
            name: {"items": len(items[name]), "spans": spans[name]} for name in sorted(spans)
        },
    }


def _counts(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    documents: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        documents[row["source_id"]].append(row)
    counts = Counter(contaminated=len(documents))
    for mine in documents.values():
        spans = merged((row["start"], row["stop"]) for row in mine)
        if mine[0]["action"] == DROP:
            counts["dropped"] += 1
        else:
            counts["spans"] += len(spans)
            counts["characters"] += sum(stop - start for start, stop in spans)
    return counts
