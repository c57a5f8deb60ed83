"""Stage `heldout`: whole documents kept out of training, none sharing a long n-gram with it.

Table `heldout.parquet`, one row per document that is not trained on:
  id           string  the document
  source       string  its source
  set          string  `sources` (held out of a training source) or `domains` (evaluation text)
  domain       string  its name in the set: the source's name, or the evaluation text's domain
  bytes        int64
  kept         bool    false: dropped from the held-out set, still not trained on
  rule         string  empty, `overlap` or `no words`
  ngram        string  an n-gram that both hold (overlap only)
  training_id  string  the training document (overlap only)
Facts, per source: candidates, candidate_bytes, kept, kept_bytes, overlap_dropped.

Candidates of a training source are its documents in the order of a keyed hash of their ids, up to
the budget; documents above `max_document_share` of the budget stay in training. Words are those of
`data.ngrams`; a document of fewer words than the n-gram counts as one n-gram of its own length.
Law: after this stage no n-gram of a kept document occurs in training text. Held-out n-grams are
held in memory and training text streams past them, so memory does not grow with training text. A
killed stage goes on at the shard of training text that it was at.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from jaxtyping import Int, UInt64

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig, HeldoutConfig, Source
from shoal.data.ngrams import ngram_hashes, words_of
from shoal.data.shards import shards

REVISION = 1
TABLE = "heldout.parquet"
SETS = ("sources", "domains")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("set", pa.string()),
        ("domain", pa.string()),
        ("bytes", pa.int64()),
        ("kept", pa.bool_()),
        ("rule", pa.string()),
        ("ngram", pa.string()),
        ("training_id", pa.string()),
    ]
)


@dataclass(kw_only=True)
class Candidate:
    """A document that is not trained on, and what is found against it."""

    id: str
    source: str
    domain: str
    text: str
    words: list[str] = field(default_factory=list)
    rule: str = ""
    ngram: str = ""
    training_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Grams:
    """Sorted held-out n-gram hashes of one length, with the candidate and place of each."""

    hashes: UInt64[np.ndarray, "grams"]
    owners: Int[np.ndarray, "grams"]
    places: Int[np.ndarray, "grams"]


def heldout(
    root: Path,
    corpus: CorpusConfig,
    unique: "Unique",
    inputs: Mapping[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the table of held-out documents.

    Args:
        inputs: the digests behind `unique`.
    """

    def make(folder: Path) -> dict[str, Any]:
        chosen = [item for source in corpus.read for item in _choose(source, corpus, unique)]
        _check_overlap(folder, chosen, corpus, unique, progress)
        rows = [_row(item, corpus) for item in chosen]
        table.write(folder / TABLE, pa.Table.from_pylist(rows, SCHEMA))
        return {"sources": {source.name: _counts(rows, source.name) for source in corpus.read}}

    return build(
        root,
        f"{corpus.name}-heldout",
        stage="heldout",
        revision=REVISION,
        literals={
            "heldout": plain(corpus.heldout),
            "sources": [
                [source.name, source.usage, source.domain, source.heldout_bytes]
                for source in corpus.read
            ],
        },
        inputs=inputs,
        make=make,
    )


