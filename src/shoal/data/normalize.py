"""Stage `documents`: the text of every source, checked, normalized and written once.

Table `SOURCE.parquet`, sorted by (id, source_id), one file per source:
  id         string  xxh3-128 of the text's UTF-8, 32 hex digits
  text       string
  source     string  the source's name
  source_id  string  where the record stood in its archive
  bytes      int64   length of the text in UTF-8
  language   string  ISO 639 code by the text's beginning, `und` where that is too short
  language_score  float32  share of the probability that the code has, two decimals
Table `rejected.parquet`, in the order of sources and records:
  source, source_id  string
  rule       string  `invalid UTF-8`, `NUL byte`, `too long`, `unreadable` or `empty`
  evidence   string  what is wrong, and where
Facts, per source: documents, bytes, rejected, empty, first_rejected (up to five records), languages
(documents per code). All are counted in the written files.

Normalizing means: a byte-order mark goes, line ends become LF, a run of more than 128 whitespace
characters is cut to its first 128 (such runs have stalled tokenizers). Nothing else changes;
composed and decomposed characters stay as they are.

Bound of memory: one shard of the records, or what `data.runs` merges at a time; a source may be
larger than memory. A killed stage goes on at the shard of the source that it was at.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shoal.core.artifact import Artifact, build
from shoal.core.files import link
from shoal.core.parts import Part, drop, part
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig, Source
from shoal.data.language import language
from shoal.data.runs import Row, merge_runs, write_run
from shoal.data.shards import Taken, shards
from shoal.data.source import TABLE

REVISION = 2
REJECTED = "rejected.parquet"
WHOLE = "whole.parquet"
WHITESPACE_RUN = 128
EMPTY = "empty"
UNREADABLE = "unreadable"
FIRST = 5
REJECTED_ROWS = 4_096
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("bytes", pa.int64()),
        ("language", pa.string()),
        ("language_score", pa.float32()),
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
    read = [source for source in corpus.sources if source.usage != "blocked"]

    def make(folder: Path) -> dict[str, Any]:
        total = sum(artifact.facts["bytes"] for artifact in sources.values())
        with (
            progress.task("normalize", total, "bytes") as task,
            closing(_Rejected(folder / REJECTED)) as rejected,
        ):
            for source in read:
                artifact = sources[source.name]
                task.say(source.name)
                path = folder / f"{source.name}.parquet"
                records = artifact.path / TABLE
                found = _documents_of(folder, records, source, corpus.max_document_bytes)
                link(found / WHOLE, path)
                rejected.start()
                for batch in table.batches(found / REJECTED):
                    for row in batch.to_pylist():
                        rejected.add(row)
                _check_some(path, source, rejected)
                task.advance(artifact.facts["bytes"])
            task.say("")
        return {"sources": _facts(folder, read)}

    return build(
        root,
        f"{corpus.name}-documents",
        stage="documents",
        revision=REVISION,
        literals={
            "sources": [source.name for source in read],
            "max_document_bytes": corpus.max_document_bytes,
        },
        inputs={source.name: sources[source.name].digest for source in read},
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


class _Rejected:
    """The table of rejections, written as they come."""

    def __init__(self, path: Path) -> None:
        self.writer = pq.ParquetWriter(path, REJECTED_SCHEMA, compression="zstd")
        self.rows: list[dict[str, str]] = []
        self.of_source = 0
        self.first: dict[str, str] = {}

    def close(self) -> None:
        self._flush()
        self.writer.close()

    def start(self) -> None:
        """The next source begins."""
        self.of_source, self.first = 0, {}

    def add(self, row: dict[str, str]) -> None:
        self.first = self.first or row
        self.of_source += 1
        self.rows.append(row)
        if len(self.rows) == REJECTED_ROWS:
            self._flush()

    def _flush(self) -> None:
        self.writer.write_table(pa.Table.from_pylist(self.rows, REJECTED_SCHEMA))
        self.rows = []


def _documents_of(folder: Path, path: Path, source: Source, max_bytes: int) -> Path:
    """The folder with a source's `WHOLE` and `REJECTED`; its shards go once they are merged."""
    runs: list[Part] = []

    def make(inside: Path) -> dict[str, Any]:
        run = partial(_write_run, source=source, max_bytes=max_bytes)
        runs.extend(shards(folder, source.name, _groups(path), run))
        if len(runs) == 1:
            for name in (WHOLE, REJECTED):
                link(runs[0].path / name, inside / name)
            return {}
        merge_runs(inside / WHOLE, [run.path / WHOLE for run in runs], SCHEMA, inside)
        with pq.ParquetWriter(inside / REJECTED, REJECTED_SCHEMA, compression="zstd") as writer:
            for run in runs:
                table.append(writer, run.path / REJECTED)
        return {}

    found = part(folder, source.name, make)
    drop(folder, *runs)
    return found.path


def _groups(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def _write_run(
    folder: Path, groups: Taken[pa.Table], source: Source, max_bytes: int
) -> dict[str, Any]:
    """The documents of one shard, sorted, and what is rejected in it."""
    with closing(_Rejected(folder / REJECTED)) as rejected:
        rows = [row for group in groups for row in _rows(group, source, max_bytes, rejected)]
    write_run(folder / WHOLE, rows, SCHEMA, whole=groups.first and groups.last)
    return {}


def _rows(group: pa.Table, source: Source, max_bytes: int, rejected: _Rejected) -> Iterator[Row]:
    columns = [column.to_pylist() for column in group.columns]
    for source_id, raw, problem in zip(*columns, strict=True):
        text = (
            Rejection(rule=UNREADABLE, evidence=problem) if problem else normalize(raw, max_bytes)
        )
        if isinstance(text, Rejection):
            why = {"rule": text.rule, "evidence": text.evidence}
            rejected.add({"source": source.name, "source_id": source_id, **why})
            continue
        data = text.encode()
        identity = xxhash.xxh3_128_hexdigest(data)
        yield identity, text, source.name, source_id, len(data), *language(text)


def _check_some(path: Path, source: Source, rejected: _Rejected) -> None:
    if pq.read_metadata(path).num_rows == 0:
        first = rejected.first
        raise ValueError(
            f"source {source.name}: all {rejected.of_source} records are rejected, first "
            f"{first['source_id']}: {first['rule']}, {first['evidence']}; correct its encoding or "
            "patterns, or leave it out"
        )


def _facts(folder: Path, sources: list[Source]) -> dict[str, Any]:
    """Counts of the written files."""
    facts: dict[str, Any] = {}
    for source in sources:
        languages: Counter[str] = Counter()
        size = count = 0
        for batch in table.batches(folder / f"{source.name}.parquet", ["bytes", "language"]):
            count += batch.num_rows
            size += sum(batch["bytes"].to_pylist())
            languages.update(batch["language"].to_pylist())
        facts[source.name] = {
            "documents": count,
            "bytes": size,
            "rejected": 0,
            "empty": 0,
            "first_rejected": [],
            "languages": dict(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
        }
    for batch in table.batches(folder / REJECTED):
        for row in batch.to_pylist():
            mine = facts[row["source"]]
            if row["rule"] == EMPTY:
                mine["empty"] += 1
                continue
            mine["rejected"] += 1
            if len(mine["first_rejected"]) < FIRST:
                mine["first_rejected"].append(row)
    return facts
