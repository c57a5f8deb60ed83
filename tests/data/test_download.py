"""Pinned files from a package index: found, checked, resumed, refused."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from unearth import PackageFinder

from shoal.core.progress import Silent
from shoal.data import download
from shoal.data.config import Archive

NAME = "pack-1.tar.gz"
CONTENT = bytes(range(256)) * 4_000


def _archive(content: bytes = CONTENT, **changes: str) -> Archive:
    digest = hashlib.sha256(content).hexdigest()
    fields = {"form": "sdist", "package": "pack", "version": "1", "filename": NAME}
    return Archive(**{**fields, "sha256": digest, **changes})


@dataclass
class Index:
    """A package index on this machine; `ranges` are the byte ranges that were asked for."""

    url: str = ""
    content: bytes = CONTENT
    cut_at: int = 0
    ranges: list[str] = field(default_factory=list)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    state = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.endswith(NAME):
                found = self.path == "/simple/pack/"
                page = f'<a href="/files/{NAME}">{NAME}</a>'.encode() if found else b""
                self._send(200 if found else 404, page, "text/html")
                return
            asked = self.headers.get("Range", "")
            state.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
            if start >= len(state.content):
                self._send(416, b"", "application/gzip")
            else:
                self._send(206 if asked else 200, state.content[start:], "application/gzip")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut_at] if state.cut_at else body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    # pip takes half a second to say what its settings are; the tests of that are the last ones.
    monkeypatch.setattr(download, "_pip_settings", lambda: {"index-url": state.url})
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_pinned_file_is_downloaded_once(index: Index, tmp_path: Path):
    path = download.fetch(_archive(), tmp_path, Silent())
    assert path == tmp_path / NAME
    assert path.read_bytes() == CONTENT
    assert download.fetch(_archive(), tmp_path, Silent()) == path
    assert index.ranges == [""]
    assert [found.name for found in tmp_path.iterdir()] == [NAME]


def test_a_wrong_hash_is_refused_with_name_expected_and_got(index: Index, tmp_path: Path):
    index.content = CONTENT + b"!"
    got = hashlib.sha256(index.content).hexdigest()
    with pytest.raises(ValueError, match=f"{NAME}: expected sha256 .*, got {got}.*check the index"):
        download.fetch(_archive(), tmp_path, Silent())
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_downloaded_again_once_and_then_refused(index: Index, tmp_path: Path):
    (tmp_path / NAME).write_bytes(CONTENT[:-1])
    assert download.fetch(_archive(), tmp_path, Silent()).read_bytes() == CONTENT
    assert len(index.ranges) == 1
    (tmp_path / NAME).write_bytes(b"damaged")
    index.content = b"damaged too"
    with pytest.raises(ValueError, match="expected sha256"):
        download.fetch(_archive(), tmp_path, Silent())
    assert len(index.ranges) == 2


def test_an_interrupted_download_goes_on_from_where_it_stopped(index: Index, tmp_path: Path):
    index.cut_at = 300_000
    with pytest.raises(ValueError, match=r"download failed.*run the same command again"):
        download.fetch(_archive(), tmp_path, Silent())
    assert not (tmp_path / NAME).exists()
    kept = (tmp_path / f"{NAME}.part").stat().st_size
    assert 0 < kept <= 300_000
    index.cut_at = 0
    assert download.fetch(_archive(), tmp_path, Silent()).read_bytes() == CONTENT
    assert index.ranges == ["", f"bytes={kept}-"]


def test_a_part_of_another_file_is_thrown_away_not_believed(index: Index, tmp_path: Path):
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * 1_000)
    assert download.fetch(_archive(), tmp_path, Silent()).read_bytes() == CONTENT
    assert index.ranges == ["bytes=1000-", ""]


def test_a_part_that_is_whole_already_needs_no_more_bytes(index: Index, tmp_path: Path):
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert download.fetch(_archive(), tmp_path, Silent()).read_bytes() == CONTENT
    assert index.ranges == [f"bytes={len(CONTENT)}-"]


def test_a_file_above_the_size_limit_is_refused(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(download, "MAX_DOWNLOAD_BYTES", 1_000)
    with pytest.raises(ValueError, match=f"{NAME} is larger than 1000 bytes"):
        download.fetch(_archive(), tmp_path, Silent())
    assert index.ranges == [""]


@pytest.mark.parametrize("change", [{"package": "other"}, {"filename": "pack-2.tar.gz"}])
def test_a_file_that_no_index_has_is_named(index: Index, tmp_path: Path, change: dict[str, str]):
    archive = _archive(**change)
    with pytest.raises(ValueError, match=f"{archive.filename}: not on the package index.*pip conf"):
        download.fetch(archive, tmp_path, Silent())
    assert index.ranges == []


def test_an_index_out_of_reach_does_not_hide_the_one_that_has_the_file(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = {"index-url": "http://127.0.0.1:9/simple"}
    monkeypatch.setattr(download, "_pip_settings", lambda: settings)
    with pytest.raises(ValueError, match=r"not read: .*refused"):
        download.fetch(_archive(), tmp_path, Silent())
    settings["extra-index-url"] = index.url
    assert download.fetch(_archive(), tmp_path, Silent()).read_bytes() == CONTENT


def test_find_links_without_an_index_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / NAME).write_bytes(CONTENT)
    settings = {"no-index": "1", "find-links": str(shelf)}
    monkeypatch.setattr(download, "_pip_settings", lambda: settings)
    path = download.fetch(_archive(), tmp_path / "downloads", Silent())
    assert path.read_bytes() == CONTENT
    del settings["find-links"]
    path.unlink()
    with pytest.raises(ValueError, match="pip is configured with no index; set PIP_INDEX_URL"):
        download.fetch(_archive(), tmp_path / "downloads", Silent())


def test_the_index_is_the_one_that_pip_would_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = http://localhost:1/a\nextra-index-url =\n    http://localhost:1/b\n"
        "    http://localhost:1/c\ntrusted-host = localhost\n[download]\nproxy = http://localhost:2\n"
    )
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "CERT", "PROXY", "TRUSTED_HOST"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = download.configured_index()
    assert found.index_urls == tuple(f"http://localhost:1/{name}" for name in "abc")
    assert found.trusted_hosts == ("localhost",)
    assert found.proxy == "http://localhost:2"
    monkeypatch.setenv("PIP_INDEX_URL", "http://localhost:1/d")
    assert download.configured_index().index_urls[0] == "http://localhost:1/d"


def test_without_settings_the_index_is_the_usual_one(monkeypatch: pytest.MonkeyPatch):
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    usual = tuple(entry["url"] for entry in PackageFinder().sources)
    assert download.configured_index().index_urls == usual


def test_an_environment_without_pip_still_has_its_variables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PIP_INDEX_URL", "http://localhost:1/e")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    assert download.configured_index().index_urls == ("http://localhost:1/e",)


def test_settings_that_pip_cannot_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "pip.conf"
    broken.write_text("no section = here\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(broken))
    with pytest.raises(ValueError, match=r"pip's configuration cannot be read.*pip.conf"):
        download.configured_index()
