"""Debian packages from the archive that apt is configured for, read as data and never installed.

A recipe pins what was found once (package, version, SHA-256). Debian's archive drops old versions,
so a pin can become unreachable: `as_found` completes a corpus with what apt offers now.
"""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

from shoal.core.files import sha256_file
from shoal.core.progress import Progress
from shoal.data.config import Archive, CorpusConfig
from shoal.data.download import kept

TIMEOUT_S = 900.0


def fetch_deb(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The package's file in `folder`, downloaded by apt unless it is there with the right SHA-256.

    Raises:
        ValueError: apt is not there, does not have this version, or gives another file.
    """
    return kept(archive, folder, progress, lambda path: _download(archive, path, progress))


def _download(archive: Archive, path: Path, progress: Progress) -> None:
    scratch = path.with_name(f".{archive.filename}.part")
    scratch.mkdir(exist_ok=True)
    with progress.task(f"download {archive.filename}"):
        _run(["apt-get", "download", f"{archive.package}={archive.version}"], archive, scratch)
    (made,) = scratch.glob("*.deb")
    found = sha256_file(made)
    if found != archive.sha256:
        made.unlink()
        raise ValueError(
            f"{archive.filename}: expected sha256 {archive.sha256}, got {found}; check apt's "
            "sources, or pin the new file if you trust it"
        )
    made.replace(path)
    scratch.rmdir()


def found_now(package: str) -> Archive:
    """The pin of what apt offers for a package.

    Raises:
        ValueError: apt is not there or does not know the package.
    """
    pinned = Archive(
        form="deb", package=package, version="now", filename=f"{package}.deb", sha256="0" * 64
    )
    said = _run(["apt-cache", "show", "--no-all-versions", package], pinned, Path())
    fields = dict(re.findall(r"^(Version|Filename|SHA256): (\S+)$", said, re.MULTILINE))
    if len(fields) != 3:
        raise ValueError(f"apt knows no package {package}; run `apt-get update`, or leave it out")
    return replace(
        pinned,
        version=fields["Version"],
        filename=fields["Filename"].rpartition("/")[2],
        sha256=fields["SHA256"],
    )


def as_found(corpus: CorpusConfig, progress: Progress) -> CorpusConfig:
    """The corpus with every Debian package pinned to what apt offers now; says what changed."""
    sources = []
    pins: dict[str, Archive] = {}
    for source in corpus.sources:
        if source.archive.form != "deb":
            sources.append(source)
            continue
        package = source.archive.package
        if package not in pins:
            pins[package] = found_now(package)
            if pins[package] != source.archive:
                progress.note(
                    f"{package}: {source.archive.version} is pinned, apt has "
                    f"{pins[package].version} ({pins[package].sha256[:12]})"
                )
        sources.append(replace(source, archive=pins[package]))
    return replace(corpus, sources=tuple(sources))


def _run(command: list[str], archive: Archive, folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise ValueError(
            f"{archive.package}: there is no {command[0]} on this machine; leave Debian sources "
            f"out, or put {archive.filename} into the downloads folder"
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{archive.package}: {command[0]} took more than {TIMEOUT_S:.0f} s; run it again"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ValueError(
            f"{archive.package} {archive.version}: {command[0]} failed ({reason}); run `apt-get "
            "update`, or pin what apt has now (`shoal.data.debian.as_found`)"
        )
    return done.stdout