class Unique:
    """The documents of each source that no table of copies names, in id order.

    Args:
        copies: files with columns source and source_id: exact duplicates, near duplicates.
    """

    def __init__(self, documents: Artifact, copies: Iterable[Path]) -> None:
        self.documents = documents
        self.dropped = {
            (row["source"], row["source_id"])
            for path in copies
            for row in table.read(path, ["source", "source_id"]).to_pylist()
        }

    def batches(self, source: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The wanted columns, a bounded number of documents at a time."""
        path = self.documents.path / f"{source}.parquet"
        for batch in table.batches(path, list(dict.fromkeys([*columns, "source_id"]))):
            places = batch["source_id"].to_pylist()
            keep = [(source, place) not in self.dropped for place in places]
            yield batch.filter(pa.array(keep, pa.bool_())).select(columns)


def _choose(source: Source, corpus: CorpusConfig, unique: Unique) -> list[Candidate]:
    """The candidates of one source, in the order of their choice (training) or id."""
    sizes = {
        identity: size
        for batch in unique.batches(source.name, ["id", "bytes"])
        for identity, size in zip(batch["id"].to_pylist(), batch["bytes"].to_pylist(), strict=True)
    }
    if source.usage == "evaluation":
        names = list(sizes)
    else:
        names = choose(sizes, source.heldout_bytes, corpus.heldout)
    wanted = set(names)
    texts: dict[str, str] = {}
    for batch in unique.batches(source.name, ["id", "text"]):
        hits = batch.filter(
            pa.array([name in wanted for name in batch["id"].to_pylist()], pa.bool_())
        )
        texts |= dict(zip(hits["id"].to_pylist(), hits["text"].to_pylist(), strict=True))
    domain = source.domain or source.name
    return [
        Candidate(id=name, source=source.name, domain=domain, text=texts[name]) for name in names
    ]


def choose(sizes: Mapping[str, int], budget_bytes: int, config: HeldoutConfig) -> list[str]:
    """Ids to hold out, in the order of choice; `sizes` is id -> bytes, budget -1 the config's."""
    wanted = config.budget_bytes if budget_bytes < 0 else budget_bytes
    budget = min(wanted, int(config.max_share * sum(sizes.values())))
    largest = config.max_document_share * min(budget, config.budget_bytes)
    order = sorted(
        (name for name, size in sizes.items() if size <= largest),
        key=lambda name: (xxhash.xxh3_64_intdigest(name.encode(), seed=config.key), name),
    )
    chosen: list[str] = []
    total = 0
    for name in order:
        total += sizes[name]
        if total > budget:
            break
        chosen.append(name)
    return chosen


def _check_overlap(
    folder: Path,
    chosen: list[Candidate],
    corpus: CorpusConfig,
    unique: Unique,
    progress: Progress,
) -> None:
    """Marks every candidate that shares an n-gram with training text."""
    if not chosen:
        return
    grams = _index(chosen, corpus.heldout.ngram_words)
    held = {item.id for item in chosen}
    total = sum(unique.documents.facts["sources"][s.name]["bytes"] for s in corpus.training)
    look = partial(_look, grams=grams, chosen=chosen)
    with progress.task("held-out overlap", total, "bytes") as task:
        for source in corpus.training:
            for shard in shards(folder, source.name, _slices(unique, source.name, held), look):
                for number, found in shard.facts["overlap"].items():
                    item = chosen[int(number)]
                    item.rule, item.ngram, item.training_id = "overlap", *found
                task.advance(shard.facts["bytes"])


def _look(
    folder: Path,
    batches: Iterable[pa.RecordBatch],
    grams: Mapping[int, Grams],
    chosen: list[Candidate],
) -> dict[str, Any]:
    """One shard: which candidates it is the first to overlap with, and the evidence."""
    del folder  # all that is found are facts
    before = {number for number, item in enumerate(chosen) if item.rule}
    size = 0
    for batch in batches:
        _mark(batch, grams, chosen)
        size += sum(batch["bytes"].to_pylist())
    found = {
        str(number): [item.ngram, item.training_id]
        for number, item in enumerate(chosen)
        if item.rule and number not in before
    }
    return {"overlap": found, "bytes": size}


def _slices(unique: Unique, source: str, held: set[str]) -> Iterator[pa.RecordBatch]:
    for batch in unique.batches(source, ["id", "text", "bytes"]):
        training = [identity not in held for identity in batch["id"].to_pylist()]
        left = batch.filter(pa.array(training, pa.bool_()))
        for start in range(0, left.num_rows, 256):
            yield left.slice(start, 256)


def _index(chosen: list[Candidate], length: int) -> dict[int, Grams]:
    """N-gram length -> the held-out n-grams of that length."""
    words = words_of(pa.array([item.text for item in chosen], pa.string()))
    counts = np.diff(words.starts)
    for number, item in enumerate(chosen):
        item.words = words.of(number)
        item.rule = "" if item.words else "no words"
    found: dict[int, Grams] = {}
    for size in sorted({min(length, int(count)) for count in counts if count}):
        hashes, begins = ngram_hashes(words, size)
        owners = np.searchsorted(words.starts, begins, side="right") - 1
        mine = np.minimum(counts, length)[owners] == size
        hashes, begins, owners = hashes[mine], begins[mine], owners[mine]
        order = np.argsort(hashes, kind="stable")
        places = begins - words.starts[owners]
        found[size] = Grams(hashes=hashes[order], owners=owners[order], places=places[order])
    return found


def _mark(batch: pa.RecordBatch, grams: Mapping[int, Grams], chosen: list[Candidate]) -> None:
    words = words_of(batch["text"])
    for size, index in grams.items():
        hashes, begins = ngram_hashes(words, size)
        left = np.searchsorted(index.hashes, hashes, side="left")
        inside = left < len(index.hashes)
        hit = np.flatnonzero(inside)[index.hashes[left[inside]] == hashes[inside]]
        # One training n-gram can stand in many held-out documents.
        distinct, first = np.unique(hashes[hit], return_index=True)
        low = np.searchsorted(index.hashes, distinct, side="left")
        high = np.searchsorted(index.hashes, distinct, side="right")
        for where, start, stop in zip(begins[hit[first]], low, high, strict=True):
            entries = [e for e in range(start, stop) if not chosen[index.owners[e]].rule]
            gram = words.words[where : where + size].to_pylist() if entries else []
            for entry in entries:
                item = chosen[index.owners[entry]]
                place = int(index.places[entry])
                # The words decide, not the hash: a collision drops nothing.
                if item.words[place : place + size] == gram and not item.rule:
                    owner = int(np.searchsorted(words.starts, where, side="right")) - 1
                    item.rule, item.ngram = "overlap", " ".join(gram)
                    item.training_id = batch["id"][owner].as_py()


def _row(item: Candidate, corpus: CorpusConfig) -> dict[str, Any]:
    return {
        "id": item.id,
        "source": item.source,
        "set": SETS[any(item.source == source.name for source in corpus.evaluation)],
        "domain": item.domain,
        "bytes": len(item.text.encode()),
        "kept": not item.rule,
        "rule": item.rule,
        "ngram": item.ngram,
        "training_id": item.training_id,
    }


def _counts(rows: list[dict[str, Any]], source: str) -> dict[str, int]:
    mine = [row for row in rows if row["source"] == source]
    kept = [row for row in mine if row["kept"]]
    return {
        "candidates": len(mine),
        "candidate_bytes": sum(row["bytes"] for row in mine),
        "kept": len(kept),
        "kept_bytes": sum(row["bytes"] for row in kept),
        "overlap_dropped": sum(row["rule"] == "overlap" for row in mine),
    }
