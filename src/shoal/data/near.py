"""Stage `near`: near duplicates, each removed only where a document that stays contains it.

Table `near.parquet`, one row per removed document, sorted by (order of sources, id):
  id                   string
  source               string
  source_id            string
  bytes                int64
  keeper_id            string   the document that stays and holds most of it
  keeper_source        string
  keeper_source_id     string
  containment          double   share of its distinct word n-grams that the keeper holds
  jaccard              double   of the two sets of word n-grams
  novel_words          int64    its distinct words that the keeper does not have
  component_documents  int64    documents in its component of candidates
Facts: per source `removed` and `removed_bytes`; `candidates` (documents in a component of two or
more), `components`, `largest_component`, and `rejected`: documents that membership of a component
alone would have removed (all but one of each), and that stay.

Candidates are documents with an equal band (`data.minhash`), across all training sources; bands are
artifacts of their own, one per source (`data.signatures`). Within a component the longest document
comes first (equal ones by order of sources, then id), and a document is removed if one that is kept
before it holds at least `min_containment` of its distinct word n-grams (`data.containment`: exact,
up to equal 64-bit hashes). A document of fewer words than the n-gram is one n-gram of its own
length. Exempt sources lose nothing, but their documents are compared with like all others.
Text is read once more, for candidates only; their sets of n-grams lie in a file, not in memory. A
killed stage goes on at the shard of documents whose sets it was making.
"""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int, Int64, UInt64

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.progress import Progress
from shoal.data import signatures, table
from shoal.data.config import CorpusConfig
from shoal.data.dedup import TABLE as DUPLICATES
from shoal.data.engine import Engine
from shoal.data.settings import NearConfig
from shoal.data.shards import shards

REVISION = 1
TABLE = "near.parquet"
NGRAMS, WORDS, SETS = "ngrams.bin", "words.bin", "sets.npy"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("bytes", pa.int64()),
        ("keeper_id", pa.string()),
        ("keeper_source", pa.string()),
        ("keeper_source_id", pa.string()),
        ("containment", pa.float64()),
        ("jaccard", pa.float64()),
        ("novel_words", pa.int64()),
        ("component_documents", pa.int64()),
    ]
)


def near(
    root: Path,
    corpus: CorpusConfig,
    documents: Artifact,
    duplicates: Artifact,
    progress: Progress,
    *,
    config: NearConfig,
    engine: str = "native",
) -> Artifact:
    """Finds or makes the table of near duplicates.

    Raises:
        ValueError: an exempt source is not one of the corpus, or as `Engine`.
    """
    names = [source.name for source in corpus.training]
    unknown = sorted(set(config.exempt) - {source.name for source in corpus.sources})
    if unknown:
        raise ValueError(
            f"exempt source {unknown[0]!r} is not in the corpus; its sources are {', '.join(names)}"
        )

    def make(folder: Path) -> dict[str, Any]:
        runner = Engine(engine)
        signed = signatures.signatures(root, corpus, documents, progress, config, runner)
        members = _members(names, signed, duplicates, runner)
        removed = _verify(folder, members, documents, config, progress)
        table.write(folder / TABLE, removed)
        return _facts(names, members, removed)

    return build(
        root,
        f"{corpus.name}-near",
        stage="near",
        revision=REVISION,
        literals={
            "near": plain(config),
            "sources": names,
            "signatures": signatures.REVISION,
        },
        inputs={"documents": documents.digest, "duplicates": duplicates.digest},
        make=make,
    )


@dataclass(kw_only=True)
class _Members:
    """Candidates in the order in which they are decided; component c is groups[c] to groups[c + 1].

    Attributes:
        table: id, source, source_id, bytes.
        order: the source's place in the corpus.
    """

    table: pa.Table
    order: Int[np.ndarray, "members"]
    groups: Int64[np.ndarray, "components_plus_one"]

    def places(self) -> dict[str, dict[str, int]]:
        """Source -> source_id -> place of the member."""
        found: dict[str, dict[str, int]] = {}
        columns = (self.table[name].to_pylist() for name in ("source", "source_id"))
        for place, (source, source_id) in enumerate(zip(*columns, strict=True)):
            found.setdefault(source, {})[source_id] = place
        return found


