"""Stage `source`: the records of one source, capped by hash, reused without its archive."""

import errno
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.core.progress import Silent
from shoal.data import source as source_module
from shoal.data import table
from shoal.data.config import CorpusConfig, Reader, Source
from shoal.data.local import local_corpus
from shoal.data.source import TABLE, source_artifact

type Make = Callable[..., Path]
type MakeSource = Callable[..., Source]


def _rows(tmp_path: Path, source: Source) -> list[dict[str, object]]:
    artifact = source_artifact(tmp_path / "root", source, tmp_path, Silent())
    return table.read(artifact.path / TABLE).to_pylist()


def test_records_are_written_with_their_places(tmp_path: Path, tar_file: Make, source: MakeSource):
    path = tar_file({"pack-1/b.txt": b"two", "pack-1/a.txt": b"one\n\n" + b"x" * 9})
    one = source(path, form="sdist", max_bytes=10)
    artifact = source_artifact(tmp_path / "root", one, tmp_path, Silent())
    assert table.read(artifact.path / TABLE).to_pylist() == [
        {"source_id": "b.txt", "raw": b"two", "problem": ""},
        {"source_id": "a.txt#0000", "raw": b"one\n\n", "problem": ""},
        {"source_id": "a.txt#0001", "raw": b"x" * 9, "problem": ""},
    ]
    assert artifact.facts["records"] == 3
    assert artifact.facts["bytes"] == 17
    assert artifact.facts["problems"] == 0
    assert artifact.facts["revision"] == f"pack==1 sha256:{one.archive.sha256}"
    assert len(artifact.facts["retrieved"]) == len("2026-01-31")


def test_a_finished_source_needs_its_archive_no_more(
    tmp_path: Path, tar_file: Make, source: MakeSource
):
    path = tar_file({"pack-1/a.txt": b"one"})
    one = source(path, form="sdist")
    first = source_artifact(tmp_path / "root", one, tmp_path, Silent())
    path.unlink()
    again = source_artifact(tmp_path / "root", one, tmp_path, Silent())
    assert (first.reused, again.reused) == (False, True)
    assert again.digest == first.digest


def test_an_empty_source_is_named(tmp_path: Path, tar_file: Make, source: MakeSource):
    path = tar_file({"pack-1/a.txt": b"one"})
    one = source(path, form="sdist", members=("*.rst",))
    with pytest.raises(ValueError, match=r"source one is empty: nothing in pack-1.tar.gz matches"):
        _rows(tmp_path, one)
    assert not list((tmp_path / "root").glob("source-one@*"))


def test_a_missing_or_changed_local_source_is_named(tmp_path: Path, source: MakeSource):
    path = tmp_path / "text.txt"
    path.write_text("before")
    one = source(path)
    path.write_text("after")
    with pytest.raises(ValueError, match=r"source one: .*text.txt has changed"):
        _rows(tmp_path, one)
    path.unlink()
    with pytest.raises(ValueError, match=r"source one: .*text.txt is not there"):
        _rows(tmp_path, one)


def test_a_cap_keeps_the_same_records_in_any_order_and_more_for_a_larger_cap(
    tmp_path: Path, source: MakeSource
):
    rows = [json.dumps({"text": f"{number} " + "x" * (number % 37)}) for number in range(300)]
    kept: list[set[bytes]] = []
    for seed, limit in ((0, 2_000), (1, 2_000), (2, 4_000), (3, 10**9)):
        random.Random(seed).shuffle(rows)
        path = tmp_path / f"rows{seed}.jsonl"
        path.write_text("\n".join(rows))
        found = _rows(tmp_path, source(path, lines="json", limit_bytes=limit))
        kept.append({bytes(row["raw"]) for row in found})
        assert sum(map(len, kept[-1])) <= limit
    assert kept[0] == kept[1]
    assert kept[0] < kept[2] < kept[3]
    assert len(kept[3]) == 300
    assert sum(map(len, kept[0])) > 2_000 - 50


def test_a_digest_follows_what_decides_the_text_and_not_the_card(
    tmp_path: Path, tar_file: Make, source: MakeSource
):
    path = tar_file({"pack-1/a.txt": b"one", "pack-1/b.rst": b"two"})
    one = source(path, form="sdist")

    def digest(source: Source) -> str:
        return source_artifact(tmp_path / "root", source, tmp_path, Silent()).digest

    same = replace(
        one, origin="elsewhere", license="MIT", kind="web", name="other", personal_data="none"
    )
    assert digest(same) == digest(one)
    assert digest(replace(one, reader=Reader(members=("*.txt",)))) != digest(one)
    assert digest(replace(one, limit_bytes=100)) != digest(one)


