"""Data sets of the Hugging Face hub at a pinned commit, read from their own Parquet or JSON files.

Only files that the reader's patterns select are downloaded; no code of a data set is run. The
archive's SHA-256 covers names and content of those files, so that even a rewritten history of the
repository fails.
"""

import os
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from shoal.core.progress import Progress
from shoal.data.archive import content_digest
from shoal.data.config import Archive, Reader
from shoal.data.members import folder_files


def fetch_hub(archive: Archive, reader: Reader, folder: Path, progress: Progress) -> Path:
    """The folder with the data set's selected files.

    Raises:
        ValueError: the hub cannot be reached, has no such commit, or gives other files.
    """
    place = _download(archive, reader, folder, progress)
    found = content_digest(place)
    if found != archive.sha256:
        raise ValueError(
            f"{archive.package} at {archive.version}: expected sha256 {archive.sha256}, got "
            f"{found}; the files are not the pinned ones: delete {place} to get them again, or "
            "pin the new files if you trust them"
        )
    return place


def pinned(archive: Archive, reader: Reader, folder: Path, progress: Progress) -> Archive:
    """The archive with the SHA-256 of what its commit holds now; run once, when a card is made."""
    return replace(archive, sha256=content_digest(_download(archive, reader, folder, progress)))


def _download(archive: Archive, reader: Reader, folder: Path, progress: Progress) -> Path:
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    place = folder / f"hub-{archive.package.replace('/', '--')}-{archive.version[:12]}"
    patterns = list(reader.members)
    try:
        with progress.task(f"download {archive.package}"):
            snapshot_download(
                archive.package,
                repo_type="dataset",
                revision=archive.version,
                local_dir=place,
                allow_patterns=patterns,
                ignore_patterns=list(reader.exclude) or None,
            )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{archive.package} at {archive.version} cannot be downloaded ({reason}); check the "
            "network, the name and the commit"
        ) from error
    names = [name for name, _ in folder_files(place)]
    if not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
        raise ValueError(
            f"{archive.package} at {archive.version} has no file that matches {patterns}; correct "
            "members"
        )
    return place
