"""Rechecks of a corpus' tables: every count anew, from the rows, and the token store from the text.

Ids are hashes of texts, so the documents' tables prove themselves; every later table must name
documents of these; what none of them takes out is what was trained on, and the store must hold
just that, document by document.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shoal.core.artifact import Artifact
from shoal.data import table
from shoal.data.cells import cell_name
from shoal.data.dedup import TABLE as DUPLICATES
from shoal.data.heldout import TABLE as HELDOUT
from shoal.data.heldout import Unique
from shoal.data.load import TokenStore
from shoal.data.near import TABLE as NEAR
from shoal.data.normalize import EMPTY, REJECTED
from shoal.data.source import TABLE as RECORDS
from shoal.data.spans import CONTAMINATION, DROP, merged
from shoal.data.tokenize import EOS_ID, TOKENIZER, load_tokenizer
from shoal.data.training import Split
from shoal.jobs.corpora import num_rows
from shoal.jobs.findings import Check, Findings

# Text that is encoded again; of a larger corpus the documents of the smallest hashes.
ENCODED_BYTES = 64_000_000

type Place = tuple[str, str]


@dataclass(kw_only=True)
class _Recount:
    """What the rows of the tables come to.

    Attributes:
        ids: (source, source_id) -> id, of all documents.
        gone: stage -> the documents that it takes out of training.
    """

    content: Mapping[str, Any]
    stages: Mapping[str, Artifact]
    ids: dict[Place, str] = field(default_factory=dict[Place, str])
    gone: dict[str, set[Place]] = field(default_factory=dict[str, set[Place]])

    def sources(self, *usages: str) -> list[str]:
        """Names of the sources of some usages, in the order of precedence."""
        return [one["name"] for one in self.content["sources"] if one["usage"] in usages]

    def facts(self, stage: str) -> Mapping[str, Any]:
        """What a stage says of each source."""
        return self.stages[stage].facts["sources"]

    def rows(self, stage: str, name: str, columns: list[str] | None = None) -> Iterator[Any]:
        """The rows of a stage's table."""
        for batch in table.batches(self.stages[stage].path / name, columns):
            yield from batch.to_pylist()


def recheck_tables(
    content: Mapping[str, Any], artifacts: Mapping[str, Artifact], findings: Findings
) -> None:
    """Recount a corpus whose artifacts have been read."""
    stages = {
        one["stage"]: artifacts[one["ref"]]
        for one in content["stages"]
        if one["stage"] != "source" and one["ref"] in artifacts
    }
    counted = _Recount(content=content, stages=stages)
    needed = ("documents", "duplicates", "near", "heldout", "contamination", "tokens", "tokenizer")
    if missing := [stage for stage in needed if stage not in stages]:
        findings.skip("counts", f"stages {', '.join(missing)} are damaged or not there")
        return
    _recheck_records(counted, artifacts, findings)
    with findings.check("documents", stages["documents"].ref) as check:
        _documents(counted, check)
    for stage, recount in (
        ("duplicates", _duplicates),
        ("near", _near),
        ("heldout", _heldout),
        ("contamination", _contamination),
    ):
        with findings.check(stage, stages[stage].ref) as check:
            recount(counted, check)
    if all(stage in counted.gone for stage in needed[1:5]):
        with findings.check("token store", stages["tokens"].ref) as check:
            _store(counted, check)


def _recheck_records(
    counted: _Recount, artifacts: Mapping[str, Artifact], findings: Findings
) -> None:
    with findings.check("records", "sources") as check:
        made = {a.name: a for a in artifacts.values() if a.manifest["stage"] == "source"}
        total = 0
        for name in counted.sources("training", "evaluation"):
            if (artifact := made.get(f"source-{name}")) is None:
                continue
            found, where = num_rows(artifact.path / RECORDS), f"{artifact.ref}/{RECORDS}"
            check.equal("records", artifact.facts["records"], found, where=where)
            facts = counted.facts("documents")[name]
            left = sum(facts[key] for key in ("documents", "rejected", "empty"))
            check.equal("records = documents + rejected + empty", left, found, where=where)
            total += found
        if not total:
            check.cannot("the sources' records are not there")
        check.says = f"{total:,} records are {len(made)} sources' documents and rejections"


