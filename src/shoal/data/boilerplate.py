"""N-grams that prove nothing: question templates, and text that training sources have in common.

Table `boilerplate.parquet`, one row per n-gram and reason:
  ngram      string  as its benchmark item has it
  num_words  int32
  benchmark  string  where it was indexed first
  reason     string  `template` (in many items of its benchmark), `source` (in many sampled
                     documents of one source) or `across` (in many of several sources)
  where      string  the benchmark, the source, or the number of sources
  count      int64   items or sampled documents that hold it
  of         int64   items of the benchmark, or documents sampled

A document that holds at least half of an item is a copy of it and says nothing about the item's
n-grams: only other documents count, so that an item planted many times is not taken for
boilerplate. For an n-gram below the full length, which is a whole short text, every document
counts.

Letters: E entries of the index, K kinds of n-grams (numbered as entries).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from shoal.core.progress import Progress
from shoal.data.config import CorpusConfig
from shoal.data.gramindex import Hits, Index
from shoal.data.scan import Scan, scan
from shoal.data.settings import DecontamConfig
from shoal.data.training import Split

TABLE = "boilerplate.parquet"
SCHEMA = pa.schema(
    [
        ("ngram", pa.string()),
        ("num_words", pa.int32()),
        ("benchmark", pa.string()),
        ("reason", pa.string()),
        ("where", pa.string()),
        ("count", pa.int64()),
        ("of", pa.int64()),
    ]
)
COPY_SHARE = 0.5
SLICE_BYTES = 8 * 2**20


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pieces of a batch with a `text` column, of about SLICE_BYTES of text."""
    text = batch["text"]
    if batch.num_rows == 0:
        return
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset :][: len(text) + 1]
    ends = (offsets[1:].astype(np.int64) - offsets[0]) // SLICE_BYTES
    borders = np.concatenate([[0], np.flatnonzero(np.diff(ends)) + 1, [len(text)]]).tolist()
    for start, stop in pairwise(borders):
        yield batch.slice(start, stop - start)


def all_words(found: Scan) -> Int64[np.ndarray, "W"]:
    """Every word of a scan, as `Index.find` takes them."""
    return np.arange(len(found.hashes), dtype=np.int64)


def templates(
    index: Index, config: DecontamConfig, own: frozenset[str]
) -> tuple[Bool[np.ndarray, "E"], list[dict[str, Any]]]:
    """Entries whose words are in many items of their benchmark; never of benchmarks in `own`."""
    labels = sorted({benchmark for benchmark, _ in index.names})
    numbers = {label: number for number, label in enumerate(labels)}
    mine = np.array([numbers[benchmark] for benchmark, _ in index.names], np.int64)
    items = np.bincount(mine, minlength=len(labels))
    # An entry is one n-gram of one item, so entries of a kind and benchmark count its items.
    pairs = index.kinds * len(labels) + mine[index.items]
    distinct, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    benchmark = distinct % max(1, len(labels))
    many = (counts >= config.template_items) & (counts > config.template_share * items[benchmark])
    many &= ~np.isin(benchmark, [numbers[label] for label in own if label in numbers])
    rows = [
        _row(
            index,
            int(distinct[n] // len(labels)),
            "template",
            labels[b],
            int(counts[n]),
            int(items[b]),
        )
        for n, b in zip(np.flatnonzero(many).tolist(), benchmark[many].tolist(), strict=True)
    ]
    return many[inverse], rows


def common(
    index: Index, corpus: CorpusConfig, config: DecontamConfig, split: Split, progress: Progress
) -> tuple[Bool[np.ndarray, "E"], list[dict[str, Any]]]:
    """Entries whose words many sampled training documents hold without being copies.

    Documents come in the order of a hash of their text, so the first ones are a sample.
    """
    total = np.zeros(len(index.items), np.int64)
    sources = np.zeros(len(index.items), np.int64)
    flagged = np.zeros(len(index.items), np.bool_)
    rows: list[dict[str, Any]] = []
    looked = 0
    with progress.task("boilerplate", len(corpus.training), "sources") as task:
        for source in corpus.training:
            seen = np.zeros(len(index.items), np.int64)
            documents = 0
            for batch in split.batches(source.name, ["id", "text"]):
                left = batch.slice(0, config.sample_documents - documents)
                documents += left.num_rows
                for piece in slices(left):
                    found = scan(piece["text"])
                    hits = index.find(found, all_words(found), found.starts)
                    np.add.at(seen, _lone(index, found, hits, config.ngram_words), 1)
                if documents >= config.sample_documents:
                    break
            limit = config.common_share * documents
            many = np.flatnonzero((seen >= config.common_documents) & (seen > limit))
            rows += [
                _row(index, k, "source", source.name, int(seen[k]), documents)
                for k in many.tolist()
            ]
            flagged[many] = True
            total += seen
            sources += seen > 0
            looked += documents
            task.advance()
    wide = (total >= config.across_documents) & (sources >= config.across_sources)
    rows += [
        _row(index, k, "across", f"{sources[k]} sources", int(total[k]), looked)
        for k in np.flatnonzero(wide).tolist()
    ]
    return (flagged | wide)[index.kinds], rows


def _lone(index: Index, found: Scan, hits: Hits, length: int) -> Int64[np.ndarray, "pairs"]:
    """The kinds that documents hold without being a copy of an item; once for each document."""
    if len(hits.at) == 0:
        return np.empty(0, np.int64)
    num_entries, num_items = len(index.items), len(index.totals)
    pairs = np.unique(found.owners(hits.at) * num_entries + hits.entries)
    documents, entries = pairs // num_entries, pairs % num_entries
    items = index.items[entries].astype(np.int64)
    _, inverse, counts = np.unique(
        documents * num_items + items, return_inverse=True, return_counts=True
    )
    copy = counts[inverse] >= COPY_SHARE * index.totals[items]
    full = index.first_entry(length)
    copy &= entries >= full
    held = documents * num_entries + index.kinds[entries]
    return np.setdiff1d(held, held[copy]) % num_entries


def _row(index: Index, kind: int, reason: str, where: str, count: int, of: int) -> dict[str, Any]:
    return {
        "ngram": index.ngram(kind),
        "num_words": index.length(kind),
        "benchmark": index.names[index.items[kind]][0],
        "reason": reason,
        "where": where,
        "count": count,
        "of": of,
    }
