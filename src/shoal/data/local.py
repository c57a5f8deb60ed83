"""A corpus of the user's own text: a folder of text files, or one file of JSON lines or text."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

from shoal.data.archive import content_digest, records
from shoal.data.config import Archive, CorpusConfig, HeldoutConfig, Reader, Source
from shoal.data.normalize import Rejection, normalize

MIN_PIECE_BYTES = 600
MAX_PIECE_BYTES = 16_000


def local_corpus(path: Path, *, heldout: HeldoutConfig | None = None) -> CorpusConfig:
    """The corpus of one local source, pinned by its content.

    A folder gives every UTF-8 file below it (hidden files and links left out; others are counted as
    rejected); `.jsonl`, plain or packed (.gz, .zst), gives the string at `text` of each line, with
    `id` if there is one, and `.parquet` the string at `text` of each row. Longer records are cut
    between paragraphs, so that one big file still gives held-out documents.

    Raises:
        ValueError: nothing is there, a JSON line is wrong, or there is too little text to train on
            and hold out.
    """
    chosen = heldout or HeldoutConfig()
    path = path.expanduser().absolute()
    if not path.exists():
        raise ValueError(f"{path} is not there; give a folder of text files or a .jsonl file")
    source = _source(path)
    total = sum(_text_bytes(record.data) for record in records(source, path))
    budget = min(chosen.budget_bytes, int(total * chosen.max_share))
    piece = min(MAX_PIECE_BYTES, int(budget * chosen.max_document_share))
    if piece < MIN_PIECE_BYTES:
        needed = MIN_PIECE_BYTES / (chosen.max_share * chosen.max_document_share or 1)
        raise ValueError(
            f"{path} holds {total} bytes of UTF-8 text, fewer than the {needed:.0f} that training "
            "and a held-out part need; give more text (hidden files and links are not read)"
        )
    source = replace(source, reader=replace(source.reader, max_bytes=piece))
    return CorpusConfig(name=source.name, sources=(source,), heldout=chosen)


def _source(path: Path) -> Source:
    form = "folder" if path.is_dir() else "file"
    plain = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    lines: Literal["", "json", "parquet"] = ""
    if path.is_file() and plain.endswith((".jsonl", ".ndjson")):
        lines = "json"
    elif path.is_file() and plain.endswith(".parquet"):
        lines = "parquet"
    return Source(
        name=re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._") or "text",
        kind="own text",
        archive=Archive(form=form, path=str(path), sha256=content_digest(path)),
        reader=Reader(members=("*",), lines=lines, id_field="id" if lines == "json" else ""),
        origin=f"local {form} {path.name}",
        license="NOASSERTION",
        license_evidence="not stated: text given on the command line",
        personal_data="unscreened",
    )


def _text_bytes(data: bytes) -> int:
    return 0 if isinstance(normalize(data, len(data)), Rejection) else len(data)
