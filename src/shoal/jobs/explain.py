"""Job `explain`: every fact about one document of a corpus, and why it is in or out.

Result: `documents`, one entry per place where the document stands (copies share an id):
  source, source_id, id, bytes, language ...   as the stage `documents` wrote them
  in_training  bool    its text, or what is left of it, is trained on
  why          string  in one sentence
  stages       what each stage did: {"stage", "saw", "outcome", "rule", "evidence", "keeper"}
  keeps        documents that were removed because this one stays
  held_out_overlap  held-out documents that were dropped because this one quotes them
  attributes   topic, quality and cell, where the corpus has them
  beginning    of its text
"""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from shoal.data import table
from shoal.data.cells import cell_name
from shoal.jobs.corpora import (
    CUT,
    HELD_OUT,
    ORDER,
    REMOVED,
    Corpus,
    CorpusRow,
    find_corpus,
    removals,
)

BEGINNING = 600
LISTED = 20
_ATTRIBUTES = {
    "topics": ("topics.parquet", ("topic", "centroid")),
    "quality": ("quality.parquet", ("kind", "score", "level")),
}
_KEPT = {"outcome": "kept", "rule": "", "evidence": {}, "keeper": None}
_UNSEEN = {**_KEPT, "outcome": "", "saw": False}


def explain(corpus: str, document: str) -> dict[str, Any]:
    """Explain a document.

    Args:
        corpus: a path, NAME@HASH12 or NAME.
        document: its id (32 hex digits), or SOURCE/source_id.

    Raises:
        ValueError: there is no such corpus, or no such document in it.
    """
    found = find_corpus(corpus)
    rows = list(_places(found, document))
    if not rows:
        names = ", ".join(one["name"] for one in found.sources)
        raise ValueError(
            f"corpus {found.ref} has no document {document!r}; give an id of 32 hex digits, or "
            f"SOURCE/source_id with a source among {names}"
        )
    every = [row for stage in ORDER for row in removals(found, stage) if _concerns(row, rows)]
    return {"corpus": found.ref, "documents": [_told(found, row, every) for row in rows]}


def render(result: dict[str, Any]) -> str:
    """Return an explanation for a terminal."""
    lines = [result["corpus"]]
    for one in result["documents"]:
        lines += ["", f"{one['source']}/{one['source_id']}  {one['id']}", f"  {one['why']}"]
        facts = {name: one[name] for name in ("bytes", "language", "language_score") if name in one}
        lines.append(f"  {_pairs({**facts, **one['attributes']})}")
        for stage in one["stages"]:
            what = stage["outcome"] if stage["saw"] else "did not see it"
            rule = f" ({stage['rule']})" if stage["rule"] else ""
            lines.append(f"  {stage['stage']:14} {what}{rule}")
            lines += [f"  {'':14} {name}: {value}" for name, value in stage["evidence"].items()]
            if stage["keeper"]:
                keeper = stage["keeper"]
                kept = f"{keeper['source']}/{keeper['source_id']}"
                lines.append(f"  {'':14} kept instead: {kept}  {keeper['id']}")
        lines += [f"  kept instead of {_name(row)} ({row['stage']})" for row in one["keeps"]]
        lines += [f"  quotes held-out {_name(row)}" for row in one["held_out_overlap"]]
        lines += ["", *(f"  | {line}" for line in one["beginning"].splitlines())]
    return "\n".join(lines)


def _places(corpus: Corpus, document: str) -> Iterator[CorpusRow]:
    """Every place where the document stands, then every one where it was no document at all."""
    known = [one["name"] for one in corpus.sources]
    source, _, source_id = document.partition("/")
    if source in known and source_id:
        yield from _rows(corpus, source, "source_id", source_id)
        for row in removals(corpus, "documents"):
            if (row["source"], row["source_id"]) == (source, source_id):
                yield {"source": source, "source_id": source_id, "id": "", "bytes": None}
    elif re.fullmatch(r"[0-9a-f]{32}", document):
        for name in known:
            yield from _rows(corpus, name, "id", document)


