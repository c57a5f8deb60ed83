"""Stage `documents`: what is text, what is not, and why."""

from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.artifact import Artifact
from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.config import CorpusConfig, Source
from shoal.data.normalize import REJECTED, Rejection, document_id, documents, normalize
from shoal.data.source import source_artifact


def _documents(tmp_path: Path, corpus: CorpusConfig) -> Artifact:
    root = tmp_path / "root"
    made = {s.name: source_artifact(root, s, tmp_path, Silent()) for s in corpus.sources}
    return documents(root, corpus, made, Silent())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb\rc\n", "a\nb\nc\n"),
        (b"\xef\xbb\xbfa", "a"),
        (b"a" + b" " * 500 + b"b", "a" + " " * 128 + "b"),
        (b"a" + b"\n" * 128 + b"b", "a" + "\n" * 128 + "b"),
        ("e\u0301 \u00e9".encode(), "e\u0301 \u00e9"),
        (("\u2028" * 300).encode() + b"x", "\u2028" * 128 + "x"),
    ],
)
def test_only_marks_line_ends_and_long_runs_change(data: bytes, text: str):
    assert normalize(data, 1_000) == text


@pytest.mark.parametrize(
    ("data", "rule", "evidence"),
    [
        (b"caf\xe9 au", "invalid UTF-8", "byte 0xe9 at offset 3"),
        (b"\xed\xa0\x80", "invalid UTF-8", "byte 0xed at offset 0"),
        (b"a\0b", "NUL byte", "at character 1"),
        (b" \r\n\t ", "empty", "5 bytes"),
        (b"", "empty", "0 bytes"),
        (b"x" * 101, "too long", "101 bytes, more than 100"),
    ],
)
def test_what_is_no_document_says_why(data: bytes, rule: str, evidence: str):
    found = normalize(data, 100)
    assert isinstance(found, Rejection)
    assert found.rule == rule
    assert found.evidence.startswith(evidence)


@given(text=st.text(st.sampled_from("ab \n\r\t\u3000é"), max_size=600))
def test_normalizing_twice_is_normalizing_once(text: str):
    once = normalize(text.encode(), 10_000)
    if isinstance(once, str):
        assert normalize(once.encode(), 10_000) == once


def test_documents_are_sorted_by_an_id_of_their_text(tmp_path: Path, tiny: CorpusConfig):
    made = _documents(tmp_path, tiny)
    for source in tiny.sources:
        rows = table.read(made.path / f"{source.name}.parquet").to_pylist()
        assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
        for row in rows:
            assert row["id"] == xxhash.xxh3_128_hexdigest(row["text"].encode())
            assert row["bytes"] == len(row["text"].encode())
            assert row["source"] == source.name
        assert made.facts["sources"][source.name]["documents"] == len(rows)
        assert made.facts["sources"][source.name]["bytes"] == sum(row["bytes"] for row in rows)


def test_every_record_is_a_document_or_explained(tmp_path: Path, tiny: CorpusConfig):
    made = _documents(tmp_path, tiny)
    rejected = table.read(made.path / REJECTED).to_pylist()
    assert [(row["source"], row["source_id"], row["rule"]) for row in rejected] == [
        ("alpha", "broken.txt", "invalid UTF-8"),
        ("alpha", "empty.txt", "empty"),
    ]
    facts = made.facts["sources"]["alpha"]
    assert (facts["documents"], facts["rejected"], facts["empty"]) == (41, 1, 1)
    assert facts["first_rejected"] == rejected[:1]


def test_a_source_of_which_nothing_is_text_is_named(tmp_path: Path, source: Callable[..., Source]):
    path = tmp_path / "broken.txt"
    path.write_bytes(b"\xff\xfe\xfd")
    corpus = CorpusConfig(name="bad", sources=(source(path, name="broken"),))
    with pytest.raises(ValueError, match=r"source broken: all 1 records are rejected.*broken\.txt"):
        _documents(tmp_path, corpus)


def test_an_id_depends_on_the_text_alone():
    assert document_id("") == "99aa06d3014798d86001c324468d497f"
    assert document_id("text") == document_id("text") != document_id("text ")
