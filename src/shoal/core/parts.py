"""Parts: what a stage has finished of an artifact that is not there yet.

Parts of NAME@HASH12 lie in `.NAME@HASH12.partial` beside it until it is made: each a folder with
the files that it wrote, and `done.json` with their sizes and hashes and what `make` returned. A
stage that ends early, for whatever reason, finds them the next time and goes on at the one that it
was making. The folder's name holds the digest, so another revision, other literals or other inputs
never see it; and parts that other code made are thrown away, since a crash is often answered by a
change of code.

What is left of an artifact that is given up goes when the next one of its name is made, whatever
its digest: if it was wanted after all that costs time, and keeping all of them would cost the disk.
"""

import functools
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core import files

PARTIAL = ".partial"
DONE = "done.json"
DONE_LIMIT_BYTES = 64 * 2**20
CODE = "_code"
# The packages whose code makes artifacts; they import no other.
MAKERS = ("core", "data")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A finished part; `facts` is what `make` returned, `reused` says that it was not called."""

    path: Path
    facts: dict[str, Any]
    reused: bool


def part(folder: Path, name: str, make: Callable[[Path], Mapping[str, Any]]) -> Part:
    """Finds or makes one part of the artifact that `artifact.build` is making in `folder`.

    What the artifact is to hold of a part is taken over with `files.link`. A part that is damaged
    is made again.

    Args:
        folder: the folder that `build` gave; a part of a part is named after it as well.
        name: letters, digits, `.`, `_`, `-` and `+`; the same for the same content only.
        make: writes files into the folder it is given and returns facts, as JSON.
    """
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name), f"{name!r} names no part"
    kept = _kept(folder)
    if not kept.exists():
        kept.mkdir()
        files.write_atomic(kept / CODE, _code())
    path = kept / name
    if path.exists():
        found = _read(path)
        if found is not None:
            return Part(path=path, facts=found, reused=True)
        shutil.rmtree(path)
    try:
        with files.folder_atomic(path) as inside:
            facts = dict(make(inside))
            done = {"files": files.listing(inside), "facts": facts}
            files.write_atomic(inside / DONE, json.dumps(done, allow_nan=False) + "\n")
    except BaseException:
        if [one.name for one in kept.iterdir()] == [CODE]:
            shutil.rmtree(kept)
        raise
    # Read back, so that a caller sees the same facts (lists, not tuples) now and next time.
    found = _read(path, verify=False)
    assert found is not None, f"{path} was written just now"
    return Part(path=path, facts=found, reused=False)


def drop(folder: Path, *found: Part) -> None:
    """Deletes parts that a finished part has taken over; `folder` as in `part`."""
    for one in found:
        assert one.path.parent == _kept(folder), f"{one.path} is no part of {folder}"
        shutil.rmtree(one.path)


def begin(path: Path) -> None:
    """Deletes half parts of the artifact `path`, and all if other code made them.

    The caller holds the artifact's lock; the same for `finish`.
    """
    kept = _beside(path)
    if not kept.exists():
        return
    code = kept / CODE
    if not code.is_file() or code.read_text() != _code():
        shutil.rmtree(kept)
        return
    for leftover in kept.iterdir():
        if leftover.name.startswith("."):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def finish(path: Path) -> None:
    """Deletes the parts of the artifact `path`, and of others of its name that nobody is making."""
    forget(path)
    name = path.name.partition("@")[0]
    for other in path.parent.glob(f".{name}@*{PARTIAL}"):
        # Whoever is making it holds its lock.
        ref = other.name[1 : -len(PARTIAL)]
        try:
            with files.file_lock(path.parent / f".{ref}.lock"):
                shutil.rmtree(other, ignore_errors=True)
        except ValueError:
            continue


def forget(path: Path) -> None:
    """Deletes the parts of the artifact `path`, which is there."""
    if _beside(path).exists():
        shutil.rmtree(_beside(path), ignore_errors=True)


def unfinished(root: Path) -> list[Path]:
    """The folders of parts under `root`, of artifacts that are being made or were given up."""
    return sorted(root.glob(f".*@*{PARTIAL}"))


def _beside(path: Path) -> Path:
    return path.parent / f".{path.name}{PARTIAL}"


def _kept(folder: Path) -> Path:
    """The folder of parts that belongs to the temporary folder of an artifact."""
    name, found, _ = folder.name.partition(files.TEMPORARY)
    assert found, f"{folder} is not the folder that `artifact.build` gives"
    return folder.parent / f"{name}{PARTIAL}"


def _read(path: Path, *, verify: bool = True) -> dict[str, Any] | None:
    """The facts of a part, or None if it is damaged."""
    try:
        done = json.loads(files.read_limited(path / DONE, DONE_LIMIT_BYTES))
        if verify:
            found = files.listing(path)
            found.pop(DONE)
            if found != done["files"]:
                return None
        return done["facts"]
    except (ValueError, KeyError, TypeError, OSError):
        return None


@functools.cache
def _code() -> str:
    """SHA-256 over the source files of `MAKERS`, by name."""
    root = Path(__file__).parents[1]
    whole = hashlib.sha256()
    for path in sorted(path for maker in MAKERS for path in (root / maker).rglob("*.py")):
        whole.update(f"{files.sha256_file(path)}  {path.relative_to(root).as_posix()}\n".encode())
    return whole.hexdigest()