def _members(
    names: list[str], signed: Mapping[str, Artifact], duplicates: Artifact, runner: Engine
) -> _Members:
    """The documents of all components of two or more."""
    joined = signatures.join(list(signed.values()), runner)
    dropped = table.read(duplicates.path / DUPLICATES, ["source", "source_id"])
    parts: list[pa.Table] = []
    labels: list[np.ndarray] = [np.empty(0, np.uint64)]
    orders: list[np.ndarray] = [np.empty(0, np.int64)]
    for order, name in enumerate(names):
        mine = dropped.filter(pc.field("source") == name)["source_id"]
        columns = ["id", "source_id", "bytes", "key"]
        for batch in table.batches(signed[name].path / signatures.TABLE, columns):
            places = joined.find(batch["key"].to_numpy())
            copies = pc.call_function(
                "is_in", [batch["source_id"]], pc.SetLookupOptions(value_set=mine)
            )
            keep = (places >= 0) & ~copies.to_numpy(zero_copy_only=False)
            found = pa.Table.from_batches([batch.filter(pa.array(keep))]).drop_columns("key")
            source = pa.array([name] * found.num_rows, pa.string())
            parts.append(found.add_column(1, "source", source))
            labels.append(joined.labels[places[keep]])
            orders.append(np.full(found.num_rows, order))
    empty = SCHEMA.empty_table().select(["id", "source", "source_id", "bytes"])
    everything = pa.concat_tables([empty, *parts])
    return _ordered(everything, np.concatenate(labels), np.concatenate(orders))


def _ordered(
    found: pa.Table, labels: UInt64[np.ndarray, "n"], orders: Int[np.ndarray, "n"]
) -> _Members:
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    several = sizes[numbers] > 1
    found = found.filter(pa.array(several))
    labels, orders = labels[several], orders[several]
    keyed = found.append_column("label", pa.array(labels)).append_column("order", pa.array(orders))
    keys = [("label", "ascending"), ("bytes", "descending"), ("order", "ascending")]
    options = pc.SortOptions(sort_keys=[*keys, ("id", "ascending"), ("source_id", "ascending")])
    order = pc.call_function("sort_indices", [keyed], options)
    _, counts = np.unique(labels, return_counts=True)
    groups = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return _Members(table=found.take(order), order=orders[order.to_numpy()], groups=groups)


@dataclass(kw_only=True)
class _Sets:
    """Sorted sets of hashes of members, one after the other in a file."""

    path: Path
    begins: Int64[np.ndarray, "members"]
    ends: Int64[np.ndarray, "members"]
    length: int = field(default=0)

    def add(self, member: int, length: int) -> None:
        """The next set in the file is this member's."""
        self.begins[member], self.ends[member] = self.length, self.length + length
        self.length += length

    def read(self) -> UInt64[np.ndarray, "hashes"]:
        """All sets, mapped into memory."""
        if self.length == 0:
            return np.empty(0, np.uint64)
        return np.memmap(self.path, np.uint64, mode="r")

    def of(self, hashes: UInt64[np.ndarray, "hashes"], member: int) -> UInt64[np.ndarray, "n"]:
        """One member's set."""
        return hashes[self.begins[member] : self.ends[member]]


def _verify(
    folder: Path, members: _Members, documents: Artifact, config: NearConfig, progress: Progress
) -> pa.Table:
    """The rows of the table."""
    from shoal.data.containment import find_keepers

    count = members.table.num_rows
    paths = [folder / name for name in (NGRAMS, WORDS)]
    ngrams, words = (
        _Sets(path=path, begins=np.zeros(count, np.int64), ends=np.zeros(count, np.int64))
        for path in paths
    )
    try:
        with progress.task("near duplicates", count, "documents") as task:
            sets = (ngrams, words)
            for number in _write_sets(folder, *sets, members, documents, config.ngram_words):
                task.advance(number)
            exempt = np.isin(np.array(members.table["source"].to_pylist(), str), config.exempt)
            hashes = ngrams.read()
            keepers, held = find_keepers(
                hashes, ngrams.begins, ngrams.ends, members.groups, exempt, config.min_containment
            )
        return _rows(members, keepers, held, ngrams, words)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _write_sets(
    folder: Path, ngrams: _Sets, words: _Sets, members: _Members, documents: Artifact, length: int
) -> Iterator[int]:
    """Writes the sets of all members, a shard at a time; yields how many."""
    with ngrams.path.open("wb") as ngram_file, words.path.open("wb") as word_file:
        for source, places in members.places().items():
            batches = table.batches(documents.path / f"{source}.parquet", ["source_id", "text"])
            make = partial(_sets_of, places=places, length=length)
            for shard in shards(folder, source, batches, make):
                for name, file in ((NGRAMS, ngram_file), (WORDS, word_file)):
                    with (shard.path / name).open("rb") as made:
                        shutil.copyfileobj(made, file)
                rows = np.load(shard.path / SETS).tolist()
                for member, num_ngrams, num_words in rows:
                    ngrams.add(member, num_ngrams)
                    words.add(member, num_words)
                yield len(rows)