def _documents(counted: _Recount, check: Check) -> None:
    """Ids hashed anew, rows and bytes counted."""
    folder, total, size = counted.stages["documents"], 0, 0
    lost = Counter[tuple[str, bool]]()
    for row in counted.rows("documents", REJECTED, ["source", "rule"]):
        lost[row["source"], row["rule"] == EMPTY] += 1
    for source in counted.sources("training", "evaluation"):
        where, before = f"{folder.ref}/{source}.parquet", ("", "")
        count = num_bytes = 0
        columns = ["id", "text", "source", "source_id", "bytes"]
        for row in counted.rows("documents", f"{source}.parquet", columns):
            data, place = row["text"].encode(), (row["id"], row["source_id"])
            spelled = f"hash of the text of {source}/{row['source_id']}"
            check.equal(spelled, xxhash.xxh3_128_hexdigest(data), row["id"], where=where)
            check.equal(f"bytes of {row['source_id']}", len(data), row["bytes"], where=where)
            if row["source"] != source or place <= before:
                check.fails(f"row {row['source']}/{row['source_id']} is out of order", where=where)
            before = place
            counted.ids[source, row["source_id"]] = row["id"]
            count, num_bytes = count + 1, num_bytes + len(data)
        told = counted.facts("documents")[source]
        for key, found in (
            ("documents", count),
            ("bytes", num_bytes),
            ("empty", lost[source, True]),
            ("rejected", lost[source, False]),
        ):
            check.equal(f"{key} of source {source}", told[key], found, where=where)
        total, size = total + count, size + num_bytes
    check.says = f"{total:,} documents hashed anew, {size / 1e6:,.1f} MB"


def _take(counted: _Recount, check: Check, stage: str, rows: Sequence[Place]) -> None:
    """Note what a stage takes out: documents that there are, and each once."""
    where, before = counted.stages[stage].ref, set[Place]().union(*counted.gone.values())
    for place, number in Counter(rows).items():
        spelled = "/".join(place)
        if place not in counted.ids:
            check.fails(f"names {spelled}, which is no document", where=where)
        if number > 1 or place in before:
            check.fails(f"takes {spelled} out, which was out already", where=where)
    counted.gone[stage] = set(rows)


def _per_source(
    counted: _Recount, check: Check, stage: str, found: Mapping[str, Mapping[str, int]]
) -> None:
    where = counted.stages[stage].ref
    for source, told in counted.facts(stage).items():
        mine = found.get(source, {})
        for key in told if isinstance(told, dict) else ():
            check.equal(f"{key} of source {source}", told[key], mine.get(key, 0), where=where)


def _duplicates(counted: _Recount, check: Check) -> None:
    rows = list(counted.rows("duplicates", DUPLICATES))
    where = counted.stages["duplicates"].ref
    found = Counter(row["source"] for row in rows)
    for source, told in counted.facts("duplicates").items():
        check.equal(f"duplicates of source {source}", told, found[source], where=where)
    _take(counted, check, "duplicates", [(row["source"], row["source_id"]) for row in rows])
    for row in rows:
        keeper, spelled = (row["keeper_source"], row["keeper_source_id"]), row["source_id"]
        if counted.ids.get(keeper) != row["id"] or keeper in counted.gone["duplicates"]:
            check.fails(f"the keeper of {row['source']}/{spelled} has another text", where=where)
    distinct = len(set(counted.ids.values()))
    repeats = len(counted.ids) - distinct
    check.equal("documents whose text another one holds", repeats, len(rows), where=where)
    check.says = f"{len(rows):,} copies, so that {distinct:,} distinct texts are left"


