"""The members of archives, folders and files: one open stream at a time, within limits.

Nothing is ever unpacked to disk, links are not followed, and nothing is read in whole that a reader
could take piece by piece. A packed member (.gz, .dz, .bz2, .xz, .zst) is unpacked one level deep.
"""

import bz2
import gzip
import io
import lzma
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
from typing import IO, Any, Protocol, cast, runtime_checkable

import zstandard

from shoal.data.config import Reader

# RuntimeError is zipfile's answer to an encrypted member or an unknown compression.
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    EOFError,
    RuntimeError,
)
PACKED = (".gz", ".dz", ".bz2", ".xz", ".zst")
BLOCK_BYTES = 2**18
ZSTD_BLOCK_BYTES = 2**10
AR_MAGIC = b"!<arch>\n"
AR_HEADER_BYTES = 60


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an archive may hold; beyond it the archive is refused.

    Attributes:
        member_bytes: of a member that is read as one record.
        record_bytes: of a row, line or response; a longer one is counted as a rejection.
        total_bytes: of everything that an archive unpacks to.
        ratio, ratio_from_bytes: a packed file may unpack to this many times its size, or to this
            many bytes if that is more.
    """

    member_bytes: int = 256 * 2**20
    record_bytes: int = 64 * 2**20
    total_bytes: int = 2**30
    members: int = 500_000
    ratio: int = 200
    ratio_from_bytes: int = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record: where it stood in its archive, and its bytes, which should be UTF-8.

    `problem` says why a record gives no bytes at all; it is then counted as a rejection.
    """

    source_id: str
    data: bytes
    problem: str = ""


@runtime_checkable
class Stream(Protocol):
    """What is read of a file, wherever it lies."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; all when negative."""
        ...

    def readline(self, size: int = -1, /) -> bytes:
        """One line with its end, or its first `size` bytes."""
        ...


type Members = Iterator[tuple[str, Stream]]


def zip_members(path: Path, reader: Reader, limits: Limits) -> Members:
    """The selected members of a zip archive, in its order."""
    selected = selector(reader)
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
                yield entry.filename, unpacked(entry.filename, file, entry.file_size, limits)


def sdist_members(path: Path, reader: Reader, limits: Limits) -> Members:
    """The selected members of a gzipped tar archive, without their first folder."""
    with gzip.open(path) as plain:
        yield from _tar_members(plain, lambda name: name.partition("/")[2], reader, limits)


def deb_members(path: Path, reader: Reader, limits: Limits) -> Members:
    """The selected members of a Debian package's data, without the leading `./`."""
    with path.open("rb") as file:
        name = _seek_data(file)
        inner = _opened(name, file)
        yield from _tar_members(inner, lambda name: name.removeprefix("./"), reader, limits)


def _seek_data(file: IO[bytes]) -> str:
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise tarfile.ReadError("no ar archive")
    while len(header := file.read(AR_HEADER_BYTES)) == AR_HEADER_BYTES:
        name, size = header[:16].decode("ascii", "replace").strip(" /"), header[48:58].strip()
        if header[58:] != b"`\n" or not size.isdigit():
            break
        if name.startswith("data.tar"):
            return name
        file.seek(int(size) + int(size) % 2, io.SEEK_CUR)
    raise tarfile.ReadError("no data.tar in it")


def _tar_members(
    plain: Any, shorten: Callable[[str], str], reader: Reader, limits: Limits
) -> Members:
    selected = selector(reader)
    stream = Counted(plain, limits.total_bytes)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, entry in enumerate(archive, start=1):
            if count > limits.members:
                raise ValueError(f"more than {limits.members} members; refused")
            _check_name(entry.name)
            inner = shorten(entry.name)
            if not entry.isreg() or not inner or not selected(inner):
                continue
            _check_size(entry.name, entry.size, 0, limits)
            file = archive.extractfile(entry)
            assert file is not None, "a regular member has content"
            yield inner, unpacked(inner, file, entry.size, limits)


def folder_members(folder: Path, reader: Reader, limits: Limits) -> Members:
    """The selected files below a folder, in the order of their names."""
    selected = selector(reader)
    for name, path in folder_files(folder):
        if selected(name):
            with path.open("rb") as file:
                yield name, unpacked(name, file, path.stat().st_size, limits)


def file_member(path: Path, limits: Limits) -> Members:
    """One file."""
    with path.open("rb") as file:
        yield path.name, unpacked(path.name, file, path.stat().st_size, limits)


def remote_members(url: str, reader: Reader, limits: Limits) -> Members:
    """The selected files at a URL that fsspec reads, or the one file that it names."""
    system, found = remote_files(url)
    selected = selector(reader)
    for name, place in found:
        if len(found) == 1 or selected(name):
            with system.open(place, "rb") as file:
                yield name, unpacked(name, file, int(system.size(place) or 0), limits)


