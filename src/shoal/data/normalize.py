"""Stage `documents`: the text of every source, checked, normalized and written once.

Table `SOURCE.parquet`, sorted by (id, source_id), one file per source:
  id         string  xxh3-128 of the text's UTF-8, 32 hex digits
  text       string
  source     string  the source's name
  source_id  string  where the record stood in its archive
  bytes      int64   length of the text in UTF-8
Table `rejected.parquet`:
  source, source_id  string
  rule       string  `invalid UTF-8`, `NUL byte`, `too long` or `empty`
  evidence   string  what is wrong, and where
Facts, per source: documents, bytes, rejected, empty, first_rejected (up to five records).

Normalizing means: a byte-order mark goes, line ends become LF, a run of more than 128 whitespace
characters is cut to its first 128 (such runs have stalled tokenizers). Nothing else changes;
composed and decomposed characters stay as they are.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from shoal.core.artifact import Artifact, build
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig, Source
from shoal.data.source import TABLE

REVISION = 1
REJECTED = "rejected.parquet"
WHITESPACE_RUN = 128
EMPTY = "empty"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("bytes", pa.int64()),
    ]
)
REJECTED_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("source", "source_id", "rule", "evidence")]
)
_LONG_RUN = re.compile(rf"(\s{{{WHITESPACE_RUN}}})\s+")
_LINE_END = re.compile(r"\r\n?")


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why a record is no document."""

    rule: str
    evidence: str


def documents(
    root: Path, corpus: CorpusConfig, sources: Mapping[str, Artifact], progress: Progress
) -> Artifact:
    """Finds or makes the documents of all sources.

    Raises:
        ValueError: every record of a source is rejected.
    """

    def make(folder: Path) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        rejected: list[dict[str, str]] = []
        total = sum(artifact.facts["bytes"] for artifact in sources.values())
        with progress.task("normalize", total, "bytes") as task:
            for source in corpus.sources:
                artifact = sources[source.name]
                task.say(source.name)
                found, lost = _one_source(source, artifact.path / TABLE, corpus.max_document_bytes)
                table.write(folder / f"{source.name}.parquet", found)
                facts[source.name] = _counts(found, lost)
                rejected += lost
                task.advance(artifact.facts["bytes"])
            task.say("")
        table.write(folder / REJECTED, pa.Table.from_pylist(rejected, REJECTED_SCHEMA))
        return {"sources": facts}

    return build(
        root,
        f"{corpus.name}-documents",
        stage="documents",
        revision=REVISION,
        literals={
            "sources": [source.name for source in corpus.sources],
            "max_document_bytes": corpus.max_document_bytes,
        },
        inputs={name: artifact.digest for name, artifact in sources.items()},
        make=make,
    )


def normalize(data: bytes, max_bytes: int) -> str | Rejection:
    """The text of a record, or why it has none."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{data[error.start]:02x} at offset {error.start} ({error.reason})"
        return Rejection(rule="invalid UTF-8", evidence=where)
    if "\0" in text:
        return Rejection(rule="NUL byte", evidence=f"at character {text.index(chr(0))}")
    text = _LONG_RUN.sub(r"\1", _LINE_END.sub("\n", text))
    if not text.strip():
        return Rejection(rule=EMPTY, evidence=f"{len(data)} bytes of whitespace")
    size = len(text.encode())
    if size > max_bytes:
        return Rejection(rule="too long", evidence=f"{size} bytes, more than {max_bytes}")
    return text


def document_id(text: str) -> str:
    """32 hex digits that depend on the text alone."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def _one_source(
    source: Source, path: Path, max_bytes: int
) -> tuple[pa.Table, list[dict[str, str]]]:
    rejected: list[dict[str, str]] = []
    kept = [_keep(batch, source.name, max_bytes, rejected) for batch in table.batches(path)]
    found = pa.Table.from_batches(kept, SCHEMA)
    if found.num_rows == 0:
        first = rejected[0]
        raise ValueError(
            f"source {source.name}: all {len(rejected)} records are rejected, first "
            f"{first['source_id']}: {first['rule']}, {first['evidence']}; correct its encoding or "
            "patterns, or leave it out"
        )
    return found.sort_by([("id", "ascending"), ("source_id", "ascending")]), rejected


def _keep(
    batch: pa.RecordBatch, name: str, max_bytes: int, rejected: list[dict[str, str]]
) -> pa.RecordBatch:
    rows: list[tuple[str, str, str, str, int]] = []
    for source_id, raw in _rows(batch):
        text = normalize(raw, max_bytes)
        if isinstance(text, Rejection):
            reason = {"rule": text.rule, "evidence": text.evidence}
            rejected.append({"source": name, "source_id": source_id} | reason)
        else:
            rows.append((document_id(text), text, name, source_id, len(text.encode())))
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA
    )


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    for source_id, raw in zip(batch["source_id"], batch["raw"], strict=True):
        yield source_id.as_py(), raw.as_py()


def _counts(found: pa.Table, lost: list[dict[str, str]]) -> dict[str, Any]:
    rejected = [row for row in lost if row["rule"] != EMPTY]
    return {
        "documents": found.num_rows,
        "bytes": sum(found["bytes"].to_pylist()),
        "rejected": len(rejected),
        "empty": len(lost) - len(rejected),
        "first_rejected": rejected[:5],
    }
