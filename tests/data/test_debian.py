"""Debian packages: what apt offers is pinned by hash; apt itself is replaced by scripts."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.progress import Silent
from shoal.data.config import Archive, CorpusConfig, Reader, Source
from shoal.data.debian import as_found, fetch_deb, found_now

CONTENT = b"a package"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Notes(Silent):
    """Keeps the lines that stay."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts scripts in apt's place; they have one package in one version."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(version: str = "1:2.0-1", content: bytes = CONTENT) -> Path:
        log = tmp_path / "apt.log"
        digest = hashlib.sha256(content).hexdigest()
        name = f"pack_{version.rpartition(':')[2]}_all.deb"
        scripts = {
            "apt-get": f'echo "$@" >> {log}\n[ "$2" = pack={version} ] || '
            f'{{ echo "E: Version for {"pack"} was not found" >&2; exit 100; }}\n'
            f"printf '{content.decode()}' > 'pack_{version.replace(':', '%3a')}_all.deb'\n",
            "apt-cache": '[ "$3" = pack ] || { echo "E: No packages found" >&2; exit 100; }\n'
            f"printf 'Package: pack\\nVersion: {version}\\nFilename: pool/p/{name}\\n"
            f"SHA256: {digest}\\n'\n",
        }
        for command, body in scripts.items():
            (folder / command).write_text(f"#!/bin/sh\n{body}".replace("%3a", "%%3a", 0))
            (folder / command).chmod(0o755)
        return log

    return install


def _pin(**changes: str) -> Archive:
    fields = {
        "form": "deb",
        "package": "pack",
        "version": "1:2.0-1",
        "filename": "pack_2.0-1_all.deb",
        "sha256": DIGEST,
    }
    return Archive(**{**fields, **changes})


def test_a_pinned_package_is_downloaded_once(tmp_path: Path, apt: Callable[..., Path]):
    log = apt()
    path = fetch_deb(_pin(), tmp_path / "d", Silent())
    assert path.read_bytes() == CONTENT
    assert fetch_deb(_pin(), tmp_path / "d", Silent()) == path
    assert log.read_text() == "download pack=1:2.0-1\n"
    assert [found.name for found in (tmp_path / "d").iterdir()] == ["pack_2.0-1_all.deb"]


def test_a_damaged_package_is_downloaded_again(tmp_path: Path, apt: Callable[..., Path]):
    apt()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "pack_2.0-1_all.deb").write_bytes(b"damaged")
    assert fetch_deb(_pin(), tmp_path / "d", Silent()).read_bytes() == CONTENT


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, apt: Callable[..., Path]):
    apt(content=b"changed")
    with pytest.raises(ValueError, match=f"pack_2.0-1_all.deb: expected sha256 {DIGEST}, got"):
        fetch_deb(_pin(), tmp_path / "d", Silent())
    assert not (tmp_path / "d" / "pack_2.0-1_all.deb").exists()


def test_a_version_that_the_mirror_dropped_is_named_with_the_way_out(
    tmp_path: Path, apt: Callable[..., Path]
):
    apt(version="1:2.1-1")
    with pytest.raises(ValueError, match=r"pack 1:2.0-1: .*was not found.*debian\.as_found"):
        fetch_deb(_pin(), tmp_path / "d", Silent())


def test_a_machine_without_apt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="there is no apt-get on this machine"):
        fetch_deb(_pin(), tmp_path / "d", Silent())


def test_pins_are_completed_with_what_apt_has_now(apt: Callable[..., Path]):
    apt(version="1:2.1-1", content=b"newer")
    source = Source(
        name="one",
        kind="reference",
        archive=_pin(),
        reader=Reader(members=("*",)),
        origin="a test",
        license="GPL-2.0-only",
        license_evidence="written here",
    )
    notes = Notes()
    found = as_found(CorpusConfig(name="debs", sources=(source,)), notes)
    expected = found_now("pack")
    assert found.sources[0].archive == expected
    assert (expected.version, expected.filename) == ("1:2.1-1", "pack_2.1-1_all.deb")
    assert expected.sha256 == hashlib.sha256(b"newer").hexdigest()
    assert notes.lines == [f"pack: 1:2.0-1 is pinned, apt has 1:2.1-1 ({expected.sha256[:12]})"]
    assert as_found(found, notes) == found
    assert len(notes.lines) == 1


def test_a_package_that_apt_does_not_know_is_named(apt: Callable[..., Path]):
    apt()
    with pytest.raises(ValueError, match=r"other now: apt-cache failed \(E: No packages found"):
        found_now("other")
