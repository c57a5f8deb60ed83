import errno
import hashlib
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import files

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_home_is_created_where_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "a" / "b"))
    assert files.home() == tmp_path / "a" / "b"
    assert files.home().is_dir()
    assert names(files.home()) == []


def test_home_is_shoal_home_in_the_current_folder_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("SHOAL_HOME")
    monkeypatch.chdir(tmp_path)
    assert files.home() == tmp_path / "shoal-home"


def test_home_that_is_a_file_is_refused_and_kept(tmp_path, monkeypatch):
    path = tmp_path / "home"
    path.write_text("mine")
    monkeypatch.setenv("SHOAL_HOME", str(path))
    with pytest.raises(
        ValueError, match=r"SHOAL_HOME=.*home is a file; set SHOAL_HOME to a folder"
    ):
        files.home()
    assert path.read_text() == "mine"


def test_home_below_a_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ValueError, match=r"cannot be written \(Not a directory\); set SHOAL_HOME"):
        files.home()


def test_home_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    # Permission bits do not bind root, so the refusal is played.
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ValueError, match=r"cannot be written \(Permission denied\)"):
        files.home()


def test_write_atomic_replaces_text_and_bytes_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "deeper" / "file"
    files.write_atomic(path, "é")
    assert path.read_bytes() == b"\xc3\xa9"
    files.write_atomic(path, b"\x00new")
    assert path.read_bytes() == b"\x00new"
    assert names(path.parent) == ["file"]


def test_write_atomic_that_fails_keeps_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomic(path, "old")

    def fail(_descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_folder_atomic_appears_whole_at_the_end(tmp_path):
    path = tmp_path / "deeper" / "folder"
    with files.folder_atomic(path) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("x")
        assert not path.exists()
    assert (path / "sub" / "file").read_text() == "x"
    assert names(path.parent) == ["folder"]


def test_folder_atomic_leaves_nothing_after_a_failure(tmp_path):
    def fail() -> None:
        with files.folder_atomic(tmp_path / "folder") as folder:
            (folder / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == []


def test_folder_atomic_refuses_to_replace_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(ValueError, match="folder exists already; remove it"),
        files.folder_atomic(tmp_path / "folder"),
    ):
        pass


def _fill() -> None:
    """Fails as a full disk does; the device is always full."""
    with Path("/dev/full").open("wb") as file:
        file.write(b"x")


def _fill_by_numpy() -> None:
    with Path("/dev/full").open("wb") as file:
        np.zeros(1 << 20).tofile(file)


@pytest.mark.parametrize("fill", [_fill, _fill_by_numpy])
def test_a_full_disk_is_told_with_what_was_written_what_is_free_and_what_to_do(
    tmp_path, monkeypatch, fill
):
    usage = type("usage", (), {"free": 1_234_567})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(files.DiskFullError) as caught, files.folder_atomic(tmp_path / "new" / "a"):
        fill()
    assert str(caught.value) == (
        f"No space left on device: {tmp_path / 'new' / 'a'} could not be written, 1.2 MB are free "
        "there; make room, or set SHOAL_HOME to a larger disk, and run the same command again"
    )
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, ValueError)
    assert names(tmp_path / "new") == []


def test_a_full_disk_is_told_once_by_the_innermost_writer(tmp_path, monkeypatch):
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(full))
    with (
        pytest.raises(files.DiskFullError, match=r"quota.*: .*inner\.json could not be written"),
        files.folder_atomic(tmp_path / "outer") as folder,
    ):
        files.write_atomic(folder / "inner.json", "{}")
    assert names(tmp_path) == []


def test_other_faults_of_the_system_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), files.folder_atomic(tmp_path / "a"):
        (tmp_path / "nothing").read_bytes()


def test_leftovers_of_one_path_are_removed_and_no_others(tmp_path):
    for name in (".run.tmp-1-aa", ".run2.tmp-1-aa", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / ".run.tmp-2-bb").write_text("")
    files.remove_leftovers(tmp_path / "run")
    assert names(tmp_path) == [".run2.tmp-1-aa", "run"]


def test_read_limited_reads_up_to_the_limit_and_refuses_more(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_limited(path, 5) == b"12345"
    with pytest.raises(ValueError, match=r"file is larger than 4 bytes"):
        files.read_limited(path, 4)


def test_read_limited_names_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*absent: No such file or directory"):
        files.read_limited(tmp_path / "absent", 4)


def test_sha256_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert files.sha256_file(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_a_held_lock_is_refused_with_the_holders_process_id(tmp_path):
    with files.folder_lock(tmp_path / "run"):
        message = f"is locked by process {os.getpid()}; wait for it"
        with pytest.raises(ValueError, match=message), files.folder_lock(tmp_path / "run"):
            pass
    with files.folder_lock(tmp_path / "run"):
        pass
    assert names(tmp_path / "run") == []


def test_a_killed_process_frees_its_lock(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from shoal.core import files\n"
        "with files.folder_lock(Path(sys.argv[1])):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        message = f"locked by process {holder.pid}"
        with pytest.raises(ValueError, match=message), files.folder_lock(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with files.folder_lock(tmp_path):
        pass


def test_a_lock_whose_file_vanished_meanwhile_is_taken_on_the_new_file(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    opened = os.open
    calls = []

    def open_then_lose(*args: object) -> int:
        descriptor = opened(*args)  # type: ignore[arg-type]
        calls.append(descriptor)
        if len(calls) == 1:
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_then_lose)
    with files.file_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert len(calls) == 2


def test_canonical_json_has_one_literal_form():
    value = {"b": [1, 1.0, 0.1, 1e300, True, None], "a": {"é": (2, "x y")}}
    assert files.canonical_json(value) == (
        '{"a":{"\\u00e9":[2,"x y"]},"b":[1,1.0,0.1,1e+300,true,null]}'
    )


@given(JSON)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value):
    def backwards(obj: object) -> object:
        if isinstance(obj, dict):
            return {key: backwards(obj[key]) for key in reversed(obj)}
        return [backwards(item) for item in obj] if isinstance(obj, list) else obj

    assert files.canonical_json(value) == files.canonical_json(backwards(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}])
def test_canonical_json_refuses_what_is_not_finite(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.canonical_json(value)


def test_canonical_json_refuses_keys_that_json_would_merge():
    with pytest.raises(TypeError, match="key 1 is not a string"):
        files.canonical_json([{"a": {1: "x", "1": "y"}}])


def test_written_files_have_ordinary_permissions(tmp_path):
    files.write_atomic(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"}
    assert len(modes) == 1
