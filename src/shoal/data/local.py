"""A corpus of the user's own text: a folder of text files, or one file of JSON lines or text."""

import hashlib
import re
from pathlib import Path

from shoal.core.files import sha256_file
from shoal.data.archive import folder_files
from shoal.data.config import Archive, CorpusConfig, HeldoutConfig, Reader, Source

MIN_BYTES = 20_000
PIECE_BYTES = (1_000, 16_000)


def local_corpus(path: Path, *, heldout: HeldoutConfig | None = None) -> CorpusConfig:
    """The corpus of one local source, pinned by its content.

    A folder gives every UTF-8 file below it (hidden files and links left out; others are counted as
    rejected); `.jsonl` gives the string at `text` of each line, with `id` if there is one. Longer
    records are cut between paragraphs, so that one big file still gives held-out documents.

    Raises:
        ValueError: nothing is there, or too little text to train on and hold out.
    """
    heldout = heldout or HeldoutConfig()
    path = path.expanduser().absolute()
    if not path.exists():
        raise ValueError(f"{path} is not there; give a folder of text files or a .jsonl file")
    total = sum(found.stat().st_size for _, found in _files(path))
    if total < MIN_BYTES:
        raise ValueError(
            f"{path} holds {total} bytes of files, fewer than {MIN_BYTES}; give more text "
            "(hidden files and links are not read)"
        )
    budget = min(heldout.budget_bytes, int(total * heldout.max_share))
    low, high = PIECE_BYTES
    piece = min(high, max(low, int(budget * heldout.max_document_share)))
    name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._") or "text"
    source = Source(
        name=name,
        kind="own text",
        archive=Archive(
            form="folder" if path.is_dir() else "file", path=str(path), sha256=content_digest(path)
        ),
        reader=Reader(
            members=("*",),
            lines="json" if path.suffix.lower() in (".jsonl", ".ndjson") else "",
            id_field="id",
            max_bytes=piece,
        ),
        origin=f"local {'folder' if path.is_dir() else 'file'} {path.name}",
        license="NOASSERTION",
        license_evidence="not stated: text given on the command line",
    )
    return CorpusConfig(name=name, sources=(source,), heldout=heldout)


def content_digest(path: Path) -> str:
    """SHA-256 of a file, or over the sorted names and SHA-256 of a folder's files."""
    if path.is_file():
        return sha256_file(path)
    digest = hashlib.sha256()
    for name, found in _files(path):
        digest.update(f"{sha256_file(found)}  {name}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(path: Path) -> list[tuple[str, Path]]:
    return list(folder_files(path)) if path.is_dir() else [(path.name, path)]
