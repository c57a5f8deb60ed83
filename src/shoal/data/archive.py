"""Records out of archives, folders, files and URLs, read as data and within limits.

A member gives one record, or one per JSON line, Parquet row or WARC response. An archive whose
member names leave its own folder, or that unpacks to more than the limits, is refused as a whole; a
record that is too long or of no use by itself keeps its place with the `problem` that it has.
"""

import hashlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from shoal.core.files import sha256_file
from shoal.data.config import Reader, Source
from shoal.data.members import (
    DAMAGED,
    Limits,
    Members,
    Record,
    Stream,
    deb_members,
    file_member,
    folder_files,
    folder_members,
    read_whole,
    remote_files,
    remote_members,
    sdist_members,
    zip_members,
)
from shoal.data.rows import json_lines, parquet_rows

BLOCK_BYTES = 2**20


def records(source: Source, path: Path | str, limits: Limits | None = None) -> Iterator[Record]:
    """Every record that the source's reader selects, in archive order.

    Raises:
        ValueError: the archive is damaged, hostile or beyond the limits, or a row is wrong.
    """
    for member in members(source, path, limits):
        yield from member


def members(
    source: Source, path: Path | str, limits: Limits | None = None
) -> Iterator[Iterator[Record]]:
    """The records of one member after the other; one that is passed over is not looked into.

    Raises:
        ValueError: as `records`, here or while a member's records are read.
    """
    limits = limits or Limits()
    seen: set[str] = set()
    with _named(source, path):
        for name, file in _members(source, path, limits):
            if name in seen:
                raise ValueError(f"member {name!r} is there twice, and has no name of its own")
            if source.archive.form in ("wheel", "sdist", "deb"):
                seen.add(name)  # files on disk have names of their own
            yield _member(source, path, name, file, limits)


def _member(
    source: Source, path: Path | str, name: str, file: Stream, limits: Limits
) -> Iterator[Record]:
    with _named(source, path):
        yield from _member_records(name, file, source.reader, limits)


@contextmanager
def _named(source: Source, path: Path | str) -> Generator[None]:
    """Errors say which source they are of."""
    try:
        yield
    except (*DAMAGED, pa.ArrowException, OSError) as error:
        raise ValueError(
            f"source {source.name}: {path} cannot be read as a {source.archive.form} ({error}); "
            "get the file again"
        ) from error
    except ValueError as error:
        raise ValueError(f"source {source.name}: {path}: {error}") from error


def content_digest(path: Path | str) -> str:
    """SHA-256 of a file, or over the sorted names and SHA-256 of a folder's files; URLs too."""
    if is_url(path):
        system, found = remote_files(str(path))
        digests = [(name, _stream_digest(system, place)) for name, place in found]
        if system.isfile(found[0][1]) and len(found) == 1 and str(path).endswith(found[0][0]):
            return digests[0][1]
    else:
        path = Path(path)
        if path.is_file():
            return sha256_file(path)
        digests = [(name, sha256_file(place)) for name, place in folder_files(path)]
    whole = hashlib.sha256()
    for name, digest in digests:
        whole.update(f"{digest}  {name}\n".encode())
    return whole.hexdigest()


def is_url(path: Path | str) -> bool:
    """Whether fsspec is to read it."""
    return isinstance(path, str) and "://" in path


def _members(source: Source, path: Path | str, limits: Limits) -> Members:
    reader = source.reader
    if is_url(path):
        return remote_members(str(path), reader, limits)
    path = Path(path)
    match source.archive.form:
        case "wheel":
            return zip_members(path, reader, limits)
        case "sdist":
            return sdist_members(path, reader, limits)
        case "deb":
            return deb_members(path, reader, limits)
        case "folder" | "hub":
            return folder_members(path, reader, limits)
        case "file":
            return file_member(path, limits)


def _member_records(name: str, file: Stream, reader: Reader, limits: Limits) -> Iterator[Record]:
    match reader.lines:
        case "json":
            found = json_lines(name, file, reader, limits)
        case "parquet":
            found = parquet_rows(name, file, reader, limits)
        case "warc":
            from shoal.data.warc import responses

            found = responses(name, file, limits)
        case "":
            data = read_whole(file, limits.member_bytes, name)
            found = iter([Record(source_id=name, data=_as_utf8(data, reader))])
    if not reader.markup:
        yield from found
        return
    from shoal.data.markup import without_markup

    for record in found:
        data = record.data if record.problem else without_markup(record.data, reader.markup)
        yield Record(source_id=record.source_id, data=data, problem=record.problem)


def _as_utf8(data: bytes, reader: Reader) -> bytes:
    return data if reader.encoding == "utf-8" else data.decode(reader.encoding).encode()


def _stream_digest(system: object, place: str) -> str:
    whole = hashlib.sha256()
    with system.open(place, "rb") as file:  # pyright: ignore[reportAttributeAccessIssue]
        while block := file.read(BLOCK_BYTES):
            whole.update(block)
    return whole.hexdigest()
