"""Archives are read as data: within limits, inside their own folder, no link followed."""

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.data.archive import content_digest, records
from shoal.data.config import Source
from shoal.data.members import Limits, Record, folder_files

type Make = Callable[..., Path]
type MakeSource = Callable[..., Source]


def _all(source: Source, path: Path, **limits: int) -> dict[str, bytes]:
    return {r.source_id: r.data for r in records(source, path, Limits(**limits))}


def test_patterns_choose_members_of_a_wheel(zip_file: Make, source: MakeSource):
    path = zip_file({"a/x.txt": b"one", "a/b/y.txt": b"two", "a/z.py": b"code", "t/w.txt": b"no"})
    one = source(path, form="wheel", members=("a/*.txt",), exclude=("*/y.txt",))
    assert _all(one, path) == {"a/x.txt": b"one"}


def test_the_leading_folder_of_a_source_distribution_is_left_off(
    tar_file: Make, source: MakeSource
):
    path = tar_file({"pack-1/docs/x.txt": b"one", "pack-1/setup.py": b"code", "loose.txt": b"no"})
    assert _all(source(path, form="sdist", members=("docs/*",)), path) == {"docs/x.txt": b"one"}


def test_latin_1_becomes_utf_8(tar_file: Make, source: MakeSource):
    path = tar_file({"pack-1/x.txt": b"caf\xe9"})
    found = _all(source(path, form="sdist", encoding="latin-1"), path)
    assert found == {"x.txt": "café".encode()}


@pytest.mark.parametrize("name", ["../x.txt", "/etc/x.txt", "a/../../x.txt", "a\\..\\..\\x.txt"])
def test_a_zip_member_outside_the_archive_refuses_the_archive(
    zip_file: Make, source: MakeSource, name: str
):
    path = zip_file({"fine.txt": b"fine", name: b"evil"})
    with pytest.raises(ValueError, match=r"source one: .*points outside the archive; refused"):
        _all(source(path, form="wheel", members=("*.txt",)), path)


@pytest.mark.parametrize("name", ["../x.txt", "/etc/x.txt", "pack-1/../../x.txt"])
def test_a_tar_member_outside_the_archive_refuses_the_archive(
    tar_file: Make, source: MakeSource, name: str
):
    path = tar_file({name: b"evil"})
    with pytest.raises(ValueError, match="points outside the archive; refused"):
        _all(source(path, form="sdist"), path)


def test_links_are_not_followed(tar_file: Make, tmp_path: Path, source: MakeSource, zip_file: Make):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    tar = tar_file({"pack-1/x.txt": b"one", "pack-1/link.txt": str(secret)})
    assert list(_all(source(tar, form="sdist"), tar)) == ["x.txt"]
    wheel = zip_file({"x.txt": b"one"})
    with zipfile.ZipFile(wheel, "a") as archive:
        entry = zipfile.ZipInfo("link.txt")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, str(secret))
    assert list(_all(source(wheel, form="wheel"), wheel)) == ["x.txt"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.txt").write_text("one")
    (folder / "link.txt").symlink_to(secret)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / ".hidden").write_text("hidden")
    assert [name for name, _ in folder_files(folder)] == ["x.txt"]


def test_a_bomb_is_refused_by_member_and_in_all(zip_file: Make, tar_file: Make, source: MakeSource):
    zeros = bytes(1_000_000)
    wheel = zip_file({"a.txt": zeros, "b.txt": zeros})
    tar = tar_file({"pack-1/a.txt": zeros, "pack-1/b.txt": zeros})
    assert wheel.stat().st_size < 10_000
    assert tar.stat().st_size < 10_000
    for path, form in ((wheel, "wheel"), (tar, "sdist")):
        one = source(path, form=form)
        assert len(_all(one, path)) == 2
        with pytest.raises(ValueError, match=r"a\.txt is larger than 1000 bytes; refused"):
            _all(one, path, member_bytes=1_000)
        with pytest.raises(ValueError, match="refused"):
            _all(one, path, total_bytes=1_500_000)
        with pytest.raises(ValueError, match=r"members.*refused|more than 1 members; refused"):
            _all(one, path, members=1)


def test_a_tar_is_limited_in_what_it_unpacks_even_where_nothing_is_taken(
    tar_file: Make, source: MakeSource
):
    path = tar_file({"pack-1/skip.bin": bytes(5_000_000), "pack-1/x.txt": b"one"})
    with pytest.raises(ValueError, match="unpacks to more than the limit"):
        _all(source(path, form="sdist", members=("*.txt",)), path, total_bytes=1_000_000)


