"""Records out of zip and tar archives, folders and JSON lines, read as data and within limits.

Nothing is ever unpacked to disk. Links are not followed, and an archive whose member names leave
its own folder, or that unpacks to more than the limits, is refused as a whole.
"""

import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, runtime_checkable

from shoal.core.files import sha256_file
from shoal.data.config import Reader, Source

# RuntimeError is zipfile's answer to an encrypted member or an unknown compression.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an archive may hold; beyond it the archive is refused."""

    member_bytes: int = 256 * 2**20
    total_bytes: int = 2**30
    members: int = 500_000


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record: where it stood in its archive, and its bytes, which should be UTF-8."""

    source_id: str
    data: bytes


@runtime_checkable
class Stream(Protocol):
    """What is read of a file, wherever it lies."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; all when negative."""
        ...

    def readline(self, size: int = -1, /) -> bytes:
        """One line with its end, or its first `size` bytes."""
        ...


def records(source: Source, path: Path, limits: Limits | None = None) -> Iterator[Record]:
    """Every record that the source's reader selects, in archive order.

    Raises:
        ValueError: the archive is damaged, hostile or beyond the limits, or a JSON line is wrong.
    """
    limits = limits or Limits()
    match source.archive.form:
        case "wheel":
            found = _zip_members(path, source.reader, limits)
        case "sdist":
            found = _tar_members(path, source.reader, limits)
        case "folder":
            found = _folder_members(path, source.reader, limits)
        case "file":
            found = _file_member(path, limits)
    try:
        for name, file in found:
            if source.reader.lines == "json":
                yield from _json_lines(name, file, source.reader, limits)
            else:
                data = _read(file, limits.member_bytes, name)
                yield Record(source_id=name, data=_as_utf8(data, source.reader))
    except (*_DAMAGED, OSError) as error:
        raise ValueError(
            f"source {source.name}: {path} cannot be read as a {source.archive.form} ({error}); "
            "get the file again"
        ) from error
    except ValueError as error:
        raise ValueError(f"source {source.name}: {path}: {error}") from error


def folder_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(relative name, path) of every regular file, sorted; hidden files and links left out."""
    for here, folders, names in folder.walk(follow_symlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = here / name
            if not name.startswith(".") and not path.is_symlink() and path.is_file():
                # A name need not be UTF-8; what is recorded must be.
                inner = os.fsencode(path.relative_to(folder))
                yield inner.decode("utf-8", "backslashreplace"), path


def content_digest(path: Path) -> str:
    """SHA-256 of a file, or over the sorted names and SHA-256 of a folder's files."""
    if path.is_file():
        return sha256_file(path)
    digest = hashlib.sha256()
    for name, found in folder_files(path):
        digest.update(f"{sha256_file(found)}  {name}\n".encode())
    return digest.hexdigest()


def _zip_members(path: Path, reader: Reader, limits: Limits) -> Iterator[tuple[str, Stream]]:
    selected = _selector(reader)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > limits.members:
            raise ValueError(f"{len(entries)} members, more than {limits.members}; refused")
        total = 0
        for entry in entries:
            _check_name(entry.filename)
            link = stat.S_ISLNK(entry.external_attr >> 16)
            if entry.is_dir() or link or not selected(entry.filename):
                continue
            total += entry.file_size
            _check_size(entry.filename, entry.file_size, total, limits)
            with archive.open(entry) as file:
                yield entry.filename, file


def _tar_members(path: Path, reader: Reader, limits: Limits) -> Iterator[tuple[str, Stream]]:
    selected = _selector(reader)
    with gzip.open(path) as plain:
        stream = _Counted(plain, limits.total_bytes)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, entry in enumerate(archive, start=1):
                if count > limits.members:
                    raise ValueError(f"more than {limits.members} members; refused")
                _check_name(entry.name)
                inner = entry.name.partition("/")[2]
                if not entry.isreg() or not inner or not selected(inner):
                    continue
                _check_size(entry.name, entry.size, 0, limits)
                file = archive.extractfile(entry)
                assert file is not None, "a regular member has content"
                yield inner, file


def _folder_members(folder: Path, reader: Reader, limits: Limits) -> Iterator[tuple[str, Stream]]:
    selected = _selector(reader)
    total = 0
    for name, path in folder_files(folder):
        if selected(name):
            size = path.stat().st_size
            total += size
            _check_size(name, size, total, limits)
            with path.open("rb") as file:
                yield name, file


def _file_member(path: Path, limits: Limits) -> Iterator[tuple[str, Stream]]:
    size = path.stat().st_size
    if size > limits.total_bytes:
        raise ValueError(f"{size} bytes, more than {limits.total_bytes}; give less of it")
    with path.open("rb") as file:
        yield path.name, file


class _Counted(io.RawIOBase):
    """Reads on behalf of tarfile and refuses to unpack beyond the limit, headers included."""

    def __init__(self, inner: Stream, limit_bytes: int) -> None:
        self.inner, self.left = inner, limit_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self.inner.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it unpacks to more than the limit; refused")
        return data


def _json_lines(name: str, file: Stream, reader: Reader, limits: Limits) -> Iterator[Record]:
    number = 0
    while line := file.readline(limits.member_bytes + 1):
        number += 1
        if len(line) > limits.member_bytes:
            raise ValueError(f"{name} line {number} is longer than {limits.member_bytes} bytes")
        if not line.strip():
            continue
        place = f"{name}:{number}"
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield Record(source_id=place, data=line)  # counted as invalid UTF-8 later
            continue
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"line {number} of {name} is not JSON ({error}); repair it") from error
        record = _from_row(row, place, reader)
        if record is not None:
            yield record


def _from_row(row: Any, place: str, reader: Reader) -> Record | None:
    if not isinstance(row, dict) or not isinstance(row.get(reader.text_field), str):
        keys = ", ".join(map(repr, list(row)[:8])) if isinstance(row, dict) else "no object"
        raise ValueError(
            f"line {place.rpartition(':')[2]} of {place.rpartition(':')[0]} has no text at "
            f"{reader.text_field!r} ({keys}); every line needs one"
        )
    if reader.where and row.get(reader.where[0]) != reader.where[1]:
        return None
    own = row.get(reader.id_field) if reader.id_field else None
    identity = place if own is None else f"{place}:{own}"
    # Half a surrogate pair is legal in JSON and not in UTF-8: it must reach the check as it is.
    return Record(
        source_id=identity.encode("utf-8", "backslashreplace").decode(),
        data=row[reader.text_field].encode("utf-8", "surrogatepass"),
    )


def _as_utf8(data: bytes, reader: Reader) -> bytes:
    return data if reader.encoding == "utf-8" else data.decode(reader.encoding).encode()


def _read(file: Stream, limit_bytes: int, name: str) -> bytes:
    data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ValueError(f"{name} is larger than {limit_bytes} bytes; refused")
    return data


def _selector(reader: Reader) -> Callable[[str], bool]:
    wanted = re.compile("|".join(map(translate, reader.members)))
    unwanted = re.compile("|".join(map(translate, reader.exclude))) if reader.exclude else None

    def selected(name: str) -> bool:
        return bool(wanted.match(name)) and not (unwanted and unwanted.match(name))

    return selected


def _check_name(name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise ValueError(f"member {name!r} points outside the archive; refused")


def _check_size(name: str, size: int, total: int, limits: Limits) -> None:
    if size > limits.member_bytes:
        raise ValueError(f"{name} is larger than {limits.member_bytes} bytes; refused")
    if total > limits.total_bytes:
        raise ValueError(f"more than {limits.total_bytes} bytes in all; refused")