def test_bytes_that_are_not_utf_8_are_cut_with_the_text_around_them(
    tmp_path: Path, source: MakeSource
):
    path = tmp_path / "text.txt"
    path.write_bytes(b"fine words\n\ncaf\xe9 au\n\nmore words\n")
    rows = _rows(tmp_path, source(path, max_bytes=14))
    assert [row["raw"] for row in rows] == [
        b"fine words\n\n",
        b"caf\xe9 au\n\n",
        b"more words\n",
    ]


def test_a_blocked_source_is_never_read(tmp_path: Path, source: MakeSource):
    path = tmp_path / "text.txt"
    path.write_text("text")
    one = replace(source(path), usage="blocked", blocked_because="its license is not known")
    with pytest.raises(ValueError, match=r"source one is blocked \(its license is not known\)"):
        _rows(tmp_path, one)
    assert not (tmp_path / "root").exists()


def test_row_groups_are_bounded_by_bytes_and_not_by_rows_alone(
    tmp_path: Path, source: MakeSource, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source_module, "GROUP_BYTES", 1_000)
    path = tmp_path / "rows.jsonl"
    sizes = [10] * 50 + [5_000] + [300] * 20
    path.write_text("".join(json.dumps({"text": "x" * size}) + "\n" for size in sizes))
    artifact = source_artifact(tmp_path / "root", source(path, lines="json"), tmp_path, Silent())
    with pq.ParquetFile(artifact.path / TABLE) as file:
        groups = [
            [len(raw) for raw in file.read_row_group(n)["raw"].to_pylist()]
            for n in range(file.num_row_groups)
        ]
    assert [size for group in groups for size in group] == sizes
    assert all(sum(group) <= 1_000 or len(group) == 1 for group in groups)


def test_a_full_disk_leaves_nothing_behind_and_a_second_try_is_whole(
    tmp_path: Path, source: MakeSource, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "text.txt"
    path.write_text("text")
    one = source(path)
    real = pq.ParquetWriter.write_table
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda *_, **__: _raise(full))
    # Which of the two classes it has is up to who made the artifact; the reason is the system's.
    with pytest.raises((OSError, ValueError), match="No space left on device"):
        _rows(tmp_path, one)
    assert list((tmp_path / "root").iterdir()) == []
    monkeypatch.setattr(pq.ParquetWriter, "write_table", real)
    assert [row["raw"] for row in _rows(tmp_path, one)] == [b"text"]


def _raise(error: Exception) -> None:
    raise error


def _own(path: Path) -> CorpusConfig:
    return local_corpus(path)


def test_own_text_in_one_big_file_gives_pieces_that_can_be_held_out(
    tmp_path: Path, text: Callable[..., str]
):
    path = tmp_path / "My Book.txt"
    path.write_text("".join(text(number) for number in range(200)))
    corpus = _own(path)
    assert corpus.name == "my-book"
    assert corpus.sources[0].license == "NOASSERTION"
    rows = _rows(tmp_path, corpus.sources[0])
    budget = corpus.heldout.max_share * path.stat().st_size
    largest = corpus.heldout.max_document_share * budget
    assert all(len(bytes(row["raw"])) <= largest for row in rows)


def test_own_text_in_a_folder_or_json_lines_is_pinned_by_content(
    tmp_path: Path, text: Callable[..., str]
):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    rows = [text(number) for number in range(80)]
    for number, row in enumerate(rows):
        (folder / "deep" / f"{number}.md").write_text(row)
    (folder / "image.bin").write_bytes(bytes(range(256)) * 500)
    lines = tmp_path / "notes.jsonl"
    lines.write_text(
        "".join(json.dumps({"text": row, "id": n}) + "\n" for n, row in enumerate(rows))
    )
    folded, lined = _own(folder), _own(lines)
    assert folded.sources[0].reader.max_bytes == lined.sources[0].reader.max_bytes
    assert len(_rows(tmp_path, lined.sources[0])) == 80
    moved = folder.rename(tmp_path / "moved")
    assert _own(moved).sources[0].archive.sha256 == folded.sources[0].archive.sha256


def test_own_text_that_is_missing_or_too_little_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="none is not there; give a folder of text files"):
        _own(tmp_path / "none")
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(ValueError, match=r"short.txt holds 5 bytes of UTF-8 text, fewer than"):
        _own(tmp_path / "short.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff" * 100_000)
    with pytest.raises(ValueError, match="holds 0 bytes of UTF-8 text"):
        _own(tmp_path / "binary.txt")