def _sets_of(
    folder: Path, batches: Iterable[pa.RecordBatch], places: Mapping[str, int], length: int
) -> dict[str, Any]:
    """One shard: the sets of its members in a row, and how long both are of each."""
    from shoal.data.scan import ngram_hashes, scan

    rows: list[tuple[int, int, int]] = []
    with (folder / NGRAMS).open("wb") as ngram_file, (folder / WORDS).open("wb") as word_file:
        for batch in batches:
            found = [places.get(name, -1) for name in batch["source_id"].to_pylist()]
            texts = batch["text"].filter(pa.array([place >= 0 for place in found]))
            found = [place for place in found if place >= 0]
            if not found:
                continue
            said = scan(texts)
            hashes, starts = ngram_hashes(said.hashes, said.starts, length)
            bounds = np.searchsorted(starts, said.starts)
            for place, (a, b), (i, j) in zip(
                found, itertools.pairwise(said.starts), itertools.pairwise(bounds), strict=True
            ):
                mine = said.hashes[a:b]
                both = _whole(mine) if 0 < b - a < length else hashes[i:j]
                sizes = _write_set(ngram_file, both), _write_set(word_file, mine)
                rows.append((place, *sizes))
    np.save(folder / SETS, np.array(rows, np.int64).reshape(-1, 3))
    return {}


def _write_set(file: BinaryIO, hashes: UInt64[np.ndarray, "n"]) -> int:
    """Writes the distinct ones, sorted; returns how many there are."""
    values = np.sort(hashes)
    fresh = np.ones(len(values), bool)
    fresh[1:] = values[1:] != values[:-1]
    values[fresh].tofile(file)
    return int(fresh.sum())


def _whole(words: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "one"]:
    """A text of fewer words than an n-gram: all of them as one."""
    value = len(words)
    for word in words.tolist():
        value = ((value ^ word) * 0x9E3779B97F4A7C15) % 2**64
    return np.array([value], np.uint64)


def _rows(
    members: _Members,
    keepers: Int64[np.ndarray, "members"],
    held: Int64[np.ndarray, "members"],
    ngrams: _Sets,
    words: _Sets,
) -> pa.Table:
    removed = np.flatnonzero(keepers >= 0)
    keeper = keepers[removed]
    sizes = ngrams.ends - ngrams.begins
    both = held[removed]
    all_words = words.read()
    novel = [
        len(np.setdiff1d(words.of(all_words, a), words.of(all_words, b), assume_unique=True))
        for a, b in zip(removed.tolist(), keeper.tolist(), strict=True)
    ]
    component = np.searchsorted(members.groups, removed, side="right") - 1
    gone = members.table.take(pa.array(removed))
    stays = members.table.take(pa.array(keeper))
    columns = [
        *(gone[name] for name in ("id", "source", "source_id", "bytes")),
        *(stays[name] for name in ("id", "source", "source_id")),
        pa.array(both / sizes[removed], pa.float64()),
        pa.array(both / (sizes[removed] + sizes[keeper] - both), pa.float64()),
        pa.array(novel, pa.int64()),
        pa.array(np.diff(members.groups)[component], pa.int64()),
    ]
    found = pa.Table.from_arrays(columns, schema=SCHEMA)
    keyed = found.append_column("order", pa.array(members.order[removed]))
    keys = [("order", "ascending"), ("id", "ascending"), ("source_id", "ascending")]
    return found.take(
        pc.call_function("sort_indices", [keyed], pc.SortOptions(sort_keys=keys))
    ).combine_chunks()


def _facts(names: list[str], members: _Members, removed: pa.Table) -> dict[str, Any]:
    sources = removed["source"].to_pylist()
    sizes = removed["bytes"].to_pylist()
    lost = {name: {"removed": 0, "removed_bytes": 0} for name in names}
    for source, size in zip(sources, sizes, strict=True):
        lost[source]["removed"] += 1
        lost[source]["removed_bytes"] += size
    counts = np.diff(members.groups)
    return {
        "sources": lost,
        "candidates": int(counts.sum()),
        "components": len(counts),
        "largest_component": int(counts.max(initial=0)),
        "rejected": int((counts - 1).sum()) - removed.num_rows,
    }