def test_two_members_of_one_name_are_refused(tmp_path: Path, source: MakeSource):
    path = tmp_path / "pack-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.txt", "one")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.txt", "two")
    with pytest.raises(ValueError, match=r"member 'x\.txt' is there twice"):
        _all(source(path, form="wheel"), path)


@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_a_damaged_archive_is_named(
    tmp_path: Path, tar_file: Make, zip_file: Make, source: MakeSource, form: str
):
    whole = zip_file({"x.txt": b"one" * 999}) if form == "wheel" else None
    whole = whole or tar_file({"pack-1/x.txt": b"one" * 999})
    path = tmp_path / "damaged.zip"
    path.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(ValueError, match=f"source one: .*cannot be read as a {form}.*again"):
        _all(source(path, form=form), path)


def test_json_lines_give_the_text_field_with_line_and_id(tmp_path: Path, source: MakeSource):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "a", "id": 7}\n\n{"text": "b"}\r\n{"text": "c", "id": "k"}'
    )
    found = _all(source(path, lines="json", id_field="id"), path)
    assert found == {"rows.jsonl:1:7": b"a", "rows.jsonl:3": b"b", "rows.jsonl:4:k": b"c"}


def test_json_rows_can_be_chosen_by_a_value(tmp_path: Path, source: MakeSource):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "a", "type": "x"}, {"text": "b", "type": "y"}, {"text": "c"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = _all(source(path, lines="json", where=("type", "y")), path)
    assert found == {"rows.jsonl:2": b"b"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'text': 1}", "line 2 of rows.jsonl is not JSON"),
        ('{"body": "b"}', r"line 2 of rows.jsonl has no text at 'text' \('body'\)"),
        ('{"text": 5}', "line 2 of rows.jsonl has no text at 'text'"),
        ('["text"]', r"line 2 of rows.jsonl has no text at 'text' \(no object\)"),
        ("[" * 100_000, "line 2 of rows.jsonl is not JSON"),
    ],
)
def test_a_wrong_json_line_is_named(tmp_path: Path, source: MakeSource, line: str, message: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match=message):
        _all(source(path, lines="json"), path)


def test_json_lines_that_are_not_utf_8_reach_the_check_as_they_are(
    tmp_path: Path, source: MakeSource
):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n{"text": "\\ud800"}\n')
    found = _all(source(path, lines="json"), path)
    for place in ("rows.jsonl:2", "rows.jsonl:3"):
        with pytest.raises(UnicodeDecodeError):
            found[place].decode()


def test_a_line_beyond_the_limit_keeps_its_place_with_a_problem(tmp_path: Path, source: MakeSource):
    path = tmp_path / "rows.jsonl"
    long = '{"text": "' + "a" * 700_000 + '"}'
    path.write_text(f'{{"text": "before"}}\n{long}\n{{"text": "after"}}\n{long}')
    found = list(records(source(path, lines="json"), path, Limits(record_bytes=100)))
    problem = "the line is longer than 100 bytes"
    assert found == [
        Record(source_id="rows.jsonl:1", data=b"before"),
        Record(source_id="rows.jsonl:2", data=b"", problem=problem),
        Record(source_id="rows.jsonl:3", data=b"after"),
        Record(source_id="rows.jsonl:4", data=b"", problem=problem),
    ]


def test_a_file_that_is_one_record_is_refused_beyond_the_limit(tmp_path: Path, source: MakeSource):
    path = tmp_path / "text.txt"
    path.write_text("a" * 500)
    with pytest.raises(ValueError, match=r"text\.txt is larger than 100 bytes; refused"):
        _all(source(path), path, member_bytes=100)


def test_a_content_digest_follows_content_and_names_not_the_place(tmp_path: Path):
    for name in ("a", "b", "c"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "x.txt").write_text("text")
    (tmp_path / "c" / "sub" / "x.txt").rename(tmp_path / "c" / "sub" / "y.txt")
    assert content_digest(tmp_path / "a") == content_digest(tmp_path / "b")
    assert content_digest(tmp_path / "a") != content_digest(tmp_path / "c")
    (tmp_path / "b" / "sub" / "x.txt").write_text("texts")
    assert content_digest(tmp_path / "a") != content_digest(tmp_path / "b")


def test_a_name_that_is_not_utf_8_is_recorded_readably(tmp_path: Path, source: MakeSource):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "caf\udce9.txt").write_text("one")
    found = list(records(source(folder), folder))
    assert found == [Record(source_id="caf\\xe9.txt", data=b"one")]
