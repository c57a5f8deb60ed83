"""Package files from the index that pip is configured for, pinned by name and SHA-256.

Files are found with `unearth` and read as data: nothing is built, imported or run, and pip itself
never sees them, because for a source distribution pip would run the package's build backend.
A finished file appears under its name by a rename; until then it is FILENAME.part, which the next
try goes on from.
"""

import ast
import importlib.util
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import cast

import httpx2
from unearth import Link, PackageFinder, TargetPython
from unearth.auth import MultiDomainBasicAuth
from unearth.errors import UnpackError, URLError
from unearth.fetchers import Fetcher, PyPIClient

from shoal.core.files import DiskFullError, file_lock, sha256_file, writing
from shoal.core.progress import Progress
from shoal.data.config import Archive

MAX_DOWNLOAD_BYTES = 512 * 2**20
TIMEOUT_S = 60.0
BLOCK_BYTES = 2**18


@dataclass(frozen=True, kw_only=True)
class Index:
    """Where packages are looked for, as pip would with the same settings."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    trusted_hosts: tuple[str, ...]
    cert: str
    proxy: str


def configured_index() -> Index:
    """Reads pip's own configuration (files and environment)."""
    values = _pip_settings()

    def several(name: str) -> tuple[str, ...]:
        return tuple(values.get(name, "").split())

    main = several("index-url") or tuple(
        source["url"] for source in PackageFinder().sources if source["type"] == "index"
    )
    if values.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        main, extra = (), ()
    else:
        extra = several("extra-index-url")
    return Index(
        index_urls=(*main, *extra),
        find_links=several("find-links"),
        trusted_hosts=several("trusted-host"),
        cert=values.get("cert", ""),
        proxy=values.get("proxy", ""),
    )


def _pip_settings() -> dict[str, str]:
    """Option -> value, later sections over earlier ones as pip reads them."""
    if importlib.util.find_spec("pip") is None:  # its variables may still be set
        return {
            name.removeprefix("PIP_").lower().replace("_", "-"): value
            for name, value in os.environ.items()
            if name.startswith("PIP_") and value
        }
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise ValueError(f"pip's configuration cannot be read ({reason}); correct it")
    sections: dict[str, dict[str, str]] = {"global": {}, "download": {}, ":env:": {}}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in sections:
            sections[section][option] = str(ast.literal_eval(value))
    return sections["global"] | sections["download"] | sections[":env:"]


def fetch(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The archive's file in `folder`, downloaded unless it is there with the right SHA-256.

    Raises:
        ValueError: it is not on the index, cannot be downloaded, or has another SHA-256.
    """
    return kept(archive, folder, progress, lambda path: _download(archive, path, progress))


def kept(
    archive: Archive, folder: Path, progress: Progress, download: Callable[[Path], None]
) -> Path:
    """The archive's file in `folder`: the one that is there if it is whole, else a new one.

    Args:
        download: puts the file with the pinned SHA-256 at a path, in place of what is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.filename
    with file_lock(folder / f".{archive.filename}.lock"):
        if path.exists():
            found = sha256_file(path)
            if found == archive.sha256:
                return path
            progress.note(f"{path} is damaged (sha256 {found}); downloading it again")
        download(path)
    return path


def _download(archive: Archive, path: Path, progress: Progress) -> None:
    index = configured_index()
    part = path.with_name(f"{path.name}.part")
    with _session(index) as session:
        link = _find(archive, index, session)
        while True:
            resumed = part.exists() and part.stat().st_size > 0
            _receive(archive, link, part, session, progress)
            found = sha256_file(part)
            if found == archive.sha256:
                part.replace(path)
                return
            part.unlink()
            if not resumed:
                raise ValueError(
                    f"{archive.filename}: expected sha256 {archive.sha256}, got {found}; the index "
                    "serves another file than the one that is pinned: check the index that pip is "
                    "configured for, or pin the new file if you trust it"
                )


def _session(index: Index) -> PyPIClient:
    verify: ssl.SSLContext | bool = True
    if index.cert and Path(index.cert).is_dir():
        verify = ssl.create_default_context(capath=index.cert)
    elif index.cert:
        verify = ssl.create_default_context(cafile=index.cert)
    session = PyPIClient(
        trusted_hosts=index.trusted_hosts,
        verify=verify,
        timeout=TIMEOUT_S,
        follow_redirects=True,
        proxy=index.proxy or None,
    )
    session.auth = MultiDomainBasicAuth(prompting=False, index_urls=list(index.index_urls))
    return session


def _find(archive: Archive, index: Index, session: PyPIClient) -> Link:
    if not index.index_urls and not index.find_links:
        raise ValueError(f"{archive.filename}: pip is configured with no index; set PIP_INDEX_URL")
    links = [link for link in index.find_links if "://" in link or Path(link).exists()]
    places: list[tuple[list[str], list[str]]] = [([], [link]) for link in links]
    places += [([url], []) for url in index.index_urls]
    versions: set[str] = set()
    failures: list[str] = []
    for index_urls, find_links in places:
        finder = PackageFinder(
            cast("Fetcher", session),
            index_urls=index_urls,
            find_links=find_links,
            trusted_hosts=index.trusted_hosts,
            target_python=TargetPython(),
            ignore_compatibility=True,
        )
        try:
            found = finder.find_all_packages(archive.package, allow_yanked=True)
            for package in found:
                if package.link.filename == archive.filename:
                    return package.link
                versions.add(package.version or "?")
        except (httpx2.HTTPError, URLError, OSError) as error:
            # Another index may have it; if none has, the message tells of this one too.
            failures.append(str(error) or type(error).__name__)
    reason = f"; not read: {'; '.join(failures)}" if failures else ""
    raise ValueError(
        f"{archive.filename}: not on the package index (versions of {archive.package} there: "
        f"{', '.join(sorted(versions)[-5:]) or 'none'}{reason}); check the network and pip's index "
        "settings (`pip config list`)"
    )


def _receive(
    archive: Archive, link: Link, part: Path, session: PyPIClient, progress: Progress
) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with session.get_stream(link.url_without_fragment, headers=headers) as response:
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # nothing is left to send; the hash decides
            response.raise_for_status()
            have = have if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
            size = have + int(response.headers.get("content-length", 0))
            if size > MAX_DOWNLOAD_BYTES:
                raise ValueError(_too_large(archive))
            with progress.task(f"download {archive.filename}", size or None, "bytes") as task:
                task.advance(have)
                with writing(part), part.open("ab" if have else "wb") as file:
                    for block in _limited(response.iter_bytes(BLOCK_BYTES), archive, have):
                        file.write(block)
                        task.advance(len(block))
                    file.flush()
                    os.fsync(file.fileno())
    except DiskFullError:
        raise
    except (httpx2.HTTPError, UnpackError, OSError) as error:
        raise ValueError(
            f"{archive.filename}: download failed ({error or type(error).__name__}); run the same "
            "command again to go on from where it stopped"
        ) from error


def _limited(blocks: Iterator[bytes], archive: Archive, have: int) -> Iterator[bytes]:
    for block in blocks:
        have += len(block)
        if have > MAX_DOWNLOAD_BYTES:
            raise ValueError(_too_large(archive))
        yield block


def _too_large(archive: Archive) -> str:
    return f"{archive.filename} is larger than {MAX_DOWNLOAD_BYTES} bytes; is it the right file?"
