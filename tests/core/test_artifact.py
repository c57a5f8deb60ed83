import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shoal.core import artifact, files

GOLDEN_DIGEST = "698057b1ad0343d960831e8bd24e1ee32992aa1a076b868c4f47e0b5795b7a2f"
LITERALS = {"vocab_size": 4096, "rate": 0.1, "kinds": ["web", "code"]}
INPUTS = {"documents": "ab" * 32}


def make(folder: Path) -> Mapping[str, object]:
    (folder / "cells").mkdir()
    (folder / "cells" / "web.bin").write_bytes(b"12345678")
    (folder / "notes.txt").write_text("two")
    return {"documents": 2, "shape": (1, 2)}


def never(_folder: Path) -> Mapping[str, object]:
    raise AssertionError("made again")


def build(
    root: Path,
    make: Callable[[Path], Mapping[str, object]] = make,
    **changes: object,
) -> artifact.Artifact:
    ingredients = {"stage": "tokens", "revision": 1, "literals": LITERALS, "inputs": INPUTS}
    return artifact.build(root, "demo", **{**ingredients, **changes}, make=make)  # type: ignore[arg-type]


def test_digest_is_golden(tmp_path):
    made = build(tmp_path)
    hashed = (
        '{"inputs":{"documents":"' + "ab" * 32 + '"},'
        '"literals":{"kinds":["web","code"],"rate":0.1,"vocab_size":4096},'
        '"revision":1,"stage":"tokens"}'
    )
    assert made.digest == hashlib.sha256(hashed.encode()).hexdigest()
    assert made.digest == GOLDEN_DIGEST
    assert made.ref == f"demo@{GOLDEN_DIGEST[:12]}"
    assert made.path == tmp_path / made.ref


def test_it_is_made_once_and_found_again(tmp_path):
    first = build(tmp_path)
    second = build(tmp_path, never)
    assert (first.reused, second.reused) == (False, True)
    assert second.manifest == first.manifest
    assert first.facts == {"documents": 2, "shape": [1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == [first.ref]


def test_the_manifest_lists_every_file_with_size_and_hash(tmp_path):
    made = build(tmp_path)
    assert made.manifest["files"] == {
        "cells/web.bin": {
            "bytes": 8,
            "sha256": "ef797c8118f02dfb649607dd5d3f8c7623048c9c063d532cc95c5ed7a898a64f",
        },
        "notes.txt": {
            "bytes": 3,
            "sha256": "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3",
        },
    }
    assert set(made.manifest) == {
        "name", "digest", "stage", "revision", "literals", "inputs", "files", "facts", "provenance",
    }  # fmt: skip
    assert set(made.manifest["provenance"]) == {"created", "seconds", "host", "commit", "python"}


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "other"},
        {"revision": 2},
        {"literals": {**LITERALS, "vocab_size": 4097}},
        {"literals": {**LITERALS, "rate": 0.1000001}},
        {"literals": {**LITERALS, "extra": None}},
        {"inputs": {"documents": "ac" * 32}},
        {"inputs": {**INPUTS, "more": "00" * 32}},
    ],
)
def test_every_ingredient_changes_the_digest(tmp_path, change):
    assert build(tmp_path, **change).digest != build(tmp_path).digest


def test_name_and_order_of_keys_do_not_change_the_digest(tmp_path):
    backwards = {key: LITERALS[key] for key in reversed(LITERALS)}
    other = artifact.build(
        tmp_path, "other", stage="tokens", revision=1, literals=backwards, inputs=INPUTS, make=make
    )
    assert other.digest == build(tmp_path).digest


@pytest.mark.parametrize("name", ["", "a@b", "../up", "a/b", ".hidden"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="artifact name"):
        artifact.build(tmp_path, name, stage="s", revision=1, literals={}, inputs={}, make=make)


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    def fail(folder: Path) -> Mapping[str, object]:
        make(folder)
        raise ValueError("source web is empty")

    with pytest.raises(ValueError, match="source web is empty"):
        build(tmp_path, fail)
    assert list(tmp_path.iterdir()) == []
    assert not build(tmp_path).reused


def test_a_killed_build_leaves_no_artifact_and_the_next_one_cleans_up(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from shoal.core import artifact\n"
        "def die(folder):\n"
        "    (folder / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
        f"artifact.build(Path(sys.argv[1]), 'demo', stage='tokens', revision=1,\n"
        f"    literals={LITERALS!r}, inputs={INPUTS!r}, make=die)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir()]
    assert all(name.startswith(".") for name in left)
    assert any(files.TEMPORARY in name for name in left)
    made = build(tmp_path)
    assert not made.reused
    assert [path.name for path in tmp_path.iterdir()] == [made.ref]


def test_a_second_process_at_the_same_artifact_is_told_who_makes_it(tmp_path):
    started, release = threading.Event(), threading.Event()

    def slow(folder: Path) -> Mapping[str, object]:
        started.set()
        assert release.wait(20)
        return make(folder)

    thread = threading.Thread(target=build, args=(tmp_path, slow))
    thread.start()
    assert started.wait(20)
    try:
        with pytest.raises(ValueError, match=f"is locked by process {os.getpid()}"):
            build(tmp_path, never)
    finally:
        release.set()
        thread.join()
    assert build(tmp_path, never).reused


def test_a_missing_file_is_named_with_what_to_delete(tmp_path):
    made = build(tmp_path)
    (made.path / "cells" / "web.bin").unlink()
    with pytest.raises(ValueError, match=rf"cells/web.bin is missing; delete {made.path}"):
        build(tmp_path, never)


def test_a_short_file_is_named_with_what_to_delete(tmp_path):
    made = build(tmp_path)
    (made.path / "notes.txt").write_text("tw")
    with pytest.raises(ValueError, match=rf"notes.txt has 2 bytes, not 3; delete {made.path}"):
        artifact.load(made.path)


def test_verify_finds_a_change_that_keeps_the_size(tmp_path):
    made = build(tmp_path)
    artifact.verify(made)
    (made.path / "notes.txt").write_text("TWO")
    artifact.load(made.path)
    with pytest.raises(ValueError, match=r"notes.txt has another SHA-256"):
        artifact.verify(made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a manifest"),
        ("[]", "is not a manifest"),
        ('{"stage": "tokens"}', "is not a manifest"),
        (None, "does not match its own digest"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, text, message):
    made = build(tmp_path)
    path = made.path / artifact.MANIFEST
    path.write_text(text or json.dumps({**made.manifest, "revision": 2}))
    with pytest.raises(ValueError, match=f"manifest.json {message}"):
        build(tmp_path, never)


def test_a_folder_without_manifest_is_no_artifact(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*manifest.json"):
        artifact.load(tmp_path)


def test_another_artifact_under_this_ones_name_is_refused(tmp_path):
    mine, other = build(tmp_path), build(tmp_path, revision=2)
    path = mine.path / artifact.MANIFEST
    path.write_bytes((other.path / artifact.MANIFEST).read_bytes())
    with pytest.raises(ValueError, match=f"has digest {other.digest}, not {mine.digest}"):
        build(tmp_path, never)


def test_the_commit_is_empty_where_git_knows_nothing_of_this_file(monkeypatch):
    artifact.source_commit.cache_clear()
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert artifact.source_commit() == ""
    artifact.source_commit.cache_clear()


def test_the_commit_is_empty_without_git(monkeypatch):
    artifact.source_commit.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert artifact.source_commit() == ""
    artifact.source_commit.cache_clear()