def _near(counted: _Recount, check: Check) -> None:
    found: dict[str, Counter[str]] = {}
    rows = list(counted.rows("near", NEAR))
    for row in rows:
        mine = found.setdefault(row["source"], Counter())
        mine.update(removed=1, removed_bytes=row["bytes"])
    _per_source(counted, check, "near", found)
    _take(counted, check, "near", [(row["source"], row["source_id"]) for row in rows])
    where = counted.stages["near"].ref
    for row in rows:
        keeper = (row["keeper_source"], row["keeper_source_id"])
        if counted.ids.get(keeper) != row["keeper_id"] or keeper in counted.gone["near"]:
            check.fails(f"the keeper of {row['source']}/{row['source_id']} is gone", where=where)
    check.says = f"{len(rows):,} documents, each with a keeper that stays"


def _heldout(counted: _Recount, check: Check) -> None:
    rows = list(counted.rows("heldout", HELDOUT))
    found: dict[str, Counter[str]] = {}
    for row in rows:
        mine = found.setdefault(row["source"], Counter())
        mine.update(candidates=1, candidate_bytes=row["bytes"])
        if row["kept"]:
            mine.update(kept=1, kept_bytes=row["bytes"])
        mine.update(overlap_dropped=int(row["rule"] == "overlap"))
    _per_source(counted, check, "heldout", found)
    out = counted.gone["duplicates"] | counted.gone["near"]
    wanted = {(row["source"], row["id"]) for row in rows}
    places = [
        (source, place)
        for (source, place), identity in counted.ids.items()
        if (source, identity) in wanted and (source, place) not in out
    ]
    ref = counted.stages["heldout"].ref
    check.equal("held-out ids that are documents", len(rows), len(places), where=ref)
    _take(counted, check, "heldout", places)
    kept = sum(row["kept"] for row in rows)
    check.says = f"{len(rows):,} documents are not trained on, {kept:,} of them evaluate"


def _contamination(counted: _Recount, check: Check) -> None:
    columns = ["source", "source_id", "start", "stop", "action"]
    spans: dict[Place, list[tuple[int, int]]] = {}
    dropped: set[Place] = set()
    for row in counted.rows("contamination", CONTAMINATION, columns):
        place = (row["source"], row["source_id"])
        spans.setdefault(place, []).append((row["start"], row["stop"]))
        if row["action"] == DROP:
            dropped.add(place)
    found: dict[str, Counter[str]] = {}
    for place, mine in spans.items():
        count = found.setdefault(place[0], Counter())
        whole = place in dropped
        cut = merged(mine)
        size = sum(stop - start for start, stop in cut)
        count.update(contaminated=1, dropped=int(whole))
        count.update(spans=0 if whole else len(cut), characters=0 if whole else size)
    before = set[Place]().union(*counted.gone.values())
    for source, _ in counted.ids.keys() - before:
        found.setdefault(source, Counter()).update(documents=1)
    _per_source(counted, check, "contamination", found)
    _take(counted, check, "contamination", sorted(dropped))
    for place in spans.keys() - counted.ids.keys():
        check.fails(f"names {'/'.join(place)}, which is no document")
    check.says = f"{len(spans):,} documents hold benchmark text, {len(dropped):,} were dropped"


