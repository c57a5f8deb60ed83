"""Stage `documents`: what is text, what is not, and why."""

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.artifact import Artifact
from shoal.core.parts import DONE, PARTIAL
from shoal.core.progress import Silent
from shoal.data import runs, shards, table
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


def test_counts_are_those_of_the_written_files(tmp_path: Path, tiny: CorpusConfig):
    made = _documents(tmp_path, tiny)
    rejected = table.read(made.path / REJECTED).to_pylist()
    for source in tiny.sources:
        rows = table.read(made.path / f"{source.name}.parquet").to_pylist()
        mine = [row for row in rejected if row["source"] == source.name]
        facts = made.facts["sources"][source.name]
        assert facts["languages"] == dict(Counter(row["language"] for row in rows).most_common())
        assert facts["empty"] == sum(row["rule"] == "empty" for row in mine)
        assert facts["rejected"] == len(mine) - facts["empty"]
        assert all((row["language"], row["language_score"]) != ("", None) for row in rows)


def test_languages_are_those_of_the_texts(tmp_path: Path, source: Callable[..., Source]):
    folder = tmp_path / "many"
    folder.mkdir()
    german = "Alle Menschen sind frei und gleich an Würde und Rechten geboren. "
    (folder / "de.txt").write_text(german * 3)
    (folder / "short.txt").write_text("1 2 3")
    made = _documents(tmp_path, CorpusConfig(name="many", sources=(source(folder),)))
    rows = table.read(made.path / "one.parquet").to_pylist()
    assert {row["source_id"]: row["language"] for row in rows} == {
        "de.txt": "de",
        "short.txt": "und",
    }
    assert made.facts["sources"]["one"]["languages"] == {"de": 1, "und": 1}


def test_the_files_do_not_depend_on_how_much_is_sorted_at_a_time(
    tmp_path: Path, tiny: CorpusConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runs, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(runs, "RUN_GROUP_BYTES", 1_000)
    whole = _documents(tmp_path / "whole", tiny)
    with pq.ParquetFile(whole.path / "alpha.parquet") as file:
        assert 1 < file.num_row_groups < 10, "a source of one shard is in groups of the result"
    monkeypatch.setattr(shards, "SHARD_BYTES", 3_000)
    monkeypatch.setattr(runs, "FAN_IN", 2)
    small = _documents(tmp_path / "small", tiny)
    names = sorted(path.name for path in whole.path.iterdir())
    assert sorted(path.name for path in small.path.iterdir()) == names
    for name in set(names) - {"manifest.json"}:
        assert (small.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_one_text_in_two_sources_has_one_id_and_two_documents(
    tmp_path: Path, source: Callable[..., Source]
):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("the same text")
    sources = tuple(source(tmp_path / f"{name}.txt", name=name) for name in ("a", "b"))
    made = _documents(tmp_path, CorpusConfig(name="twice", sources=sources))
    one, two = (table.read(made.path / f"{name}.parquet").to_pylist()[0] for name in ("a", "b"))
    assert one["id"] == two["id"]
    assert (one["source"], two["source"]) == ("a", "b")


def test_a_blocked_source_is_not_asked_for(tmp_path: Path, tiny: CorpusConfig):
    alpha, beta, gamma = tiny.sources
    blocked = replace(beta, usage="blocked", blocked_because="a test")
    root = tmp_path / "root"
    made = {s.name: source_artifact(root, s, tmp_path, Silent()) for s in (alpha, gamma)}
    done = documents(root, replace(tiny, sources=(alpha, blocked, gamma)), made, Silent())
    assert set(done.facts["sources"]) == {"alpha", "gamma"}
    assert not (done.path / "beta.parquet").exists()


@pytest.mark.parametrize("when", [0, 3])
def test_a_full_disk_leaves_whole_parts_at_most_and_a_second_try_is_whole(
    tmp_path: Path, tiny: CorpusConfig, monkeypatch: pytest.MonkeyPatch, when: int
):
    whole = _documents(tmp_path / "whole", tiny)
    root = tmp_path / "root"
    made = {s.name: source_artifact(root, s, tmp_path, Silent()) for s in tiny.sources}
    before = sorted(root.iterdir())
    real = pq.ParquetWriter.write_table
    left = [when]

    def write(self: pq.ParquetWriter, rows: pa.Table) -> None:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        real(self, rows)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write)
    with pytest.raises((OSError, ValueError), match="No space left on device"):
        documents(root, tiny, made, Silent())
    left_over = set(root.iterdir()) - set(before)
    assert {path.suffix for path in left_over} <= {PARTIAL}
    assert all((one / DONE).is_file() for path in left_over for one in path.glob("[!_]*"))
    monkeypatch.setattr(pq.ParquetWriter, "write_table", real)
    again = documents(root, tiny, made, Silent())
    assert sorted(root.iterdir()) == sorted([*before, again.path])
    for name in ("alpha.parquet", "beta.parquet", REJECTED):
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_an_id_depends_on_the_text_alone():
    assert document_id("") == "99aa06d3014798d86001c324468d497f"
    assert document_id("text") == document_id("text") != document_id("text ")
