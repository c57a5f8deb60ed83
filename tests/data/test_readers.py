"""What records are taken from: packed lines, Parquet, Debian packages, web archives, URLs."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from shoal.core.progress import Silent
from shoal.data import table
from shoal.data.archive import content_digest, records
from shoal.data.config import Archive, CorpusConfig, Reader, Source
from shoal.data.local import local_corpus
from shoal.data.members import Limits, Record
from shoal.data.normalize import REJECTED, documents
from shoal.data.source import TABLE, source_artifact

type Make = Callable[..., Path]
type MakeSource = Callable[..., Source]

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "dz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def _all(source: Source, path: Path | str, **limits: int) -> dict[str, bytes]:
    return {r.source_id: r.data for r in records(source, path, Limits(**limits))}


def _problems(source: Source, path: Path) -> dict[str, str]:
    return {r.source_id: r.problem for r in records(source, path) if r.problem}


@pytest.mark.parametrize("suffix", PACK)
def test_packed_lines_read_as_plain_ones(tmp_path: Path, source: MakeSource, suffix: str):
    plain = b"".join(b'{"text": "row %d"}\n' % number for number in range(500))
    path = tmp_path / f"rows.jsonl.{suffix}"
    half = len(plain) // 2
    # Two frames one after the other, as parallel packers write them.
    path.write_bytes(PACK[suffix](plain[:half]) + PACK[suffix](plain[half:]))
    found = _all(source(path, lines="json"), path)
    assert list(found.values()) == [b"row %d" % number for number in range(500)]
    assert list(found)[7] == f"rows.jsonl.{suffix}:8"


@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_bomb_is_refused_while_it_unpacks(tmp_path: Path, source: MakeSource, suffix: str):
    path = tmp_path / f"text.txt.{suffix}"
    path.write_bytes(PACK[suffix](bytes(3_000_000)))
    assert path.stat().st_size < 5_000
    limits = {"ratio": 10, "ratio_from_bytes": 1_000_000}
    with pytest.raises(ValueError, match="unpacks to more than the limit; refused"):
        _all(source(path), path, **limits)
    with pytest.raises(ValueError, match="unpacks to more than the limit; refused"):
        _all(source(path, lines="json"), path, **limits)
    assert len(_all(source(path), path)[path.name]) == 3_000_000


def test_packed_members_of_an_archive_are_bombs_too(
    zip_file: Make, tar_file: Make, source: MakeSource
):
    inner = gzip.compress(bytes(3_000_000))
    wheel = zip_file({"a.txt.gz": inner})
    tar = tar_file({"pack-1/a.txt.gz": inner})
    for path, form in ((wheel, "wheel"), (tar, "sdist")):
        with pytest.raises(ValueError, match="unpacks to more than the limit; refused"):
            _all(source(path, form=form), path, ratio=10, ratio_from_bytes=1_000_000)


def test_what_is_packed_twice_is_unpacked_once(tmp_path: Path, source: MakeSource):
    inner = gzip.compress(b"text", mtime=0)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(inner))
    assert _all(source(path), path) == {"a.txt.gz": inner}


@pytest.mark.parametrize("suffix", PACK)
def test_a_damaged_packed_file_is_named(tmp_path: Path, source: MakeSource, suffix: str):
    path = tmp_path / f"rows.jsonl.{suffix}"
    lines = "".join(f'{{"text": "{number * 7919 % 10_007}"}}\n' for number in range(9_000))
    whole = PACK[suffix](lines.encode())
    path.write_bytes(whole[: len(whole) // 2] + b"!" * 100)
    with pytest.raises(ValueError, match=rf"source one: .*rows\.jsonl\.{suffix}"):
        _all(source(path, lines="json"), path)


def _parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_rows_give_the_text_column_with_row_and_id(tmp_path: Path, source: MakeSource):
    columns = {
        "text": [f"row {n}" for n in range(700)],
        "id": list(range(700)),
        "kind": ["a", "b"] * 350,
    }
    path = _parquet(tmp_path / "rows.parquet", columns, row_group_size=100)
    found = _all(source(path, lines="parquet", id_field="id", where=("kind", "b")), path)
    assert list(found.items())[:2] == [
        ("rows.parquet:2:1", b"row 1"),
        ("rows.parquet:4:3", b"row 3"),
    ]
    assert len(found) == 350


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_string_type_of_parquet_is_text(
    tmp_path: Path, source: MakeSource, kind: pa.DataType
):
    texts = pa.array(["one", "two", "one"], pa.string()).cast(kind)
    path = _parquet(tmp_path / "rows.parquet", {"text": texts})
    assert list(_all(source(path, lines="parquet"), path).values()) == [b"one", b"two", b"one"]


def test_parquet_inside_a_wheel_and_a_tar_is_read(
    tmp_path: Path, zip_file: Make, tar_file: Make, source: MakeSource
):
    data = _parquet(tmp_path / "rows.parquet", {"text": ["one", "two"]}).read_bytes()
    wheel = zip_file({"d/rows.parquet": data})
    tar = tar_file({"pack-1/d/rows.parquet": data})
    for path, form in ((wheel, "wheel"), (tar, "sdist")):
        found = _all(source(path, form=form, members=("*.parquet",), lines="parquet"), path)
        assert found == {"d/rows.parquet:1": b"one", "d/rows.parquet:2": b"two"}


def test_a_column_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, source: MakeSource
):
    path = _parquet(tmp_path / "rows.parquet", {"body": ["one"], "title": ["two"]})
    with pytest.raises(ValueError, match=r"no column 'text' \(its columns: body, title\)"):
        _all(source(path, lines="parquet"), path)
    with pytest.raises(ValueError, match="no column 'key'"):
        _all(source(path, lines="parquet", text_field="body", id_field="key"), path)


@pytest.mark.parametrize("where", ["footer", "page", "cut"])
def test_corrupt_parquet_is_named(tmp_path: Path, source: MakeSource, where: str):
    texts = [f"{number * 7919 % 10_007} words" for number in range(5_000)]
    options = {"compression": "zstd", "use_dictionary": False}
    path = _parquet(tmp_path / "rows.parquet", {"text": texts}, **options)
    data = bytearray(path.read_bytes())
    if where == "cut":
        data = data[: len(data) // 2]
    else:
        at = len(data) - 60 if where == "footer" else len(data) // 3
        data[at : at + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"(?s)source one: .*rows\.parquet.*get the file again"):
        _all(source(path, lines="parquet"), path)


def test_a_field_pattern_makes_each_field_a_record(tmp_path: Path, source: MakeSource):
    path = tmp_path / "rows.jsonl"
    rows = [{"0": "a b", "1": "b a", "score": "9", "2": 5}, {"10": "c"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = _all(source(path, lines="json", text_field="[0-9]*"), path)
    assert found == {
        "rows.jsonl:1:0": b"a b",
        "rows.jsonl:1:1": b"b a",
        "rows.jsonl:2:10": b"c",
    }
    path.write_text('{"score": "9"}')
    with pytest.raises(ValueError, match=r"no text at '\[0-9\]\*' \('score'\)"):
        _all(source(path, lines="json", text_field="[0-9]*"), path)


def _deb(path: Path, members: dict[str, bytes | str], suffix: str = "xz") -> Path:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            if isinstance(data, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, data
                archive.addfile(entry)
            else:
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    packed = PACK[suffix](plain.getvalue()) if suffix else plain.getvalue()
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": b"odd",
        f"data.tar.{suffix}".rstrip("."): packed,
    }
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, data in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
            file.write(data + b"\n" * (len(data) % 2))
    return path


@pytest.mark.parametrize("suffix", ["xz", "zst", "gz", ""])
def test_a_debian_package_is_read_without_unpacking_it(
    tmp_path: Path, source: MakeSource, suffix: str
):
    members: dict[str, bytes | str] = {
        "./usr/share/doc/pack/a.txt": b"one",
        "./usr/share/doc/pack/b.txt.gz": gzip.compress(b"two"),
        "./usr/share/doc/pack/c.txt": "a.txt",
        "./usr/bin/pack": b"\x7fELF",
    }
    path = _deb(tmp_path / "pack_1_all.deb", members, suffix)
    one = source(path, form="deb", members=("usr/share/doc/*",))
    assert _all(one, path) == {
        "usr/share/doc/pack/a.txt": b"one",
        "usr/share/doc/pack/b.txt.gz": b"two",
    }
    assert [found.name for found in tmp_path.iterdir()] == ["pack_1_all.deb"]


def test_a_hostile_or_damaged_debian_package_is_refused(tmp_path: Path, source: MakeSource):
    path = _deb(tmp_path / "pack_1_all.deb", {"./../etc/passwd": b"evil"})
    with pytest.raises(ValueError, match="points outside the archive; refused"):
        _all(source(path, form="deb"), path)
    path = _deb(tmp_path / "pack_1_all.deb", {"./a.txt": bytes(3_000_000)})
    with pytest.raises(ValueError, match="unpacks to more than the limit"):
        _all(source(path, form="deb"), path, total_bytes=1_000_000)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"no archive", whole[:80]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"pack_1_all\.deb cannot be read as a deb"):
            _all(source(path, form="deb"), path)


def _warc(path: Path, responses: list[tuple[str, str, dict[str, str], bytes]]) -> Path:
    pack = gzip.compress if path.suffix == ".gz" else bytes
    parts = [_warc_record("warcinfo", "<urn:uuid:info>", b"software: test\r\n")]
    for number, (status, kind, further, body) in enumerate(responses):
        parts.append(_warc_record("request", f"<urn:uuid:r{number}>", b"GET / HTTP/1.1\r\n\r\n"))
        fields = "".join(f"{k}: {v}\r\n" for k, v in ({"Content-Type": kind} | further).items())
        http = f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + body
        parts.append(_warc_record("response", f"<urn:uuid:{number}>", http))
    path.write_bytes(b"".join(map(pack, parts)))
    return path


def _warc_record(kind: str, identity: str, block: bytes) -> bytes:
    content = (
        "application/warc-fields" if kind == "warcinfo" else f"application/http;msgtype={kind}"
    )
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: {identity}\r\n"
        f"WARC-Target-URI: http://example.test/\r\nWARC-Date: 2026-12-01T00:00:00Z\r\n"
        f"Content-Type: {content}\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


PAGE = "<html><body><nav>Menu</nav><h1>Café</h1><p>Text</p></body></html>"


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.warc.gz"])
def test_responses_of_a_web_archive_give_their_text(tmp_path: Path, source: MakeSource, name: str):
    chunked = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    path = _warc(
        tmp_path / name,
        [
            ("200 OK", "text/html; charset=utf-8", {}, PAGE.encode()),
            ("200 OK", "text/html; charset=ISO-8859-1", {}, PAGE.encode("latin-1")),
            ("200 OK", "text/html", {"Content-Encoding": "gzip"}, gzip.compress(PAGE.encode())),
            ("200 OK", "text/plain", {"Transfer-Encoding": "chunked"}, chunked),
        ],
    )
    found = _all(source(path, lines="warc"), path)
    page = "Café\n\nText\n".encode()
    assert found == {
        "<urn:uuid:0>": page,
        "<urn:uuid:1>": page,
        "<urn:uuid:2>": page,
        "<urn:uuid:3>": b"hello world",
    }


def test_responses_that_are_no_text_keep_their_place_with_a_reason(
    tmp_path: Path, source: MakeSource
):
    path = _warc(
        tmp_path / "crawl.warc.gz",
        [
            ("404 Not Found", "text/html", {}, b"gone"),
            ("200 OK", "image/png", {}, b"\x89PNG"),
            ("200 OK", "text/html", {"Content-Encoding": "br"}, b"packed"),
            ("200 OK", "text/html; charset=utf-8", {}, b"caf\xe9"),
        ],
    )
    one = source(path, lines="warc")
    assert _problems(one, path) == {
        "<urn:uuid:0>": "status 404",
        "<urn:uuid:1>": "content type image/png",
        "<urn:uuid:2>": "content encoding br",
    }
    assert _all(one, path)["<urn:uuid:3>"] == b"caf\xe9"


def test_a_response_that_unpacks_beyond_the_limit_keeps_its_place(
    tmp_path: Path, source: MakeSource
):
    bomb = gzip.compress(b"a" * 3_000_000)
    path = _warc(
        tmp_path / "crawl.warc", [("200 OK", "text/html", {"Content-Encoding": "gzip"}, bomb)]
    )
    found = list(records(source(path, lines="warc"), path, Limits(record_bytes=100_000)))
    problem = "the response is longer than 100000 bytes"
    assert found == [Record(source_id="<urn:uuid:0>", data=b"", problem=problem)]


def test_what_is_no_web_archive_is_named(tmp_path: Path, source: MakeSource):
    path = tmp_path / "crawl.warc"
    path.write_text("this is no archive\n" * 20)
    with pytest.raises(ValueError, match=r"source one: .*crawl\.warc is no WARC file"):
        _all(source(path, lines="warc"), path)


def _url_source(url: str, lines: str = "") -> Source:
    return Source(
        name="remote",
        kind="prose",
        archive=Archive(form="folder", path=url, sha256=content_digest(url)),
        reader=Reader(members=("*.txt", "*.jsonl", "*.gz"), lines=lines),
        origin="a test",
        license="CC0-1.0",
        license_evidence="written here",
    )


@pytest.fixture
def memory() -> Any:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe("/corpus/b/two.txt", b"two")
    system.pipe("/corpus/a.txt.gz", gzip.compress(b"one", mtime=0))
    system.pipe("/corpus/.hidden.txt", b"hidden")
    system.pipe("/corpus/c.bin", b"binary")
    yield system
    system.store.clear()


def test_a_folder_at_a_url_reads_as_one_on_disk(memory: Any, tmp_path: Path):
    one = _url_source("memory://corpus")
    expected = {"a.txt.gz": b"one", "b/two.txt": b"two"}
    assert _all(one, one.archive.path) == expected
    folder = tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    for name in ("b/two.txt", "a.txt.gz", ".hidden.txt", "c.bin"):
        (folder / name).write_bytes(memory.cat(f"/corpus/{name}"))
    assert content_digest(folder) == one.archive.sha256
    artifact = source_artifact(tmp_path / "root", one, tmp_path, Silent())
    rows = table.read(artifact.path / TABLE).to_pylist()
    assert {row["source_id"]: row["raw"] for row in rows} == expected


def test_a_file_at_a_url_has_the_digest_of_its_bytes(memory: Any, tmp_path: Path):
    lines = b'{"text": "one"}\n'
    memory.pipe("/rows.jsonl", lines)
    (tmp_path / "rows.jsonl").write_bytes(lines)
    assert content_digest("memory://rows.jsonl") == content_digest(tmp_path / "rows.jsonl")
    assert _all(_url_source("memory://rows.jsonl", "json"), "memory://rows.jsonl") == {
        "rows.jsonl:1": b"one"
    }
    assert content_digest(f"file://{tmp_path}/rows.jsonl") == content_digest("memory://rows.jsonl")


def test_a_url_that_changed_or_is_not_there_is_named(memory: Any, tmp_path: Path):
    one = _url_source("memory://corpus")
    memory.pipe("/corpus/b/two.txt", b"other")
    with pytest.raises(ValueError, match=r"source remote: memory://corpus has changed"):
        source_artifact(tmp_path / "root", one, tmp_path, Silent())
    gone = replace(one, archive=replace(one.archive, path="memory://nothing"))
    with pytest.raises(ValueError, match="memory://nothing is not there"):
        source_artifact(tmp_path / "root", gone, tmp_path, Silent())


def test_own_text_may_be_packed_lines_or_parquet(tmp_path: Path, text: Callable[..., str]):
    rows = [text(number) for number in range(80)]
    packed = tmp_path / "notes.jsonl.zst"
    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
    packed.write_bytes(PACK["zst"](lines.encode()))
    columns = _parquet(tmp_path / "notes.parquet", {"text": rows})
    for path in (packed, columns):
        (source,) = local_corpus(path).sources
        assert [record.data for record in records(source, path)] == [row.encode() for row in rows]


def test_every_accident_of_a_source_is_counted_and_nothing_else_is_lost(
    tmp_path: Path, source: MakeSource
):
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "fine.txt").write_text("plain words\n")
    (folder / "latin.txt").write_bytes("déjà vu".encode("latin-1"))
    (folder / "utf16.txt").write_bytes("words".encode("utf-16"))
    (folder / "long.txt").write_text("x" * 1_001)
    (folder / "empty.txt").write_text("")
    corpus = CorpusConfig(name="mixed", sources=(source(folder),), max_document_bytes=1_000)
    made = {"one": source_artifact(tmp_path / "root", corpus.sources[0], tmp_path, Silent())}
    done = documents(tmp_path / "root", corpus, made, Silent())
    rules = {row["source_id"]: row["rule"] for row in table.read(done.path / REJECTED).to_pylist()}
    assert rules == {
        "latin.txt": "invalid UTF-8",
        "utf16.txt": "invalid UTF-8",
        "long.txt": "too long",
        "empty.txt": "empty",
    }
    facts = done.facts["sources"]["one"]
    counts = (facts["documents"], facts["rejected"], facts["empty"])
    assert counts == (1, 3, 1)
    assert sum(counts) == made["one"].facts["records"]


def test_a_line_of_a_hundred_megabytes_is_counted_and_the_rest_kept(
    tmp_path: Path, source: MakeSource
):
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        file.write('{"text": "before"}\n{"text": "')
        for _ in range(100):
            file.write("long words " * 95_326)
        file.write('"}\n{"text": "after"}\n')
    assert path.stat().st_size > 100_000_000
    corpus = CorpusConfig(name="long", sources=(source(path, lines="json"),))
    made = {"one": source_artifact(tmp_path / "root", corpus.sources[0], tmp_path, Silent())}
    done = documents(tmp_path / "root", corpus, made, Silent())
    assert done.facts["sources"]["one"]["documents"] == 2
    (rejected,) = done.facts["sources"]["one"]["first_rejected"]
    assert (rejected["source_id"], rejected["rule"]) == ("rows.jsonl:2", "unreadable")
    assert rejected["evidence"] == "the line is longer than 67108864 bytes"