def _rows(corpus: Corpus, source: str, column: str, value: str) -> Iterator[CorpusRow]:
    path = corpus.documents(source)
    columns = [name for name in pq.read_schema(path).names if name != "text"]
    for batch in table.batches(path, columns):
        values = batch[column].to_pylist()
        for place in (place for place, found in enumerate(values) if found == value):
            yield {**batch.slice(place, 1).to_pylist()[0], "beginning": ""}


def _concerns(row: CorpusRow, documents: list[CorpusRow]) -> bool:
    keeper, training = row["keeper"] or {}, row["evidence"].get("training_id")
    return any(
        _same(row, one) or _same(keeper, one) or (training and training == one["id"])
        for one in documents
    )


def _same(row: CorpusRow, document: CorpusRow) -> bool:
    """Whether a removal speaks of this place; a stage after duplicates knows the id only."""
    if row.get("source") != document["source"]:
        return False
    if row.get("source_id"):
        return row["source_id"] == document["source_id"]
    return bool(row["id"]) and row["id"] == document["id"]


def _told(corpus: Corpus, document: CorpusRow, every: list[CorpusRow]) -> dict[str, Any]:
    mine = {stage: [] for stage in ORDER}
    for row in every:
        if _same(row, document):
            mine[row["stage"]].append(row)
    training = document["source"] in corpus.training
    stages, gone = [], None
    for stage in ORDER[1:-1]:
        if stage not in corpus.folders:
            continue
        skipped = stage in ("near", "contamination") and not training
        if gone or skipped:
            stages.append({"stage": stage, **_UNSEEN})
            continue
        rows = mine[stage] or [_KEPT]
        stages += [{"stage": stage, "saw": True, **_short(row)} for row in rows]
        gone = next((row for row in rows if row["outcome"] in (REMOVED, HELD_OUT)), None)
    cuts = sum(row["outcome"] == CUT for row in mine["contamination"])
    in_training = training and gone is None
    return {
        **document,
        "in_training": in_training,
        "why": _why(gone, training, cuts),
        "stages": stages,
        "keeps": [row for row in every if row["keeper"] and _same(row["keeper"], document)][
            :LISTED
        ],
        "held_out_overlap": [
            row
            for row in every
            if in_training and row["evidence"].get("training_id") == document["id"]
        ][:LISTED],
        "attributes": _attributes(corpus, document) if in_training else {},
        "beginning": _beginning(corpus, document),
    }


def _short(row: CorpusRow) -> CorpusRow:
    return {name: row[name] for name in ("outcome", "rule", "evidence", "keeper")}


def _why(gone: CorpusRow | None, training: bool, cuts: int) -> str:
    if gone is None and not training:
        return "Not trained on: its source is for evaluation only."
    if gone is None:
        return f"Trained on, less {cuts} passages that benchmarks hold." if cuts else "Trained on."
    if gone["outcome"] == HELD_OUT:
        return f"Not trained on: held out for evaluation, as text of {gone['evidence']['domain']}."
    kept = f"; {_name(gone['keeper'])} stays" if gone["keeper"] else ""
    return f"Not trained on: stage {gone['stage']} removed it ({gone['rule']}){kept}."


def _attributes(corpus: Corpus, document: CorpusRow) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for stage, (name, columns) in _ATTRIBUTES.items():
        path = corpus.folders.get(stage, corpus.path) / name
        if not path.is_file():
            continue
        keys = [("id", "==", document["id"]), ("source", "==", document["source"])]
        rows = pq.read_table(path, filters=keys).to_pylist()
        found |= {column: rows[0][column] for column in columns if rows and column in rows[0]}
    if "topic" in found and "level" in found:
        return {**found, "cell": cell_name(found["topic"], found["level"])}
    return {**found, "cell": document["source"]}


def _beginning(corpus: Corpus, document: CorpusRow) -> str:
    if not document["id"]:
        return ""
    path = corpus.documents(document["source"])
    rows = pq.read_table(path, columns=["text"], filters=[("id", "==", document["id"])])
    return rows["text"][0].as_py()[:BEGINNING]


def _name(row: CorpusRow) -> str:
    return f"{row['source']}/{row['source_id'] or row['id']}"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
