"""Artifacts: folders `NAME@HASH12` that are written once and found again by what went into them.

The digest is SHA-256 over the canonical JSON of stage, stage revision, literals and input digests.
Commit, host and time stand in the manifest as provenance and are never hashed.
A killed build goes on at the part that it was making, where `make` makes parts (`core.parts`).
"""

import functools
import hashlib
import json
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.core import files, parts

MANIFEST = "manifest.json"
MANIFEST_LIMIT_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A finished artifact; `digest` is 64 hex digits, `reused` says that `make` was not called."""

    name: str
    digest: str
    path: Path
    manifest: dict[str, Any]
    reused: bool

    @property
    def ref(self) -> str:
        """NAME@HASH12, which is also the folder's name."""
        return reference(self.name, self.digest)

    @property
    def facts(self) -> dict[str, Any]:
        """What `make` returned: counts and the like."""
        return self.manifest["facts"]


def reference(name: str, digest: str) -> str:
    """NAME@HASH12."""
    return f"{name}@{digest[:12]}"


def digest_of(
    *, stage: str, revision: int, literals: Mapping[str, Any], inputs: Mapping[str, str]
) -> str:
    """The digest that `build` gives an artifact of these ingredients, known before it is built."""
    identity = {
        "stage": stage,
        "revision": revision,
        "literals": dict(literals),
        "inputs": dict(inputs),
    }
    return hashlib.sha256(files.canonical_json(identity).encode()).hexdigest()


def build(
    root: Path,
    name: str,
    *,
    stage: str,
    revision: int,
    literals: Mapping[str, Any],
    inputs: Mapping[str, str],
    make: Callable[[Path], Mapping[str, Any]],
) -> Artifact:
    """Finds the artifact under `root`, or makes it.

    Args:
        root: the folder that holds artifacts.
        name: letters, digits, `.`, `_` and `-`; not part of the digest.
        stage: the name of the code that makes it.
        revision: raised by hand when that code's output changes.
        literals: every value that decides the output, as JSON.
        inputs: role -> digest of the artifacts that are read.
        make: writes files into the folder it is given and returns facts (counts etc.), as JSON.

    Raises:
        ValueError: the artifact is there but damaged, or another process is making it.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"artifact name {name!r}: use letters, digits, '.', '_' and '-' only")
    digest = digest_of(stage=stage, revision=revision, literals=literals, inputs=inputs)
    path = root / reference(name, digest)
    root.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return _found(path, digest)
    with files.file_lock(root / f".{path.name}.lock"):
        if path.exists():
            return _found(path, digest)
        files.remove_leftovers(path)
        parts.begin(path)
        with files.folder_atomic(path) as folder:
            started = time.monotonic()
            facts = dict(make(folder))
            assert not (folder / MANIFEST).exists(), f"stage {stage} wrote {MANIFEST} itself"
            manifest = {
                "name": name,
                "digest": digest,
                "stage": stage,
                "revision": revision,
                "literals": dict(literals),
                "inputs": dict(inputs),
                "files": files.listing(folder),
                "facts": facts,
                "provenance": _provenance(time.monotonic() - started),
            }
            text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
            files.write_atomic(folder / MANIFEST, text + "\n")
        parts.finish(path)
    # Read back, so that a caller sees the same manifest (lists, not tuples) now and next time.
    return load(path, reused=False)


def load(path: Path, *, reused: bool = True) -> Artifact:
    """Reads a finished artifact and checks that every file is there with the right size.

    Raises:
        ValueError: it is missing or damaged; the message names the file and what to delete.
    """
    data = files.read_limited(path / MANIFEST, MANIFEST_LIMIT_BYTES)
    try:
        manifest = json.loads(data)
        found = digest_of(**{k: manifest[k] for k in ("stage", "revision", "literals", "inputs")})
        name, digest, listed = manifest["name"], manifest["digest"], manifest["files"]
        sizes = {relative: entry["bytes"] for relative, entry in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, MANIFEST, "is not a manifest") from error
    if found != digest:
        raise _damaged(path, MANIFEST, "does not match its own digest")
    for relative, size in sizes.items():
        file = path / relative
        if not file.is_file():
            raise _damaged(path, relative, "is missing")
        if file.stat().st_size != size:
            raise _damaged(path, relative, f"has {file.stat().st_size} bytes, not {size}")
    return Artifact(name=name, digest=digest, path=path, manifest=manifest, reused=reused)


def verify(artifact: Artifact) -> None:
    """Reads every file again.

    Raises:
        ValueError: a file's SHA-256 is not the manifest's; the message names the file.
    """
    load(artifact.path)
    for relative, entry in artifact.manifest["files"].items():
        if files.sha256_file(artifact.path / relative) != entry["sha256"]:
            raise _damaged(artifact.path, relative, "has another SHA-256 than its manifest says")


def _found(path: Path, digest: str) -> Artifact:
    artifact = load(path)
    if artifact.digest != digest:
        raise _damaged(path, MANIFEST, f"has digest {artifact.digest}, not {digest}")
    parts.forget(path)  # of a process that was killed between the last two lines of `build`
    return artifact


def _damaged(path: Path, relative: str, what: str) -> ValueError:
    return ValueError(f"damaged artifact: {path / relative} {what}; delete {path} to make it again")


def _provenance(seconds: float) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "host": platform.node(),
        "commit": source_commit(),
        "python": platform.python_version(),
    }


@functools.cache
def source_commit() -> str:
    """This package's git commit, with `-dirty` where files differ; empty outside a checkout."""
    folder = Path(__file__).parent
    # An installed copy can lie inside somebody else's repository: only a tracked file counts.
    tracked = ["ls-files", "--error-unmatch", Path(__file__).name]
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    answer = ""
    for arguments in (tracked, describe):
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if done.returncode:
            return ""
        answer = done.stdout.strip()
    return answer
