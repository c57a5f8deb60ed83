"""Tiny archives and corpora, the same on every machine."""

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shoal.core.progress import Silent
from shoal.data.archive import content_digest
from shoal.data.config import (
    Archive,
    CorpusConfig,
    HeldoutConfig,
    Reader,
    Source,
    TokenizerConfig,
)

WORD_ENDS = ("ver", "ne", "ght", "ning", "rbor", "rden", "le", "w")
WORDS = tuple(f"{a}{b}" for a in ("ri", "sto", "li", "mor", "ha", "ga") for b in WORD_ENDS)


def prose(seed: int, num_words: int = 150) -> str:
    """Sentences that share no long n-gram with those of another seed."""
    drawn = random.Random(seed)
    words = [drawn.choice(WORDS) for _ in range(num_words)]
    sentences = [" ".join(words[i : i + 12]).capitalize() + "." for i in range(0, num_words, 12)]
    return "\n\n".join(" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)) + "\n"


@pytest.fixture
def silent() -> Silent:
    """Progress that prints nothing."""
    return Silent()


@pytest.fixture
def text() -> Callable[..., str]:
    """The function that makes reproducible prose."""
    return prose


@pytest.fixture
def zip_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a zip archive of member -> bytes."""

    def write(members: Mapping[str, bytes], name: str = "pack-1-py3-none-any.whl") -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(zipfile.ZipInfo(member), data, zipfile.ZIP_DEFLATED)
        return path

    return write


@pytest.fixture
def tar_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a gzipped tar archive of member -> bytes, or -> link target given as text."""

    def write(members: Mapping[str, bytes | str], name: str = "pack-1.tar.gz") -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w:gz") as archive:
            for member, data in members.items():
                entry = tarfile.TarInfo(member)
                if isinstance(data, str):
                    entry.type, entry.linkname = tarfile.SYMTYPE, data
                    archive.addfile(entry)
                else:
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def source() -> Callable[..., Source]:
    """A source that reads a local file, folder or package file; keywords go to its reader."""

    def make(path: Path, *, name: str = "one", form: str = "", **options: object) -> Source:
        own = {key: options.pop(key) for key in list(options) if key in SOURCE_FIELDS}
        form = form or ("folder" if path.is_dir() else "file")
        packaged = {"package": "pack", "version": "1", "filename": path.name}
        where = {"path": str(path)} if form in ("file", "folder") else packaged
        digest = content_digest(path) if path.exists() else "0" * 64
        return Source(
            name=name,
            kind=str(own.pop("kind", "prose")),
            archive=Archive(form=form, sha256=digest, **where),
            reader=Reader(**{"members": ("*",), **options}),
            origin="a test",
            license="CC0-1.0",
            license_evidence="written here",
            **own,
        )

    return make


SOURCE_FIELDS = ("kind", "usage", "domain", "limit_bytes", "heldout_bytes", "tokenizer_weight")


@pytest.fixture
def tiny(tmp_path: Path, source: Callable[..., Source]) -> CorpusConfig:
    """Two training sources and one evaluation source with every accident planted.

    alpha   40 documents of prose, one empty, one not UTF-8, one with the end-of-text literal
    beta    30 rows; row 0 repeats a document of alpha, rows 1 and 2 are the same
    gamma   evaluation: one clean document, one that quotes alpha, three words out of alpha
    """
    folder = tmp_path / "alpha"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.txt").write_text(prose(number), newline="")
    (folder / "empty.txt").write_text(" \n\t\n")
    (folder / "broken.txt").write_bytes(b"caf\xe9 au lait")
    (folder / "literal.txt").write_text("before <|endoftext|> after " + prose(900))
    rows = [prose(7), prose(1000), prose(1000), *(prose(1001 + n) for n in range(27))]
    beta = tmp_path / "beta.jsonl"
    beta.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    quoted = " ".join(prose(21).split()[20:50])
    gamma = tmp_path / "gamma.jsonl"
    short = " ".join(prose(22).split()[20:23])
    texts = (prose(5000), f"{prose(5001)} {quoted.upper()}!", short)
    gamma.write_text("".join(json.dumps({"text": row}) + "\n" for row in texts))
    return CorpusConfig(
        name="tiny",
        sources=(
            source(folder, name="alpha"),
            source(beta, name="beta", lines="json"),
            source(
                gamma,
                name="gamma",
                lines="json",
                kind="quotes",
                usage="evaluation",
                domain="letters",
            ),
        ),
        heldout=HeldoutConfig(budget_bytes=4_000, max_share=0.2, max_document_share=0.5),
        tokenizer=TokenizerConfig(vocab_size=400, sample_bytes=30_000),
        unit_tokens=256,
    )
