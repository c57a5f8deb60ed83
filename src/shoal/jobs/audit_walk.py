"""A walk through a corpus' documents: what every stage took in, took out and gave on.

Counts are of documents and of bytes of text, dicts with `in`, `removed`, `held_out`, `cut` and
`out`, and each again with `_bytes`. In = removed + held out + out, and in bytes = removed + held
out + cut + out. Stage `documents` counts records: its bytes in are those of the raw records (None
where their stage does not say), and what normalizing took off counts as removed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import xxhash

from shoal.data import table
from shoal.data.spans import apply_spans
from shoal.jobs.corpora import CUT, HELD_OUT, ORDER, Corpus, removals

COUNTS = ("in", "removed", "held_out", "cut", "out")

type StageCounts = dict[str, int | None]
# (hash, id): what is drawn is what has the smallest hash, so no order decides it.
type Drawn = tuple[int, str]


@dataclass(kw_only=True)
class Walk:
    """What the walk saw.

    Attributes:
        counts: stage -> source -> its counts.
        survivors: stage -> source -> one document that it gave on.
        sizes: source -> id -> bytes of what is left of it, of training sources, after all stages.
    """

    counts: dict[str, dict[str, StageCounts]] = field(default_factory=dict)
    survivors: dict[str, dict[str, Drawn]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)

    def total(self, stage: str, sources: Iterable[str]) -> StageCounts:
        """The counts of a stage over some sources."""
        rows = [self.counts[stage][name] for name in sources if name in self.counts[stage]]
        columns = [name for count in COUNTS for name in (count, f"{count}_bytes")]
        return {name: _sum(row[name] for row in rows) for name in columns}


@dataclass(kw_only=True)
class _Gone:
    """What one stage takes of one source: key -> outcome, and id -> cuts."""

    outcomes: dict[str, str] = field(default_factory=dict)
    cuts: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def walk(corpus: Corpus) -> Walk:
    """Reads every document's id and size once, and the text of those that are cut."""
    stages = [stage for stage in ORDER[2:-1] if stage in corpus.folders]
    gone = {stage: _taken(corpus, stage) for stage in stages}
    raw, found = _raw_bytes(corpus), Walk()
    rejected = _rejected(corpus)
    usage = {one["name"]: one["usage"] for one in corpus.sources}
    for source, use in usage.items():
        counts, kept, sizes = _source(corpus, source, stages, gone)
        first = counts["documents"]
        lost = len(rejected.get(source, ()))
        taken = None if source not in raw else raw[source] - (first["out_bytes"] or 0)
        first |= {"in": (first["out"] or 0) + lost, "removed": lost}
        first |= {"in_bytes": raw.get(source), "removed_bytes": taken}
        for stage, row in counts.items():
            found.counts.setdefault(stage, {})[source] = row
        for stage, drawn in kept.items():
            found.survivors.setdefault(stage, {})[source] = drawn
        if use == "training":
            found.sizes[source] = sizes
    return found


def drawn_by(source: str, name: str) -> int:
    """The hash that decides which documents are shown."""
    return xxhash.xxh3_64_intdigest(f"{source}/{name}".encode())


def _source(
    corpus: Corpus, source: str, stages: list[str], gone: Mapping[str, Mapping[str, _Gone]]
) -> tuple[dict[str, StageCounts], dict[str, Drawn], dict[str, int]]:
    """(stage -> counts, stage -> a document that stays, id -> bytes of all that stay)."""
    takes = [(stage, gone[stage].get(source) or _Gone()) for stage in stages]
    counts = {stage: dict.fromkeys(_columns(), 0) for stage in ("documents", *stages)}
    kept: dict[str, Drawn] = {}
    sizes: dict[str, int] = {}

    def gives(stage: str, size: int, drawn: Drawn) -> None:
        counts[stage]["out"] += 1
        counts[stage]["out_bytes"] += size
        kept[stage] = min(kept.get(stage, drawn), drawn)

    for identity, place, whole, text in _rows(corpus, source, [take for _, take in takes]):
        drawn, size = (drawn_by(source, identity), identity), whole
        gives("documents", size, drawn)
        for stage, take in takes:
            row = counts[stage]
            row["in"] += 1
            row["in_bytes"] += size
            outcome = take.outcomes.get(place if stage == "duplicates" else identity)
            if outcome:
                name = "held_out" if outcome == HELD_OUT else "removed"
                row[name] += 1
                row[f"{name}_bytes"] += size
                break
            if identity in take.cuts:
                left = len(apply_spans(text, take.cuts[identity]).encode())
                row["cut"] += 1
                row["cut_bytes"] += size - left
                size = left
            gives(stage, size, drawn)
        else:
            sizes[identity] = size
    return {stage: {**row} for stage, row in counts.items()}, kept, sizes


def _rows(
    corpus: Corpus, source: str, takes: Iterable[_Gone]
) -> Iterator[tuple[str, str, int, str]]:
    """(id, source id, bytes, text) of a source's documents; no text where nothing is cut."""
    texts = any(take.cuts for take in takes)
    columns = ["id", "source_id", "bytes", *(["text"] if texts else [])]
    for batch in table.batches(corpus.documents(source), columns):
        lists = [batch[name].to_pylist() for name in columns]
        for row in zip(*lists, strict=True):
            yield row if texts else (*row, "")


def _taken(corpus: Corpus, stage: str) -> dict[str, _Gone]:
    """Copies of a text have its id, so stage `duplicates` goes by where they stood."""
    key = "source_id" if stage == "duplicates" else "id"
    found: dict[str, _Gone] = defaultdict(_Gone)
    for row in removals(corpus, stage):
        if row["outcome"] == CUT:
            span = row["evidence"]["start"], row["evidence"]["stop"]
            found[row["source"]].cuts[row["id"]].append(span)
        else:
            found[row["source"]].outcomes[row[key]] = row["outcome"]
    return dict(found)


def _rejected(corpus: Corpus) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in removals(corpus, "documents"):
        found[row["source"]].add(row["source_id"])
    return dict(found)


def _raw_bytes(corpus: Corpus) -> dict[str, int]:
    return {
        one["ref"].partition("@")[0].removeprefix("source-"): one["facts"]["bytes"]
        for one in corpus.content["stages"]
        if one["stage"] == "source" and "bytes" in one["facts"]
    }


def _columns() -> list[str]:
    return [name for count in COUNTS for name in (count, f"{count}_bytes")]


def _sum(values: Iterable[int | None]) -> int | None:
    listed = list(values)
    return None if None in listed else sum(one for one in listed if one is not None)
