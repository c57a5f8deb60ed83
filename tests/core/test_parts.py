"""Parts of an artifact outlive the process that made them, and nothing else does."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shoal.core import artifact, files, parts
from shoal.core.parts import DONE, PARTIAL, Part, drop, part

NAMES = ("a", "b", "c", "d")


class Stage:
    """Writes one file per part; counts which parts are made, and fails before one of them."""

    def __init__(self, fail_at: str = "", error: BaseException | None = None) -> None:
        self.fail_at, self.error = fail_at, error or OSError("disk full")
        self.made: list[str] = []

    def __call__(self, folder: Path) -> Mapping[str, object]:
        facts: dict[str, object] = {}
        for name in NAMES:
            found = part(folder, name, lambda inside, name=name: self.write(inside, name))
            files.link(found.path / "text", folder / f"{name}.txt")
            facts[name] = found.facts
        return facts

    def write(self, inside: Path, name: str) -> Mapping[str, object]:
        (inside / "text").write_text(name * 10)
        if name == self.fail_at:
            raise self.error
        self.made.append(name)
        return {"pair": (1, name)}


def build(root: Path, make: Callable[[Path], Mapping[str, object]], **changes: object):
    ingredients = {"stage": "demo", "revision": 1, "literals": {}, "inputs": {}}
    return artifact.build(root, "demo", **{**ingredients, **changes}, make=make)  # type: ignore[arg-type]


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), ValueError("wrong")])
@pytest.mark.parametrize("fail_at", NAMES)
def test_a_rerun_makes_what_was_not_finished_and_ends_with_the_same_artifact(
    tmp_path, fail_at, error
):
    whole = build(tmp_path / "whole", Stage())
    root = tmp_path / "root"
    first, second = Stage(fail_at, error), Stage()
    with pytest.raises(type(error)):
        build(root, first)
    assert all(PARTIAL in name for name in left(root))
    again = build(root, second)
    done = NAMES.index(fail_at)
    assert (first.made, second.made) == (list(NAMES[:done]), list(NAMES[done:]))
    assert left(root) == [again.ref]
    for key in ("digest", "files", "facts"):
        assert again.manifest[key] == whole.manifest[key]
    assert left(again.path) == ["a.txt", "b.txt", "c.txt", "d.txt", "manifest.json"]


def test_a_stage_that_finishes_no_part_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path, Stage("a"))
    assert left(tmp_path) == []


def test_killed_it_goes_on_at_the_part_that_it_was_making(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from shoal.core import artifact; from shoal.core.parts import part\n"
        "def write(inside):\n"
        "    (inside / 'text').write_text(inside.name.split('.')[1] * 10)\n"
        "    if '.c.' in inside.name: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return {'pair': (1, inside.name.split('.')[1])}\n"
        "def make(folder):\n"
        "    for name in 'abcd': part(folder, name, write)\n"
        "artifact.build(Path(sys.argv[1]), 'demo', stage='demo', revision=1,\n"
        "    literals={}, inputs={}, make=make)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (kept,) = parts.unfinished(tmp_path)
    assert {path.name for path in kept.glob("[!_.]*")} == {"a", "b"}
    assert [path.name for path in kept.glob(".c.tmp-*/text")] == ["text"]
    before = {name: (kept / name / "text").stat().st_ino for name in "ab"}
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path, Stage("c"))
    assert {path.name for path in kept.iterdir()} == {"a", "b", parts.CODE}
    again = Stage()
    made = build(tmp_path, again)
    assert again.made == ["c", "d"]
    assert {name: (made.path / f"{name}.txt").stat().st_ino for name in "ab"} == before
    assert made.manifest["files"] == build(tmp_path / "whole", Stage()).manifest["files"]
    assert left(tmp_path) == sorted([made.ref, "whole"])


@pytest.mark.parametrize(
    "change", [{"revision": 2}, {"literals": {"more": 1}}, {"inputs": {"text": "ab"}}]
)
def test_another_digest_takes_no_part_and_clears_away_those_of_its_name(tmp_path, change):
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path, Stage("c"))
    other = Stage()
    made = build(tmp_path, other, **change)
    assert other.made == list(NAMES)
    assert left(tmp_path) == [made.ref]


def test_parts_of_another_name_and_of_a_living_process_stay(tmp_path):
    for name in ("demo", "demo2"):
        with pytest.raises(OSError, match="disk full"):
            artifact.build(
                tmp_path, name, stage="s", revision=1, literals={}, inputs={}, make=Stage("c")
            )
    other, mine = parts.unfinished(tmp_path)
    ref = mine.name[1 : -len(PARTIAL)]
    with files.file_lock(tmp_path / f".{ref}.lock"):
        build(tmp_path, Stage())
        assert parts.unfinished(tmp_path) == [other, mine]
    build(tmp_path, Stage(), revision=2)
    assert parts.unfinished(tmp_path) == [other]


def test_parts_that_other_code_made_are_thrown_away(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path, Stage("c"))
    monkeypatch.setattr(parts, "_code", lambda: "other")
    again = Stage()
    build(tmp_path, again)
    assert again.made == list(NAMES)


def test_every_source_file_that_makes_artifacts_counts_as_code(tmp_path, monkeypatch):
    root = tmp_path / "shoal"
    for name in ("core/parts.py", "data/deep/stage.py", "report/page.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("one")
    monkeypatch.setattr(parts, "__file__", str(root / "core" / "parts.py"))
    digests = [parts._code.__wrapped__()]
    (root / "report" / "page.py").write_text("two")
    assert parts._code.__wrapped__() == digests[0]
    (root / "data" / "deep" / "stage.py").write_text("two")
    digests.append(parts._code.__wrapped__())
    (root / "data" / "deep" / "stage.py").rename(root / "data" / "deep" / "moved.py")
    digests.append(parts._code.__wrapped__())
    assert len(set(digests)) == 3


@pytest.mark.parametrize("damage", ["change", "cut", "missing", "more", "no mark", "bad mark"])
def test_a_damaged_part_is_made_again(tmp_path, damage):
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path, Stage("c"))
    (kept,) = parts.unfinished(tmp_path)
    text, mark = kept / "b" / "text", kept / "b" / DONE
    match damage:
        case "change":
            text.write_text("x" * 10)
        case "cut":
            text.write_text("b")
        case "missing":
            text.unlink()
        case "more":
            (kept / "b" / "extra").write_text("")
        case "no mark":
            mark.unlink()
        case _:
            mark.write_text("[]")
    again = Stage()
    made = build(tmp_path, again)
    assert again.made == ["b", "c", "d"]
    assert (made.path / "b.txt").read_text() == "b" * 10


def test_a_process_killed_between_the_artifact_and_the_end_of_its_parts_leaves_them_for_the_next(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(parts, "finish", lambda _path: None)
    made = build(tmp_path, Stage())
    assert len(parts.unfinished(tmp_path)) == 1
    again = Stage()
    assert build(tmp_path, again).reused
    assert again.made == []
    assert left(tmp_path) == [made.ref]


def test_a_part_of_a_part_is_kept_until_it_is_dropped(tmp_path):
    calls: list[str] = []

    def outer(folder: Path, fail: bool) -> Mapping[str, object]:
        def inner(inside: Path, name: str) -> Mapping[str, object]:
            calls.append(name)
            (inside / "text").write_text(name)
            return {}

        def merge(inside: Path) -> Mapping[str, object]:
            runs.extend(part(folder, f"run+{n}", lambda p, n=n: inner(p, f"{n}")) for n in (0, 1))
            if fail:
                raise OSError("disk full")
            text = "".join((run.path / "text").read_text() for run in runs)
            (inside / "text").write_text(text)
            return {}

        runs: list[Part] = []
        found = part(folder, "run", merge)
        drop(folder, *runs)
        assert not list(found.path.parent.glob("run+*"))
        files.link(found.path / "text", folder / "text")
        return {}

    with pytest.raises(OSError, match="disk full"):
        build(tmp_path, lambda folder: outer(folder, True))
    made = build(tmp_path, lambda folder: outer(folder, False))
    assert calls == ["0", "1"]
    assert (made.path / "text").read_text() == "01"


def test_a_part_needs_a_name_and_the_folder_of_an_artifact(tmp_path):
    with pytest.raises(AssertionError, match="not the folder"):
        part(tmp_path, "a", lambda _: {})
    with pytest.raises(AssertionError, match="names no part"):
        build(tmp_path, lambda folder: part(folder, "_code", lambda _: {}).facts)


def test_where_there_are_no_links_a_file_is_copied(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    (tmp_path / "one").write_text("text")
    files.link(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").stat().st_ino == (tmp_path / "one").stat().st_ino
    with pytest.raises(FileExistsError):
        files.link(tmp_path / "one", tmp_path / "two")
    monkeypatch.setattr(os, "link", refuse)
    files.link(tmp_path / "one", tmp_path / "three")
    assert (tmp_path / "three").read_text() == "text"
    assert (tmp_path / "three").stat().st_ino != (tmp_path / "one").stat().st_ino