def _store(counted: _Recount, check: Check) -> None:
    """Recount the cells, and compare documents with what the store holds in their place."""
    artifact = counted.stages["tokens"]
    store = TokenStore.open(artifact.path)
    ends = {cell: np.flatnonzero(stream == EOS_ID) for cell, stream in store.streams.items()}
    for cell, told in artifact.facts["cells"].items():
        size, where = len(store.streams[cell]), f"{artifact.ref}/cells/{cell}.bin"
        check.equal("tokens", told["tokens"], size, where=where)
        check.equal("documents, by their ends", told["documents"], len(ends[cell]), where=where)
        check.equal("units", told["units"], size // store.unit_tokens, where=where)
        check.equal("tail", told["tail_tokens"], size % store.unit_tokens, where=where)
        if size and store.streams[cell].max() >= store.vocab_size:
            check.fails("holds an id outside the vocabulary", where=where)
    encoded = _encoded(counted, store, ends, check)
    documents = sum(map(len, ends.values()))
    tokens = sum(map(len, store.streams.values()))
    check.says = (
        f"{tokens:,} tokens of {documents:,} documents in {len(ends)} cells recounted, none of them"
        f" held out; {encoded:,} documents encoded again, the same"
    )


def _encoded(
    counted: _Recount, store: TokenStore, ends: Mapping[str, np.ndarray], check: Check
) -> int:
    """Walk the training text as the store was made of it; returns how many were encoded again."""
    stages = counted.stages
    copies = [stages["duplicates"].path / DUPLICATES, stages["near"].path / NEAR]
    unique = Unique(stages["documents"], copies)
    split = Split(unique, stages["heldout"], stages["contamination"])
    tokenizer = load_tokenizer(stages["tokenizer"].path / TOKENIZER)
    cells = _cells(stages)
    total = sum(told["bytes"] for told in counted.facts("tokens").values())
    share = min(1.0, ENCODED_BYTES / max(total, 1)) * 2**64
    seen, num_encoded = Counter[str](), 0
    for source in counted.sources("training"):
        mine = Counter[str](documents=0, bytes=0, tokens=0)
        for batch in split.batches(source, ["id", "text", "bytes"]):
            rows = batch.to_pylist()
            picked = [xxhash.xxh3_64_intdigest(row["id"].encode()) < share for row in rows]
            texts = [row["text"] for row, one in zip(rows, picked, strict=True) if one]
            fresh = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
            for row, one in zip(rows, picked, strict=True):
                cell = cells.get((source, row["id"]), source)
                start, stop = _bounds(ends.get(cell), seen[cell])
                seen[cell] += 1
                mine.update(documents=1, bytes=row["bytes"], tokens=stop - start + 1)
                anew = next(fresh).ids if one else None
                held = store.streams[cell][start:stop] if stop >= start else None
                if held is None or (anew is not None and not np.array_equal(anew, held)):
                    check.fails(f"cell {cell} does not hold document {row['id']} of {source}")
                num_encoded += one
        for key, told in counted.facts("tokens")[source].items():
            check.equal(f"{key} of source {source}", told, mine[key])
    for cell, found in ends.items():
        check.equal(f"documents of cell {cell}, by the tables", seen[cell], len(found))
    return num_encoded


def _bounds(ends: np.ndarray | None, number: int) -> tuple[int, int]:
    """Where a cell's document of a number begins and ends; past the last one, (0, -1)."""
    if ends is None or number >= len(ends):
        return 0, -1
    return (int(ends[number - 1]) + 1 if number else 0), int(ends[number])


def _cells(stages: Mapping[str, Artifact]) -> dict[Place, str]:
    """(source, id) -> cell; empty where a source is its cell."""
    if "topics" not in stages:
        return {}
    tables = (("topics", "topic"), ("quality", "level"))
    values = [_column(stages[stage].path / f"{stage}.parquet", name) for stage, name in tables]
    return {place: cell_name(topic, values[1][place]) for place, topic in values[0].items()}


def _column(path: Path, name: str) -> dict[Place, int]:
    return {
        (row["source"], row["id"]): int(row[name])
        for batch in table.batches(path, ["source", "id", name])
        for row in batch.to_pylist()
    }


def heldout_texts(stages: Mapping[str, Path]) -> dict[str, dict[str, list[str]]]:
    """Set -> domain -> the held-out texts in id order, out of a corpus' folders."""
    rows = table.read(stages["heldout"] / HELDOUT).to_pylist()
    kept = {(row["source"], row["id"]): (row["set"], row["domain"]) for row in rows if row["kept"]}
    found: dict[str, dict[str, list[str]]] = {}
    for source in dict.fromkeys(row["source"] for row in rows):
        done: set[str] = set()
        for batch in table.batches(stages["documents"] / f"{source}.parquet", ["id", "text"]):
            for row in batch.to_pylist():
                if (place := kept.get((source, row["id"]))) and row["id"] not in done:
                    done.add(row["id"])
                    found.setdefault(place[0], {}).setdefault(place[1], []).append(row["text"])
    return found
