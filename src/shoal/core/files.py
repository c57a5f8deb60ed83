"""Files that are whole or absent, limited reads, locks, and the one JSON form that is hashed."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

TEMPORARY = ".tmp-"
_FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskFullError(OSError, ValueError):
    """No space is left where something was being written: a fault of the machine, told to users."""


def home() -> Path:
    """The folder of downloads, corpora and runs: `SHOAL_HOME`, or `shoal-home` where we stand.

    Raises:
        ValueError: it is a file, or cannot be created or written.
    """
    path = Path(os.environ.get("SHOAL_HOME") or "shoal-home").expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise ValueError(f"SHOAL_HOME={path} is a file; set SHOAL_HOME to a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Permission bits say nothing to root or on a read-only mount: only a write shows it.
        probe = path / f"{TEMPORARY}{secrets.token_hex(6)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"SHOAL_HOME={path} cannot be written ({reason}); set SHOAL_HOME to a folder you own"
        ) from error
    return path


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replaces a file as a whole; after a crash either the old or the new content is there.

    Raises:
        DiskFullError: as `writing` tells it.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with writing(path):
            with temporary.open("wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def folder_atomic(path: Path) -> Generator[Path]:
    """Yields an empty folder beside `path` that becomes `path` on success and vanishes on failure.

    A killed process leaves the temporary folder: `remove_leftovers` deletes it.

    Raises:
        ValueError: `path` exists already.
        DiskFullError: as `writing` tells it.
    """
    if path.exists():
        raise ValueError(f"{path} exists already; remove it or choose another name")
    temporary = _temporary(path)
    with writing(path):
        temporary.mkdir(parents=True)
    try:
        # The free space that an error tells is that of before the half folder goes.
        with writing(path):
            yield temporary
            for found in sorted(temporary.rglob("*")):
                _sync_folder(found) if found.is_dir() else _sync_file(found)
            _sync_folder(temporary)
            temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Says of a full disk what was being written to it, what is free and what to do.

    Raises:
        DiskFullError: the system had no space, or no quota, for what the block wrote.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        # NumPy counts what was written and leaves the reason out.
        short = error.errno is None and "requested and" in str(error)
        if error.errno not in _FULL and not short:
            raise
        number = error.errno or errno.ENOSPC
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        told = DiskFullError(
            f"{os.strerror(number)}: {path} could not be written, "
            f"{shutil.disk_usage(there).free / 1e6:,.1f} MB are free there; make room, or set "
            "SHOAL_HOME to a larger disk, and run the same command again"
        )
        told.errno = number
        raise told from error


def remove_leftovers(path: Path) -> None:
    """Deletes what killed writers of `path` left beside it; the caller holds the lock on `path`."""
    for leftover in list(path.parent.iterdir()):
        if not leftover.name.startswith(f".{path.name}{TEMPORARY}"):
            continue
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """A file's content.

    Raises:
        ValueError: the file cannot be read, or is larger than `limit_bytes`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise ValueError(f"{path} is larger than {limit_bytes} bytes; is it the right file?")
    return data


def sha256_file(path: Path) -> str:
    """64 hex digits, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listing(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative name -> {"bytes", "sha256"} of every file below a folder, sorted."""
    return {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": sha256_file(file),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def link(source: Path, target: Path) -> None:
    """Gives a file a second name, or copies it where the file system has no such links.

    Neither may be changed in place afterwards.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise
        shutil.copyfile(source, target)


@contextmanager
def file_lock(path: Path) -> Generator[None]:
    """Holds the lock file `path` for this process; the system frees it when the process dies.

    Raises:
        ValueError: another holder has it; the message names its process id.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            raise ValueError(
                f"{path} is locked by process {pid}; wait for it to finish, or stop it"
            ) from error
        # The holder before us may have removed the file between our open and our lock.
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            break
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def folder_lock(path: Path) -> Generator[None]:
    """Holds the folder for this process, creating it if needed; errors as `file_lock`."""
    path.mkdir(parents=True, exist_ok=True)
    with file_lock(path / ".lock"):
        yield


def canonical_json(obj: object) -> str:
    """The one text of a JSON value: sorted keys, no spaces, ASCII, floats that read back equal.

    Raises:
        ValueError: a float is not finite.
        TypeError: a value is not JSON, or a key is not a string.
    """
    _check_keys(obj)
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_keys(obj: object) -> None:
    # json would turn 1 and "1" into the same key, and two values into one hash.
    if isinstance(obj, dict):
        for key, value in cast("dict[Any, Any]", obj).items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not a string")
            _check_keys(value)
    elif isinstance(obj, (list, tuple)):
        for value in cast("list[Any]", obj):
            _check_keys(value)


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}"


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