def remote_files(url: str) -> tuple[Any, list[tuple[str, str]]]:
    """The file system of a URL, and (relative name, place) of its files in a folder's order.

    Hidden files are left out.

    Raises:
        ValueError: nothing is there, or what reads such URLs is not installed.
    """
    import fsspec

    try:
        system, root = cast("tuple[Any, str]", fsspec.core.url_to_fs(url))
        if system.isfile(root):
            return system, [(PurePosixPath(root).name, root)]
        places = sorted(system.find(root)) if system.exists(root) else []
    except ImportError as error:
        raise ValueError(f"{url} cannot be read ({error}); install what is missing") from error
    start = len(root.rstrip("/")) + 1
    named = [(place[start:], place) for place in places]
    visible = [pair for pair in named if not re.search(r"(?:^|/)\.", pair[0])]
    visible.sort(key=lambda pair: _walk_order(pair[0]))
    if not visible:
        raise ValueError(f"{url} is not there; give an existing file or folder")
    return system, visible


def _walk_order(name: str) -> list[tuple[bool, str]]:
    """Sorts as `folder_files` walks: the files of a folder before the folders in it."""
    *folders, last = name.split("/")
    return [*((True, folder) for folder in folders), (False, last)]


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


def unpacked(name: str, file: Any, size_bytes: int, limits: Limits) -> Stream:
    """The file itself, or what it unpacks to if its name says that it is packed."""
    if not name.endswith(PACKED):
        return file
    allowed = max(limits.ratio_from_bytes, limits.ratio * size_bytes)
    return io.BufferedReader(Counted(_opened(name, file), allowed), BLOCK_BYTES)


def _opened(name: str, file: Any) -> Any:
    match PurePosixPath(name).suffix:
        case ".gz" | ".dz":
            return gzip.GzipFile(fileobj=file)
        case ".bz2":
            return bz2.BZ2File(file)
        case ".xz":
            return lzma.LZMAFile(file)
        case ".zst":
            return _ZstdFrames(file)
        case _:
            return file


def is_seekable(file: Stream) -> bool:
    """Whether it is a file of its own, which a reader may jump about in."""
    return not isinstance(file, zipfile.ZipExtFile | tarfile.ExFileObject | Counted) and bool(
        getattr(file, "seekable", lambda: False)()
    )


def read_whole(file: Stream, limit_bytes: int, name: str) -> bytes:
    """All bytes of a member.

    Raises:
        ValueError: it is larger than the limit.
    """
    data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ValueError(f"{name} is larger than {limit_bytes} bytes; refused")
    return data


def selector(reader: Reader) -> Callable[[str], bool]:
    """Whether the reader takes a member of that name."""
    wanted = re.compile("|".join(map(translate, reader.members)))
    unwanted = re.compile("|".join(map(translate, reader.exclude))) if reader.exclude else None

    def selected(name: str) -> bool:
        return bool(wanted.match(name)) and not (unwanted and unwanted.match(name))

    return selected


class _ZstdFrames:
    """What zstd frames unpack to; unlike zstandard's own reader it knows a file that is cut off."""

    def __init__(self, file: Stream) -> None:
        self.file, self.held, self.ready = file, b"", b""
        self.frame: Any = None

    def read(self, size: int) -> bytes:
        while not self.ready:
            # Few bytes at a time: each of these can unpack to thousands.
            block = self.held or self.file.read(ZSTD_BLOCK_BYTES)
            self.held = b""
            if not block:
                if self.frame is not None and not self.frame.eof:
                    raise EOFError("it is cut off")
                return b""
            if self.frame is None or self.frame.eof:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.ready = self.frame.decompress(block)
            if self.frame.eof:
                self.held = self.frame.unused_data
        data, self.ready = self.ready[:size], self.ready[size:]
        return data


class Counted(io.RawIOBase):
    """Hands on what it reads, and refuses to unpack beyond the limit, headers included."""

    def __init__(self, inner: Any, limit_bytes: int) -> None:
        self.inner, self.left = inner, limit_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self.inner.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it unpacks to more than the limit; refused")
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _check_name(name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise ValueError(f"member {name!r} points outside the archive; refused")


def _check_size(name: str, size: int, total: int, limits: Limits) -> None:
    if size > limits.member_bytes:
        raise ValueError(f"{name} is larger than {limits.member_bytes} bytes; refused")
    if total > limits.total_bytes:
        raise ValueError(f"more than {limits.total_bytes} bytes in all; refused")
